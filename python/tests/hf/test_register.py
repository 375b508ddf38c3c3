"""register(): once, after a look at what is there, and not at all if a tiny model comes out otherwise."""
import sys

import pytest
import torch
import transformers as t
from transformers import masking_utils

import attend.hf
from attend.hf import interface, registration
from attend.torch.unheard import calls_unless

FUNCTIONS = t.AttentionInterface._global_mapping
MASKS = t.AttentionMaskInterface._global_mapping


def test_a_second_call_does_nothing(monkeypatch):
    monkeypatch.setattr(registration, "_try_it", lambda: pytest.fail("tried again"))
    before = FUNCTIONS["attend"], MASKS["attend"]
    attend.hf.register()
    assert (FUNCTIONS["attend"], MASKS["attend"]) == before == (interface.attend_attention, attend.hf.masks.attend_mask)


def test_random_numbers_are_left_alone(monkeypatch):
    monkeypatch.delitem(FUNCTIONS, "attend")
    torch.manual_seed(3)
    wanted = torch.rand(2)
    torch.manual_seed(3)
    attend.hf.register()
    assert torch.equal(torch.rand(2), wanted)


def test_wrong_numbers_are_noticed(monkeypatch):
    monkeypatch.delitem(FUNCTIONS, "attend")
    monkeypatch.setattr(interface, "_calls", calls_unless(True))  # by call(), which is:
    monkeypatch.setattr(interface, "call", lambda module, q, k, v, **options: (q, None))
    with pytest.raises(RuntimeError, match="a tiny Llama gives other numbers"):
        attend.hf.register()
    assert "attend" not in FUNCTIONS and "attend" not in MASKS
    monkeypatch.undo()
    attend.hf.register()


def test_without_transformers(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match="needs the package transformers, which is not installed here: pip install"):
        attend.hf.register()


def test_an_older_interface(monkeypatch):
    def older(batch_size, cache_position, kv_length, kv_offset=0, mask_function=None, attention_mask=None):
        pass

    monkeypatch.setattr(masking_utils, "sdpa_mask", older)
    with pytest.raises(ImportError, match=rf"cannot use transformers {t.__version__}.*do not take q_length, q_offset"):
        attend.hf.register()
    monkeypatch.undo()
    monkeypatch.delattr(t.AttentionInterface, "get_interface")
    with pytest.raises(ImportError, match="get_interface.*tested with"):
        attend.hf.register()

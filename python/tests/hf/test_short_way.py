"""Calls of a model that nobody listens to go the short way, with the same bits; whatever else is asked for goes the long one."""
import pytest
import torch
from tiny import inputs, tiny
from torch import nn

import attend.hf
from attend.hf import interface
from attend.hf.masks import attend_mask
from attend.torch.unheard import calls_unless


@pytest.fixture
def taken(monkeypatch):
    """For each call whether it went the short way; what it gave is left out if it did not."""
    found, calls = [], interface._calls

    class Listening:
        def of_model(self, *arguments):
            result = calls.of_model(*arguments)
            found.append(result is not None)
            return result

    monkeypatch.setattr(interface, "_calls", Listening())
    return found


def on_attend(name, **changes):
    model = tiny(name, **changes)
    model.set_attn_implementation("attend")
    return model


@pytest.mark.parametrize("pad", ["none", "left", "right"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "mistral"])
def test_the_bits_are_the_same(name, pad, taken, monkeypatch):
    model, given = on_attend(name), inputs(name, pad)
    with torch.no_grad():
        short = model(**given).logits
        assert taken == [True] * 2
        monkeypatch.setattr(interface, "_calls", calls_unless(True))
        assert torch.equal(model(**given).logits, short)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generation(cache, taken, monkeypatch):
    model, ids = on_attend("mistral"), torch.randint(2, 36, (2, 9))
    asked = dict(max_new_tokens=6, do_sample=False, cache_implementation=cache, eos_token_id=None)
    short = model.generate(ids, **asked)
    assert len(taken) == 12 and all(taken)
    monkeypatch.setattr(interface, "_calls", calls_unless(True))
    assert torch.equal(model.generate(ids, **asked), short)


def test_what_is_asked_for_beside_goes_the_long_way(taken):
    model, given = on_attend("llama"), inputs("llama", "left")
    model(**given).loss.backward()
    assert all(p.grad is not None for p in model.parameters())
    model.train().config.attention_dropout = 0.5
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    with torch.no_grad():
        model(**given)  # drops
        model.eval()
        assert len(model(**given, output_attentions=True).attentions) == 2
        with attend.hf.capture(model, heads=1) as run:
            model(**given)
        assert len(run.layers) == 2
        with attend.hf.edit(model, {(0, 1): attend.zero}):
            edited = model(**given).logits
        with torch.autocast("cpu", torch.bfloat16):
            model(**given)
    assert not any(taken)
    with torch.no_grad():
        assert not torch.equal(model(**given).logits, edited)
        assert taken[-2:] == [True] * 2
        assert len(model(**given, output_hidden_states=True).hidden_states) == 3


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "mistral"])
def test_a_pass_that_records_its_weights_has_them(name, taken):
    """Also of models that do not tell their attentions."""
    with torch.no_grad():
        found = on_attend(name)(**inputs(name), output_attentions=True).attentions
    assert len(found) == 2 and all(torch.allclose(x.sum(-1), torch.ones(())) for x in found) and taken == [False] * 2


def test_a_mask_that_was_looked_at_counts(taken):
    q = torch.randn(1, 4, 5, 8)
    mask = attend_mask(1, 5, 5)
    first, _ = interface.attend_attention(nn.Module(), q, q, q, mask, scaling=0.3)
    mask[:, :, :, 0] = torch.finfo(torch.float32).min
    second, _ = interface.attend_attention(nn.Module(), q, q, q, mask, scaling=0.3)
    assert taken == [True, False] and not torch.equal(first, second)
    seen = torch.ones(5, 5, dtype=torch.bool).tril()
    seen[:, 0] = False
    wanted = attend.attention(q, q, q, mask=seen, scale=0.3).transpose(1, 2)
    assert torch.allclose(second[:, 1:], wanted[:, 1:], atol=1e-6)


def test_arguments_count_on_the_short_way_too(taken):
    q = torch.randn(1, 4, 5, 8)
    mask = attend_mask(1, 5, 5)
    for more, short in (({}, True), ({"output_attentions": False, "use_cache": True, "something": None}, True),
                        ({"output_attentions": True}, False), ({"softcap": 2.0}, None), ({"position_bias": q[:, :, :, :5]}, None)):
        taken.clear()
        out, weights = interface.attend_attention(nn.Module(), q, q, q, mask, scaling=0.3, **more)
        assert taken == ([] if short is None else [short]) and (weights is None) != bool(more.get("output_attentions"))
        assert out.shape == (1, 5, 4, 8) and out.is_contiguous()
    with pytest.raises(NotImplementedError, match="the argument something is not known"):
        interface.attend_attention(nn.Module(), q, q, q, mask, scaling=0.3, something=1)
    taken.clear()
    interface.attend_attention(nn.Module(), q, torch.randn(1, 4, 7, 8), torch.randn(1, 4, 7, 8), None, scaling=0.3)
    with pytest.raises(ValueError, match="is not one of 5 queries and 7 keys"):
        interface.attend_attention(nn.Module(), q, torch.randn(1, 4, 7, 8), torch.randn(1, 4, 7, 8), mask, scaling=0.3)
    assert taken == [False]

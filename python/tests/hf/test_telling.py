"""A model that asks for attend and computes attention by itself is named in a warning, whoever makes its masks."""
import copy
import re
import warnings

import pytest
import torch
import transformers as t
from test_what_stays import BY_THEMSELVES
from tiny import twins
from torch import nn

import attend.hf
import attend.hf.telling

MODULES = {  # what the warning says of each
    "mpt": r"blocks.\*.attn \(2 of them\)  MptAttention: its code computes the attention by itself",
    "longformer": r"encoder.layer.\*.attention.self \(2 of them\)  LongformerSelfAttention: its code computes the attention by itself",
    "deberta": r"encoder.layer.\*.attention.self \(2 of them\)  DisentangledSelfAttention: its code computes",
    "deberta_v2": r"encoder.layer.\*.attention.self \(2 of them\)  DisentangledSelfAttention: its code computes",
    "openai": r"h.\*.attn \(2 of them\)  Attention: its code computes",
    "xlm": r"attentions.\* \(2 of them\)  MultiHeadAttention: its code computes",
    "funnel": r"encoder.blocks.*  FunnelRelMultiheadAttention: its code computes",
    "reformer": r"LSHSelfAttention: no softmax attention is found in its code",
    "siglip": r"head.attention  MultiheadAttention: it is PyTorch's own layer, which attend.torch.replace\(model\)",
}
CONFIGS = {
    **BY_THEMSELVES,
    "reformer": lambda: t.ReformerConfig(vocab_size=37, hidden_size=32, num_attention_heads=4, attn_layers=["lsh", "lsh"], is_decoder=False,
                                         axial_pos_embds=False, feed_forward_size=24, max_position_embeddings=64),
    "siglip": lambda: t.SiglipVisionConfig(hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, image_size=8, patch_size=4),
}


@pytest.fixture(autouse=True)
def untold(monkeypatch):
    monkeypatch.setattr(attend.hf.telling, "_told", set())


def told(work):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        work()
    return [x for x in found if str(x.message).startswith("attend.hf: ")]


@pytest.mark.parametrize("name", CONFIGS)
def test_where_a_model_is_made(name):
    def made():
        for _ in range(2):
            t.AutoModel.from_config(CONFIGS[name](), attn_implementation="attend")

    (warning,) = told(made)
    assert warning.filename == __file__
    assert re.search(MODULES[name], str(warning.message)), warning.message


@pytest.mark.parametrize("name", ["mpt", "deberta", "siglip"])
def test_where_a_model_is_loaded(name, tmp_path):
    t.AutoModel.from_config(CONFIGS[name]()).save_pretrained(tmp_path)
    (warning,) = told(lambda: t.AutoModel.from_pretrained(tmp_path, attn_implementation="attend"))
    assert re.search(MODULES[name], str(warning.message)), warning.message


@pytest.mark.parametrize("name", CONFIGS)
def test_where_a_model_that_is_there_is_set_to_attend(name):
    """Transformers itself refuses some, in its log, and leaves them as they are."""
    model = t.AutoModel.from_config(CONFIGS[name](), attn_implementation="eager")
    (warning,) = told(lambda: model.set_attn_implementation("attend"))
    assert f"attend.hf: {type(model).__name__} asks for attend, but these of its attentions do not come to it" in str(warning.message)


def test_where_a_config_is_changed_by_hand():
    model = t.AutoModel.from_config(CONFIGS["mpt"](), attn_implementation="eager").eval()
    model.config._attn_implementation = "attend"
    with torch.no_grad():
        (warning,) = told(lambda: [model(torch.full((1, 8), 5)) for _ in range(2)])
    assert "MptModel asks for attend" in str(warning.message)


def test_a_model_with_a_model_inside_is_told_of_once_by_its_own_names():
    (warning,) = told(lambda: t.AutoModelForCausalLM.from_config(CONFIGS["openai"](), attn_implementation="attend"))
    assert "OpenAIGPTLMHeadModel asks" in str(warning.message) and "transformer.h.*.attn" in str(warning.message)


def test_a_model_inside_of_a_module_of_ones_own():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.text = t.AutoModel.from_config(CONFIGS["deberta"](), attn_implementation="attend")

    (warning,) = told(Own)
    assert "DebertaModel asks" in str(warning.message)


def test_nothing_is_told_of_what_comes_or_asks_for_another():
    def work():
        models = [t.AutoModel.from_config(CONFIGS["mpt"](), attn_implementation="eager"), *twins("llama"), *twins("bert"), *twins("t5")]
        models[0].set_attn_implementation("sdpa")
        for model in models[:3]:
            with torch.no_grad():
                copy.deepcopy(model)(torch.full((1, 8), 5))

    assert not told(work)


def test_who_is_refused_is_not_warned_as_well():
    model = t.AutoModel.from_config(CONFIGS["siglip"]())

    def view():
        with pytest.raises(NotImplementedError, match="head.attention: it is PyTorch's own layer"):
            attend.hf.view(model, None, {"pixel_values": torch.randn(1, 3, 8, 8)})

    assert not told(view)


def test_register_listens_once(monkeypatch):
    before = t.PreTrainedModel.post_init, t.PreTrainedModel.set_attn_implementation
    monkeypatch.delitem(t.AttentionInterface._global_mapping, "attend")
    attend.hf.register()
    assert (t.PreTrainedModel.post_init, t.PreTrainedModel.set_attn_implementation) == before

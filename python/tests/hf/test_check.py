"""check(model) says which attentions will come to attend, and is right: a run shows the same."""
import pytest
import torch
import transformers as t
from tiny import CLASSES, inputs, tiny
from torch import nn

import attend.hf
from attend.torch.code import Uses, uses_of

ATTENTIONS = {  # two layers each; a decoder with an encoder has two kinds more
    "bert": 2, "gpt2": 2, "llama": 2, "mistral": 2, "gemma2": 2, "gpt_oss": 2, "t5": 6, "whisper": 6, "vit": 2,
}


@pytest.mark.parametrize("name", CLASSES)
def test_what_is_told_by_the_code_is_what_a_run_shows(name):
    model = tiny(name)
    model.set_attn_implementation("attend")
    told, run = attend.hf.check(model), attend.hf.check(model, **inputs(name))
    assert told and run
    assert told.comes == run.comes and len(told.comes) == ATTENTIONS[name]
    assert [row.calls for row in run.rows] == [1] * ATTENTIONS[name]


def test_one_layer_that_is_called_many_times():
    config = t.AlbertConfig(
        vocab_size=37, embedding_size=8, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=24
    )
    model = t.AlbertModel._from_config(config, attn_implementation="attend")
    report = attend.hf.check(model, input_ids=torch.ones(1, 5, dtype=torch.long))
    assert [row.calls for row in report.rows] == [3] and "called 3 times" in str(report)


def test_a_config_that_asks_for_another():
    model = tiny("llama")
    report = attend.hf.check(model)
    assert not report and report.comes == []
    assert set(report.stays) == {"model.layers.0.self_attn", "model.layers.1.self_attn"}
    assert """its config asks for 'eager'; model.set_attn_implementation("attend")""" in str(report)
    assert not attend.hf.check(model, input_ids=torch.ones(1, 3, dtype=torch.long))


def test_code_without_the_interface():
    """Transformers takes the name for them without a word."""
    bloom = t.BloomConfig(vocab_size=37, hidden_size=32, n_layer=2, n_head=4)
    mpnet = t.MPNetConfig(
        vocab_size=37, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24
    )
    for config, name in ((bloom, "h.0.self_attention"), (mpnet, "encoder.layer.0.attention.attn")):
        model = t.AutoModel.from_config(config, attn_implementation="attend")
        report = attend.hf.check(model)
        assert not report and len(report.stays) == 2, report
        assert "by itself, without Transformers' AttentionInterface" in report.stays[name]


def test_code_without_the_interface_that_takes_our_mask_is_stopped():
    """It gets the floats of eager attention, so it would compute what eager does: by itself, and attend would be left out."""
    for config in (t.BloomConfig(vocab_size=37, hidden_size=32, n_layer=2, n_head=4), t.XGLMConfig(
        vocab_size=37, d_model=32, ffn_dim=24, num_layers=2, attention_heads=4, max_position_embeddings=16
    )):
        model = t.AutoModel.from_config(config, attn_implementation="attend")
        with pytest.raises(NotImplementedError, match="computes attention by itself, and not by attend; or to a bias"):
            model(input_ids=torch.full((1, 3), 5))


def test_layers_of_torch_and_of_nobody():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.MultiheadAttention(8, 2)
            self.other = Direct()
            self.linear_attention = LinearAttention()

    class Direct(nn.Module):
        def forward(self, q, k, v):
            return nn.functional.scaled_dot_product_attention(q, k, v)

    class LinearAttention(nn.Module):
        def forward(self, x):
            return x.cumsum(1)

    report = attend.hf.check(Own())
    assert not report and report.rows[0].name == "layer"
    assert "attend.torch.replace" in report.stays["layer"]
    assert "scaled_dot_product_attention by itself" in report.stays["other"]
    assert "no softmax attention is found" in report.stays["linear_attention"]


def test_routers_and_heads_are_no_attention():
    model = tiny("gpt_oss")
    kinds = {type(module).__name__: uses_of(module) for module in model.modules()}
    assert kinds.pop("GptOssAttention") is Uses.interface
    assert set(kinds.values()) == {Uses.nothing}


def test_no_attention_at_all():
    report = attend.hf.check(nn.Linear(2, 2))
    assert not report and str(report) == "no attention found in this model"


def test_as_a_table():
    model = tiny("t5")
    model.set_attn_implementation("attend")
    text = str(attend.hf.check(model))
    assert "attend  encoder.block.*.layer.*.SelfAttention (2 of them)  T5Attention" in text
    assert text.endswith("6 of 6 attentions come to attend")


def test_bad_input():
    with pytest.raises(TypeError, match="takes a model, an nn.Module, found str"):
        attend.hf.check("bert")
    model = tiny("llama")
    with pytest.raises(TypeError):  # the model's own, and the count is taken off again
        attend.hf.check(model, no_such_input=1, input_ids=3)
    assert t.AttentionInterface._global_mapping["attend"].__name__ == "attend_attention"

"""Layers of nn.MultiheadAttention that attend.torch.replace() swapped: check(), capture(), edit() and view() know that they come."""
import copy

import numpy as np
import pytest
import torch
import transformers as t
from test_view import data_of, weights_of_page
from tiny import twins
from torch import nn
from torch.nn import functional as F

import attend
import attend.hf
import attend.torch

HEAD = "head.attention"  # SigLIP pools by a layer of PyTorch's; the others are Transformers' own
LAYERS = ["encoder.layers.0.self_attn", "encoder.layers.1.self_attn"]


def siglip():
    """(as it is, on attend with its layer swapped)"""
    torch.manual_seed(0)
    config = t.SiglipVisionConfig(hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, image_size=8, patch_size=4)
    plain = t.SiglipVisionModel._from_config(config, attn_implementation="eager").eval()
    ours = copy.deepcopy(plain)
    assert attend.torch.replace(ours).swapped == [name_of(HEAD, ours)]
    ours.set_attn_implementation("attend")
    return plain, ours


def name_of(end, model):
    return next(name for name, _ in model.named_modules() if name.endswith(end))


@pytest.fixture
def picture():
    return {"pixel_values": torch.randn(2, 3, 8, 8)}


def test_check_says_that_they_come(picture):
    plain, ours = siglip()
    assert "attend.torch.replace(model)" in attend.hf.check(plain).stays[name_of(HEAD, plain)]
    told, run = attend.hf.check(ours), attend.hf.check(ours, **picture)
    assert told and run and told.comes == run.comes == [name_of(end, ours) for end in (*LAYERS, HEAD)]
    assert [row.calls for row in run.rows] == [1, 1, 1]


@pytest.mark.filterwarnings("error")
def test_no_warning_names_them():
    _, ours = siglip()
    ours.set_attn_implementation("eager")
    ours.set_attn_implementation("attend")


def test_capture_and_edit(picture):
    plain, ours = siglip()
    kept = []
    head = plain.get_submodule(name_of(HEAD, plain))
    head.register_forward_pre_hook(lambda layer, given: kept.append(given))
    with torch.no_grad():
        wanted = plain(**picture, output_attentions=True)
        with attend.hf.capture(ours) as run:
            found = ours(**picture)
        of_head = F.multi_head_attention_forward(
            *(x.transpose(0, 1) for x in kept[0]), 32, 4, head.in_proj_weight, head.in_proj_bias, None, None, False, 0.0,
            head.out_proj.weight, head.out_proj.bias, training=False, average_attn_weights=False)[1]
    torch.testing.assert_close(found.pooler_output, wanted.pooler_output, atol=1e-5, rtol=0)
    assert [layer.name for layer in run.layers] == [name_of(end, ours) for end in (*LAYERS, HEAD)]
    for layer, weights in zip(run.layers, (*wanted.attentions, of_head)):
        torch.testing.assert_close(run[layer].weights, weights, atol=1e-6, rtol=0)
    name = name_of(HEAD, ours)
    with pytest.raises(ValueError, match="layer 0 may be any of 2 kinds.*say it by name"):
        attend.hf.capture(ours, layers=0)
    with pytest.raises(ValueError, match=f"head 4 is not there; {name} has 4 heads"):
        attend.hf.capture(ours, layers=name, heads=4)
    with torch.no_grad(), attend.hf.edit(ours, {(name, None): attend.zero}):
        edited = ours(**picture)
    assert torch.equal(edited.last_hidden_state, found.last_hidden_state)
    assert not torch.allclose(edited.pooler_output, found.pooler_output)


def test_view_has_them(picture):
    plain, ours = siglip()
    with pytest.raises(NotImplementedError, match="head.attention: it is PyTorch's own layer"):
        attend.view(plain, None, picture)
    with pytest.raises(ValueError, match="the attentions have different tokens.*part= takes"):
        attend.view(ours, None, picture)
    layers = data_of(attend.view(ours, None, picture, layers=f"*{HEAD}", batch=1))["runs"][0]["layers"]
    with torch.no_grad(), attend.hf.capture(ours, layers=f"*{HEAD}") as run:
        ours(**picture)
    assert len(layers) == 1 and (layers[0]["queries"], layers[0]["keys"]) == (1, 4)
    assert np.abs(weights_of_page(layers[0]) - run[run.layers[0]].weights[1].numpy()).max() < 1e-5


class Encoder(nn.Module):
    """A model that is not of Transformers."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 24, dropout=0.1, batch_first=True)
        self.stack = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x, padding=None):
        return self.stack(x, src_key_padding_mask=padding)


def test_a_model_that_is_not_of_transformers():
    model, given = Encoder(), {"x": torch.randn(2, 5, 16), "padding": torch.tensor([[False] * 5, [False] * 3 + [True] * 2])}
    names = ["stack.layers.0.self_attn", "stack.layers.1.self_attn"]
    with pytest.raises(NotImplementedError, match="stack.layers.0.self_attn: it is PyTorch's own layer"):
        attend.view(model, None, given)
    attend.torch.replace(model)
    report = attend.hf.check(model, **given)
    assert report and report.comes == names and str(report).startswith("attend  stack.layers.*.self_attn (2 of them)  MultiheadAttention")
    layers = data_of(attend.view(model, None, given, batch=1))["runs"][0]["layers"]
    assert model.training and [x["name"] for x in layers] == ["layers.0", "layers.1"]
    model.eval()
    with torch.no_grad(), attend.hf.capture(model) as run:
        model(**given)
    assert [layer.name for layer in run.layers] == names
    for layer, name in zip(layers, names):
        assert np.abs(weights_of_page(layer) - run[name].weights[1].numpy()).max() < 1e-5
    with pytest.raises(TypeError, match="Encoder is no model of Transformers; another is given a dict of its inputs in place of a text"):
        attend.view(model, None, "text")
    with pytest.raises(ValueError, match="Encoder does not generate"):
        attend.view(model, None, given, new_tokens=2)


def test_a_subclass_comes_too():
    class Mine(attend.torch.MultiheadAttention):
        def forward(self, *given, **more):
            return super().forward(*given, **more)

    model, x = nn.ModuleDict({"mine": Mine(16, 4, batch_first=True)}), torch.randn(1, 3, 16)
    model.forward = lambda x: model["mine"](x, x, x)
    assert attend.hf.check(model) and attend.hf.check(model, x=x).rows[0].calls == 1
    with attend.hf.capture(model, layers=0, heads=[2]) as run:
        model(x)
    assert run.layers == [("mine", 0)] and run[0].weights.shape == (1, 1, 3, 3)


def test_inside_of_sdpa_what_calls_it_comes_as_well():
    eager, ours = twins("llama")
    ours.set_attn_implementation("sdpa")
    given = {"input_ids": torch.randint(2, 36, (2, 7))}
    with torch.no_grad():
        wanted = eager(**given, output_attentions=True).attentions
        assert not attend.hf.check(ours)
        with pytest.raises(ValueError, match="its config asks for 'sdpa'"):
            attend.hf.capture(ours, layers=1)
        with attend.torch.sdpa(ours) as calls:
            assert attend.hf.check(ours) and [row.calls for row in attend.hf.check(ours, **given).rows] == [1, 1]
            with attend.hf.capture(ours, layers=1, heads=[3]) as run:
                ours(**given)
            with pytest.raises(ValueError, match="layer 'model.layers.2.self_attn' is not there"):
                attend.hf.capture(ours, layers="model.layers.2.self_attn")
    assert calls.on_attend == len(calls) == 4
    torch.testing.assert_close(run[run.layers[0]].weights, wanted[1][:, [3]], atol=1e-5, rtol=0)

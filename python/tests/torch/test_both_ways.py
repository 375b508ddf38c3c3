"""Layers that were replaced beside others that come to attend in the same model: one block holds them all, and what is said of
layers is refused at once as far as it can be known."""
import attend
import attend.torch
import pytest
import torch
from torch import nn
from torch.nn import functional as F


class Own(nn.Module):
    """Calls PyTorch's function; its number of heads has the name that most models give it."""

    def __init__(self, heads=4):
        super().__init__()
        self.num_heads = heads

    def forward(self, x):
        q = x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(2)


class Helped(nn.Module):
    """Its code does not show that it calls."""

    def forward(self, x):
        return x + HELPERS[0](self, x)


HELPERS = [lambda module, x: F.scaled_dot_product_attention(*[x.unsqueeze(1)] * 3).squeeze(1)]


class Both(nn.Module):
    def __init__(self, helped=False):
        super().__init__()
        self.layers = nn.ModuleList([attend.torch.MultiheadAttention(16, 2, batch_first=True) for _ in range(2)])
        self.own = nn.ModuleList([Own()])
        self.helped = Helped() if helped else nn.Identity()
        self.ran = False

    def forward(self, x):
        self.ran = True
        for layer in self.layers:
            x = x + layer(x, x, x, need_weights=False)[0]
        return self.helped(self.own[0](x))


def names(run):
    return [layer.name for layer in run.layers]


@pytest.fixture
def x():
    return torch.randn(2, 3, 16)


def test_all_of_both_are_captured_in_one_block(x):
    model = Both()
    with torch.no_grad():
        hidden = []
        model.own[0].register_forward_pre_hook(lambda _, given: hidden.append(given[0]))
        with attend.torch.sdpa(model) as calls, attend.torch.capture(model, what=("weights", "out")) as run:
            model(x)
    assert names(run) == ["layers.0", "layers.1", "own.0"] and calls.on_attend == 1
    q = hidden[0].unflatten(-1, (4, 4)).transpose(1, 2)
    torch.testing.assert_close(run["own.0"].weights, (q @ q.mT / 2).softmax(-1))
    assert run["layers.1"].weights.shape == (2, 2, 3, 3)


def test_edits_and_importance_of_both(x):
    model = Both()
    with attend.torch.sdpa(), torch.no_grad(), attend.torch.edit(model, {("layers.0", 1): attend.zero, ("own.0", None): attend.zero}):
        assert model(x).abs().max() == 0
    with attend.torch.sdpa():
        found = attend.torch.head_importance(model, {"x": x}, loss=lambda y: y.square().sum())
    assert [layer.name for layer in found] == ["layers.0", "layers.1", "own.0"]


def test_outside_of_sdpa_the_replaced_ones_are_all_there_is(x):
    model = Both()
    with attend.torch.capture(model, layers=1) as run:
        model(x)
    assert names(run) == ["layers.1"]
    with attend.torch.capture(model) as run:
        model(x)
    assert names(run) == ["layers.0", "layers.1"]


def test_what_does_not_show_its_attention_is_captured_too(x):
    model = Both(helped=True)
    with torch.no_grad(), attend.torch.sdpa(), attend.torch.capture(model) as run:
        model(x)
    assert names(run) == ["layers.0", "layers.1", "own.0", "helped"]
    with torch.no_grad(), attend.torch.sdpa(), attend.torch.capture(model, layers="helped") as run:
        model(x)
    assert names(run) == ["helped"]


REFUSED = {
    "a name": (dict(layers="own.7"), "layer 'own.7' is not there; the attentions are layers.0, layers.1, own.0"),
    "a pattern": (dict(layers=["layers.0", "encoder.*"]), r"layer 'encoder.\*' is not there"),
    "a module that cannot call": (dict(layers="layers.0.out_proj"), "layer 'layers.0.out_proj' is not there"),
    "a call of a name": (dict(layers=("own.7", 1)), r"layer \('own.7', 1\) is not there"),
    "a number of two kinds": (dict(layers=0), r"layer 0 may be any of 2 kinds, layers.\*, own.\*; say it by name"),
    "a number below 0": (dict(layers=-1), "layer -1"),
    "a head": (dict(layers="own.0", heads=4), "head 4 is not there; own.0 has 4 heads"),
    "a head of all": (dict(heads=[3]), "head 3 is not there; layers.0 has 2 heads"),
    "a head of a pattern": (dict(layers="own*", heads=7), "head 7 is not there; own.0 has 4 heads"),
    "a head of a call": (dict(layers={("own.0", 0): [5]}), "head 5 is not there; own.0 has 4 heads"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_there_is_refused_at_once_inside_of_sdpa(case, x):
    given, words = REFUSED[case]
    model = Both()
    with attend.torch.sdpa(model):
        with pytest.raises(ValueError, match=words):
            with attend.torch.capture(model, **given):
                model(x)
        layers, heads = given.get("layers", "layers.0"), given.get("heads", 0)
        if not isinstance(layers, (list, dict)) and not isinstance(heads, list):
            with pytest.raises(ValueError, match=words):
                with attend.torch.edit(model, {(layers, heads): attend.zero}):
                    model(x)
    assert not model.ran


def test_of_a_model_that_only_calls_sdpa():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Own(), Own()])

        def forward(self, x):
            return self.blocks[1](self.blocks[0](x))

    model, x = Model(), torch.randn(1, 3, 16)
    with attend.torch.sdpa():
        for layers, heads, words in (
            (2, None, "layer 2 is not there; the model has 2 attentions"), ("blocks.2", None, "layer 'blocks.2' is not there"), (1, 4, "head 4 is not there; blocks.1 has 4"),
        ):
            with pytest.raises(ValueError, match=words):
                attend.torch.capture(model, layers=layers, heads=heads)
        with attend.torch.capture(model, layers=1, heads=3) as run:
            model(x)
    assert names(run) == ["blocks.1"]
    with pytest.raises(ValueError, match="layer 'blocks.2' is not there; no module that may call attention has such a name"):
        attend.torch.capture(model, layers="blocks.2")  # before the block, too


def test_a_number_beside_what_was_not_known_is_refused_when_that_calls(x):
    model = Both(helped=True)
    model.own[0] = nn.Identity()
    with torch.no_grad(), attend.torch.sdpa(), pytest.raises(ValueError, match="layer 0 may be any of 2 kinds, helped, layers"):
        with attend.torch.capture(model, layers=0):
            model(x)


def test_a_layer_whose_code_calls_and_that_never_did_is_an_error(x):
    """It computes by itself then, as timm's do without `fused_attn`."""
    class Sometimes(Own):
        def forward(self, x):
            return super().forward(x) if self.training else x

    model = Both()
    model.own[0] = Sometimes()
    with attend.torch.sdpa(), pytest.raises(RuntimeError, match="own.0' never called attend's attention"):
        with attend.torch.capture(model.eval()):
            model(x)

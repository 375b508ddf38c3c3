"""capture() and edit() of PyTorch models: layers that were replaced, and what runs inside sdpa()."""
import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import attend
import attend.torch
from attend.torch.calls import call


def encoder():
    layer = nn.TransformerEncoderLayer(16, 4, 24, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


class Own(nn.Module):
    """A model that calls PyTorch's function."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (4, 4)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.own = Own()

    def forward(self, x):
        return self.own(x) + self.own(2 * x)


def weights_of(layer, x):
    """By PyTorch's own layer, which is asked for them."""
    return layer(x, x, x, need_weights=True, average_attn_weights=False)[1]


@pytest.mark.parametrize("grad", [False, True])
def test_replaced_layers_whose_weights_nobody_asks_for(grad):
    plain = encoder()
    model = copy.deepcopy(plain)
    attend.torch.replace(model)
    x = torch.randn(2, 5, 16)
    with torch.set_grad_enabled(grad), attend.torch.capture(model, layers=0, heads=[2, 3]) as run:
        found = model(x)
    with torch.no_grad():
        wanted = weights_of(plain.layers[0].self_attn, x)[:, [2, 3]]
    assert run.layers == [("layers.0.self_attn", 0)]
    torch.testing.assert_close(run[0].weights, wanted, atol=1e-6, rtol=0)
    torch.testing.assert_close(found, plain(x), atol=1e-5, rtol=0)


@pytest.mark.parametrize("need_weights", [False, True])
def test_an_input_without_a_batch_is_looked_at(need_weights):
    layer, x = attend.torch.MultiheadAttention(16, 4), torch.randn(5, 16)
    wanted, weights = layer(x, x, x, need_weights=need_weights)
    with attend.torch.capture(layer) as run:
        found = layer(x, x, x, need_weights=need_weights)
    torch.testing.assert_close(found, (wanted, weights))
    assert run[0].weights.shape == (1, 4, 5, 5)
    with attend.torch.edit({("*", 1): attend.zero}):   # with a gradient, so that the edit is remembered afterwards
        layer(x.clone().requires_grad_(), x, x, need_weights=need_weights)
    torch.testing.assert_close(layer(x, x, x, need_weights=need_weights), (wanted, weights))


def test_replaced_layers_under_an_edit():
    model = encoder()
    attend.torch.replace(model)
    x = torch.randn(2, 5, 16, requires_grad=True)

    def without_head(module, arguments):
        joined = arguments[0].clone()
        joined[..., 4:8] = 0
        return (joined,)

    handle = model.layers[1].self_attn.out_proj.register_forward_pre_hook(without_head)
    wanted = model(x)
    of_x = torch.autograd.grad(wanted.square().sum(), x)[0]
    handle.remove()
    with attend.torch.edit(model, {(1, 1): attend.zero}):
        found = model(x)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), x)[0], of_x)
    assert not torch.allclose(model(x), wanted)


def test_dropout_is_the_same_while_somebody_looks():
    layer = attend.torch.MultiheadAttention(16, 4, dropout=0.5, batch_first=True)
    x = torch.randn(1, 5, 16)
    torch.manual_seed(2)
    wanted = layer(x, x, x)
    torch.manual_seed(2)
    with attend.torch.capture(layer, heads=1) as run:
        found = layer(x, x, x)
    assert torch.equal(found[0], wanted[0]) and torch.equal(found[1], wanted[1])
    torch.testing.assert_close(run[0].weights.sum(-1), torch.ones(1, 1, 5))  # before dropout


@pytest.mark.parametrize("average", [False, True])
def test_weights_after_dropout_are_edited_too(average):
    layer = attend.torch.MultiheadAttention(16, 4, dropout=0.5, batch_first=True)
    x, pattern = torch.randn(2, 5, 16), torch.full((5, 5), 0.2)
    torch.manual_seed(2)
    plain = layer(x, x, x, average_attn_weights=False)[1]
    torch.manual_seed(2)
    with attend.torch.edit(layer, {(0, 1): pattern}):
        found = layer(x, x, x, average_attn_weights=average)[1]
    plain[:, 1] = pattern
    assert torch.equal(found, plain.mean(1) if average else plain)


def test_weights_before_dropout_are_computed_for_who_looks_alone(monkeypatch):
    model = nn.ModuleList(attend.torch.MultiheadAttention(16, 4, dropout=0.5, batch_first=True) for _ in range(2))
    x, asked = torch.randn(2, 5, 16), []

    def attention(*tensors, return_weights=False, weight_heads=None, **options):
        asked.append(weight_heads if return_weights else ())
        return attend.torch.attention(*tensors, return_weights=return_weights, weight_heads=weight_heads, **options)

    monkeypatch.setattr("attend.torch.calls.attention", attention)
    for block, heads in (
        (attend.torch.edit(model, {("1", 1): attend.zero}), ()), (attend.torch.capture(model, layers="1", what="out"), ()),
        (attend.torch.capture(model, layers="1", heads=[2]), (2,)),
    ):
        with block, torch.no_grad():
            assert all(layer(x, x, x)[1].shape == (2, 5, 5) for layer in model)
        assert asked == [(), heads]
        asked.clear()


def test_a_number_is_refused_of_its_own_layer_alone():
    """That another layer is called twice says nothing about this one."""
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(attend.torch.MultiheadAttention(16, 2, batch_first=True) for _ in range(2))

        def forward(self, x):
            for n in (0, 1, 1):
                x = self.layers[n](x, x, x, need_weights=False)[0]
            return x

    model, x = Pair(), torch.randn(1, 3, 16)
    with attend.torch.capture(model, layers=0) as run:
        model(x)
    assert run.layers == [("layers.0", 0)]
    for block in (lambda: attend.torch.capture(model, layers=[0, 1]), lambda: attend.torch.capture(layers=0)):
        with pytest.raises(ValueError, match=r"layer . may be any of several calls of layers.1, .* say \('layers.1', call\)"):
            with block():
                model(x)


def test_inside_sdpa():
    model = Twice()
    x = torch.randn(2, 6, 16)
    with torch.no_grad(), attend.torch.sdpa(model), attend.torch.capture(model, layers=("own", 1), heads=[3]) as run:
        model(x)
    q, k, _ = model.own.qkv(2 * x).chunk(3, -1)
    scores = (q[..., 12:] @ k[..., 12:].transpose(1, 2) / 2).masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf)
    torch.testing.assert_close(run["own"].weights[:, 0], scores.softmax(-1), atol=1e-6, rtol=0)
    with torch.no_grad(), attend.torch.sdpa(), attend.torch.edit({(("own", 0), 0): attend.zero, (("own", 1), 0): attend.zero}):
        assert model(x)[..., :4].abs().max() == 0
    with pytest.raises(RuntimeError, match="'own' never called"):  # sdpa() is missing
        with attend.torch.capture(model, layers="own"):
            model(x)


@pytest.mark.parametrize("grad", [False, True])
def test_weight_heads_with_every_option(grad):
    q, k, v = torch.randn(2, 6, 5, 8), torch.randn(2, 3, 9, 8), torch.randn(2, 3, 9, 8)
    q.requires_grad_(grad)
    options = {
        "mask": torch.rand(2, 6, 5, 9) > 0.2, "bias": torch.randn(6, 1, 9), "alibi": torch.rand(6), "sinks": torch.randn(6),
        "softcap": 3.0, "causal": True, "window": (6, 0), "key_lengths": torch.tensor([9, 7]), "scale": 0.7,
        "query_offset": torch.tensor([4, 2]), "blocks": (torch.rand(1, 6, 2, 3) > 0.1, 4, 4),
    }
    out, all_weights = attend.torch.attention(q, k, v, return_weights=True, **options)
    found, weights = attend.torch.attention(q, k, v, return_weights=True, weight_heads=[4, 0, 5], **options)
    assert torch.equal(found, out) and torch.equal(weights, all_weights[:, [4, 0, 5]])
    assert found.requires_grad == weights.requires_grad == grad


def test_weight_heads_that_cannot_be_given():
    q = torch.ones(1, 2, 3, 4)
    with pytest.raises(ValueError, match="weights are not asked for"):
        attend.torch.attention(q, q, q, weight_heads=[0])
    for grad in (False, True):
        x = q.clone().requires_grad_(grad)
        with pytest.raises(ValueError, match="2"):
            attend.torch.attention(x, x, x, return_weights=True, weight_heads=[2])


def test_torch_compile_sees_no_taps_and_is_refused_inside_of_them():
    q = torch.randn(1, 2, 3, 4)
    module = nn.Identity()

    def twice(q):
        return 2 * call(module, q, q, q, causal=True)[0]

    compiled = torch.compile(twice, backend="eager", fullgraph=True)
    assert torch.equal(compiled(q), twice(q))
    torch._dynamo.reset()
    with pytest.raises(Exception, match="do not work inside torch.compile"):
        with attend.torch.capture():
            compiled(q)


def test_a_block_is_used_once_at_a_time():
    block = attend.torch.capture()
    with pytest.raises(RuntimeError, match="open already"):
        with block, block:
            pass

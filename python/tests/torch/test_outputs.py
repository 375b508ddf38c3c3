"""Weights of chosen heads and scores, as results of attend.torch.attention and of its operator, in every graph that PyTorch makes."""
import attend
import attend.torch
import pytest
import torch
from attend.torch.operators import attention, attention_backward
from test_options import CASES, heard, leaves

HEADS = [2, 0]
SEVERAL = ("causal", "mask", "bias", "bias_before_softcap", "sinks", "alibi", "key_lengths", "blocks", "packed keys", "scales", "all")


@pytest.mark.parametrize("name", CASES)
def test_both_have_attends_bits_with_and_without_the_operator(name):
    inputs, function = leaves(name)
    tensors = [x.detach() for x in inputs]
    for stage in ("raw", "softcapped", "masked"):
        asked = {"return_lse": True, "return_weights": True, "weight_heads": HEADS, "return_scores": stage}
        wanted = function(*tensors, by=attend.attention, **asked)
        assert wanted[2].shape[1:2] == (2,) and wanted[3].shape[1:2] == (4,)
        for given in (tensors, inputs):
            found = function(*given, **asked)
            assert len(found) == 4 and all(torch.equal(x, y) for x, y in zip(wanted, found))
        assert [x.requires_grad for x in found] == [True, True, True, False]
        assert torch.equal(function(*inputs, return_scores=stage)[1], wanted[3])


@pytest.mark.parametrize("name", SEVERAL)
def test_gradients_through_weights_of_some_heads(name):
    inputs, function = leaves(name)

    def results(*inputs):
        out, lse, weights, _ = function(*inputs, return_lse=True, return_weights=True, weight_heads=HEADS, return_scores="raw")
        return out, lse.clamp(min=-1e3), weights

    assert torch.autograd.gradcheck(results, inputs, fast_mode=True)


@pytest.mark.parametrize("name", SEVERAL)
def test_gradients_are_those_of_the_weights_of_all(name):
    inputs, function = leaves(name)
    found = []
    for asked in ({"weight_heads": HEADS}, {}):
        _, weights = function(*inputs, return_weights=True, **asked)
        weights = weights if asked else weights[:, HEADS]
        found.append(torch.autograd.grad(weights.sin().sum(), inputs, allow_unused=True))
    for mine, wanted in zip(*found):
        assert torch.allclose(mine, wanted, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ["packed keys", "dropout", "scales", "all"])
def test_opcheck(name, monkeypatch):
    """The slow check: test_graphs.py."""
    seen = heard(name, monkeypatch, weight_heads=HEADS, return_scores="masked")
    utils = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(attention, *seen["forward"], test_utils=utils)
    torch.library.opcheck(attention_backward, *seen["backward"], test_utils=utils)


def test_torch_compile_in_one_graph():
    def function(q, k):
        out, weights, scores = attend.torch.attention(
            q, k, k, causal=True, softcap=2.0, return_weights=True, weight_heads=[3], return_scores="softcapped")
        return out, weights, scores

    results = []
    for call in (function, torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)):
        torch.manual_seed(0)
        q, k = torch.randn(2, 4, 3, 5, requires_grad=True), torch.randn(2, 2, 6, 5, requires_grad=True)
        out, weights, scores = call(q, k)
        assert weights.shape == (2, 1, 3, 6) and scores.shape == (2, 4, 3, 6) and not scores.requires_grad
        (out.sum() + weights.square().sum()).backward()
        results.append([out, weights, scores, q.grad, k.grad])
    assert all(torch.equal(x, y) for x, y in zip(*results))


def test_torch_export_keeps_them():
    class Model(torch.nn.Module):
        def forward(self, q):
            return attend.torch.attention(q, q, q, return_weights=True, weight_heads=[1], return_scores="raw")

    q = torch.randn(1, 2, 3, 4)
    program = torch.export.export(Model(), (q,))
    assert all(torch.equal(x, y) for x, y in zip(program.module()(q), Model()(q)))


def test_hidden_nan_reaches_no_gradient_of_weights_of_some_heads():
    q, k = torch.randn(1, 4, 4, 4), torch.randn(1, 2, 4, 4)
    k[:, :, 3] = torch.nan
    q, k = q.requires_grad_(), k.requires_grad_()
    _, weights = attend.torch.attention(q, k, k, key_lengths=torch.tensor([3]), return_weights=True, weight_heads=[3, 2])
    weights.square().sum().backward()
    assert q.grad.isfinite().all() and k.grad.isfinite().all()
    assert not q.grad[:, :2].any() and not k.grad[:, :1].any() and q.grad[:, 2:].any()


def test_narrow_types_and_weights_of_some_heads():
    q, k = (torch.randn(2, n, 5, 8, dtype=torch.bfloat16, requires_grad=True) for n in (4, 2))
    _, weights = attend.torch.attention(q, k, k, return_weights=True, weight_heads=[1])
    weights.float().square().sum().backward()
    assert weights.dtype == q.grad.dtype == k.grad.dtype == torch.bfloat16 and q.grad.any()


REFUSED = {
    "a stage that is not there": (TypeError, "return_scores is 'raw', 'softcapped', 'masked' or None, found 'all'",
                                  lambda x: attend.torch.attention(x, x, x, return_scores="all")),
    "a flag": (TypeError, "return_scores is 'raw', .* found True", lambda x: attend.torch.attention(x, x, x, return_scores=True)),
    "heads without weights": (ValueError, "weight_heads is given, but weights are not asked for",
                              lambda x: attend.torch.attention(x, x, x, weight_heads=[0])),
    "the operator, heads without weights": (ValueError, "weight_heads is given, but weights are not asked for", lambda x: attention(
        x, x, x, None, None, None, False, 0.0, None, False, weight_heads=[0])),
    "the operator, a head that is not there": (ValueError, "2", lambda x: attention(
        x, x, x, None, None, None, False, 0.0, None, True, weight_heads=[2])),
    "after dropout": (NotImplementedError, "weights_before_dropout=True", lambda x: attention(
        x, x, x, None, None, None, False, 0.5, torch.tensor([1]), True, weight_heads=[0])),
    "scores and a gradient": (RuntimeError, "does not require grad", lambda x: attend.torch.attention(
        x.requires_grad_(), x, x, return_scores="raw")[1].sum().backward()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_why(name):
    kind, message, call = REFUSED[name]
    with pytest.raises(kind, match=message):
        call(torch.ones(1, 2, 3, 4))

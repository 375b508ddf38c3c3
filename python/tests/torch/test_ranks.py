"""Gradients of attention over ranks by PyTorch's autograd are those of one process."""
import numpy as np
import pytest
import torch

import attend.torch
from attend import distributed

T, HEADS, KEY_HEADS, D = 600, 4, 2, 8


def tensors():
    torch.manual_seed(3)
    return [torch.randn(1, heads, T, D) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_gradients_have_the_bits_of_one_process(kind):
    whole = [x.to(kind).requires_grad_() for x in tensors()]
    sinks = torch.ones(HEADS).requires_grad_()
    out, lse = attend.torch.attention(*whole, causal=True, sinks=sinks, return_lse=True)
    (out.float().square().sum() + lse.sum()).backward()
    layout = distributed.Layout.serpentine([T], 3)

    def rank(group):
        own = [distributed.take_rows(layout, group.rank, x.detach()).requires_grad_() for x in whole]
        shared = sinks.detach().clone().requires_grad_()
        out, lse = distributed.attention(*own, group=group, layouts=layout, causal=True, sinks=shared, return_lse=True)
        (out.float().square().sum() + lse.sum()).backward()
        return out.detach(), shared.grad, *(x.grad for x in own)

    for r, (out_r, dsinks, *gradients) in enumerate(distributed.ThreadGroup(3).run(rank)):
        assert torch.equal(out_r, distributed.take_rows(layout, r, out.detach()))
        assert torch.equal(dsinks, sinks.grad)
        for x, found in zip(whole, gradients):
            assert torch.equal(found, distributed.take_rows(layout, r, x.grad))


def test_without_a_gradient_tensors_are_as_everywhere():
    q, k, v = tensors()
    layout = distributed.Layout.contiguous([T], 2)

    def rank(group):
        own = [distributed.take_rows(layout, group.rank, x) for x in (q, k, v)]
        out = torch.empty_like(own[0])
        assert distributed.attention(*own, group=group, layouts=layout, out=out) is out
        with torch.no_grad():
            again = distributed.attention(*(x.requires_grad_() for x in own), group=group, layouts=layout)
        with pytest.raises(ValueError, match="out= is for calls without a gradient"):
            distributed.attention(*own, group=group, layouts=layout, out=out)
        if group.rank == 1:
            out = None   # of one rank alone
        heard = "out= is for calls without a gradient"
        with pytest.raises(ValueError, match=heard if group.rank == 0 else f"rank 0: .*{heard}"):
            distributed.attention(*own, group=group, layouts=layout, out=out)
        out = distributed.attention(*(x.detach() for x in own), group=group, layouts=layout)
        return out, again

    for r, (out, again) in enumerate(distributed.ThreadGroup(2).run(rank)):
        wanted = distributed.take_rows(layout, r, attend.attention(q, k, v))
        assert torch.equal(out, wanted) and torch.equal(again, wanted)


def test_arrays_of_other_libraries_stand_beside_tensors_that_require_a_gradient():
    q, k, v = tensors()
    alibi = np.linspace(0.1, 0.4, HEADS, dtype="f4")
    whole = q.clone().requires_grad_()
    attend.torch.attention(whole, k, v, causal=True, alibi=torch.from_numpy(alibi)).sum().backward()
    layout = distributed.Layout.serpentine([T], 2)

    def rank(group):
        own = [distributed.take_rows(layout, group.rank, x) for x in (q, k, v)]
        own[0].requires_grad_()
        out = distributed.attention(own[0], own[1].numpy(), own[2], group=group, layouts=layout, causal=True, alibi=alibi)
        out.sum().backward()
        return own[0].grad

    for r, gradient in enumerate(distributed.ThreadGroup(2).run(rank)):
        assert torch.equal(gradient, distributed.take_rows(layout, r, whole.grad))


NO_TENSOR = {
    "numpy k": lambda own: {"k": own["k"].detach().numpy()},
    "numpy q": lambda own: {"q": own["q"].detach().numpy()},
    "list": lambda own: {"v": [1, 2]},
    "alibi": lambda own: {"alibi": "steep"},
    "context": lambda own: {"context": "x"},
    "no gradient": lambda own: {name: own[name].detach() for name in "qkv"},
}
HEARD = {"numpy k": None, "numpy q": "q takes a tensor of PyTorch", "list": "v takes a NumPy array", "alibi": "alibi takes a NumPy array",
         "context": "context takes an attend.Context", "no gradient": "lse"}


@pytest.mark.parametrize("layout", [None, distributed.Layout.serpentine([T], 2)])
@pytest.mark.parametrize("name", NO_TENSOR)
def test_what_is_wrong_about_one_ranks_arguments_is_an_error_of_all_with_gradients_too(name, layout):
    whole = tensors()

    def rank(group):
        cut = distributed.Layout.serpentine([T], 2)
        given = {key: distributed.take_rows(cut, group.rank, x).requires_grad_() for key, x in zip("qkv", whole)}
        mine = given | NO_TENSOR[name](given) if group.rank == 1 else given
        error = None
        try:
            distributed.attention(**mine, group=group, layouts=layout)
        except Exception as raised:
            error = raised
        distributed.attention(**given, group=group, layouts=layout)   # the group goes on
        return error

    for error in distributed.ThreadGroup(2).run(rank):
        assert (error is None) == (HEARD[name] is None)
        assert error is None or HEARD[name] in str(error), error

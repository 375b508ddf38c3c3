"""Gradients of attention over ranks by PyTorch's autograd are those of one process."""
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
        return out, again

    for r, (out, again) in enumerate(distributed.ThreadGroup(2).run(rank)):
        wanted = distributed.take_rows(layout, r, attend.attention(q, k, v))
        assert torch.equal(out, wanted) and torch.equal(again, wanted)

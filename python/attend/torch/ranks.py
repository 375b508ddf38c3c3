"""attend.distributed.attention() for tensors that require a gradient.

The backward pass is a call of all ranks, as the forward pass is: every rank must make it, in the same order. So a
gradient is computed at q, k and v on every rank if it is needed on any, and the caller's loss goes through each rank's
rows. Gradients at bias, sinks and alibi are those of the whole, on every rank.
"""
from typing import Any

import torch
from torch import Tensor

from attend import _attend

from . import contexts

_GRADIENTS = ("bias", "sinks", "alibi")


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: Any, given: dict[str, Any], q: Tensor, k: Tensor, v: Tensor, *more: Tensor | None) -> Any:
        options = given | {name: x.detach() for name, x in zip(_GRADIENTS, more) if x is not None}
        out, lse = _attend.distributed_attention(group, q.detach(), k.detach(), v.detach(), return_lse=True, **options)
        ctx.group, ctx.given = group, given
        ctx.save_for_backward(q, k, v, out, lse, *more)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dout: Tensor, dlse: Tensor) -> Any:
        q, k, v, out, lse, *more = ctx.saved_tensors
        options = ctx.given | {name: x.detach() for name, x in zip(_GRADIENTS, more) if x is not None}
        found = _attend.distributed_attention_backward(
            ctx.group, q.detach(), k.detach(), v.detach(), out.detach(), lse.detach(), dout, dlse=dlse, **options)
        found = tuple(found) + (None,) * (6 - len(found))
        return None, None, *found


def attention(q: Any, k: Any, v: Any, group: Any, return_lse: bool, given: dict[str, Any]) -> Any:
    if given["context"] is None:
        given["context"] = contexts.current()
    more = tuple(given.pop(name, None) for name in _GRADIENTS)
    plain = {name: x.detach() if isinstance(x, Tensor) else x for name, x in given.items()}
    out, lse = _Attention.apply(group, plain, q, k, v, *more)
    return (out, lse) if return_lse else out

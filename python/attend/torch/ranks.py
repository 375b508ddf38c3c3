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


def _plain(x: Any) -> Any:
    """Of other libraries too: what is wrong about it the call says, on all ranks."""
    return x.detach() if isinstance(x, Tensor) else x


def _options(given: dict[str, Any], more: Any) -> dict[str, Any]:
    return given | {name: _plain(x) for name, x in zip(_GRADIENTS, more) if x is not None}


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: Any, given: dict[str, Any], *inputs: Any) -> Any:
        q, k, v, *more = inputs
        out, lse = _attend.distributed_attention(group, _plain(q), _plain(k), _plain(v), return_lse=True, **_options(given, more))
        ctx.group, ctx.given = group, given
        ctx.others = [None if isinstance(x, Tensor) else x for x in inputs]
        ctx.save_for_backward(*(x if isinstance(x, Tensor) else None for x in inputs), out, lse)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dout: Tensor, dlse: Tensor) -> Any:
        *saved, out, lse = ctx.saved_tensors
        q, k, v, *more = (other if x is None else x.detach() for x, other in zip(saved, ctx.others))
        found = _attend.distributed_attention_backward(
            ctx.group, q, k, v, out.detach(), lse.detach(), dout, dlse=dlse, **_options(ctx.given, more))
        found = tuple(found) + (None,) * (6 - len(found))
        return None, None, *(None if x is None else gradient for x, gradient in zip(saved, found))


def attention(q: Any, k: Any, v: Any, out: Any, group: Any, return_lse: bool, given: dict[str, Any]) -> Any:
    wrong: Exception | None = None
    if out is not None:
        wrong = ValueError("distributed.attention: out= is for calls without a gradient; use torch.no_grad()")
    elif not isinstance(q, Tensor):
        wrong = TypeError(f"distributed.attention: q takes a tensor of PyTorch, as a gradient is required, found {type(q).__name__}")
    if wrong is not None:   # the others do not wait, but raise it too
        return _attend.distributed_attention(group, q, k, v, timeout=given["timeout"], refused=wrong)
    if given["context"] is None:
        given["context"] = contexts.current()
    more = tuple(given.pop(name, None) for name in _GRADIENTS)
    plain = {name: _plain(x) for name, x in given.items()}
    out, lse = _Attention.apply(group, plain, q, k, v, *more)
    return (out, lse) if return_lse else out

"""Attention and its gradient as operators of PyTorch: torch.ops.attend.attention, .attention_backward.

As operators they are known to autograd, torch.compile and torch.export, which see their shapes by
the `fake` functions here and never what is inside. Tensors are those of attend.attention():

    q [batch, heads, queries, d]     k [batch, key heads, keys, d]     v [batch, key heads, keys, dv]

with any strides, which are read as they lie. mask and bias broadcast to [batch, heads, queries, keys].
"""
from typing import Any

import torch
from torch import Tensor

import attend

from . import contexts


def _options(
    mask: Tensor | None, bias: Tensor | None, scale: float | None, causal: bool, dropout_p: float,
    seed: Tensor | None, context: int,
) -> dict[str, Any]:
    options: dict[str, Any] = {
        "mask": mask, "bias": bias, "scale": scale, "causal": causal, "context": contexts.by_number(context),
    }
    if causal:
        options["query_offset"] = 0  # PyTorch's first query meets the first key
    if seed is not None:
        options["dropout"] = (dropout_p, int(seed.item()))
    return {
        name: value.detach() if isinstance(value, Tensor) else value
        for name, value in options.items()
    }


def _identity(k: Tensor) -> Tensor:
    """Values [batch, key heads, keys, keys] whose attention is the weights themselves."""
    keys = k.size(2)
    return torch.eye(keys, dtype=k.dtype, device=k.device).expand(k.size(0), k.size(1), keys, keys)


def _lse_type(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


@torch.library.custom_op("attend::attention", mutates_args=(), device_types="cpu")
def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None,
    scale: float | None, causal: bool, dropout_p: float, seed: Tensor | None, need_weights: bool,
    context: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """(out, lse, weights); weights are those after dropout, [0] if they are not needed.

    seed [1], int64, says which weights are dropped; without one none are. It is a tensor so that a
    compiled graph draws a new one each time. context: contexts.number_of() of one, or 0.
    """
    q, k, v = q.detach(), k.detach(), v.detach()
    options = _options(mask, bias, scale, causal, dropout_p, seed, context)
    if not need_weights:
        out, lse = attend.attention(q, k, v, return_lse=True, **options)
        return out, lse, q.new_empty(0)
    if seed is None:
        return attend.attention(q, k, v, return_lse=True, return_weights=True, **options)
    # attend hands out the weights before dropout, PyTorch those after it: the attention to the
    # identity, which takes keys / dv times the first one's work.
    out, lse = attend.attention(q, k, v, return_lse=True, **options)
    return out, lse, attend.attention(q, k, _identity(k), **options)


@attention.register_fake
def _(q, k, v, mask, bias, scale, causal, dropout_p, seed, need_weights, context=0):
    rows = q.shape[:3]
    weights = (*rows, k.size(2)) if need_weights else (0,)
    return (
        q.new_empty((*rows, v.size(3))),
        q.new_empty(rows, dtype=_lse_type(q)),
        q.new_empty(weights),
    )


@torch.library.custom_op("attend::attention_backward", mutates_args=(), device_types="cpu")
def attention_backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, weights: Tensor,
    dout: Tensor | None, dlse: Tensor | None, dweights: Tensor | None,
    mask: Tensor | None, bias: Tensor | None, scale: float | None, causal: bool,
    dropout_p: float, seed: Tensor | None, context: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(dq, dk, dv, dbias) from the gradients at the three results; dbias is [0] without a bias."""
    q, k, v, out, lse, weights = (x.detach() for x in (q, k, v, out, lse, weights))
    options = _options(mask, bias, scale, causal, dropout_p, seed, context)
    dout = torch.zeros_like(out) if dout is None else dout.detach()
    dlse = None if dlse is None else dlse.detach()
    result = attend.attention_backward(q, k, v, out, lse, dout, dlse=dlse, **options)
    dq, dk, dv = result[:3]
    dbias = q.new_empty(0) if bias is None else result.dbias
    if dweights is not None and weights.dim() == 4:  # weights = attention(q, k, identity)
        dweights = dweights.detach()
        more = attend.attention_backward(q, k, _identity(k), weights, lse, dweights, **options)
        dq += more[0]
        dk += more[1]
        if bias is not None:
            dbias += more.dbias
    return dq, dk, dv, dbias


@attention_backward.register_fake
def _(q, k, v, out, lse, weights, dout, dlse, dweights, mask, bias, scale, causal, dropout_p, seed, context=0):
    dbias = q.new_empty(0) if bias is None else bias.new_empty(bias.shape)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), dbias


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, mask, bias, ctx.scale, ctx.causal, ctx.dropout_p, seed, _, ctx.context = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, mask, bias, seed, *output)


def _gradients(
    ctx: Any, dout: Tensor | None, dlse: Tensor | None, dweights: Tensor | None
) -> tuple[Tensor | None, ...]:
    q, k, v, mask, bias, seed, out, lse, weights = ctx.saved_tensors
    dq, dk, dv, dbias = attention_backward(
        q, k, v, out, lse, weights, dout, dlse, dweights,
        mask, bias, ctx.scale, ctx.causal, ctx.dropout_p, seed, ctx.context,
    )
    return dq, dk, dv, None, dbias if bias is not None else None, None, None, None, None, None, None


def _no_second_gradient(ctx: Any, *gradients: Tensor | None) -> None:
    raise NotImplementedError(
        "attend::attention_backward: attention has first gradients only; a gradient of its gradient "
        "(create_graph=True, gradgradcheck) is not available"
    )


attention.register_autograd(_gradients, setup_context=_save)
attention_backward.register_autograd(_no_second_gradient)

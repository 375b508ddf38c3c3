"""attend.attention() for tensors: every option under its own name, with gradients."""
import operator
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

import attend
from attend._types import BlocksLike, DropoutLike, WindowLike

from . import contexts
from .functional import check_devices, check_tensor, device_of_seed, draw_seed, prepared
from .layers import check_heads, heads_of
from .operators import attention as attention_operator
from .unheard import plain

_WHERE = "attention"
_TENSORS = frozenset({
    "mask", "bias", "sinks", "alibi", "key_lengths", "cu_seqlens_q", "cu_seqlens_k", "block_table", "k_scales", "v_scales",
})


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    bias_before_softcap: bool = False,
    causal: bool = False,
    window: WindowLike | None = None,
    query_offset: int | Tensor | None = None,
    key_offset: int | None = None,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    alibi: Tensor | None = None,
    sinks: Tensor | None = None,
    blocks: BlocksLike | None = None,
    key_lengths: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_q: int | None = None,
    max_k: int | None = None,
    block_table: Tensor | None = None,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
    dropout: DropoutLike | None = None,
    dropout_p: float = 0.0,
    return_lse: bool = False,
    return_weights: bool = False,
    weight_heads: Sequence[int] | None = None,
    return_scores: Literal["raw", "softcapped", "masked"] | None = None,
    context: attend.Context | None = None,
) -> Any:
    """attend.attention() that autograd, torch.compile and torch.export know: the same options and results.

        q [batch, heads, queries, d]     k [batch, key heads, keys, d]     v [batch, key heads, keys, dv]

    Returns out [batch, heads, queries, dv], or a tuple (out, lse, weights, scores) of those asked for. In a mask True
    takes part, and the last query is at the last key unless query_offset says otherwise. There are gradients
    at q, k, v, bias, sinks and alibi, through out, lse and weights; not at integers, at k_scales and v_scales,
    nor through the scores, nor, with block_table, through the weights. dropout_p draws its seed from PyTorch's
    generator, as PyTorch's own functions do; dropout=(p, seed, offset) is given one. Weights are those before
    dropout; with weight_heads they are those of these heads alone, of the same pass.

    Tensors of an NVIDIA GPU are computed there, in the current stream; packed sequences then want max_q and max_k. On the
    CPU threads are as many as torch.get_num_threads() says, or those of an attend.Context given as context.

    >>> q, k = torch.ones(2, 8, 10, 64), torch.ones(2, 2, 30, 64)
    >>> attend.torch.attention(q, k, k, causal=True, window=(16, 0), sinks=torch.zeros(8)).shape
    torch.Size([2, 8, 10, 64])
    """
    number = contexts.number_of(_WHERE, context)
    if weight_heads is not None and not return_weights:
        raise ValueError(f"{_WHERE}: weight_heads is given, but weights are not asked for; return_weights=True")
    heads = heads_of(_WHERE, weight_heads, "weight_heads")
    if heads is not None:
        check_tensor(_WHERE, "q", q)
        _check_rank("q", q)
        check_heads(_WHERE, "q", heads, q.size(1))
    if return_scores not in (None, "raw", "softcapped", "masked"):
        raise TypeError(f"{_WHERE}: return_scores is 'raw', 'softcapped', 'masked' or None, found {return_scores!r}")
    tensors = {
        "mask": mask, "bias": bias, "sinks": sinks, "alibi": alibi, "key_lengths": key_lengths,
        "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "block_table": block_table,
        "k_scales": k_scales, "v_scales": v_scales,
    }
    found = at_once(q, k, v, tensors | {
        "scale": scale, "softcap": softcap, "bias_before_softcap": bias_before_softcap, "causal": causal, "window": window,
        "query_offset": query_offset, "key_offset": key_offset, "blocks": blocks, "max_q": max_q, "max_k": max_k,
        "dropout": dropout, "dropout_p": dropout_p, "return_lse": return_lse, "return_weights": return_weights,
        "weight_heads": heads, "return_scores": return_scores, "context": context,
    })
    if found is not None:
        return found
    tensors = {name: x for name, x in tensors.items() if x is not None}
    p, seed, place = _dropout(dropout, dropout_p)
    if isinstance(query_offset, Tensor):
        tensors["query_offsets"], query_offset = query_offset, None
    if blocks is not None:
        tensors["blocks"], block_sizes = _blocks(blocks)
    else:
        block_sizes = None
    for name, x in (("q", q), ("k", k), ("v", v), *tensors.items()):
        check_tensor(_WHERE, name, x)
    check_devices(_WHERE, q, k, v, *tensors.values())
    for name, x in (("q", q), ("k", k), ("v", v)):
        _check_rank(name, x)
    if p > 0.0:
        seed = draw_seed(_WHERE, p, q.device) if seed is None else torch.tensor([seed], device=device_of_seed(q.device))
    q, k, v = prepared(_WHERE, q, k, v)
    out, lse, weights, scores = attention_operator(
        q, k, v, tensors.pop("mask", None), tensors.pop("bias", None), _number("scale", scale),
        _flag("causal", causal), p, seed if p > 0.0 else None, _flag("return_weights", return_weights), number,
        _whole("query_offset", query_offset), softcap=_number("softcap", softcap) or 0.0,
        window=_window(window), bias_before_softcap=_flag("bias_before_softcap", bias_before_softcap),
        key_offset=_whole("key_offset", key_offset), block_sizes=block_sizes, max_q=_whole("max_q", max_q),
        max_k=_whole("max_k", max_k), dropout_place=place, weights_before_dropout=p > 0.0,
        weight_heads=None if heads is None else list(heads), return_scores=return_scores, **tensors,
    )
    wanted = (out, *(lse,) * _flag("return_lse", return_lse), *(weights,) * return_weights, *(scores,) * (return_scores is not None))
    return wanted if len(wanted) > 1 else out


def at_once(q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> Any:
    """attention() without the operator, which takes longer than a small attention; None: somebody beside the caller wants to
    know of the call (autograd, a compiler, a mode), or something is dropped.

    The result lies in memory as q does, as PyTorch's own does: where q is [batch, length, heads, d] transposed, the heads
    are joined without a copy.
    """
    if not plain(q, k, v, *(x for x in options.values() if isinstance(x, Tensor))):
        return None
    given: dict[str, Any] = {}
    for name, x in options.items():
        if x is None or x is False:
            continue
        if isinstance(x, Tensor):
            given[name] = x.detach() if x.requires_grad else x
        elif name in _TENSORS or name in ("dropout", "dropout_p") and (type(x) is not float or x != 0.0):
            return None
        elif name != "dropout_p":
            given[name] = x
    if q.requires_grad or k.requires_grad or v.requires_grad:  # under no_grad()
        q, k, v = q.detach(), k.detach(), v.detach()
    if "context" not in given:
        given["context"] = contexts.current()
    if q.shape[-1:] == v.shape[-1:]:
        given["out"] = torch.empty_like(q)
    return attend.attention(q, k, v, **given)


def _check_rank(name: str, x: Tensor) -> None:
    if x.dim() != 4:
        raise ValueError(f"{_WHERE}: {name} takes [batch, heads, length, dim], found {list(x.shape)}")


def _number(name: str, x: Any) -> float | None:
    if x is None or isinstance(x, (int, float, torch.SymFloat, torch.SymInt)) and not isinstance(x, bool):
        return x
    try:
        if not isinstance(x, (bool, str)):
            return float(x)
    except (TypeError, ValueError):
        pass
    raise TypeError(f"{_WHERE}: {name} takes a number, found {type(x).__name__}")


def _whole(name: str, x: Any) -> int | None:
    if x is None or isinstance(x, (int, torch.SymInt)):
        return x
    try:
        return operator.index(x)
    except TypeError:
        raise TypeError(f"{_WHERE}: {name} takes a whole number, found {type(x).__name__}") from None


def _flag(name: str, x: Any) -> bool:
    if isinstance(x, bool):
        return x
    raise TypeError(f"{_WHERE}: {name} takes True or False, found {type(x).__name__}")


def _parts(name: str, kind: Any, value: Any) -> Any:
    """A named tuple of attend's, made of one, of a tuple or list, or of a dict."""
    try:
        return kind(**value) if isinstance(value, dict) else kind(*value)
    except TypeError:
        fields = ", ".join(kind._fields)
        raise TypeError(f"{_WHERE}: {name} takes ({fields}), or a dict of them, found {value!r}") from None


def _window(window: Any) -> list[int] | None:
    if window is None:
        return None
    sides = [_whole("window", side) for side in _parts("window", attend.Window, window)]
    for side in sides:
        if side is not None and side < 0:
            raise ValueError(f"{_WHERE}: window holds {side}; its numbers are at least 0, or None: no limit")
    return [-1 if side is None else side for side in sides]


def _blocks(blocks: Any) -> tuple[Tensor, list[int]]:
    visible, *sizes = _parts("blocks", attend.Blocks, blocks)
    whole = [_whole(f"blocks.{name}", size) for name, size in zip(("query_size", "key_size"), sizes)]
    if None in whole:
        raise TypeError(f"{_WHERE}: blocks takes (visible, query_size, key_size)")
    return visible, whole


def _dropout(dropout: Any, dropout_p: Any) -> tuple[float, int | None, list[int] | None]:
    """(p, the bits of its seed or None: to be drawn, the rest if there is one)"""
    p = _number("dropout_p", dropout_p)
    if p is None or not 0.0 <= p <= 1.0:
        raise ValueError(f"{_WHERE}: the probability of dropout is {p}; it lies between 0 and 1")
    if dropout is None:
        return p, None, None
    if p != 0.0:
        raise ValueError(f"{_WHERE}: dropout and dropout_p are both given; the first has its seed, the second draws one")
    p, seed, offset, origin = _parts("dropout", attend.Dropout, dropout)
    origin = attend.Origin() if origin is None else _parts("dropout.origin", attend.Origin, origin)
    p, seed = _number("dropout.p", p), _whole("dropout.seed", seed)
    if p is None or not 0.0 <= p <= 1.0:
        raise ValueError(f"{_WHERE}: dropout.p is {p}; it must be from 0 to 1")
    if seed is None or not 0 <= seed < 2**64:
        raise ValueError(f"{_WHERE}: dropout.seed is {seed}; it is a number of 64 bits, from 0 on")
    place = [_whole("dropout.offset", offset), *(_whole("dropout.origin", at) for at in origin)]
    return p, seed if seed < 2**63 else seed - 2**64, place

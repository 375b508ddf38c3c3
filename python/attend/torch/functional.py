"""scaled_dot_product_attention with PyTorch's signature and meaning, computed by attend."""
import math
from itertools import zip_longest
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.compiler import is_compiling

import attend

from . import contexts
from .operators import attention
from .unheard import CAUSAL, EVERY_KEY, calls


DEVICES = ("cpu", "cuda", "meta")


def check_tensor(where: str, name: str, x: Tensor) -> None:
    """What attend cannot compute is refused with the reason; nothing falls back to PyTorch."""
    if not isinstance(x, Tensor):
        raise TypeError(
            f"{where}: {name} takes a torch.Tensor, found {type(x).__name__}; attend.attention takes "
            "arrays of NumPy and others"
        )
    if x.is_nested:
        raise NotImplementedError(
            f"{where}: {name} is a nested tensor, attend takes dense ones; pad it (to_padded_tensor) and "
            "pass a mask. Inside an nn.TransformerEncoder set enable_nested_tensor=False, or let "
            "attend.torch.replace(model) do it"
        )
    if x.layout != torch.strided:
        raise NotImplementedError(f"{where}: {name} has the layout {x.layout}; attend takes dense tensors")
    if x.device.type not in DEVICES:
        raise NotImplementedError(
            f"{where}: {name} is on {x.device}; attend.torch computes on the CPU and on NVIDIA GPUs (cuda), move it there first"
        )


def check_devices(where: str, *tensors: Tensor | None) -> None:
    """All of one device."""
    found = {x.device for x in tensors if x is not None}
    if len(found) > 1:
        raise ValueError(
            f"{where}: the tensors are on {' and '.join(sorted(map(str, found)))}; they must be on one device"
        )


def split_mask(where: str, name: str, mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """(mask, None) of booleans, (None, bias) of numbers."""
    if mask is None:
        return None, None
    check_tensor(where, name, mask)
    if mask.dtype == torch.bool:
        return mask, None
    if not mask.is_floating_point():
        raise TypeError(
            f"{where}: {name} takes booleans, or floats that are added to the scores; found {mask.dtype}"
        )
    return None, mask


def prepared(where: str, *tensors: Tensor) -> list[Tensor]:
    """q, k and v as the operator takes them. Under torch.autocast, attention is computed in its type,
    as PyTorch's own; float64 stays.
    """
    if not is_compiling() and any(unpack_dual(x).tangent is not None for x in tensors):
        raise NotImplementedError(  # PyTorch itself would leave the tangent out without a word
            f"{where}: attention has no forward-mode derivative (jvp); use backward()"
        )
    kind = "cuda" if tensors[0].is_cuda else "cpu"
    if not torch.is_autocast_enabled(kind):
        return list(tensors)
    dtype = torch.get_autocast_dtype(kind)
    return [x if x.dtype == torch.float64 or not x.is_floating_point() else x.to(dtype) for x in tensors]


def draw_seed(where: str, p: float, device: torch.device) -> Tensor | None:
    """From PyTorch's generator, so that torch.manual_seed repeats what is dropped."""
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"{where}: the probability of dropout is {p}; it lies between 0 and 1")
    return torch.randint(2**63 - 1, (1,), dtype=torch.int64, device=device_of_seed(device)) if p > 0.0 else None


def device_of_seed(device: torch.device) -> torch.device:
    """That of the tensors: a default device of another kind would choose the wrong operator. For those of a GPU the CPU's
    memory, which is read without waiting for the GPU.
    """
    return torch.device("cpu") if device.type == "cuda" else device


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    context: attend.Context | None = None,
) -> Tensor:
    """softmax(scale * query . key^T + mask) . value, as torch.nn.functional's.

        query [..., heads, L, E]    key [..., heads, S, E]    value [..., heads, S, Ev]

    Any number of dimensions before the last two, which broadcast. attn_mask broadcasts to
    [..., heads, L, S]: booleans, True = takes part, or floats that are added to the scores. is_causal
    is aligned top left: query i sees the keys up to i. With enable_gqa, query head h uses key head
    h / (heads / key heads).

    A query that sees no key gives 0 and gets no gradient. dropout_p counts whenever it is not 0. Tensors
    of an NVIDIA GPU are computed there, in the current stream. On the CPU threads are as many as
    torch.get_num_threads() says, or those of an attend.Context given as context.

    >>> q = torch.ones(2, 8, 10, 64)
    >>> attend.torch.scaled_dot_product_attention(q, q, q, is_causal=True).shape
    torch.Size([2, 8, 10, 64])
    """
    where = "scaled_dot_product_attention"
    number = contexts.number_of(where, context)
    if attn_mask is None and dropout_p == 0.0 and not enable_gqa and not is_compiling():
        options = CAUSAL if is_causal else EVERY_KEY
        found = calls.attention(query, key, value, scale, options, same_heads=True, context=context)
        if found is not None:
            return found
    put = arranged(where, query, key, value, attn_mask, is_causal, enable_gqa)
    seed = draw_seed(where, dropout_p, query.device)
    q, k, v = prepared(where, put.q, put.k, put.v)
    out, *_ = attention(q, k, v, put.mask, put.bias, scale, is_causal, dropout_p, seed, False, number)
    return out if len(put.lead) == 2 else out.reshape(*put.lead, *out.shape[-2:])


class Arranged(NamedTuple):
    """The tensors of scaled_dot_product_attention as attend.attention() takes them."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    bias: Tensor | None
    lead: tuple[int, ...]  # the result's dimensions before the last two


def arranged(
    where: str, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, is_causal: bool,
    enable_gqa: bool,
) -> Arranged:
    for name, x in (("query", query), ("key", key), ("value", value)):
        check_tensor(where, name, x)
        if x.dim() < 2:
            raise ValueError(f"{where}: {name} takes [..., length, dim], found {list(x.shape)}")
    if attn_mask is not None and is_causal:
        raise ValueError(f"{where}: attn_mask and is_causal exclude each other, as in PyTorch")
    check_devices(where, query, key, value, attn_mask)
    if enable_gqa:
        key, value = _same_key_heads(query, key, value)
    lead = _leading(where, query, key, value, attn_mask, enable_gqa)
    batch = math.prod(lead[:-1])

    def four(x: Tensor, heads: int) -> Tensor:  # [batch, heads, length, dim]
        if x.dim() == 4 and x.shape[:2] == (batch, heads):
            return x
        x = x.expand(*lead[:-1], heads, *x.shape[-2:]) if lead else x.unsqueeze(0)
        return x.unsqueeze(0) if x.dim() == 3 else x.reshape(batch, *x.shape[-3:])

    heads = lead[-1] if lead else 1
    key_heads = key.size(-3) if enable_gqa else heads
    if attn_mask is not None and attn_mask.dim() > 3 and len(lead) > 2:
        attn_mask = attn_mask.expand(*lead[:-1], *attn_mask.shape[-3:])
        attn_mask = attn_mask.reshape(batch, *attn_mask.shape[-3:])
    mask, bias = split_mask(where, "attn_mask", attn_mask)
    return Arranged(four(query, heads), four(key, key_heads), four(value, key_heads), mask, bias, lead)


def _same_key_heads(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """PyTorch groups the heads of keys and of values separately; here they go together."""
    if min(query.dim(), key.dim(), value.dim()) < 3:
        raise ValueError("scaled_dot_product_attention: enable_gqa needs a dimension of heads")
    heads = query.size(-3)
    for name, x in (("key", key), ("value", value)):
        if x.size(-3) == 0 or heads % x.size(-3):
            raise ValueError(
                f"scaled_dot_product_attention: {heads} heads of query are no multiple of the "
                f"{x.size(-3)} of {name}"
            )
    if key.size(-3) == value.size(-3):
        return key, value
    return (
        key.repeat_interleave(heads // key.size(-3), -3),
        value.repeat_interleave(heads // value.size(-3), -3),
    )


def _leading(
    where: str, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, enable_gqa: bool
) -> tuple[int, ...]:
    """What the dimensions before the last two broadcast to. The mask must fit as it is."""
    lengths = (query.size(-2), key.size(-2))
    leads = [tuple(x.shape[:-2]) for x in (query, key, value)]
    if enable_gqa:  # the key heads are checked by themselves
        leads[1:] = [(*lead[:-1], query.size(-3)) for lead in leads[1:]]
    if mask is not None:
        shape = (1,) * (2 - mask.dim()) + tuple(mask.shape)
        if any(found not in (1, wanted) for found, wanted in zip(shape[-2:], lengths)):
            raise ValueError(
                f"{where}: attn_mask {list(mask.shape)} does not broadcast to [..., L, S] = "
                f"[..., {lengths[0]}, {lengths[1]}]"
            )
        leads.append(shape[:-2])
    lead = _broadcast(leads)
    if lead is not None:
        return lead
    shapes = ", ".join(str(list(x.shape)) for x in (query, key, value, mask) if x is not None)
    hint = ""
    if not enable_gqa and _are_grouped(where, query, key, value, mask):
        hint = (f"; {query.size(-3)} heads of query with {key.size(-3)} of key are grouped heads, "
                "which want enable_gqa=True")
    raise ValueError(f"{where}: the dimensions before the last two do not fit: {shapes}{hint}")


def _broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...] | None:
    """What they broadcast to, None if they do not. torch.broadcast_shapes takes longer than a short call."""
    if all(shape == shapes[0] for shape in shapes):
        return shapes[0]
    lead: list[int] = []
    for sizes in zip_longest(*map(reversed, shapes), fillvalue=1):
        others = [size for size in sizes if size != 1]
        if any(size != others[0] for size in others):
            return None
        lead.insert(0, others[0] if others else 1)
    return tuple(lead)


def _are_grouped(where: str, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether all would fit with enable_gqa."""
    if min(query.dim(), key.dim(), value.dim()) < 3 or 0 in (key.size(-3), value.size(-3)):
        return False
    if query.size(-3) % key.size(-3) or query.size(-3) % value.size(-3):
        return False
    try:
        _leading(where, query, key, value, mask, True)
    except ValueError:
        return False
    return True

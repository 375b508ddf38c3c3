"""The weights of attention as a result with a gradient: they are the attention to the identity, whose
values at key j are 1 in column j. It takes keys / dv times the work of the attention itself.
"""
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import attend

from .heads import joined, of_heads


def weights_shape(
    q: Tensor, k: Tensor, *, cu_seqlens_q: Tensor | None = None, cu_seqlens_k: Tensor | None = None,
    max_q: int | None = None, max_k: int | None = None, block_table: Tensor | None = None, **others: Any,
) -> tuple[int, ...]:
    """What is known before the tensors have numbers, as inside torch.compile."""
    keys = k.size(2) if block_table is None else block_table.size(1) * k.size(2)
    if cu_seqlens_q is None:
        return (q.size(0), q.size(1), q.size(2), keys)
    if block_table is None:
        keys = max_k if max_k is not None or cu_seqlens_k is not None else max_q
    if max_q is None or keys is None:
        raise ValueError(
            "attention: the weights of packed sequences are [sequences, heads, max_q, max_k]; without numbers in "
            "the tensors (torch.compile, torch.export, meta tensors) give max_q and max_k"
        )
    return (cu_seqlens_q.size(0) - 1, q.size(1), max_q, keys)


def _to_identity(q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    """(values, options) of that attention."""
    if "block_table" in options:
        raise NotImplementedError(
            "attention: of keys on pages (block_table) there are no weights after dropout, and no gradient at the "
            "weights; gather the pages into k and v"
        )
    options = {name: value for name, value in options.items() if name != "v_scales"}
    if "cu_seqlens_q" not in options:
        keys = k.size(2)
        return torch.eye(keys, dtype=q.dtype, device=q.device).expand(k.size(0), k.size(1), keys, keys), options
    *_, options["max_q"], options["max_k"] = _padded_shape(q, k, v, options)
    _, place = _places(options.get("cu_seqlens_k", options["cu_seqlens_q"]))
    columns = torch.arange(options["max_k"], device=q.device)
    return (place.unsqueeze(1) == columns).to(q.dtype).expand(1, k.size(1), k.size(2), -1), options


def _padded_shape(q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> tuple[int, ...]:
    return attend.weights_shape(q, k, v, **{name: x for name, x in options.items() if name != "context"})


def _places(cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    """Of each packed row (its sequence, its index in it)."""
    sequence = torch.arange(cu_seqlens.size(0) - 1, device=cu_seqlens.device).repeat_interleave(cu_seqlens.diff())
    return sequence, torch.arange(sequence.size(0), device=cu_seqlens.device) - cu_seqlens[:-1][sequence]


def by_attention(q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> Tensor:
    """The weights after dropout; attend hands out those before it."""
    values, changed = _to_identity(q, k, v, options)
    weights = attend.attention(q, k, values, **changed)
    if "cu_seqlens_q" not in options:
        return weights
    padded = weights.new_zeros(_padded_shape(q, k, v, options))
    sequence, place = _places(options["cu_seqlens_q"])
    padded[sequence, :, place] = weights[0].transpose(0, 1)
    return padded


def gradients_at_weights(
    q: Tensor, k: Tensor, v: Tensor, weights: Tensor, lse: Tensor, dweights: Tensor, options: dict[str, Any],
    heads: Sequence[int] | None = None,
) -> Sequence[Any]:
    """As attend.attention_backward()'s; dv is that of the identity. heads: whose weights they are; None: of all."""
    if heads is not None:
        some_q, some_k, some = of_heads(q, k, heads, options)
        some_v = v[:, :1].expand(-1, len(heads), -1, -1)  # of which the shape counts
        found = gradients_at_weights(some_q, some_k, some_v, weights, lse[:, [*heads]], dweights, some)
        return joined(found, heads, (q, k, v, *(options.get(name) for name in ("bias", "sinks", "alibi"))))
    values, changed = _to_identity(q, k, v, options)
    if "cu_seqlens_q" in options:
        sequence, place = _places(options["cu_seqlens_q"])
        weights, dweights = (x[sequence, :, place].transpose(0, 1).unsqueeze(0) for x in (weights, dweights))
    return attend.attention_backward(q, k, values, weights, lse, dweights, **changed)

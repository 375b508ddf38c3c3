"""Some heads of a call alone."""
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import attend

from . import contexts


def of_heads(
    q: Tensor, k: Tensor, heads: Sequence[int], options: dict[str, Any]
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """(q, k, options) of these query heads alone, each with a key head of its own."""
    index = torch.tensor(heads, device=q.device)
    group = max(q.size(1) // max(k.size(1), 1), 1)
    some = {name: x for name, x in options.items() if x is not None}
    for name in ("mask", "bias"):
        x = some.get(name)
        if x is not None and x.dim() > 2 and x.size(-3) != 1:
            some[name] = x.index_select(x.dim() - 3, index)
    for name in ("alibi", "sinks"):
        if name in some:
            some[name] = some[name].index_select(0, index)
    for name in ("k_scales", "v_scales"):
        if name in some:
            some[name] = some[name].index_select(1, index // group)
    if "blocks" in some:
        visible, *sizes = some["blocks"]
        some["blocks"] = (visible if visible.size(1) == 1 else visible.index_select(1, index), *sizes)
    return q.index_select(1, index), k.index_select(1, index // group), some


def weights_alone(q: Tensor, k: Tensor, heads: Sequence[int], options: dict[str, Any]) -> Tensor:
    """The weights of these heads, without a gradient, where `out` is computed by the operator."""
    with torch.no_grad():
        q, k, some = of_heads(q.detach(), k.detach(), heads, options)
        some = {name: x.detach() if isinstance(x, Tensor) else x for name, x in some.items()}
        if "query_offsets" in some:
            some["query_offset"] = some.pop("query_offsets")
        some.pop("v_scales", None)
        some["context"] = some.get("context") or contexts.current()
        _, weights = attend.attention(q, k, k[..., :1], return_weights=True, **some)
    return weights

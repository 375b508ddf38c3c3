"""Some heads of a call alone."""
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


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


def joined(found: Sequence[Tensor | None], heads: Sequence[int], like: Sequence[Any]) -> list[Tensor | None]:
    """(dq, dk, dv, dbias, dsinks, dalibi) of a call of of_heads(), as gradients of q, k, v, bias, sinks, alibi in `like`. dv is not
    among them.
    """
    q, k, _, bias, *_ = like
    index = torch.tensor(heads, device=q.device)
    group = max(q.size(1) // max(k.size(1), 1), 1)
    each_head = bias is not None and bias.dim() > 2 and bias.size(-3) != 1
    places = (1, 1, None, bias.dim() - 3 if each_head else None, 0, 0)
    of_group = (index, index // group, *(index,) * 4)
    return [
        x if x is None or place is None else torch.zeros_like(wide).index_add_(place, at, x)
        for x, wide, place, at in zip(found, like, places, of_group)
    ]

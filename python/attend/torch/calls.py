"""The one place that every attention of a model goes through: call()."""
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from .general import at_once, attention
from .heads import of_heads
from .taps import COMPILED, Look, Replay, active, forget, in_python, is_tapped, recomputing, remember, unkept, was_edited
from .unheard import calls_unless

TAPS = (active, unkept)
untapped = calls_unless(*TAPS)  # calls that no block looks at, either


def tapped() -> bool:
    """Whether anybody looks at calls made here and now, or changes them."""
    if is_compiling():
        return is_tapped()
    return bool(active.get() or unkept)


def call(
    module: nn.Module | None, q: Tensor, k: Tensor, v: Tensor, *, return_weights: bool = False,
    dropped: Callable[[], Tensor] | None = None, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """(out [batch, heads, queries, dv], weights [batch, heads, queries, keys] or None) of attend.torch.attention(), as
    the captures and edits that are active here want it. `module` is who calls; None: whoever is being called. The weights are those
    before dropout; with dropped(), which gives those after it, these, edited as well.
    """
    if is_compiling():
        if not is_tapped():
            return _compute(q, k, v, return_weights, options)
        if not torch.compiler.is_dynamo_compiling():  # torch.export and its like
            raise NotImplementedError(COMPILED)
        return _call_in_python(module, q, k, v, return_weights=return_weights, dropped=dropped, **options)
    taps = active.get()
    again = bool(taps or unkept) and recomputing()
    if again and module is not None and was_edited(module) and not any(isinstance(tap, Replay) for tap in taps):
        raise RuntimeError(
            f"attend: {type(module).__name__} was edited in a forward pass, and is computed again in the backward pass, "
            "where its edits are not known; wrap the function that is checkpointed in attend.torch.keep_edits()"
        )
    looks, changes = [], False
    for tap in taps:
        if again and not isinstance(tap, Replay):
            continue
        found = tap.find(module)
        look = None if found is None else tap.before(*found, q, k, v, options)
        if look is not None:
            looks.append(look)
            changes = changes or tap.changes
    if unkept and not again and module is not None and not any(tap.changes for tap in taps):
        forget(module)
    given_back = return_weights and dropped is None  # else those before dropout are for the looks alone
    if not looks:
        out, weights = _compute(q, k, v, given_back, options)
        return out, weights if dropped is None else dropped()
    out, weights = _observed(looks, q, k, v, given_back, options)
    if return_weights and dropped is not None:
        weights = dropped()
        for look in looks:
            weights = look.edit_weights(weights, tuple(range(q.size(1))))
    if changes and not again and module is not None:
        remember(module, out)
    return out, weights


_call_in_python = in_python(call)


def _compute(
    q: Tensor, k: Tensor, v: Tensor, return_weights: bool, options: dict[str, Any]
) -> tuple[Tensor, Tensor | None]:
    if return_weights:
        return attention(q, k, v, return_weights=True, **options)
    found = at_once(q, k, v, options)
    return attention(q, k, v, **options) if found is None else found, None


def _observed(
    looks: list[Look], q: Tensor, k: Tensor, v: Tensor, return_weights: bool, options: dict[str, Any]
) -> tuple[Tensor, Tensor | None]:
    """The weights of the heads that somebody asks for, and of no others."""
    every = tuple(range(q.size(1)))
    heads = every if return_weights else _union(looks, every)
    recorded = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in (q, k, v, *options.values()))
    if return_weights or (heads and not recorded):
        out, weights = attention(q, k, v, return_weights=True, weight_heads=None if heads == every else heads, **options)
    else:
        out, weights = attention(q, k, v, **options), _weights_alone(q, k, heads, options) if heads else None
    for look in looks:
        out = look.edit(out)
        weights = None if weights is None else look.edit_weights(weights, heads)
    for look in looks:
        look.after(out, weights, heads)
    return out, weights if return_weights else None


def _weights_alone(q: Tensor, k: Tensor, heads: tuple[int, ...], options: dict[str, Any]) -> Tensor:
    """In a pass of their own, which autograd does not know of: what checkpointing computes again is not captured, and must
    save the same tensors for the gradient all the same.
    """
    with torch.no_grad():
        q, k, some = of_heads(q.detach(), k.detach(), heads, options)
        for name in ("dropout", "dropout_p", "v_scales"):
            some.pop(name, None)
        v = q.new_zeros(()).expand(*k.shape[:3], 1)
        _, weights = attention(q, k, v, return_weights=True, **some)
    return weights


def _union(looks: list[Look], every: tuple[int, ...]) -> tuple[int, ...]:
    if any(look.weight_heads is None for look in looks):
        return every
    return tuple(sorted({head for look in looks for head in look.weight_heads or ()}))

"""edit(): heads of a running model that give something else than their own result."""
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attend._edits import MeanOf, PatternOf, Zero

from .capturing import Captured, Run
from .layers import Layer, Names, check_heads, heads_of
from .taps import Look, Tap


class Edit(Tap):
    """An edit() block."""

    where = "edit"
    changes = True

    def __init__(self, model: nn.Module | None, edits: Mapping[Any, Any], names: Names | None) -> None:
        super().__init__(model)
        if not isinstance(edits, Mapping) or not edits:
            raise TypeError("edit: takes {(layer, head): what}, found " + (type(edits).__name__ if edits else repr(edits)))
        pairs = [_pair(key) for key in edits]
        self.rules = self.rules_of([layer for layer, _ in pairs], names)
        self.heads = [heads_of("edit", head) for _, head in pairs]
        self.values = [_value(key, value) for key, value in edits.items()]
        for rule, heads, value in zip(self.rules.rules, self.heads, self.values):
            found = self.rules.names_of(rule)
            self.check_known_heads(found, heads)
            for name in found:
                for head in heads or ():
                    _check_source(value, Layer(name, rule.call or 0), head)

    def finish(self) -> None:
        self.never_called(self.rules.unmet())

    def before(
        self, layer: Layer, order: int, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any], step: int | None = None
    ) -> Look | None:
        step = self.place.step if step is None else step
        found = self.rules.find(layer, order)
        edits: dict[int, Any] = {}
        for rule, heads, value in zip(self.rules.rules, self.heads, self.values):
            if rule not in found:
                continue
            chosen = range(q.size(1)) if heads is None else heads
            check_heads("edit", str(layer), chosen, q.size(1))
            twice = next((head for head in chosen if head in edits), None)
            if twice is not None:
                raise ValueError(f"edit: head {twice} of {layer} is given two things, the second by {rule}; say which")
            edits |= {head: value for head in chosen}
        if not edits:
            return None
        look = _EditLook(v, max(q.size(1) // max(k.size(1), 1), 1))
        for head, value in edits.items():
            look.add(layer, head, value, step, (q.size(0), q.size(2), k.size(2)), options)
        return look


class _EditLook(Look):
    def __init__(self, v: Tensor, group: int) -> None:
        self.v, self.group = v, group
        self.outputs: dict[int, Tensor | None] = {}  # None: zeros
        self.patterns: dict[int, Tensor] = {}

    def add(
        self, layer: Layer, head: int, value: Any, step: int, sizes: tuple[int, int, int], options: dict[str, Any]
    ) -> None:
        if isinstance(value, Zero):
            self.outputs[head] = None
        elif isinstance(value, MeanOf):
            found = _source(value, layer, head)
            mean = value.run.mean(*found)
            if mean.size(0) != self.v.size(3):
                raise ValueError(f"edit: the mean of head {head} of {layer} has {mean.size(0)} numbers, the head {self.v.size(3)}")
            self.outputs[head] = mean
        else:
            name = next((x for x in ("cu_seqlens_q", "block_table", "v_scales") if options.get(x) is not None), None)
            if name is not None:
                raise NotImplementedError(f"edit: a pattern for head {head} of {layer}, whose keys have {name}, is not supported")
            pattern = _pattern_at(value, layer, head, step) if isinstance(value, PatternOf) else value
            self.patterns[head] = _fitting(pattern, layer, head, sizes)

    def edit(self, out: Tensor) -> Tensor:
        """Every head as it is, or what it is given instead; gradients pass."""
        heads = list(out.unbind(1))
        for head, output in self.outputs.items():
            heads[head] = torch.zeros_like(heads[head]) if output is None else output.to(out).expand_as(heads[head])
        for head, pattern in self.patterns.items():
            v = self.v[:, head // self.group]
            wide = torch.float64 if v.dtype == torch.float64 else torch.float32
            heads[head] = _weighed(pattern.to(v.device, wide), v.to(wide)).to(out.dtype)
        return torch.stack(heads, 1)

    def edit_weights(self, weights: Tensor, heads: tuple[int, ...]) -> Tensor:
        """What is seen of a head that is given a pattern is that pattern."""
        if not any(head in heads for head in self.patterns):
            return weights
        each = list(weights.unbind(1))
        for head, pattern in self.patterns.items():
            if head in heads:
                place = heads.index(head)
                each[place] = pattern.to(weights).expand_as(each[place])
        return torch.stack(each, 1)


def edit(
    model: nn.Module | Mapping[Any, Any] | None = None, edits: Mapping[Any, Any] | None = None, *,
    names: Names | None = None,
) -> Edit:
    """`with edit(model, {(layer, head): what}):` gives heads something else than their own result.

    layer      a name, (name, call), or a number where that is clear, as capture() takes them
    head       a number, several, or None: all heads of the layer
    what       attend.zero, attend.mean_of(run), attend.pattern_of(run), or weights [queries, keys] or [batch, queries,
               keys], by which the head's values are weighed

    Gradients pass through: those of the head's q and k end where its pattern is replaced. Gradient checkpointing computes with the
    edits of the forward pass, also after the block. A layer that never called is an error at the end of the block.
    """
    if edits is None and isinstance(model, Mapping):
        model, edits = None, model
    if edits is None:
        raise TypeError("edit: takes {(layer, head): what}")
    return Edit(model, edits, names)  # type: ignore[arg-type]


def _pair(key: Any) -> tuple[Any, Any]:
    if isinstance(key, tuple) and len(key) == 2:
        return key
    raise TypeError(f"edit: a key is (layer, head), found {key!r}; of a layer that is called more than once ((name, call), head)")


def _value(key: Any, value: Any) -> Any:
    if isinstance(value, (Zero, MeanOf, PatternOf)):
        if isinstance(value, (MeanOf, PatternOf)) and not isinstance(value.run, Run):
            raise TypeError(f"edit: {value!r} takes what a capture() block handed out, found {type(value.run).__name__}")
        return value
    try:
        weights = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        weights = None
    if weights is None or not weights.is_floating_point() or weights.dim() not in (2, 3):
        raise TypeError(
            f"edit: {key!r} is given {value if weights is None else list(weights.shape)!r}; it takes attend.zero, "
            "attend.mean_of(run), attend.pattern_of(run), or floats [queries, keys] or [batch, queries, keys]"
        )
    return weights


def _source(value: MeanOf | PatternOf, layer: Layer, head: int) -> tuple[Any, int]:
    return layer if value.layer is None else value.layer, head if value.head is None else value.head


def _check_source(value: Any, layer: Layer, head: int) -> None:
    """Whether a run has what it is to give, where that can be known before anything runs."""
    if not isinstance(value, (MeanOf, PatternOf)) or not value.run.steps:
        return  # it may be filled until then
    wanted, head = _source(value, layer, head)
    name = wanted if isinstance(wanted, Layer) else None
    if name is not None and not any(x.name == name.name for x in value.run.layers):
        raise LookupError(f"edit: {value!r}: layer {name} was not captured: {', '.join(map(str, value.run.layers))}")
    for found in value.run.all(wanted) if name is None or wanted in value.run.layers else []:
        found.place(head)
        if isinstance(value, PatternOf):
            found.need("weights")


def _pattern_at(value: PatternOf, layer: Layer, head: int, step: int) -> Tensor:
    wanted, head = _source(value, layer, head)
    found: list[Captured] = value.run.all(wanted)
    steps = [x for x in value.run.steps if wanted in x]
    one = found[0] if len(found) == 1 else next((x[wanted] for x in steps if x.number == step), None)
    if one is None:
        raise LookupError(
            f"edit: {value!r}: of forward pass {step} the run has no {wanted}; it has those of the passes "
            f"{', '.join(str(x.number) for x in steps[:12])}{', ...' if len(steps) > 12 else ''}"
        )
    return one.need("weights")[:, one.place(head)]


def _weighed(pattern: Tensor, v: Tensor) -> Tensor:
    """pattern @ v, where NaN and infinity of keys without weight stay where they are: padding may hold anything."""
    odd = ~v.detach().isfinite()
    if not odd.any():
        return pattern @ v
    out = pattern @ v.masked_fill(odd, 0.0)
    weighs = pattern.detach() != 0
    seen = weighs.to(v.dtype) @ odd.to(v.dtype) > 0
    blind = ~weighs.any(-1, keepdim=True)  # queries of padding, whose gradients may be NaN as well
    return out.masked_fill(seen, torch.nan).masked_fill(blind, 0.0)


def _fitting(pattern: Tensor, layer: Layer, head: int, sizes: tuple[int, int, int]) -> Tensor:
    shape = (1,) * (3 - pattern.dim()) + tuple(pattern.shape)
    if shape[1:] != sizes[1:] or shape[0] not in (1, sizes[0]):
        raise ValueError(
            f"edit: the weights for head {head} of {layer} are {list(pattern.shape)}; in this pass it has {sizes[1]} queries and "
            f"{sizes[2]} keys of {sizes[0]} sequences"
        )
    return pattern

"""capture(): what chosen heads of chosen layers did, while a model runs as it always does."""
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

import attend

from . import contexts
from .heads import of_heads
from .layers import Layer, Names, Rule, check_heads, heads_of, kind_of
from .taps import Look, Tap

KINDS = ("weights", "stats", "qkv", "out")
_NOT_FOR_INSPECT = ("dropout_p", "dropout", "context")


@dataclasses.dataclass(frozen=True, eq=False)
class Captured:
    """Some heads of one attention in one forward pass. What was not asked for is None.

    heads      which heads, in the order of the others' dimension of heads
    weights    [batch, heads, queries, keys], before dropout, after edits
    stats      attend.Statistics of these heads, as attend.inspect() gives them
    q, k, v    [batch, heads, length, dim]; k and v of the heads in key_heads, which these use
    out        [batch, heads, queries, dv]: the heads' results, after edits
    mean       [heads, dv]: their mean over batch and queries; always there
    """

    layer: Layer
    heads: tuple[int, ...]
    mean: Tensor
    rows: int  # that the mean is of
    order: int = 0  # which attention of the pass it was
    weights: Tensor | None = None
    stats: "attend.Statistics | None" = None
    q: Tensor | None = None
    k: Tensor | None = None
    v: Tensor | None = None
    key_heads: tuple[int, ...] = ()
    group: int = 1  # query heads for each key head
    count: int = 0  # how many heads the layer has
    out: Tensor | None = None

    def place(self, head: int) -> int:
        """Where a head is among those captured."""
        if head not in self.heads:
            raise LookupError(f"head {head} of {self.layer} was not captured; {_numbers(self.heads)} were")
        return self.heads.index(head)

    def need(self, name: str) -> Any:
        value = getattr(self, name)
        if value is None:
            raise LookupError(f"{name} of {self.layer} were not captured: capture(what={'qkv' if name in 'qkv' else name!r})")
        return value

    def values(self) -> Tensor:
        """v for each of the heads: [batch, heads, keys, dv]."""
        v = self.need("v")
        return v[:, [self.key_heads.index(head // self.group) for head in self.heads]]


class Step(Mapping[Layer, Captured]):
    """One forward pass: what was captured of each layer, in the order of the calls.

    number is that of the pass in its block, counting those too in which no chosen layer called.
    """

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self._found: dict[Layer, Captured] = {}

    def __getitem__(self, layer: Any) -> Captured:
        return self._found[self.find(layer)]

    def __iter__(self) -> Iterator[Layer]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, layer: Any) -> bool:
        return len(self._all(layer)) == 1

    def find(self, layer: Any) -> Layer:
        """The one layer that a name, a pair (name, call) or a number means."""
        found = self._all(layer)
        if len(found) != 1:
            names = ", ".join(map(str, found or self._found)) or "nothing"
            why = "was not captured" if not found else "may be any of several, say (name, call)"
            raise LookupError(f"layer {layer!r} {why}: {names}")
        return found[0]

    def _all(self, layer: Any) -> list[Layer]:
        if isinstance(layer, Layer):
            return [layer] if layer in self._found else []
        rule = Rule("run", layer)
        if rule.number is not None and len({kind_of(x.name) for x in self._found}) > 1:
            return list(self._found)
        return [x for x, found in self._found.items() if rule.means(x, found.order)]


class Run:
    """What a capture() block found: run[layer] of the forward pass, run.steps[n][layer] if there were several."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    @property
    def layers(self) -> list[Layer]:
        """Those that were captured, each once."""
        return list(dict.fromkeys(layer for step in self.steps for layer in step))

    def __getitem__(self, layer: Any) -> Captured:
        if len(self.steps) != 1:
            raise LookupError(
                f"this run has {len(self.steps)} forward passes; run.steps[n][layer] is of one, run.all(layer) of all"
            )
        return self.steps[0][layer]

    def all(self, layer: Any) -> list[Captured]:
        """Of every forward pass that called the layer: of generate(), one for each new token."""
        found = [step[layer] for step in self.steps if step._all(layer)]
        if not found:
            raise LookupError(f"layer {layer!r} was not captured: {', '.join(map(str, self.layers)) or 'nothing'}")
        return found

    def mean(self, layer: Any, head: int) -> Tensor:
        """[dv]: the head's mean output over batch, queries and forward passes."""
        found = [x for x in self.all(layer) if head in x.heads] or [self.all(layer)[0]]
        rows = sum(x.rows for x in found)
        return sum(x.mean[x.place(head)] * (x.rows / max(rows, 1)) for x in found)  # type: ignore[return-value]

    def __repr__(self) -> str:
        return f"<attend run: forward passes: {len(self.steps)}, layers: {len(self.layers)}>"


class Capture(Tap):
    """A capture() block."""

    where = "capture"

    def __init__(
        self, model: nn.Module | None, layers: Any, heads: Any, what: str | Iterable[str], inspect: Mapping[str, Any] | None,
        names: Names | None,
    ) -> None:
        super().__init__(model)
        self.what = _kinds(what)
        if inspect and "stats" not in self.what:
            raise ValueError("capture: options of inspect are given, but what has no 'stats'")
        self.inspect = _inspect_options(inspect)
        by_layer = layers if isinstance(layers, Mapping) else None
        if by_layer is not None and heads is not None:
            raise ValueError("capture: layers that are given with their heads exclude heads")
        self.rules = self.rules_of(layers if by_layer is None else list(by_layer), names)
        self.heads = heads_of("capture", heads)
        self.by_rule = None if by_layer is None else [heads_of("capture", x) for x in by_layer.values()]
        self.run = Run()
        self._step = -1
        for place, rule in enumerate(self.rules.rules):
            self.check_known_heads(self.rules.names_of(rule), self.heads if self.by_rule is None else self.by_rule[place])

    def __enter__(self) -> Run:
        super().__enter__()
        self.run, self._step = Run(), -1
        return self.run

    def finish(self) -> None:
        self.never_called(self.rules.unmet(), bool(self.run.steps))

    def before(
        self, layer: Layer, order: int, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any], step: int | None = None
    ) -> Look | None:
        heads = self._heads(layer, order)
        if heads == ():
            return None
        if heads is not None:
            check_heads("capture", str(layer), heads, q.size(1))
        if self._step != self.place.step:
            self._step = self.place.step
            self.run.steps.append(Step(self.place.step))
        return _CaptureLook(self, layer, order, heads, q, k, v, options)

    def _heads(self, layer: Layer, order: int) -> tuple[int, ...] | None:
        """Which heads of a call; (): none."""
        found = self.rules.find(layer, order)
        if self.by_rule is None:
            return self.heads if found or self.rules.any_layer else ()
        chosen = [heads for rule, heads in zip(self.rules.rules, self.by_rule) if rule in found]
        if None in chosen:
            return None
        return tuple(dict.fromkeys(head for heads in chosen for head in heads or ()))


class _CaptureLook(Look):
    def __init__(
        self, tap: Capture, layer: Layer, order: int, heads: tuple[int, ...] | None, q: Tensor, k: Tensor, v: Tensor,
        options: dict[str, Any],
    ) -> None:
        self.tap, self.layer = tap, layer
        every = tuple(range(q.size(1)))
        self.heads = every if heads is None else heads
        self.all = self.heads == every
        if "weights" in tap.what:
            self.weight_heads = heads
        group = max(q.size(1) // max(k.size(1), 1), 1)
        self.found: dict[str, Any] = {"order": order, "group": group, "count": q.size(1)}
        with torch.no_grad():
            if "qkv" in tap.what:
                keys = tuple(dict.fromkeys(head // group for head in self.heads))
                self.found |= {
                    "key_heads": keys, "q": _some(q, self.heads), "k": _some(k, keys), "v": _some(v, keys),
                }
            if "stats" in tap.what:
                self.found["stats"] = self._statistics(q, k, options)

    def _statistics(self, q: Tensor, k: Tensor, options: dict[str, Any]) -> attend.Statistics:
        context = options.get("context") or contexts.current()
        options = {name: x for name, x in options.items() if name not in _NOT_FOR_INSPECT}
        q, k = q.detach(), k.detach()
        if not self.all:
            q, k, options = of_heads(q, k, self.heads, options)
        given: dict[str, Any] = {name: x.detach() if isinstance(x, Tensor) else x for name, x in options.items() if x is not None}
        stats = attend.inspect(q, k, context=context, **given, **self.tap.inspect)
        return dataclasses.replace(
            stats, heads=[dataclasses.replace(h, head=self.heads[h.head]) for h in stats.heads]
        )

    def after(self, out: Tensor, weights: Tensor | None, heads: tuple[int, ...]) -> None:
        with torch.no_grad():
            out = out.detach().contiguous() if self.all else _some(out, self.heads)  # a mean has the bits of its order
            if "out" in self.tap.what:
                self.found["out"] = out.clone() if self.all else out
            if weights is not None and "weights" in self.tap.what:
                weights = weights.detach()
                places = [heads.index(head) for head in self.heads]
                self.found["weights"] = weights if places == list(range(len(heads))) else weights[:, places]
            rows = out.size(0) * out.size(2)
            mean = out.mean((0, 2), dtype=torch.float64 if out.dtype == torch.float64 else torch.float32)
        step = self.tap.run.steps[-1]
        step._found[self.layer] = Captured(self.layer, self.heads, mean, rows, **self.found)


def capture(
    model: nn.Module | None = None, *, layers: Any = None, heads: Any = None, what: str | Iterable[str] = "weights",
    inspect: Mapping[str, Any] | None = None, names: Names | None = None,
) -> Capture:
    """`with capture(model) as run:` keeps what the attentions of the model do, those that are computed by attend.

    layers     a name ("*" and "?" stand for anything), (name, call), a number where that is clear, several of these, or
               {layer: heads}; None: all
    heads      a number or several; None: all
    what       "weights", "stats" (attend.inspect()'s, without the weights), "qkv" or "out", or several of them
    inspect    options of attend.inspect() for "stats": {"top_k": 5}
    names      of the modules that will call, if that is known, or {name: why it will not, "" if it will}: then a layer that is not
               there, or will not call, is an error at once

    Memory is taken for what is asked for alone, and the results do not change. A layer that was asked for and
    never called is an error at the end of the block. Without a model the names are those inside of the module that is called
    in the block.
    """
    return Capture(model, layers, heads, what, inspect, names)


def _kinds(what: Any) -> tuple[str, ...]:
    kinds = (what,) if isinstance(what, str) or not isinstance(what, Iterable) else tuple(what)
    for kind in kinds or (what,):
        if kind not in KINDS:
            raise ValueError(f"capture: what is {kind!r}; it is {', '.join(map(repr, KINDS))} or several of them")
    return kinds


_OF_INSPECT = ("top_k", "key_mass", "metrics", "local_width", "tokens", "tile_rows", "tile_columns")


def _inspect_options(inspect: Any) -> dict[str, Any]:
    """Tried on one query and one key, so that nothing is found to be wrong in the middle of a model."""
    if inspect is None:
        return {}
    if not isinstance(inspect, Mapping):
        raise TypeError(f"capture: inspect takes a dict of options, found {type(inspect).__name__}")
    for name in inspect:
        if name not in _OF_INSPECT:
            raise ValueError(f"capture: inspect holds {name!r}; the options are {', '.join(_OF_INSPECT)}")
    one = torch.zeros(1, 1, 1, 1)
    attend.inspect(one, one, **{name: x for name, x in inspect.items() if name != "tokens"})
    return dict(inspect)


def _some(x: Tensor, heads: tuple[int, ...]) -> Tensor:
    """A copy: a cache that x may be a part of is written to later."""
    return x.detach().index_select(1, torch.tensor(heads, device=x.device))


def _numbers(heads: tuple[int, ...]) -> str:
    return "heads " + ", ".join(map(str, heads[:12])) + ("..." if len(heads) > 12 else "")

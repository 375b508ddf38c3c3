"""check(model): which attentions of a model come to attend, which do not, and why.

Transformers takes any registered name for any model, also for one whose code computes its attention by itself and never
asks for it. So the code is read here (as compiled: names, not text), and on wish the model is run.
"""
import re
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attend.torch.code import NAME, Uses, attentions_in, why_not
from attend.torch.layers import Layer
from attend.torch.taps import Look, Tap


class Row(NamedTuple):
    """One module that computes attention."""

    name: str
    kind: str  # its class
    comes: bool
    why: str  # it does not; else ""
    calls: int | None = None  # in the run, if there was one


class Report(NamedTuple):
    """What check() found; true if there is attention and all of it comes to attend. str() of it is a table."""

    rows: list[Row]

    @property
    def comes(self) -> list[str]:
        return [row.name for row in self.rows if row.comes]

    @property
    def stays(self) -> dict[str, str]:
        """name: why"""
        return {row.name: row.why for row in self.rows if not row.comes}

    def __bool__(self) -> bool:
        return bool(self.rows) and all(row.comes for row in self.rows)

    def __str__(self) -> str:
        """Layers that differ in their number alone are one line."""
        if not self.rows:
            return "no attention found in this model"
        same: dict[tuple[Any, ...], list[str]] = {}
        for row in self.rows:
            key = (re.sub(r"\d+", "*", row.name), row.kind, row.comes, row.why, row.calls)
            same.setdefault(key, []).append(row.name)
        lines = []
        for (pattern, kind, comes, why, calls), names in same.items():
            name = names[0] if len(names) == 1 else f"{pattern} ({len(names)} of them)"
            line = f"{'attend' if comes else 'not'}  {name or '(the model)'}  {kind}"
            line += "" if calls is None else f"  called {calls} time{'' if calls == 1 else 's'}"
            lines.append(line + (f": {why}" if why else ""))
        lines.append(f"{len(self.comes)} of {len(self.rows)} attentions come to attend")
        return "\n".join(lines)


def check(model: nn.Module, **inputs: Any) -> Report:
    """Which modules of a model will come to attend, by their code and config; with inputs, which
    are given to model(**inputs), by a run without gradients.

    >>> print(attend.hf.check(model))
    attend  layers.*.self_attn (2 of them)  LlamaAttention
    2 of 2 attentions come to attend
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"attend.hf.check takes a model, an nn.Module, found {type(model).__name__}")
    rows = []
    for name, module, uses, config in attentions_in(model):
        why = why_not(uses, config)
        rows.append(Row(name, type(module).__name__, not why, why))
    return Report(_run(model, inputs, rows) if inputs else rows)


def by_themselves(model: nn.Module, asked: bool = False) -> list[Row]:
    """The attentions whose config asks for attend, or of which it was `asked`, and whose code never will. One in whose code no
    attention is found counts where nothing else of the model comes: it may be of another kind.
    """
    meant = [x for x in attentions_in(model) if asked or getattr(x[3], "_attn_implementation", None) == NAME]
    comes = {Uses.interface, Uses.replaced}
    if any(uses in comes for _, _, uses, _ in meant):
        comes.add(Uses.name_alone)
    return [
        Row(name, type(module).__name__, False, why) for name, module, uses, config in meant
        if uses not in comes and (why := why_not(uses, config))
    ]


def _run(model: nn.Module, inputs: dict[str, Any], rows: list[Row]) -> list[Row]:
    counter = _Counter(model)
    with torch.no_grad(), torch.compiler.set_stance("force_eager"), counter:
        model(**inputs)
    counted = []
    for row in rows:
        n = counter.calls.pop(row.name or type(model).__name__, 0)
        why = "" if n else row.why or "it was not called with these inputs"
        counted.append(Row(row.name, row.kind, n > 0, why, n))
    kinds = {name: type(module).__name__ for module, name in counter.names.items()}
    return counted + [Row(name, kinds[name], True, "", n) for name, n in counter.calls.items()]  # whose code did not show it


class _Counter(Tap):
    """How often each module calls."""

    where = "attend.hf.check"
    compiled = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.calls: dict[str, int] = {}

    def before(
        self, layer: Layer, order: int, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any], step: int | None = None
    ) -> Look | None:
        self.calls[layer.name] = self.calls.get(layer.name, 0) + 1
        return None

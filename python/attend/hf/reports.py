"""check(model): which attentions of a model come to attend, which do not, and why.

Transformers takes any registered name for any model, also for one whose code computes its attention by itself and never
asks for it. So the code is read here (as compiled: names, not text), and on wish the model is run.
"""
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import nn

from .code import Uses, uses_of
from .registration import NAME


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
    for name, module, uses, config in _attentions(model):
        why = _why_not(uses, config)
        rows.append(Row(name, type(module).__name__, not why, why))
    return Report(_run(model, inputs, rows) if inputs else rows)


def by_themselves(model: nn.Module) -> list[Row]:
    """The attentions whose config asks for attend, and whose code never will."""
    return [
        Row(name, type(module).__name__, False, _why_not(uses, config)) for name, module, uses, config in _attentions(model)
        if uses in (Uses.layer_of_torch, Uses.sdpa, Uses.own_softmax) and getattr(config, "_attn_implementation", None) == NAME
    ]


def _attentions(model: nn.Module) -> Iterator[tuple[str, nn.Module, Uses, Any]]:
    """(name, module, what its code does, its config or that of the module around it)"""
    configs: dict[str, Any] = {}
    for name, module in model.named_modules():
        configs[name] = getattr(module, "config", None) or configs.get(name.rpartition(".")[0])
        uses = uses_of(module)
        if uses is not Uses.nothing and not (uses is Uses.name_alone and _has_attention_inside(module)):
            yield name, module, uses, configs[name]


def _has_attention_inside(module: nn.Module) -> bool:
    inner = list(module.modules())[1:]
    return any(uses_of(x) not in (Uses.nothing, Uses.name_alone) for x in inner)


def _why_not(uses: Uses, config: Any) -> str:
    if uses is Uses.layer_of_torch:
        return "it is PyTorch's own layer, which attend.torch.replace(model) makes into attend's"
    if uses is Uses.sdpa:
        return "its code calls scaled_dot_product_attention by itself"
    if uses is Uses.own_softmax:
        return "its code computes the attention by itself, without Transformers' AttentionInterface"
    if uses is Uses.name_alone:
        return "no softmax attention is found in its code, which may be of another kind or elsewhere"
    asked = getattr(config, "_attn_implementation", None)
    if asked != NAME:
        return f'its config asks for {asked!r}; model.set_attn_implementation("{NAME}") changes that'
    return ""


def _run(model: nn.Module, inputs: dict[str, Any], rows: list[Row]) -> list[Row]:
    import torch
    from transformers import AttentionInterface

    functions = AttentionInterface._global_mapping
    if NAME not in functions:
        raise RuntimeError("attend.hf.check: call attend.hf.register() before a model is run")
    attention: Any = functions[NAME]
    calls: dict[nn.Module, int] = {}

    def counting(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        calls[module] = calls.get(module, 0) + 1
        return attention(module, *args, **kwargs)

    functions[NAME] = counting
    try:
        with torch.no_grad():
            model(**inputs)
    finally:
        functions[NAME] = attention
    names = {module: name for name, module in model.named_modules()}
    counted = []
    for row in rows:
        n = calls.pop(model.get_submodule(row.name), 0)
        why = "" if n else row.why or "it was not called with these inputs"
        counted.append(Row(row.name, row.kind, n > 0, why, n))
    for module, n in calls.items():  # whose code did not show it
        counted.append(Row(names.get(module, "?"), type(module).__name__, True, "", n))
    return counted

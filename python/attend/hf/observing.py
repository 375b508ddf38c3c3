"""One forward pass of a model over a text: q, k, v and the options of every attention, as the model used them."""
import contextlib
import operator
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attend.torch.layers import Layer, Rules, kind_of
from attend.torch.taps import Look, Tap

from .inputs import inputs_of, is_two, no_cache, texts, with_generated
from .registration import NAME, register
from .reports import check

_NOT_OF_THE_SCORES = ("dropout", "dropout_p", "context")


class Attention(NamedTuple):
    """One attention of the pass: q [batch, heads, queries, d], and options of attend.attention()."""

    layer: Layer
    q: Tensor
    k: Tensor
    v: Tensor
    options: dict[str, Any]


class Part(NamedTuple):
    """The attentions of one purpose, which have the same queries and keys. Texts are empty, if they are not known."""

    name: str
    attentions: list[Attention]
    tokens: list[str]
    key_tokens: list[str]
    token_ids: list[int]  # of the keys

    @property
    def layer_names(self) -> list[str]:
        return short_names([str(x.layer) for x in self.attentions])


class Recorder(Tap):
    """Keeps the arguments of the attentions in a block."""

    where = "view"

    def __init__(self, model: nn.Module, layers: Any, names: list[str]) -> None:
        super().__init__(model)
        self.rules = Rules(self.where, layers, names)
        self.found: list[Attention] = []

    def before(
        self, layer: Layer, order: int, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any], step: int | None = None
    ) -> Look | None:
        if self.rules.find(layer, order):
            used = {
                name: x.detach() if isinstance(x, Tensor) else x
                for name, x in options.items() if x is not None and name not in _NOT_OF_THE_SCORES
            }
            self.found.append(Attention(layer, *(x.detach().clone() for x in (q, k, v)), used))
        return None

    def finish(self) -> None:
        self.never_called(self.rules.unmet())


def observe(
    model: nn.Module, tokenizer: Any, text: str | Mapping[str, Any], *, part: str | None = None, layers: Any = None,
    new_tokens: int = 0, target: str | None = None, batch: int = 0,
) -> Part:
    """Runs the model; the arguments are those of attend.hf.view()."""
    _check_model(model, text)
    try:
        batch = operator.index(None if isinstance(batch, bool) else batch)
    except TypeError:
        raise TypeError(f"view: batch is {batch!r}; it is the number of the sequence to show, the first is 0") from None
    inputs, read = inputs_of(model, tokenizer, text, part, new_tokens, target, batch)
    with on_attend(model), torch.no_grad():
        names = attentions_of(model)
        _check_part(names, is_two(model), part)
        recorder = Recorder(model, layers, names)
        if new_tokens:
            inputs = with_generated(model, inputs, new_tokens)
        with recorder:
            model(**{**inputs, **no_cache(model)})
    return _part(recorder.found, texts(model, tokenizer, inputs, batch) if read else {}, is_two(model), part)


@contextlib.contextmanager
def on_attend(model: nn.Module) -> Iterator[None]:
    """The model computes its attention with attend and without dropout inside, and is as it was afterwards."""
    models: list[Any] = [m for m in model.modules() if hasattr(m, "set_attn_implementation")]  # this, or those inside of it
    configs = {id(m.config): m.config for m in model.modules() if hasattr(getattr(m, "config", None), "_attn_implementation")}.values()
    before = [(config, config._attn_implementation) for config in configs]
    training = [m for m in model.modules() if m.training]
    try:
        if models:
            _set_to_attend(models[:1] if models[0] is model else models)
        model.eval()
        yield
    finally:
        for config, asked in before:
            config._attn_implementation = asked
        for module in training:
            module.training = True


def _set_to_attend(models: list[Any]) -> None:
    register()
    from .telling import quiet

    with quiet():  # attentions_of() refuses
        for model in models:
            if any(m.config._attn_implementation != NAME for m in model.modules() if hasattr(m, "set_attn_implementation")):
                model.set_attn_implementation(NAME)


def _check_model(model: Any, text: Any) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"view: takes a model, an nn.Module, found {type(model).__name__}")
    if not hasattr(model, "set_attn_implementation") and not isinstance(text, Mapping):
        raise TypeError(
            f"view: {type(model).__name__} is no model of Transformers; another is given a dict of its inputs in place of a text, and "
            "attend.view(q, k, v) takes arrays"
        )


def attentions_of(model: nn.Module) -> list[str]:
    """Their names; refuses a model of which any does not come to attend."""
    report = check(model)
    if not report:
        what = "\n".join(f"  {name or '(the model)'}: {why}" for name, why in list(report.stays.items())[:8])
        raise NotImplementedError(
            f"view: not every attention of this {type(model).__name__} comes to attend:\n{what}" if what else
            f"view: no attention is found in this {type(model).__name__}"
        )
    return report.comes


# ---- Parts ---------------------------------------------------------------------------------------

_CROSS = re.compile(r"cross|encoder_?attn|encoder_?attention|encdec", re.IGNORECASE)


def _check_part(names: list[str], two: bool, wanted: str | None) -> None:
    parts = dict.fromkeys(_part_of(name, two) for name in names)
    if wanted is not None and wanted not in parts:
        raise ValueError(f"view: part {wanted!r} is not there; the parts are {', '.join(map(repr, parts))}")


def _part(found: list[Attention], texts: dict[str, list[Any]], two: bool, wanted: str | None) -> Part:
    """The part that is wanted: by default all there is, and of an encoder and a decoder the attention between them."""
    groups: dict[str, list[Attention]] = {}
    for one in found:
        groups.setdefault(_part_of(one.layer.name, two), []).append(one)
    if not two and wanted is None and len({(x.q.size(2), x.k.size(2)) for x in found}) == 1:
        groups = {"": found}
    name = wanted if wanted is not None else "cross" if "cross" in groups else next(iter(groups))
    if wanted is None and not two and len(groups) > 1:
        raise ValueError(
            "view: the attentions have different tokens, and a page shows one part of them: part= takes "
            + ", ".join(map(repr, groups))
        )
    if name not in groups:
        raise ValueError(f"view: none of the layers that were chosen is of part {name!r}")
    chosen = groups[name]
    if len({(x.q.shape[2], x.k.shape[2]) for x in chosen}) > 1:
        raise ValueError(f"view: the attentions of part {name!r} have different tokens; choose some of them by layers=")
    side = {"encoder": ("encoder", "encoder"), "cross": ("decoder", "encoder")}.get(name, ("decoder", "decoder")) if two else ("", "")
    queries, keys = chosen[0].q.size(2), chosen[0].k.size(2)
    tokens, key_tokens = (texts.get(s + "texts", []) for s in side)
    ids = texts.get(side[1] + "ids", [])
    tokens = tokens if len(tokens) == queries else []
    key_tokens = key_tokens if len(key_tokens) == keys else []
    if tokens and not key_tokens:
        key_tokens = [str(n) for n in range(keys)]
    return Part(name, chosen, tokens, key_tokens if key_tokens != tokens else [], ids if len(ids) == keys else [])


def _part_of(name: str, two: bool) -> str:
    """Of an encoder and a decoder one of three; else names that differ in numbers alone are one part."""
    if not two:
        return kind_of(name)
    if _CROSS.search(name):
        return "cross"
    return next((x for x in name.split(".") if x in ("encoder", "decoder")), "decoder")


def short_names(names: list[str]) -> list[str]:
    """Without what all have in common: "model.layers.0.self_attn" is "layers.0"."""
    parts = [name.split(".") for name in names]
    if len(names) < 2 or len(set(names)) < len(names):
        return names
    front = next(n for n in range(min(map(len, parts)) + 1) if len({tuple(p[: n + 1]) for p in parts}) > 1)
    same = [list(reversed(p[front:])) for p in parts]
    if front == 0:
        return names
    back = next((n for n in range(min(map(len, same))) if len({tuple(p[: n + 1]) for p in same}) > 1), 0)
    return [".".join(p[max(front - 1, 0) : len(p) - back]) for p in parts]

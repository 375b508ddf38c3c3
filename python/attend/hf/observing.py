"""One forward pass of a model over a text: q, k, v and the options of every attention, as the model used them."""
import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attend.torch.layers import Layer, Rules, kind_of
from attend.torch.taps import Look, Tap

from .registration import NAME, register
from .reports import check
from .tokens import texts_of

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
            used = {name: x for name, x in options.items() if x is not None and name not in _NOT_OF_THE_SCORES}
            self.found.append(Attention(layer, *(x.detach().clone() for x in (q, k, v)), used))
        return None

    def finish(self) -> None:
        self.never_called(self.rules.unmet())


def observe(
    model: nn.Module, tokenizer: Any, text: str | Mapping[str, Any], *, part: str | None = None, layers: Any = None,
    new_tokens: int = 0, target: str | None = None, batch: int = 0,
) -> Part:
    """Runs the model; the arguments are those of attend.hf.view()."""
    inputs, read = _inputs(model, tokenizer, text, part, new_tokens, target)
    with on_attend(model), torch.no_grad():
        names = _attentions_of(model)
        if new_tokens:
            inputs = _with_generated(model, inputs, new_tokens)
        recorder = Recorder(model, layers, names)
        with recorder:
            model(**inputs, **_no_cache(model))
    return _part(recorder.found, _texts(model, tokenizer, inputs, batch) if read else {}, _is_two(model), part)


@contextlib.contextmanager
def on_attend(model: nn.Module) -> Iterator[None]:
    """The model computes its attention with attend and without dropout inside, and is as it was afterwards."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"view: takes a model, an nn.Module, found {type(model).__name__}")
    if not hasattr(model, "set_attn_implementation"):
        raise TypeError(f"view: {type(model).__name__} is no model of Transformers, of which text can be made q, k and v; "
                        "attend.view(q, k, v) takes arrays")
    register()
    configs = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}.values()
    before = [(config, getattr(config, "_attn_implementation", None)) for config in configs]
    training = [m for m in model.modules() if m.training]
    try:
        if any(asked != NAME for _, asked in before):
            model.set_attn_implementation(NAME)
        model.eval()
        yield
    finally:
        for config, asked in before:
            config._attn_implementation = asked
        for module in training:
            module.training = True


def _attentions_of(model: nn.Module) -> list[str]:
    report = check(model)
    if not report:
        what = "\n".join(f"  {name or '(the model)'}: {why}" for name, why in list(report.stays.items())[:8])
        raise NotImplementedError(
            f"view: not every attention of this {type(model).__name__} comes to attend:\n{what}" if what else
            f"view: no attention is found in this {type(model).__name__}"
        )
    return report.comes


# ---- Inputs --------------------------------------------------------------------------------------


def _inputs(
    model: nn.Module, tokenizer: Any, text: Any, part: str | None, new_tokens: int, target: str | None
) -> tuple[dict[str, Any], bool]:
    """(those of the model, whether the tokenizer can say what the tokens are)"""
    if isinstance(new_tokens, bool) or not isinstance(new_tokens, int) or new_tokens < 0:
        raise ValueError(f"view: new_tokens is {new_tokens!r}; it is the number of tokens to generate, 0 or more")
    device = next(model.parameters()).device
    if isinstance(text, Mapping):
        inputs = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in text.items() if name != "labels"}
    else:
        inputs = _tokenized(model, tokenizer, text, device)
    words = tokenizer if hasattr(tokenizer, "convert_ids_to_tokens") else getattr(tokenizer, "tokenizer", None)
    if new_tokens:
        _check_generates(model, inputs)
    if target is not None:
        if not _is_two(model):
            raise ValueError(f"view: target is what a decoder reads beside the encoder's text; {type(model).__name__} has no encoder")
        if new_tokens or "decoder_input_ids" in inputs:
            raise ValueError("view: target and new_tokens both say what the decoder reads")
        inputs["decoder_input_ids"] = _started(model, _tokenized(model, words, target, device)["input_ids"])
    if _is_two(model) and not new_tokens and "decoder_input_ids" not in inputs:
        if part != "encoder":
            raise ValueError(
                f"view: {type(model).__name__} is an encoder and a decoder; say what the decoder reads: new_tokens=20 (what it "
                'generates), or target="...". part="encoder" needs neither'
            )
        inputs["decoder_input_ids"] = torch.full((1, 1), _start_of(model), device=device)
    return inputs, words is not None


def _tokenized(model: nn.Module, tokenizer: Any, text: Any, device: torch.device) -> dict[str, Tensor]:
    if not isinstance(text, str):
        raise TypeError(f"view: text is a str, or a dict of the model's inputs, found {type(text).__name__}")
    if not callable(tokenizer):
        raise TypeError(f"view: a text needs the model's tokenizer, found {type(tokenizer).__name__}")
    found = tokenizer(text, return_tensors="pt")
    ids = found["input_ids"]
    if ids.size(1) == 0:
        raise ValueError("view: the text has no tokens")
    most = getattr(model.config, "max_position_embeddings", None)
    if isinstance(most, int) and ids.size(1) > most:
        raise ValueError(f"view: the text has {ids.size(1)} tokens; {type(model).__name__} takes {most}")
    taken = getattr(tokenizer, "model_input_names", None) or ["input_ids", "attention_mask"]
    return {name: x.to(device) for name, x in found.items() if name in taken}


def _is_two(model: nn.Module) -> bool:
    return bool(getattr(model.config, "is_encoder_decoder", False))


def _start_of(model: nn.Module) -> int:
    for config in (model.config, getattr(model, "generation_config", None)):
        start = getattr(config, "decoder_start_token_id", None)
        if start is not None:
            return int(start)
    raise ValueError(f"view: {type(model).__name__} has no decoder_start_token_id in its config")


def _started(model: nn.Module, ids: Tensor) -> Tensor:
    start = _start_of(model)
    if bool((ids[:, 0] == start).all()):
        return ids
    return torch.cat([torch.full_like(ids[:, :1], start), ids], 1)


def _check_generates(model: nn.Module, inputs: dict[str, Any]) -> None:
    can = getattr(model, "can_generate", None)
    if can is None or not can():
        raise ValueError(f"view: new_tokens is given, but {type(model).__name__} does not generate text; new_tokens=0 shows the text alone")
    for name, x in inputs.items():
        if isinstance(x, Tensor) and x.dim() > 0 and x.size(0) != 1:
            raise ValueError(f"view: new_tokens takes one text; {name} holds {x.size(0)}")
    mask = inputs.get("attention_mask")
    if isinstance(mask, Tensor) and not bool(mask.bool().all()):
        raise ValueError("view: new_tokens takes a text without padding")


def _with_generated(model: nn.Module, inputs: dict[str, Any], new_tokens: int) -> dict[str, Any]:
    """The tokens of one greedy generation join the text, so that one pass shows all queries and all keys, where
    generation would show a query at a time, and some caches forget.
    """
    ids = generated(model, inputs, new_tokens)
    if _is_two(model):
        return {**inputs, "decoder_input_ids": _started(model, ids)}
    inputs = {**inputs, "input_ids": ids}
    for name in ("attention_mask", "token_type_ids"):
        if name in inputs:
            inputs[name] = nn.functional.pad(inputs[name], (0, ids.size(1) - inputs[name].size(1)), value=name == "attention_mask")
    return inputs


def generated(model: nn.Module, inputs: dict[str, Any], new_tokens: int) -> Tensor:
    """[1, tokens]: of a decoder the prompt and what follows, of an encoder-decoder what the decoder read and wrote."""
    config = model.generation_config
    end = config.eos_token_id[0] if isinstance(config.eos_token_id, list) else config.eos_token_id
    pad = end if config.pad_token_id is None else config.pad_token_id
    return model.generate(**inputs, max_new_tokens=new_tokens, do_sample=False, num_beams=1, pad_token_id=pad)


def _no_cache(model: nn.Module) -> dict[str, Any]:
    """Generation has a cache; a pass over everything needs none."""
    return {"use_cache": False} if hasattr(model.config, "use_cache") else {}


# ---- Parts ---------------------------------------------------------------------------------------

_CROSS = re.compile(r"cross|encoder_?attn|encoder_?attention|encdec", re.IGNORECASE)


def _part(found: list[Attention], texts: dict[str, list[Any]], two: bool, wanted: str | None) -> Part:
    """The part that is wanted: by default all there is, and of an encoder and a decoder the attention between them."""
    groups: dict[str, list[Attention]] = {}
    for one in found:
        groups.setdefault(_part_of(one.layer.name) if two else kind_of(one.layer.name), []).append(one)
    if not two and wanted is None and len({(x.q.size(2), x.k.size(2)) for x in found}) == 1:
        groups = {"": found}
    name = wanted if wanted is not None else "cross" if "cross" in groups else next(iter(groups))
    if name not in groups or (wanted is None and not two and len(groups) > 1):
        why = f"part {wanted!r} is not there" if wanted is not None else "the attentions have different tokens, and a page shows one part"
        raise ValueError(f"view: {why}; the parts are {', '.join(map(repr, groups))}")
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


def _part_of(name: str) -> str:
    if _CROSS.search(name):
        return "cross"
    return next((x for x in name.split(".") if x in ("encoder", "decoder")), "decoder")


def _texts(model: nn.Module, tokenizer: Any, inputs: dict[str, Any], batch: int) -> dict[str, list[Any]]:
    words = tokenizer if hasattr(tokenizer, "convert_ids_to_tokens") else tokenizer.tokenizer
    found: dict[str, list[Any]] = {}
    two = _is_two(model)
    for name, side in (("input_ids", "encoder" if two else ""), ("decoder_input_ids", "decoder")):
        ids = inputs.get(name)
        if isinstance(ids, Tensor) and ids.dim() == 2 and -ids.size(0) <= batch < ids.size(0):
            found[side + "ids"] = ids[batch].tolist()
            found[side + "texts"] = texts_of(words, found[side + "ids"])
    return found


def short_names(names: list[str]) -> list[str]:
    """Without what all have in common: "model.layers.0.self_attn" is "layers.0"."""
    parts = [name.split(".") for name in names]
    if len(names) < 2 or len(set(names)) < len(names):
        return names
    front = next(n for n in range(min(map(len, parts)) + 1) if len({tuple(p[: n + 1]) for p in parts}) > 1)
    same = [list(reversed(p[front:])) for p in parts]
    back = next((n for n in range(min(map(len, same))) if len({tuple(p[: n + 1]) for p in same}) > 1), 0)
    return [".".join(p[max(front - 1, 0) : len(p) - back]) for p in parts]

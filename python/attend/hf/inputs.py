"""What a model is given: a text and its tokenizer, or inputs as they are; and the tokens that it generates."""
import inspect
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .tokens import texts_of


def inputs_of(
    model: nn.Module, tokenizer: Any, text: Any, part: str | None, new_tokens: int, target: str | None, batch: int
) -> tuple[dict[str, Any], bool]:
    """(those of the model, whether the tokenizer can say what the tokens are)"""
    if isinstance(new_tokens, bool) or not isinstance(new_tokens, int) or new_tokens < 0:
        raise ValueError(f"view: new_tokens is {new_tokens!r}; it is the number of tokens to generate, 0 or more")
    device = device_of(model)
    if isinstance(text, Mapping):
        inputs = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in text.items() if name != "labels"}
        _check_mask(inputs)
    else:
        inputs = tokenized(model, tokenizer, text)
    _check_ids(model, inputs, batch)
    words = tokenizer if hasattr(tokenizer, "convert_ids_to_tokens") else getattr(tokenizer, "tokenizer", None)
    if new_tokens:
        check_generates(model, inputs, new_tokens)
    if target is not None:
        if not is_two(model):
            raise ValueError(f"view: target is what a decoder reads beside the encoder's text; {type(model).__name__} has no encoder")
        if new_tokens or "decoder_input_ids" in inputs:
            raise ValueError("view: target and new_tokens both say what the decoder reads")
        inputs["decoder_input_ids"] = _started(model, tokenized(model, words, target)["input_ids"])
    if _reads_tokens(model) and not new_tokens and not {"decoder_input_ids", "decoder_inputs_embeds"} & inputs.keys():
        if part != "encoder":
            raise ValueError(
                f"view: {type(model).__name__} is an encoder and a decoder; say what the decoder reads: new_tokens=20 (what it "
                'generates), or target="...". part="encoder" needs neither'
            )
        inputs["decoder_input_ids"] = torch.full((1, 1), _start_of(model), device=device)
    return inputs, words is not None


def _check_mask(inputs: dict[str, Any]) -> None:
    """Some models give a mask another shape, whatever it had."""
    ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
    if isinstance(ids, Tensor) and isinstance(mask, Tensor) and mask.dim() != 4 and mask.shape != ids.shape:
        raise ValueError(
            f"view: the attention_mask is {list(mask.shape)} and input_ids {list(ids.shape)}; a mask has the shape of input_ids, or "
            "is [batch, 1 or heads, queries, keys]"
        )


def _check_ids(model: nn.Module, inputs: dict[str, Any], batch: int) -> None:
    ids = inputs.get("input_ids")
    if ids is None:
        return
    if not isinstance(ids, Tensor) or ids.dim() < 2:
        raise ValueError(f"view: input_ids take a tensor [batch, tokens], found {list(ids.shape) if isinstance(ids, Tensor) else type(ids).__name__}")
    if ids.dim() > 2:  # several for each position
        return
    if ids.numel() == 0:
        raise ValueError(f"view: input_ids are {list(ids.shape)}, which holds no tokens")
    if not -len(ids) <= batch < len(ids):
        raise ValueError(f"view: there is no batch element {batch}; input_ids have {len(ids)}")
    if "position_ids" not in inputs:
        _check_length(model, "input_ids has", ids.size(1))


def _check_vocabulary(model: nn.Module, ids: Tensor) -> None:
    """The tokenizer may be that of another model."""
    try:
        words = getattr(model.get_input_embeddings(), "num_embeddings", None)  # type: ignore[operator]
    except (AttributeError, NotImplementedError):
        return
    last = int(ids.max())
    if isinstance(words, int) and last >= words:
        raise ValueError(
            f"view: there is a token {last}, and {type(model).__name__} knows {words}, the first is 0; the tokenizer may be another model's"
        )


def tokenized(model: nn.Module, tokenizer: Any, text: Any) -> dict[str, Tensor]:
    if not isinstance(text, str):
        raise TypeError(f"view: text is a str, or a dict of the model's inputs, found {type(text).__name__}")
    if not callable(tokenizer):
        raise TypeError(f"view: a text needs the model's tokenizer, found {type(tokenizer).__name__}")
    found = tokenizer(text, return_tensors="pt")
    ids = found["input_ids"]
    if not isinstance(ids, Tensor) or ids.dim() != 2:
        raise TypeError(f"view: the tokenizer's input_ids are no tensor [1, tokens], found {type(ids).__name__}")
    if ids.size(1) == 0:
        raise ValueError("view: the text has no tokens")
    _check_vocabulary(model, ids)
    _check_length(model, "the text has", ids.size(1))
    taken = getattr(tokenizer, "model_input_names", None) or ["input_ids", "attention_mask"]
    return {name: x.to(model.device) for name, x in found.items() if name in taken}


def _check_length(model: nn.Module, who_has: str, tokens: int) -> None:
    most = _positions_of(model)
    if most is not None and tokens > most:
        raise ValueError(f"view: {who_has} {tokens} tokens; {type(model).__name__} takes {most}")


def _positions_of(model: nn.Module) -> int | None:
    """How many tokens a model has learned positions for; None: they are computed, without an end."""
    learned = [m for name, m in model.named_modules() if isinstance(m, nn.Embedding) and re.search("position|wpe", name)]
    config = getattr(model, "config", None)
    sizes = (getattr(config, name, None) for name in ("max_position_embeddings", "max_target_positions"))
    most = next((size for size in sizes if isinstance(size, int)), None)
    if not learned or most is None:
        return None
    return most - max(0 if m.padding_idx is None else m.padding_idx + 1 for m in learned)  # RoBERTa's begin after that of padding


def is_two(model: nn.Module) -> bool:
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def _reads_tokens(model: nn.Module) -> bool:
    """Whether it is an encoder and a decoder that is given tokens: that of DETR has queries of its own."""
    return is_two(model) and "decoder_input_ids" in inspect.signature(model.forward).parameters


def device_of(model: nn.Module) -> torch.device:
    found = getattr(model, "device", None)  # of a model of Transformers
    return found if isinstance(found, torch.device) else next((x.device for x in model.parameters()), torch.device("cpu"))


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


def check_generates(model: nn.Module, inputs: dict[str, Any], new_tokens: int) -> None:
    can = getattr(model, "can_generate", None)
    if can is None or not can():
        raise ValueError(f"view: new_tokens is given, but {type(model).__name__} does not generate text; new_tokens=0 shows the text alone")
    for name, x in inputs.items():
        if isinstance(x, Tensor) and x.dim() > 0 and x.size(0) != 1:
            raise ValueError(f"view: new_tokens takes one text; {name} holds {x.size(0)}")
    mask = inputs.get("attention_mask")
    if isinstance(mask, Tensor) and not bool(mask.bool().all()):
        raise ValueError("view: new_tokens takes a text without padding")
    read = inputs.get("decoder_input_ids" if is_two(model) else "input_ids")
    before = read.size(1) if isinstance(read, Tensor) else 1
    _check_length(model, f"new_tokens is {new_tokens}, with those before them there are", before + new_tokens)


def with_generated(model: nn.Module, inputs: dict[str, Any], new_tokens: int) -> dict[str, Any]:
    """The tokens of one greedy generation join the text, so that one pass shows all queries and all keys, where
    generation would show a query at a time, and some caches forget.
    """
    ids = generated(model, inputs, new_tokens)
    if is_two(model):
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
    greedy = {"do_sample": False, "num_beams": 1, "num_return_sequences": 1, "return_dict_in_generate": False}  # whatever the model's own are
    return model.generate(**inputs, max_new_tokens=new_tokens, pad_token_id=pad, **greedy)


def no_cache(model: nn.Module) -> dict[str, Any]:
    """Generation has a cache; a pass over everything needs none."""
    return {"use_cache": False} if hasattr(getattr(model, "config", None), "use_cache") else {}


def texts(model: nn.Module, tokenizer: Any, inputs: dict[str, Any], batch: int) -> dict[str, list[Any]]:
    words = tokenizer if hasattr(tokenizer, "convert_ids_to_tokens") else tokenizer.tokenizer
    found: dict[str, list[Any]] = {}
    two = is_two(model)
    for name, side in (("input_ids", "encoder" if two else ""), ("decoder_input_ids", "decoder")):
        ids = inputs.get(name)
        if isinstance(ids, Tensor) and ids.dim() == 2 and -ids.size(0) <= batch < ids.size(0):
            found[side + "ids"] = ids[batch].tolist()
            found[side + "texts"] = texts_of(words, found[side + "ids"])
    return found

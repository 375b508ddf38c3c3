"""The attention function that Transformers calls for attn_implementation="attend".

Its arguments are those that models pass to Transformers' AttentionInterface; attention_mask is one that
attend_mask() made, or a tensor that the model or the user made. What is passed and not known here is refused:
another argument may mean another attention.
"""
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from attend.torch.calls import TAPS, call
from attend.torch.unheard import calls_unless

from .described import DescribedMask

try:
    from transformers.utils.output_capturing import _active_collector
except ImportError:
    _active_collector = None

# What reaches an attention and says nothing about it: what was done before, is done after, or is recorded.
_OF_OTHERS = frozenset({
    "position_ids", "position_embeddings", "cache_position", "hidden_states", "past_key_values", "use_cache",
    "num_items_in_batch", "output_attentions", "output_hidden_states", "output_router_logits", "return_dict",
    "deterministic", "layer_idx", "token_type_ids", "mm_token_type_ids", "labels", "logits_to_keep",
})
_HARMLESS = _OF_OTHERS - {"output_attentions"}
_calls = calls_unless(*TAPS, *(() if _active_collector is None else (_active_collector.get,)))
_INSTEAD = {
    "cu_seq_lens_q": "packed sequences are told by position_ids that begin again at 0, without an attention_mask",
    "cache": "the pages of continuous batching are not supported",
    "sinks": "sinks that differ by query are not supported",
}
for _name in ("cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx", "cu_seqlens"):
    _INSTEAD[_name] = _INSTEAD["cu_seq_lens_q"]


def attend_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **more: Any,
) -> tuple[Tensor, Tensor | None]:
    """(out [batch, queries, heads, dv], weights or None)

        query [batch, heads, queries, d]    key [batch, key heads, keys, d]    value [batch, key heads, keys, dv]
    """
    if (
        attention_mask is not None and scaling is not None and dropout == 0.0 and softcap is None and s_aux is None
        and position_bias is None and not is_compiling()
    ):
        found = _calls.of_model(query, key, value, attention_mask, scaling, more, _HARMLESS)
        if found is not None:
            return found, None
    _refuse_unknown(module, more)
    query, key, value = _one_batch(query, key, value)
    options = _mask_options(module, attention_mask, query, key, is_causal, sliding_window)
    if position_bias is not None:
        bias = options.get("bias")
        options["bias"] = position_bias if bias is None else position_bias + bias
    if softcap is not None:
        options["softcap"] = softcap
    if s_aux is not None:
        options["sinks"] = s_aux.to(torch.promote_types(query.dtype, torch.float32))  # as attend takes them
    out, weights = call(
        module, query, key, value, scale=scaling, dropout_p=dropout, return_weights=_weights_wanted(more), **options
    )
    return out.transpose(1, 2).contiguous(), weights  # no copy, where q lies so


def _where(module: nn.Module) -> str:
    return f"attend.hf, called by {type(module).__name__}"


def _refuse_unknown(module: nn.Module, more: dict[str, Any]) -> None:
    for name, value in more.items():
        if value is None or name in _OF_OTHERS:
            continue
        why = _INSTEAD.get(name, "it may mean another attention than attend would compute")
        raise NotImplementedError(f"{_where(module)}: the argument {name} is not known: {why}")


def _one_batch(*tensors: Tensor) -> list[Tensor]:
    """Learned queries may have a batch of 1."""
    sizes = {x.size(0) for x in tensors}
    if len(sizes) == 1:
        return list(tensors)
    batch = max(sizes)
    return [x.expand(batch, -1, -1, -1) if x.size(0) == 1 else x for x in tensors]


def _mask_options(
    module: nn.Module, mask: Tensor | None, query: Tensor, key: Tensor, is_causal: bool | None, sliding_window: int | None
) -> dict[str, Any]:
    """A mask has the window in it already, and is all there is: is_causal counts without one alone. Where nobody says it, nothing
    is hidden: Transformers makes a mask for every attention that is causal, so that one without is not, as with eager.
    """
    queries, keys = query.size(2), key.size(2)
    if isinstance(mask, DescribedMask) and mask.options is not None and mask.sizes == (queries, keys):
        return dict(mask.options)
    if mask is None:
        if sliding_window is not None and sliding_window < keys:
            raise NotImplementedError(
                f"{_where(module)}: sliding_window = {sliding_window} of {keys} keys came without a mask, so that it "
                "is not known where the queries stand"
            )
        causal = getattr(module, "is_causal", False) if is_causal is None else is_causal
        return {"causal": True, "query_offset": 0} if causal and queries > 1 else {}
    if mask.dim() != 4 or mask.size(2) not in (1, queries) or mask.size(3) != keys:
        raise ValueError(
            f"{_where(module)}: the mask {list(mask.shape)} is not one of {queries} queries and {keys} keys, "
            f"[batch, 1 or heads, {queries}, {keys}]"
        )
    if isinstance(mask, DescribedMask):
        mask = mask.plain()
    if mask.dtype == torch.bool:
        return {"mask": mask}
    if mask.is_floating_point():
        return {"bias": mask}
    raise TypeError(f"{_where(module)}: a mask is of booleans, True = takes part, or of floats, found {mask.dtype}")


def _weights_wanted(more: dict[str, Any]) -> bool:
    """Whether this forward pass records the weights of its attentions. Some models keep output_attentions to
    themselves; then Transformers' own record knows, under an internal name that may be missing.
    """
    if more.get("output_attentions"):
        return True
    if _active_collector is None:
        return False
    if is_compiling():  # the record of a model that is compiled as a whole; another cannot be read in a graph
        names = _active_collector.global_var if getattr(_active_collector, "compiling", False) else None
    else:
        names = _active_collector.get()
    return any("attentions" in name for name in names or ())

"""The mask function that Transformers calls for attn_implementation="attend".

Where the pattern is known the mask is a DescribedMask: causal, window and query_offset, and the padding as
key_lengths, or as a mask of keys [batch, 1, 1, keys] if it is not at the end alone. Everything else is described by
booleans [batch, 1, queries, keys], which Transformers itself makes. Model code that looks at a mask finds the floats
of eager attention; so does a compiler or a tracer, which follows no description.
"""
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling
from transformers import masking_utils
from transformers.utils.import_utils import is_tracing

from attend.torch.unheard import plain

from .described import DESCRIBED, DescribedMask, of_booleans
from .patterns import Pattern, pattern_of
from .telling import tell_of_config


def attend_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
    attention_mask: Tensor | None = None,
    *,
    device: torch.device | str = "cpu",
    **more: Any,
) -> Tensor:
    """[batch, 1, queries, keys], to be added to scores. Never None, which would leave it to each attention to guess
    whether it is causal.

    Query i is at position i + q_offset, key j at j + kv_offset. attention_mask [batch, positions] says which
    positions are no padding; those past its end are.
    """
    floats: Any = masking_utils.eager_mask
    arguments = (batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask)
    more |= {"device": device, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    if _is_traced(attention_mask, q_offset) or torch.device(device).type not in DESCRIBED:
        return floats(*arguments, **more)  # a compiler cannot follow what is asked of functions below
    tell_of_config(more.get("config"))
    if attention_mask is not None and attention_mask.shape[:-1] != (batch_size,):
        raise ValueError(
            f"attend.hf: the attention_mask is {list(attention_mask.shape)}, the input has a batch of {batch_size}; a mask is "
            f"[{batch_size}, positions], or [batch, 1 or heads, queries, keys]"
        )
    pattern = pattern_of(mask_function)
    counted_there = isinstance(q_offset, Tensor) and q_offset.is_cuda  # reading it would wait for the GPU
    dtype = more.get("dtype", torch.float32)
    if pattern is None or counted_there:
        return of_booleans(masking_utils.sdpa_mask(*arguments, **more), dtype)  # type: ignore[arg-type]
    first = int(q_offset)  # now: a static cache goes on counting in its tensor
    make = functools.partial(floats, *arguments[:3], first, *arguments[4:], **more)
    offset = first - kv_offset  # of query 0, counted from key 0
    options = _pattern_options(pattern, offset, q_length, kv_length)
    last = kv_length - 1 if pattern.right is None else offset + q_length - 1 + pattern.right
    options |= _padding_options(attention_mask, kv_offset, kv_length, min(last, kv_length - 1))
    return DescribedMask((batch_size, 1, q_length, kv_length), options, make, dtype, device)


def _is_traced(attention_mask: Tensor | None, q_offset: int | Tensor) -> bool:
    """Transformers' answer takes as long as the attention of a short text: it is asked for where it may be yes."""
    if is_compiling():
        return True
    given = [x for x in (attention_mask, q_offset) if x is not None and type(x) is not int]
    return not plain(*given) and any(is_tracing(x) for x in (attention_mask, q_offset))


def _pattern_options(pattern: Pattern, offset: int, queries: int, keys: int) -> dict[str, Any]:
    """Those of them that hide a key; the fewer options, the more kernels have them all."""
    left, right = pattern
    if left is not None and offset + queries - 1 - left <= 0:  # of the last query
        left = None
    if right is not None and offset + right >= keys - 1:  # of the first query
        right = None
    options: dict[str, Any] = {}
    if right == 0:
        options["causal"] = True
    if left is not None or right not in (None, 0):
        options["window"] = (left, None if right == 0 else right)
    if options:
        options["query_offset"] = offset
    return options


def _padding_options(attention_mask: Tensor | None, kv_offset: int, keys: int, last: int) -> dict[str, Any]:
    """For keys 0 to `last`; those after it are hidden in any case. A mask on a GPU is waited for, once for all layers, as
    Transformers does for its own attention.
    """
    if attention_mask is None or last < 0:
        return {}
    real = attention_mask.bool()
    if kv_offset != 0 or keys < real.size(1):
        real = real[:, kv_offset : kv_offset + keys]
    beyond = last + 1 - real.size(1)
    if beyond <= 0 and bool((real if beyond == 0 else real[:, : last + 1]).all()):
        return {}
    lengths = real.sum(1)
    if torch.equal(real, torch.arange(real.size(1), device=real.device) < lengths.unsqueeze(1)):  # padding at the end alone
        return {"key_lengths": lengths}
    real = torch.nn.functional.pad(real, (0, keys - real.size(1)))
    return {"mask": real[:, None, None, :]}

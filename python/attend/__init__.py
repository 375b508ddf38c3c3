"""attend: multi-head attention, exact, on arrays of NumPy, PyTorch or anything else with DLPack.

>>> q = k = v = numpy.ones((1, 8, 10, 64), 'float32')      # [batch, heads, length, dim]
>>> attend.attention(q, k, v, causal=True).shape
(1, 8, 10, 64)
"""
from ._attend import (
    Context,
    Plan,
    __version__,
    attention,
    attention_backward,
    default_context,
    merge,
    weights_shape,
)
from ._types import Array, BackwardResult, Blocks, Dropout, Origin, Window

__all__ = [
    "Array",
    "BackwardResult",
    "Blocks",
    "Context",
    "Dropout",
    "Origin",
    "Plan",
    "Window",
    "__version__",
    "attention",
    "attention_backward",
    "default_context",
    "merge",
    "weights_shape",
]

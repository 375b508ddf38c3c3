"""torch.nn.functional.multi_head_attention_forward that does not ask the active modes about itself.

PyTorch asks a mode about that function as a whole; the mode which then calls it is out of the way while it
runs, and never hears of the scaled_dot_product_attention inside. This is its code, in which the question has
the answer no, so that a mode can stay active around it.
"""
from types import FunctionType
from typing import Any

from torch.nn import functional as F

_function = F.multi_head_attention_forward
# The names of this module, since torch.compile looks for a function's names in the module it is from.
globals().update({name: x for name, x in _function.__globals__.items() if not name.startswith("__")})


def has_torch_function(tensors: Any) -> bool:
    return False


multi_head_attention_forward = FunctionType(
    _function.__code__, globals(), _function.__name__, _function.__defaults__, _function.__closure__
)

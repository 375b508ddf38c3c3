"""Functions of PyTorch that do not ask the active modes about themselves.

PyTorch asks a mode about these as a whole; the mode which then calls one is out of the way while it runs, and
never hears of the scaled_dot_product_attention inside. Here is their code with other names: the question has
the answer no, so that a mode can stay active around them.
"""
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch.nn import functional as F


def has_torch_function(tensors: Any) -> bool:
    return False


def _copy(function: Callable[..., Any], names: dict[str, Any]) -> Callable[..., Any]:
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


# torch.compile looks for a function's names in the module it is from: they are names of this one.
_mine = {"has_torch_function": has_torch_function, "has_torch_function_unary": has_torch_function, "_copy": _copy}
_names = {name: x for name, x in F.multi_head_attention_forward.__globals__.items() if not name.startswith("__")}
globals().update({**_names, **_mine})
multi_head_attention_forward = _copy(F.multi_head_attention_forward, globals())

backward = _copy(torch.Tensor.backward, {**torch.Tensor.backward.__globals__, **_mine})
grad = _copy(torch.autograd.grad, {**torch.autograd.grad.__globals__, **_mine})

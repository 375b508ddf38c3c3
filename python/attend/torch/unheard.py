"""Calls of attention that nobody but the caller wants to know of: no autograd, compiler, tracer, autocast, no mode or
transform of PyTorch's. They are made without PyTorch's dispatch, which takes longer than short sequences do.
"""
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from attend._attend import TorchCalls, TorchOptions

from . import contexts


def _listeners() -> list[Any]:
    """Questions whose answer is no, for such a call. These are internal names of PyTorch: where one is missing, one
    answer is always yes, and every call goes through the operator.
    """
    try:
        forward_ad._current_level
        return [
            torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack, torch._C._functorch.peek_interpreter_stack,
            torch._C._autograd._profiler_enabled, torch._C._is_any_autocast_enabled, torch._C._is_tracing,
            lambda: forward_ad._current_level >= 0,
        ]
    except AttributeError:
        return [True]


_LISTENERS = _listeners()


def calls_unless(*listeners: Any) -> TorchCalls:
    """As long as these have nothing to say either. Before them all comes is_compiling(), which torch.compile must see."""
    return TorchCalls([*_LISTENERS, *listeners], torch.is_grad_enabled, torch.get_num_threads, contexts.current)


calls = calls_unless()
EVERY_KEY = TorchOptions({})
CAUSAL = TorchOptions({"causal": True, "query_offset": 0})  # as PyTorch means it: the first query meets the first key


def plain(*tensors: Tensor) -> bool:
    """Whether this is such a call, on dense tensors of the CPU or of NVIDIA GPUs."""
    return (
        not is_compiling() and calls.plain(*tensors)
        and all((x.is_cpu or x.is_cuda) and x.layout == torch.strided for x in tensors)
    )

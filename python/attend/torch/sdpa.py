"""with attend.torch.sdpa(): every torch.nn.functional.scaled_dot_product_attention runs on attend."""
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.autograd.forward_ad import unpack_dual
from torch.compiler import is_compiling
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

import attend
import attend.cuda

from . import contexts
from .calls import call, untapped
from .functional import DEVICES, arranged
from .modules import TYPES
from .unasked import backward, grad, multi_head_attention_forward
from .unheard import CAUSAL, EVERY_KEY

_WHERE = "scaled_dot_product_attention"


class Call(NamedTuple):
    """A call of attention inside a block. where is "attend", or "PyTorch" with the reason in `why`."""

    module: str  # its name in the block's model, else its class; "torch.compile"; "" if unknown
    query: tuple[int, ...]  # shapes; () of nested tensors and inside torch.compile
    key: tuple[int, ...]
    value: tuple[int, ...]
    dtype: str
    where: str
    why: str = ""


_counts_lock = threading.Lock()  # threads of a backward pass add to a block's counts too


class Calls:
    """Which calls of attention a block saw, and where they ran. str() of it is a table to read.

    counts is {Call: how often}, in the order in which they first came. A call inside torch.compile is seen
    when its graph is made, not each time that runs.
    """

    def __init__(self) -> None:
        self.counts: dict[Call, int] = {}

    def add(self, call: Call) -> None:
        with _counts_lock:
            self.counts[call] = self.counts.get(call, 0) + 1

    def __len__(self) -> int:
        return sum(self.counts.values())

    @property
    def on_attend(self) -> int:
        """How many ran on attend."""
        return sum(n for call, n in self.counts.items() if call.where == "attend")

    @property
    def in_pytorch(self) -> list[Call]:
        """Those that did not, with the reasons."""
        return [call for call in self.counts if call.where != "attend"]

    def __str__(self) -> str:
        lines = []
        for call, n in self.counts.items():
            shapes = zip(("query", "key", "value"), (call.query, call.key, call.value))
            parts = [*(f"{name} {list(shape)}" for name, shape in shapes if shape), call.dtype]
            line = f"{n:6} x {call.where:<8} {call.module or '(unknown module)'}: {', '.join(parts)}"
            lines.append(line + (f": {call.why}" if call.why else ""))
        return "\n".join(lines) or "no call of scaled_dot_product_attention"


_Block = tuple[Calls, dict[int, str]]


class _Blocks(threading.local):
    """The open blocks of this thread: the log of each, and the names of its model's modules. They are no part
    of the mode, since torch.compile holds what a mode has for constant.
    """

    def __init__(self) -> None:
        self.open: list[_Block] = []
        self.listed = False  # inside a call that is listed already and runs in PyTorch


_blocks = _Blocks()
# Those of every thread that has any. One that ends inside of a block, in a generator that nobody closed, has none any more.
_of_threads: "weakref.WeakKeyDictionary[threading.Thread, list[_Block]]" = weakref.WeakKeyDictionary()
_threads_lock = threading.Lock()


def _block() -> _Block | None:
    """The one whose call this is. PyTorch runs the backward pass of a GPU in a thread of its own, with the modes of the thread
    that asked for it and nothing else of it, and activation checkpointing calls the model there: then it is that of the one
    thread that has blocks. None: it may be one of several.
    """
    if _blocks.open:
        return _blocks.open[-1]
    with _threads_lock:
        others = [blocks[-1] for thread, blocks in _of_threads.items() if blocks and thread.is_alive()]
    return others[0] if len(others) == 1 else None


def is_open() -> bool:
    """Whether this thread is inside of a block."""
    return bool(_blocks.open)


@contextmanager
def sdpa(
    model: nn.Module | None = None, *, strict: bool = False, context: attend.Context | None = None
) -> Iterator[Calls]:
    """Inside the block, models that call torch.nn.functional.scaled_dot_product_attention run on attend.

    What it hands back says which calls ran where: with `model`, by the names of its modules. A call that attend
    cannot take (a tensor on another device, a nested one, ...) runs in PyTorch and is listed with the reason;
    with strict=True it raises. So does nn.MultiheadAttention when it is asked for weights, since it then
    computes attention by itself: attend.torch.replace(model) swaps such layers.

    PyTorch's fast path (torch.backends.mha) is off inside, for all threads; all else holds for the thread that
    entered the block. Gradients are attend's also if backward() comes after the block; activation
    checkpointing, which calls the model again, wants it inside. With nested blocks the inner one takes a call.

    >>> model = nn.TransformerEncoderLayer(64, 4, batch_first=True).eval()
    >>> with torch.inference_mode(), attend.torch.sdpa(model) as calls:
    ...     y = model(torch.ones(2, 10, 64))
    >>> print(calls)
         1 x attend   self_attn: query [2, 4, 10, 16], key [2, 4, 10, 16], value [2, 4, 10, 16], float32
    """
    if model is not None and not isinstance(model, nn.Module):
        raise TypeError(f"sdpa: model takes an nn.Module, found {type(model).__name__}")
    if not isinstance(strict, bool):
        raise TypeError(f"sdpa: strict takes True or False, found {type(strict).__name__}")
    contexts.number_of("sdpa", context)  # refuses what is none
    names = {} if model is None else {id(module): name or "(the model)" for name, module in model.named_modules()}
    calls = Calls()
    # The same mode each time, or torch.compile would make its graphs anew in every block.
    mode = _modes[strict] if context is None else _Mode(strict, context)
    with _without_fast_path(), _opened((calls, names)), mode:
        yield calls


@contextmanager
def _opened(block: _Block) -> Iterator[None]:
    thread, blocks = threading.current_thread(), _blocks.open
    blocks.append(block)
    with _threads_lock:
        _of_threads[thread] = blocks
    try:
        yield
    finally:
        blocks[:] = [x for x in blocks if x is not block]  # it may end in another thread
        with _threads_lock:
            if not blocks:
                _of_threads.pop(thread, None)


_fast_path_lock = threading.Lock()
_fast_path_off = 0  # by so many blocks, of all threads
_fast_path_before = True


@contextmanager
def _without_fast_path() -> Iterator[None]:
    global _fast_path_off, _fast_path_before
    with _fast_path_lock:
        if _fast_path_off == 0:
            _fast_path_before = torch.backends.mha.get_fastpath_enabled()
            torch.backends.mha.set_fastpath_enabled(False)
        _fast_path_off += 1
    try:
        yield
    finally:
        with _fast_path_lock:
            _fast_path_off -= 1
            if _fast_path_off == 0:
                torch.backends.mha.set_fastpath_enabled(_fast_path_before)


class _Mode(TorchFunctionMode):
    def __init__(self, strict: bool, context: attend.Context | None) -> None:
        super().__init__()
        self.strict = strict
        self.context = context

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if function is F.scaled_dot_product_attention:
            return self.attention(*args, **kwargs)
        if function is F.multi_head_attention_forward:
            return self.layer(*args, **kwargs)
        # PyTorch takes a mode away while it is asked. Activation checkpointing calls the model during these.
        if function is Tensor.backward:
            with self:
                return backward(*args, **kwargs)
        if function is torch.autograd.grad:
            with self:
                return grad(*args, **kwargs)
        if function is Tensor.unflatten and is_compiling():
            function = torch.unflatten  # the same; torch.compile cannot follow the first inside a mode
        return function(*args, **kwargs)

    def attention(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> Tensor:
        module = _calling_module()
        if attn_mask is None and dropout_p == 0.0 and not is_compiling():
            options = CAUSAL if is_causal else EVERY_KEY
            out = untapped.attention(query, key, value, scale, options, same_heads=not enable_gqa, context=self.context)
            if out is not None:
                _note(module, query, key, value, "", self.strict)
                return out
        why = _why_not(query, key, value, attn_mask)
        _note(module, query, key, value, why, self.strict)
        if why:
            return _in_pytorch(
                F.scaled_dot_product_attention, query, key, value, attn_mask, dropout_p, is_causal, scale=scale,
                enable_gqa=enable_gqa,
            )
        put = arranged(_WHERE, query, key, value, attn_mask, is_causal, enable_gqa)
        out, _ = call(
            module, put.q, put.k, put.v, mask=put.mask, bias=put.bias, scale=scale, causal=is_causal,
            query_offset=0 if is_causal else None, dropout_p=dropout_p, context=self.context,
        )
        return out.reshape(*put.lead, *out.shape[-2:])

    def layer(self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        """PyTorch asks its modes about nn.MultiheadAttention's function as a whole, not about what it calls."""
        weights = args[_NEED_WEIGHTS] if len(args) > _NEED_WEIGHTS else kwargs.get("need_weights", True)
        if not weights:
            with self:
                return multi_head_attention_forward(query, key, value, *args, **kwargs)
        _note(_calling_module(), query, key, value, _COMPUTES_ITSELF, self.strict)
        return _in_pytorch(F.multi_head_attention_forward, query, key, value, *args, **kwargs)


_NEED_WEIGHTS = list(inspect.signature(F.multi_head_attention_forward).parameters).index("need_weights") - 3
_COMPUTES_ITSELF = (
    "nn.MultiheadAttention that is asked for weights computes attention by itself; need_weights=False, or "
    "attend.torch.replace(model)"
)


_modes = {strict: _Mode(strict, None) for strict in (False, True)}


def _in_pytorch(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A call that is listed already: an outer block hears of it too, and says nothing."""
    if is_compiling():
        return function(*args, **kwargs)
    before, _blocks.listed = _blocks.listed, True
    try:
        return function(*args, **kwargs)
    finally:
        _blocks.listed = before


def _note(
    module: nn.Module | None, query: Tensor, key: Tensor, value: Tensor, why: str, strict: bool
) -> None:
    name = ""
    if is_compiling():
        _note_traced(query.dtype, why)
    elif not _blocks.listed and (block := _block()) is not None:
        calls, names = block
        name = "" if module is None else names.get(id(module), type(module).__name__)
        of_query, of_key, of_value = (() if x.is_nested else tuple(x.shape) for x in (query, key, value))
        where = "PyTorch" if why else "attend"
        calls.add(Call(name, of_query, of_key, of_value, _name(query.dtype), where, why))
    if why and strict:
        raise NotImplementedError(f"sdpa(strict=True): {name or 'a call'} would run in PyTorch: {why}")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@torch.compiler.assume_constant_result
def _note_traced(dtype: torch.dtype, why: str) -> None:
    """While torch.compile makes a graph. Sizes may be unknown then."""
    block = _block()
    if block is not None:
        block[0].add(Call("torch.compile", (), (), (), _name(dtype), "PyTorch" if why else "attend", why))


def _why_not(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> str:
    """What keeps a call from attend, "" if nothing does. What both libraries refuse is refused later."""
    for name, x in (("query", query), ("key", key), ("value", value), ("attn_mask", mask)):
        if x is None:
            continue
        if x.is_nested:
            return f"{name} is a nested tensor, attend takes dense ones"
        if x.layout != torch.strided:
            return f"{name} has the layout {x.layout}, attend takes dense tensors"
        if x.device.type not in DEVICES:
            return f"{name} is on {x.device}, attend.torch computes on the CPU and on NVIDIA GPUs"
        if x.is_cuda and (reason := _no_gpu(x.device.index)):
            return f"{name} is on {x.device}, and attend in this process {reason}"
        if x.dtype not in TYPES and name != "attn_mask":
            return f"{name} is {x.dtype}, attend takes float64, float32, bfloat16 and float16"
        if is_compiling():
            continue
        if type(x) not in _TENSORS:
            return f"{name} is a {type(x).__name__}, attend takes plain tensors"
        if unpack_dual(x).tangent is not None:
            return f"{name} has a forward-mode derivative, attend has none"
    if not is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None:
        return "it is inside a transform of torch.func"
    return ""


@torch.compiler.assume_constant_result
def _no_gpu(device: int) -> str:
    return attend.cuda.why_unavailable(device)


_TENSORS = (Tensor, nn.Parameter, FakeTensor)


def _calling_module() -> nn.Module | None:
    """The nearest caller whose first argument is a module: its forward, or a function it hands itself to."""
    if is_compiling():
        return None
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code.co_argcount:
            first = frame.f_locals.get(code.co_varnames[0])
            if isinstance(first, nn.Module):
                return first
        frame = frame.f_back
    return None

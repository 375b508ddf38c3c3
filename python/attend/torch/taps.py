"""Taps: whoever looks at the attentions of a model, or changes them.

The taps of a block are active in its own thread, and in nothing that runs elsewhere or later; but for gradient
checkpointing, which computes a part of a forward pass again during the backward pass: there the taps of its forward pass
count (keep_edits()).
"""
import copy
import functools
import threading
import weakref
from collections.abc import Callable, Iterable
from contextvars import ContextVar, Token
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn.modules import module as hooks_of_all

from .layers import Layer, Names, Rules, check_heads, known_heads
from .places import Place

active: ContextVar[tuple["Tap", ...]] = ContextVar("attend taps", default=())


_CHECKPOINT = "_gradient_checkpointing_func"  # of modules of Transformers, where it is switched on


class Tap:
    """A block's view of the attentions of one model, or of all."""

    where = "tap"
    changes = False  # what is computed
    compiled = False  # whether it takes models of torch.compile
    rules: Rules  # of a tap that has chosen layers

    def __init__(self, model: nn.Module | None) -> None:
        if model is not None and not isinstance(model, nn.Module):
            raise TypeError(f"{self.where}: model takes an nn.Module, found {type(model).__name__}")
        if model is not None and not self.compiled:
            _refuse_compiled(self.where, model)
        self.model = model
        self.names: dict[nn.Module, str] = {} if model is None else _names_in(model)
        self.place = Place()
        self._nobody = nn.Module()
        self._open = False
        self._kept: list[tuple[nn.Module, Any]] = []

    def rules_of(self, layers: Any, names: Names | None) -> Rules:
        """The layers that were asked for; names are of all that will call, if the caller knows them."""
        if names is not None or self.model is None:
            return Rules(self.where, layers, names)
        from .code import known_in  # which is built on this

        return Rules(self.where, layers, known_in(self.model))

    # ---- Which attention a call is ----

    def find(self, module: nn.Module | None) -> tuple[Layer, int] | None:
        """(layer, which attention of the pass) of a call, or None: of another model."""
        if module is None:  # a function that does not know who called it
            module = self.place.stack[-1] if self.place.stack else self._nobody
        if self.model is None and module not in self.names:
            root = self.place.stack[0] if self.place.stack else module
            self.names.update((x, name) for x, name in _names_in(root).items() if x not in self.names)
            self.names.setdefault(module, type(module).__name__)
        name = self.names.get(module)
        if name is None:
            return None
        nth, order = self.place.attend(module)
        return Layer(name, nth), order

    # ---- Of a block ----

    def __enter__(self) -> Any:
        if self._open:
            raise RuntimeError(f"{self.where}: this block is open already; make one for each `with`")
        self._open = True
        self.place = Place()  # it may have been open before
        for rule in self.rules.rules if hasattr(self, "rules") else ():
            rule.met.clear()
        _hooks.take()
        active.set((*active.get(), self))
        _here.count(1)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._open = False
        active.set(tuple(tap for tap in active.get() if tap is not self))  # blocks may end in any order
        _here.count(-1)
        _hooks.give()
        for module, function in reversed(self._kept):
            setattr(module, _CHECKPOINT, function)
        self._kept.clear()
        if kind is None:
            self.finish()

    def finish(self) -> None:
        """The block ended well: raises if it did not do what was asked."""

    def enter(self, module: nn.Module) -> None:
        self.place.enter(module)
        if self.changes and _CHECKPOINT in module.__dict__:
            function = module.__dict__[_CHECKPOINT]
            if not isinstance(function, _Keeping):
                self._kept.append((module, function))
                setattr(module, _CHECKPOINT, _Keeping(function))

    def check_known_heads(self, names: list[str], heads: Iterable[int] | None) -> None:
        """Refuses heads that are known not to be there, before anything runs."""
        by_name = {name: module for module, name in self.names.items()}
        for name in names:
            count = known_heads(by_name[name]) if name in by_name else None
            if count is not None and heads is not None:
                check_heads(self.where, name, heads, count)

    def never_called(self, layers: list[str], any_came: bool = True) -> None:
        """Raises for layers that were asked for and did not come here, or where none at all was met."""
        if not layers and any_came:
            return
        passes = self.place.step + 1
        ran = "nothing came to attend" if passes == 0 else f"{passes} forward pass{'es' if passes > 1 else ''} came"
        who = ", ".join(layers[:8]) + (" and more" if len(layers) > 8 else "") if layers else "the model"
        raise RuntimeError(
            f"{self.where}: {who} never called attend's attention in this block, where {ran}; attend.hf.check(model) says "
            "which modules do, and models that are not of Transformers run on attend inside attend.torch.sdpa(). Layers "
            "that are not meant to be called can be left out"
        )

    # ---- Of a call ----

    def before(
        self, layer: Layer, order: int, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any], step: int | None = None
    ) -> "Look | None":
        """What this tap does with a call of the step-th pass, by default the one under way; None: nothing."""
        return None


class Look:
    """One tap at one call."""

    weight_heads: tuple[int, ...] | None = ()  # whose weights it needs; None: of all heads

    def edit(self, out: Tensor) -> Tensor:
        return out

    def edit_weights(self, weights: Tensor, heads: tuple[int, ...]) -> Tensor:
        return weights

    def after(self, out: Tensor, weights: Tensor | None, heads: tuple[int, ...]) -> None:
        """With the results after all edits; weights are those of these heads."""


# ---- Forward passes that are computed again ------------------------------------------------------

_keeps: ContextVar[bool] = ContextVar("attend keeps edits", default=False)
# Modules that were edited in passes which nobody keeps, and may be computed again without their edits; `unkept` is not
# empty while there may be one.
unkept: list[bool] = []
_edited: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()  # reentrant checkpointing, which makes no graph; until the next pass
_graphs: "weakref.WeakKeyDictionary[nn.Module, weakref.WeakSet[_Mark]]" = weakref.WeakKeyDictionary()  # as long as their graphs


class _Mark:
    """Something that lives as long as the graph of a pass."""


def remember(module: nn.Module, out: Tensor) -> None:
    """An edited pass of the module that nobody keeps."""
    if _keeps.get():
        return
    if not torch.is_grad_enabled():
        if module.training:
            _edited.add(module)
            unkept[:] = [True]
    elif out.grad_fn is not None and torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        mark = _Mark()  # checkpointing without reentrance is such hooks
        out.grad_fn.metadata["attend edit"] = mark
        _graphs.setdefault(module, weakref.WeakSet()).add(mark)
        unkept[:] = [True]


def forget(module: nn.Module) -> None:
    """A pass that is not edited: without a graph, what is computed again from now on is this one."""
    _edited.discard(module)
    if not _graphs.get(module):
        _graphs.pop(module, None)
    if not _edited and not _graphs:
        unkept.clear()


def was_edited(module: nn.Module) -> bool:
    return module in _edited or bool(_graphs.get(module))


def recomputing() -> bool:
    """Whether a backward pass is under way in this thread: then a forward pass is one of checkpointing."""
    return torch._C._current_graph_task_id() != -1


class Replay(Tap):
    """A tap as it was when the part that is computed again was computed first."""

    def __init__(self, tap: Tap, place: Place) -> None:
        super().__init__(None)
        self.tap, self.place, self.names, self.model = tap, place, tap.names, tap.model

    def before(
        self, layer: Layer, order: int, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any], step: int | None = None
    ) -> Look | None:
        return self.tap.before(layer, order, q, k, v, options, self.place.step)


def keep_edits(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function for torch.utils.checkpoint.checkpoint() that is computed again with the edits of its forward pass.

    Models of Transformers need no such thing; one's own calls of checkpoint() inside an edit() block do:

    >>> y = torch.utils.checkpoint.checkpoint(attend.torch.keep_edits(layer), x, use_reentrant=False)
    """
    taps = active.get()
    if not taps:
        return function
    places: list[Place] = []

    @functools.wraps(function, updated=())
    def kept(*arguments: Any, **keywords: Any) -> Any:
        if not recomputing():
            places[:] = [tap.place.copy() for tap in taps]
            token: Token[Any] = _keeps.set(True)
            try:
                return function(*arguments, **keywords)
            finally:
                _keeps.reset(token)
        again = tuple(Replay(tap, place.copy()) for tap, place in zip(taps, places) if tap.changes)
        token = active.set(again)
        _here.count(len(again))
        try:
            return function(*arguments, **keywords)
        finally:
            _here.count(-len(again))
            active.reset(token)

    return kept


class _Keeping:
    """A model's function for checkpointing, inside of a block; a copy of the model, or its pickle, has the function itself."""

    def __init__(self, checkpoint: Callable[..., Any]) -> None:
        self.checkpoint = checkpoint

    def __call__(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        return self.checkpoint(keep_edits(function), *arguments, **keywords)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.checkpoint, memo)

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self.checkpoint,)


def _itself(x: Any) -> Any:
    return x


# ---- Who is being called -------------------------------------------------------------------------


class _Hooks:
    """PyTorch's hooks on the calls of all modules, there while any block is open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._handles: list[Any] = []

    def take(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._handles = [
                    hooks_of_all.register_module_forward_pre_hook(self._enter),
                    hooks_of_all.register_module_forward_hook(self._leave, always_call=True),
                ]

    def give(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                for handle in self._handles:
                    handle.remove()

    @staticmethod
    def _enter(module: nn.Module, arguments: Any) -> None:
        if not is_compiling():
            _entered(module)
        elif is_tapped():
            _entered_in_python(module)

    @staticmethod
    def _leave(module: nn.Module, arguments: Any, result: Any) -> None:
        if not is_compiling():
            _left(module)
        elif is_tapped():
            _left_in_python(module)


_hooks = _Hooks()


def _names_in(root: nn.Module) -> dict[nn.Module, str]:
    return {module: name or type(module).__name__ for name, module in root.named_modules()}


# ---- torch.compile -------------------------------------------------------------------------------

COMPILED = (
    "attend: capture() and edit() do not work inside torch.compile, whose graph is made once and knows no blocks; use the "
    "model as it is without torch.compile"
)


class _Here(threading.local):
    """Whether a block is open in this thread. torch.compile cannot follow a ContextVar, but what it reads here it asks before each run
    of a graph: one that was made outside of blocks is not run inside of one.
    """

    def __init__(self) -> None:  # in each thread; it would take an attribute of the class for a constant
        self.open, self.blocks = False, 0

    def count(self, more: int) -> None:
        self.blocks = max(self.blocks + more, 0)
        self.open = self.blocks > 0


_here = _Here()


def is_tapped() -> bool:
    """For torch.compile; active.get() knows more."""
    return _here.open


def in_python(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that torch.compile leaves to Python, where blocks work; of one whole graph (fullgraph=True) it raises in these words."""
    return torch.compiler.disable(function, reason=COMPILED)


def _entered(module: nn.Module) -> None:
    taps = active.get()
    if taps and not recomputing():
        for tap in taps:
            tap.enter(module)


def _left(module: nn.Module) -> None:
    taps = active.get()
    if taps and not recomputing():
        for tap in taps:
            tap.place.leave(module)


_entered_in_python, _left_in_python = in_python(_entered), in_python(_left)


def _refuse_compiled(where: str, model: nn.Module) -> None:
    for name, module in model.named_modules():
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            raise NotImplementedError(f"{where}: {name or 'the model'} is compiled. {COMPILED}")

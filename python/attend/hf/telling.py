"""A model that is to run on attend, and computes some of its attention by itself, is told of, once for each class.

Transformers says nothing of it. So its base class is listened to: where a model has been made or loaded, and where its
attention is set. A config that is changed by hand is seen when the model asks for a mask.
"""
import contextlib
import functools
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import FrameType
from typing import Any

from torch import nn

from .registration import NAME
from .reports import Report, by_themselves

_seen: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()  # configs, by their id: they are not hashable
_told: set[type] = set()  # classes of models
_quiet: ContextVar[bool] = ContextVar("attend.hf tells nothing", default=False)


def listen(base: Any) -> None:
    """To Transformers' PreTrainedModel: post_init() is the end of every constructor."""
    made, set_to = base.post_init, base.set_attn_implementation
    if hasattr(made, "attend_listens"):
        return

    @functools.wraps(made)
    def post_init(model: nn.Module, *arguments: Any, **keywords: Any) -> None:
        made(model, *arguments, **keywords)
        if not _is_part(model, base):
            tell_of(model)

    @functools.wraps(set_to)
    def set_attn_implementation(model: nn.Module, attn_implementation: Any, *arguments: Any, **keywords: Any) -> None:
        set_to(model, attn_implementation, *arguments, **keywords)
        tell_of(model, asked=attn_implementation == NAME)  # Transformers may have left the config as it was

    post_init.attend_listens = True  # type: ignore[attr-defined]
    base.post_init, base.set_attn_implementation = post_init, set_attn_implementation


def tell_of(model: nn.Module, asked: bool = False) -> None:
    """What of a model does not come, of that which its config gives to attend; of all, if that was `asked`."""
    for module in model.modules():
        config = getattr(module, "config", None)
        if getattr(config, "_attn_implementation", None) == NAME:
            _seen[id(config)] = config
    if _quiet.get() or type(model) in _told:
        return
    rows = by_themselves(model, asked)
    if not rows:
        return
    _told.add(type(model))
    lines = "".join(f"\n  {line}" for line in str(Report(rows)).splitlines()[:-1])
    warnings.warn(
        f"attend.hf: {type(model).__name__} asks for attend, but these of its attentions do not come to it; they run as without "
        f"attend. attend.hf.check(model) says all:{lines}", UserWarning, stacklevel=_level_of_the_user(),
    )


def tell_of_config(config: Any) -> None:
    """That of the model which asks for a mask now."""
    if config is None or _seen.get(id(config)) is config:
        return
    _seen[id(config)] = config
    model = _caller(sys._getframe(2), lambda module: True)
    if model is not None:
        tell_of(model)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Nothing is told inside, where what does not come is refused."""
    token = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(token)


def _is_part(model: nn.Module, base: type) -> bool:
    """Whether another model is being made, of which this one is a part."""
    return _caller(sys._getframe(2), lambda module: module is not model and isinstance(module, base), "__init__") is not None


def _caller(frame: FrameType | None, wanted: Callable[[nn.Module], bool], name: str | None = None) -> nn.Module | None:
    """The first argument of the nearest function, or of the nearest of that name, that is handed such a module."""
    while frame is not None:
        code = frame.f_code
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount and name in (None, code.co_name) else None
        if isinstance(first, nn.Module) and wanted(first):
            return first
        frame = frame.f_back
    return None


def _level_of_the_user() -> int:
    """For warnings.warn() in the caller of this: the nearest function that is none of these packages."""
    level, frame = 0, sys._getframe(0)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("attend", "transformers", "torch"):
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    return level

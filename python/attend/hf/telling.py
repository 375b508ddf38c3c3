"""A model that asks for attend, and computes some of its attention by itself, is told of, once.

Transformers says nothing of it. The first thing of ours that such a model reaches is the mask function, which knows the
model's config, and who calls.
"""
import sys
import warnings
import weakref
from types import FrameType
from typing import Any

from torch import nn

from .reports import by_themselves

_seen: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()  # configs, by their id: they are not hashable
_told: set[type] = set()  # classes of models


def tell_of(config: Any) -> None:
    """Of the model that asks for a mask now: what of it does not come."""
    if config is None or _seen.get(id(config)) is config:
        return
    _seen[id(config)] = config
    model = _caller()
    if model is None or type(model) in _told:
        return
    rows = by_themselves(model)
    if not rows:
        return
    _told.add(type(model))
    lines = "".join(f"\n  {row.name or '(the model)'}, {row.kind}: {row.why}" for row in rows[:4])
    more = f"\n  and {len(rows) - 4} more" if len(rows) > 4 else ""
    warnings.warn(
        f"attend.hf: {type(model).__name__} asks for attend, but these of its attentions do not come to it; they run as without "
        f"attend. attend.hf.check(model) says all:{lines}{more}", UserWarning, stacklevel=3,
    )


def _caller() -> nn.Module | None:
    """The nearest whose first argument is a module: the part of the model that makes its mask."""
    frame: FrameType | None = sys._getframe(3)
    while frame is not None:
        code = frame.f_code
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if isinstance(first, nn.Module):
            return first
        frame = frame.f_back
    return None

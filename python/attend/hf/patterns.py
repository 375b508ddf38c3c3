"""Which keys a mask function of Transformers shows to a query, where that is known for certain.

A mask function takes indices (batch, head, query, key) and says whether the key is visible. Transformers builds
them from a few functions and factories. They are known here by identity: the function itself, or the code of the
function that a factory returns, with what it has closed over. A function that is not known is not guessed.
"""
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from transformers import masking_utils


class Pattern(NamedTuple):
    """Key position j is visible to query position i iff i - left <= j <= i + right; None: no limit."""

    left: int | None = None
    right: int | None = None

    def __and__(self, other: "Pattern") -> "Pattern":
        return Pattern(_least(self.left, other.left), _least(self.right, other.right))


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def pattern_of(function: Callable[..., Any]) -> Pattern | None:
    """None: it is not one of the known."""
    if function is masking_utils.causal_mask_function:
        return Pattern(right=0)
    if function is masking_utils.bidirectional_mask_function:
        return Pattern()
    factory, values = _origin(function)
    if factory == "and_masks":
        return _all_of(values.get("mask_functions"))
    window = values.get("sliding_window")
    if type(window) is not int or window < 1:
        return None
    if factory == "sliding_window_overlay":  # j > i - window
        return Pattern(left=window - 1)
    if factory == "sliding_window_bidirectional_overlay":  # |i - j| <= window
        return Pattern(left=window, right=window)
    return None


def _all_of(functions: Any) -> Pattern | None:
    if not isinstance(functions, tuple):
        return None
    found = Pattern()
    for function in functions:
        part = pattern_of(function)
        if part is None:
            return None
        found &= part
    return found


_FACTORIES = ("and_masks", "sliding_window_overlay", "sliding_window_bidirectional_overlay")


def _origin(function: Any) -> tuple[str | None, dict[str, Any]]:
    """(the factory that made it, what it has closed over)"""
    code = getattr(function, "__code__", None)
    if code is None:
        return None, {}
    for name in _FACTORIES:
        if any(code is part for part in getattr(masking_utils, name).__code__.co_consts):
            cells = function.__closure__ or ()
            return name, {key: cell.cell_contents for key, cell in zip(code.co_freevars, cells)}
    return None, {}


def check_known() -> None:
    """Whether the functions known by name still mean what they are taken for. Another version of Transformers may
    have changed one, or somebody may have put another in its place.
    """
    known: dict[str, Any] = {
        "causal_mask_function": masking_utils.causal_mask_function,
        "bidirectional_mask_function": masking_utils.bidirectional_mask_function,
        "sliding_window_causal_mask_function": masking_utils.sliding_window_causal_mask_function(3),
        "sliding_window_bidirectional_mask_function": masking_utils.sliding_window_bidirectional_mask_function(2),
    }
    i, j = torch.arange(8).view(1, 1, 8, 1), torch.arange(8).view(1, 1, 1, 8)
    zero = torch.zeros(1, 1, 1, 1, dtype=torch.int64)
    for name, function in known.items():
        pattern = pattern_of(function)
        if pattern is None:
            raise RuntimeError(f"attend.hf: masking_utils.{name} of Transformers is built in a way attend does not know")
        wanted = torch.ones(1, 1, 8, 8, dtype=torch.bool)
        if pattern.left is not None:
            wanted &= j >= i - pattern.left
        if pattern.right is not None:
            wanted &= j <= i + pattern.right
        if not torch.equal(function(zero, zero, i, j).expand(1, 1, 8, 8), wanted):
            raise RuntimeError(
                f"attend.hf: masking_utils.{name} of Transformers shows other keys than attend takes it for"
            )

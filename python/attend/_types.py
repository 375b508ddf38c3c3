"""Small types of attend that are plain Python: options with several parts, results with names."""
from typing import Any, NamedTuple, Protocol, TypeVar, Union


class Array(Protocol):
    """A NumPy array, or anything else with __dlpack__: PyTorch's and JAX's, and so on."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...


ArrayT = TypeVar("ArrayT", bound=Array)


class Window(NamedTuple):
    """Keys from `left` positions before the query to `right` behind it are visible; None: no limit."""

    left: int | None = None
    right: int | None = None


class Blocks(NamedTuple):
    """Block-sparse attention: visible[b, h, i // query_size, j // key_size] == 0 hides the block.

    visible is bool or integers, [batch or 1, heads or 1, query blocks, key blocks].
    """

    visible: Array
    query_size: int
    key_size: int


class Origin(NamedTuple):
    """Where a call stands inside a larger problem, so that it drops the same weights."""

    b: int = 0
    h: int = 0
    i: int = 0
    j: int = 0
    heads: int = 0


class Dropout(NamedTuple):
    """Weights are dropped with probability p and the others scaled by 1 / (1 - p).

    The same seed and offset drop the same weights; take another offset for every call.
    """

    p: float
    seed: int = 0
    offset: int = 0
    origin: Origin | None = None


class BackwardResult(NamedTuple):
    """The gradients of attention() where it had a bias, sinks or alibi; those it had not are None."""

    dq: Any
    dk: Any
    dv: Any
    dbias: Any = None
    dsinks: Any = None
    dalibi: Any = None


WindowLike = Union[Window, tuple[int | None, int | None], dict[str, int | None]]
BlocksLike = Union[Blocks, tuple[Array, int, int], dict[str, Any]]
DropoutLike = Union[Dropout, tuple[float, int], tuple[float, int, int], dict[str, Any]]

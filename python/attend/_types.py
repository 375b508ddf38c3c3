"""Small types of attend that are plain Python: options with several parts, results with names."""
import html
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar, Union


class Array(Protocol):
    """A NumPy array, or anything else with __dlpack__: PyTorch's and JAX's, and so on."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...


ArrayT = TypeVar("ArrayT", bound=Array)


class Window(NamedTuple):
    """Keys from `left` before the query to `right` after it are visible; None: no limit."""

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
    """Where a call begins in a larger problem, so that the same weights are dropped."""

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
    """The gradients of attention() with a bias, sinks or alibi; None for inputs not given."""

    dq: Any
    dk: Any
    dv: Any
    dbias: Any = None
    dsinks: Any = None
    dalibi: Any = None


class Rotary(NamedTuple):
    """Rotary positions (RoPE): pairs of features are rotated by position * base ** (-2 c / dim).

    pairing is 'halves' (features c and c + dim / 2) or 'neighbours' (2 c and 2 c + 1); dim 0: all.
    """

    pairing: str = "halves"
    base: float = 10000.0
    dim: int = 0


class HeadWeights(NamedTuple):
    """One head: q [d_k, model_dim], k [d_k, key_dim], v [d_v, value_dim], o [model_dim, d_v]."""

    q: Any
    k: Any
    v: Any
    o: Any = None
    q_bias: Any = None
    k_bias: Any = None
    v_bias: Any = None


class LayerGradients(NamedTuple):
    """Gradients of a layer with one input: at x, and at the parameters by name."""

    dx: Any
    parameters: dict[str, Any]


class MultiHeadAttentionGradients(NamedTuple):
    """Gradients of MultiHeadAttention: dx in self-attention, else the next three; then the options."""

    dx: Any
    dquery: Any
    dkey: Any
    dvalue: Any
    dbias: Any
    dsinks: Any
    dalibi: Any
    parameters: dict[str, Any]


class OptionGradients(NamedTuple):
    """Gradients of the options of one of a block's attentions; None for options not given."""

    dbias: Any = None
    dsinks: Any = None
    dalibi: Any = None


class BlockGradients(NamedTuple):
    """Gradients of AttentionBlock: at x, memory (None without one), options, parameters by name."""

    dx: Any
    dmemory: Any
    self: OptionGradients
    cross: OptionGradients
    parameters: dict[str, Any]


@dataclass(frozen=True)
class Loss:
    """A loss, its gradient at the logits or prediction, and the number of items in its mean."""

    value: float
    gradient: Any
    count: int


class LayerHeads(NamedTuple):
    """q, k, v [batch, heads, length, d] of a layer, and the mean norm of head_h W^O_h for each head."""

    q: Any
    k: Any
    v: Any
    contribution: list[float]


@dataclass(frozen=True)
class HeadStatistics:
    """Means over the rows of one head that see a key, and a label for what it mostly does.

    Without tokens, duplicate and induction are NaN; without a layer, contribution is.
    """

    batch: int
    head: int
    label: str
    score: float
    definition: str
    rows: int
    lse: float
    entropy: float
    evenness: float
    maximum: float
    distance: float
    previous: float
    first: float
    diagonal: float
    local: float
    local_uniform: float
    duplicate: float
    induction: float
    contribution: float


@dataclass(frozen=True)
class Statistics:
    """What inspect() found: arrays of rows and keys, and a HeadStatistics for each head.

    lse, maximum, entropy    [batch, heads, queries]; maximum is the largest weight, entropy in nats
    top_keys, top_weights    [batch, heads, queries, top_k], -1 and 0 where fewer keys are visible
    key_mass                 [batch, heads, keys]: the sum of the weights that each key receives
    tile_mean, tile_maximum  [batch, heads, rows, columns], -1 where nothing is visible; a tile is
                             tile_queries x tile_keys

    What was not asked for is None. In a notebook it shows itself as a table.
    """

    lse: Any
    maximum: Any
    entropy: Any
    top_keys: Any
    top_weights: Any
    key_mass: Any
    tile_mean: Any
    tile_maximum: Any
    tile_queries: int
    tile_keys: int
    batch: int
    heads: list[HeadStatistics]

    def _known(self) -> list[str]:
        """Names of the means that at least one head has."""
        names = ("entropy", "maximum", "distance", "previous", "first", "diagonal", "local",
                 "duplicate", "induction", "contribution")
        return [n for n in names if any(getattr(h, n) == getattr(h, n) for h in self.heads)]

    def __repr__(self) -> str:
        """One line per head, for the first 32."""
        known, most = self._known(), 32
        lines = [f"{'batch':>5} {'head':>4}  {'label':<15} {'score':>6}" + "".join(f" {n:>9}" for n in known)]
        for h in self.heads[:most]:
            numbers = "".join(f" {x:9.3g}" if x == x else " " * 9 + "-" for x in (getattr(h, n) for n in known))
            lines.append(f"{h.batch:5} {h.head:4}  {h.label:<15} {h.score:6.3f}{numbers}")
        if len(self.heads) > most:
            lines.append(f"... and {len(self.heads) - most} more heads")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        known = self._known()
        cells = ["batch", "head", "label", "score", *known]
        table = "<table><thead><tr>" + "".join(f"<th>{name}</th>" for name in cells) + "</tr></thead><tbody>"
        for h in self.heads:
            numbers = [h.score, *(getattr(h, name) for name in known)]
            table += f"<tr><td>{h.batch}</td><td>{h.head}</td><td title='{html.escape(h.definition)}'>{h.label}</td>"
            table += "".join(f"<td>{x:.3g}</td>" if x == x else "<td></td>" for x in numbers) + "</tr>"
        return table + "</tbody></table>"


def token_numbers(where: str, tokens: Any) -> Any:
    """Integers for a list of texts, equal for equal texts; anything else is returned as it is."""
    if isinstance(tokens, str):
        raise TypeError(f"{where}: tokens is one str; give a list of them, as in tokens=text.split()")
    if not isinstance(tokens, (list, tuple)):
        return tokens
    for text in tokens:
        if not isinstance(text, str):
            raise TypeError(f"{where}: tokens takes a list of str, or an integer array, found a "
                            f"{type(tokens).__name__} with {type(text).__name__} in it")
    import numpy

    known: dict[str, int] = {}
    return numpy.array([known.setdefault(text, len(known)) for text in tokens], "int64")


def shared_context() -> Any:
    """What the pickle of default_context() calls; functions of the module itself cannot be pickled."""
    from ._attend import default_context

    return default_context()


class TraceStep(NamedTuple):
    """One intermediate result: 'weights', its formula, what its dimensions are, and the array."""

    name: str
    formula: str
    axes: str
    value: Any


WindowLike = Union[Window, tuple[int | None, int | None], dict[str, int | None]]
BlocksLike = Union[Blocks, tuple[Array, int, int], dict[str, Any]]
DropoutLike = Union[Dropout, tuple[float, int], tuple[float, int, int], dict[str, Any]]
RotaryLike = Union[Rotary, tuple[str, float], tuple[str, float, int], dict[str, Any]]

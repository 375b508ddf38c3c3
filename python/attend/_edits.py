"""What a head is given instead of its own result: the values of attend.hf.edit() and attend.torch.edit()."""
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Zero:
    """The head adds nothing to its layer's output: ablation by zeros."""

    def __repr__(self) -> str:
        return "attend.zero"


@dataclass(frozen=True, eq=False)
class MeanOf:
    """The head's mean output in another run."""

    run: Any
    layer: Any = None
    head: int | None = None

    def __repr__(self) -> str:
        return "attend.mean_of(run)"


@dataclass(frozen=True, eq=False)
class PatternOf:
    """The head's weights in another run, on the values of this one."""

    run: Any
    layer: Any = None
    head: int | None = None

    def __repr__(self) -> str:
        return "attend.pattern_of(run)"


zero = Zero()


def mean_of(run: Any, layer: Any = None, head: int | None = None) -> MeanOf:
    """Instead of its output, a head gives the mean of it in `run`, over batch, positions and forward passes.

    `run` is what a capture() block handed out, of any `what`. layer and head are those of the head that is edited,
    unless others are given.
    """
    return MeanOf(run, layer, head)


def pattern_of(run: Any, layer: Any = None, head: int | None = None) -> PatternOf:
    """A head weighs its values as it did in `run` (activation patching of the pattern).

    `run` is what a capture(what="weights") block handed out, of inputs with as many queries and keys, and as many
    sequences or one. If it has several forward passes, as of generate(), each pass is given that of the same number. layer and
    head are those of the head that is edited, unless others are given.
    """
    return PatternOf(run, layer, head)

"""capture(), edit() and head_importance() of Transformers models, whose attentions are known before they run."""
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn

import attend.torch
from attend.torch.capturing import Capture
from attend.torch.editing import Edit
from attend.torch.layers import Layer

from .reports import check


def capture(
    model: nn.Module | None = None, *, layers: Any = None, heads: Any = None, what: str | Iterable[str] = "weights",
    inspect: Mapping[str, Any] | None = None,
) -> Capture:
    """`with attend.hf.capture(model, layers=..., heads=...) as run:` keeps what chosen heads do while the model runs.

    layers     a name ("*" stands for anything), (name, call) where a module is called more than once in a forward pass, a
               number where that is clear, several of these, or {layer: heads}; None: all
    heads      a number or several; None: all
    what       "weights", "stats" (attend.inspect()'s), "qkv" or "out", or several of them
    inspect    options of attend.inspect() for "stats": {"top_k": 5}

    run[layer] is then an attend.torch.Captured: run[3].weights is [batch, heads, queries, keys]. Of several forward passes, as
    generate() makes them, run.steps[n][layer] is that of one.

    >>> with attend.hf.capture(model, layers=3, heads=[5]) as run:
    ...     model(**inputs)
    >>> run[3].weights.shape
    torch.Size([1, 1, 10, 10])
    """
    return attend.torch.capture(
        model, layers=layers, heads=heads, what=what, inspect=inspect, names=_names("capture", model, layers),
    )


def edit(model: nn.Module | Mapping[Any, Any] | None = None, edits: Mapping[Any, Any] | None = None) -> Edit:
    """`with attend.hf.edit(model, {(layer, head): what}):` gives heads something else than their own result.

    what is attend.zero, attend.mean_of(run), attend.pattern_of(run), or weights [queries, keys] or [batch, queries, keys]; layers are
    said as in capture(). Gradients pass, and gradient checkpointing computes with the edits of the forward pass.

    >>> with attend.hf.edit(model, {(3, 5): attend.zero}):
    ...     ablated = model(**inputs).loss
    """
    if edits is None and isinstance(model, Mapping):
        model, edits = None, model
    named = [] if not isinstance(edits, Mapping) else [key[0] for key in edits if isinstance(key, tuple) and key]
    return attend.torch.edit(model, edits, names=_names("edit", model, named))


def head_importance(
    model: nn.Module, inputs: Mapping[str, Any] | Iterable[Mapping[str, Any]], *, layers: Any = None,
    loss: Callable[[Any], Tensor] | None = None,
) -> dict[Layer, Tensor]:
    """As attend.torch.head_importance()."""
    names = _names("head_importance", model, layers)
    return attend.torch.head_importance(model, inputs, layers=layers, loss=loss, names=names)


def _names(where: str, model: Any, layers: Any) -> dict[str, str] | None:
    """The attentions of the model, and why one does not come to attend. Refuses a model of which none does and, where all
    layers are meant, one of which some do not.
    """
    if not isinstance(model, nn.Module):
        return None
    report = check(model)
    if not report.comes or (layers is None and report.stays):
        hint = "" if not report.comes else "; name those that are meant by layers="
        raise ValueError(f"{where}: attentions of this model do not come to attend{hint}:\n{report}")
    return {row.name or type(model).__name__: row.why for row in report.rows}

"""What is read off captured heads: which of them matter, and where what they carry comes from."""
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .capturing import Captured, Run, Step
from .layers import Layer, Names
from .taps import Look, Tap


class _Gates(Tap):
    """Each head's output times a number that is 1."""

    where = "head_importance"
    changes = True

    def __init__(self, model: nn.Module, layers: Any, names: Names | None) -> None:
        super().__init__(model)
        self.rules = self.rules_of(layers, names)
        self.gates: dict[Layer, Tensor] = {}

    def finish(self) -> None:
        self.never_called(self.rules.unmet(), bool(self.gates))

    def before(
        self, layer: Layer, order: int, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any], step: int | None = None
    ) -> Look | None:
        if not self.rules.find(layer, order) and not self.rules.any_layer:
            return None
        if not torch.is_grad_enabled():  # its gate would be as one that the loss does not depend on
            raise RuntimeError(
                f"head_importance: {layer} runs without gradients, under torch.no_grad() or in gradient checkpointing with "
                "use_reentrant=True (with False it works); layers= chooses others"
            )
        if layer not in self.gates:
            self.gates[layer] = torch.ones(q.size(1), dtype=torch.float32, device=q.device, requires_grad=True)
        return _Gated(self.gates[layer])


class _Gated(Look):
    def __init__(self, gate: Tensor) -> None:
        self.gate = gate

    def edit(self, out: Tensor) -> Tensor:
        return out * self.gate.to(out.dtype).view(1, -1, 1, 1)


def head_importance(
    model: nn.Module, inputs: Mapping[str, Any] | Iterable[Mapping[str, Any]], *, layers: Any = None,
    loss: Callable[[Any], Tensor] | None = None, names: Names | None = None,
) -> dict[Layer, Tensor]:
    """{layer: [heads]}: how much the loss depends on each head, |d loss / d gate| where a gate of 1 multiplies the head's output
    (Michel, Levy and Neubig, "Are sixteen heads really better than one?"); of several batches the mean.

    `inputs` are those of one call of the model, or of several in a list. loss(result of the model) is its `loss` if
    none is given: give the model labels. One forward and one backward pass each; no parameter gets a gradient.
    """
    batches = [inputs] if isinstance(inputs, Mapping) or not isinstance(inputs, Iterable) else list(inputs)
    if not batches:
        raise ValueError("head_importance: there are no inputs")
    for batch in batches:
        if not isinstance(batch, Mapping):
            raise TypeError(
                f"head_importance: inputs take a dict, or several in a list, for model(**inputs); found {type(batch).__name__}"
            )
    if loss is not None and not callable(loss):
        raise TypeError(f"head_importance: loss takes a function of the model's result, found {type(loss).__name__}")
    if torch.is_inference_mode_enabled():
        raise RuntimeError("head_importance: there are no gradients under torch.inference_mode(); call it outside")
    totals: dict[Layer, Tensor] = {}
    for batch in batches:
        with torch.enable_grad(), _Gates(model, layers, names) as gates:
            result = model(**batch)
            value = getattr(result, "loss", None) if loss is None else loss(result)
            if not isinstance(value, Tensor) or value.dim() != 0:
                raise ValueError("head_importance: the model gave no loss; give it labels, or loss=, a function of its result")
            wanted = list(gates.gates.items())
            found = torch.autograd.grad(value, [gate for _, gate in wanted], allow_unused=True)
        for (layer, gate), gradient in zip(wanted, found):
            size = torch.zeros_like(gate) if gradient is None else gradient.abs()
            totals[layer] = totals.get(layer, 0) + size.detach() / len(batches)
    return totals


def attention_rollout(run: Run | Step | Iterable[Tensor], *, layers: Any = None, residual: float = 0.5) -> Tensor:
    """[batch, positions, positions]: how much of each position of the input there is in each of the last layer's output, if what
    goes from layer to layer is a mean of `residual` times the position itself and the rest by the weights, which are
    means over the heads (Abnar and Zuidema, "Quantifying attention flow in transformers").

    Of captured weights of all heads, layer after layer, in the order of their calls or as `layers` says; or of weights
    [batch, heads, positions, positions] in a list.
    """
    if not isinstance(residual, (int, float)) or not 0.0 <= residual <= 1.0:
        raise ValueError(f"attention_rollout: residual is {residual!r}; it is a number between 0 and 1")
    flow: Tensor | None = None
    for layer, weights in _weights_in_order(run, layers):
        if not isinstance(weights, Tensor):
            raise TypeError(f"attention_rollout: the weights of {layer} are no tensor, found {type(weights).__name__}")
        if weights.dim() != 4 or weights.size(2) != weights.size(3):
            raise ValueError(
                f"attention_rollout: the weights of {layer} are {list(weights.shape)}; every layer must have as many queries as "
                "keys, which cross-attention and decoding with a cache have not"
            )
        mean = weights.mean(1, dtype=torch.float64 if weights.dtype == torch.float64 else torch.float32)
        mean = mean / mean.sum(-1, keepdim=True).clamp_min(torch.finfo(mean.dtype).tiny)  # of rows with sinks, too
        step = residual * torch.eye(mean.size(-1), dtype=mean.dtype, device=mean.device) + (1 - residual) * mean
        if flow is not None and flow.shape != step.shape:
            raise ValueError(f"attention_rollout: the weights of {layer} are of another size than those before")
        flow = step if flow is None else step @ flow
    if flow is None:
        raise ValueError("attention_rollout: there are no weights")
    return flow


def _weights_in_order(run: Run | Step | Iterable[Tensor], layers: Any) -> list[tuple[Any, Tensor]]:
    if isinstance(run, Run):
        if len(run.steps) != 1:
            raise LookupError(f"attention_rollout: the run has {len(run.steps)} forward passes; give it run.steps[n]")
        run = run.steps[0]
    if not isinstance(run, Step):
        if layers is not None or isinstance(run, (Tensor, Captured)) or not isinstance(run, Iterable):
            what = "a list of weights, beside which layers= says nothing" if layers is not None else type(run).__name__
            raise TypeError(f"attention_rollout: takes a run, one of its steps, or weights in a list; found {what}")
        return list(enumerate(run))
    if layers is None:
        chosen: list[Any] = list(run)
    else:
        chosen = [layers] if isinstance(layers, (str, Layer)) or not isinstance(layers, Iterable) else list(layers)
    found = [run[layer] for layer in chosen]
    for one in found:
        if len(one.heads) != one.count:
            raise ValueError(f"attention_rollout: {len(one.heads)} of {one.count} heads of {one.layer} were captured; it needs all")
    return [(one.layer, one.need("weights")) for one in found]


def value_weighted(captured: Captured, projection: nn.Module | Tensor) -> Tensor:
    """[batch, heads, queries, keys]: the norm of p v W^O, what each key adds to a query's part of the layer's output through each
    head (Kobayashi et al., "Attention is not only a weight").

    `captured` is of what=("weights", "qkv"). `projection` is the layer's output projection, or W^O itself [heads * dv, features]
    for x W^O; attend.torch.output_projection(model, layer) finds it in most models.
    """
    if not isinstance(captured, Captured):
        raise TypeError(f"value_weighted: takes what was captured of a layer, run[layer], found {type(captured).__name__}")
    v = captured.values()
    w = projection_matrix(projection)
    dv = v.size(3)
    if w.dim() != 2 or w.size(0) != captured.count * dv:
        raise ValueError(
            f"value_weighted: W^O is {list(w.shape)}; {captured.layer} has {captured.count} heads of {dv}, which are "
            f"{captured.count * dv} rows"
        )
    wide = torch.float64 if v.dtype == torch.float64 else torch.float32
    each = w.detach().to(wide).unflatten(0, (-1, dv))[list(captured.heads)]  # [heads, dv, features]
    size = (v.to(wide) @ each).norm(dim=-1)  # [batch, heads, keys]
    return captured.need("weights").to(wide) * size.unsqueeze(2)


_PROJECTIONS = (
    "o_proj", "out_proj", "c_proj", "o", "dense", "wo", "Wo", "out_lin", "to_out", "to_out.0", "proj", "output.dense",
)


def output_projection(model: nn.Module, layer: Any) -> nn.Module:
    """The module that maps the joined heads of a layer to its output, by the names that models give it."""
    name = layer.name if isinstance(layer, Layer) else layer[0] if isinstance(layer, tuple) else layer
    if not isinstance(name, str):
        raise TypeError(f"output_projection: a layer is said by its name here, found {layer!r}")
    try:
        here = model.get_submodule(name)
    except AttributeError:
        raise LookupError(f"output_projection: layer {name!r} is not there in this {type(model).__name__}") from None
    holders = [here] + ([model.get_submodule(name.rpartition(".")[0])] if "." in name else [])
    for holder in holders:
        for path in _PROJECTIONS:
            found: Any = holder
            for part in path.split("."):
                found = getattr(found, part, None)
            if isinstance(found, nn.Module) and isinstance(getattr(found, "weight", None), Tensor):
                return found
    raise LookupError(
        f"output_projection: none is found in {name}, which is looked for as {', '.join(_PROJECTIONS)}; give the module"
    )


def projection_matrix(projection: nn.Module | Tensor) -> Tensor:
    """W^O [in, out] of x W^O."""
    if isinstance(projection, Tensor):
        return projection
    weight = getattr(projection, "weight", None)
    if not isinstance(weight, Tensor):
        raise TypeError(f"value_weighted: {type(projection).__name__} has no weight")
    return weight if type(projection).__name__ == "Conv1D" else weight.t()  # Conv1D, of GPT-2, is [in, out]

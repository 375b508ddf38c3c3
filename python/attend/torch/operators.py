"""Attention and its gradient as operators of PyTorch: torch.ops.attend.attention, .attention_backward.

As operators they are known to autograd, torch.compile and torch.export, which see their shapes by
the `fake` functions here and never what is inside. Tensors are those of attend.attention():

    q [batch, heads, queries, d]     k [batch, key heads, keys, d]     v [batch, key heads, keys, dv]

with any strides, which are read as they lie. So are the options, by its names, in what an operator
takes: numbers, lists of them, tensors. attend.torch.attention() puts them so. What is put otherwise:

    seed            [1], int64: the bits of dropout's seed; without one nothing is dropped. A tensor, so
                    that a compiled graph draws a new one each time. In the CPU's memory also for tensors
                    of a GPU: a call reads it, and does not wait for the GPU
    dropout_place   the rest of attend.Dropout: [offset, b, h, i, j, heads]
    need_weights    those after dropout, as PyTorch's, or with weights_before_dropout those before it
    weight_heads    the query heads whose weights these are; not given: all
    return_scores   "raw", "softcapped" or "masked": those scores too, which have no gradient
    context         contexts.number_of() of one, or 0
    query_offset    not given: 0, PyTorch's first query meets the first key. None: the last query meets
                    the last key. query_offsets [batch] come before both
    window          [left, right], -1: no limit
    blocks          attend.Blocks.visible; block_sizes are [query_size, key_size]
"""
from typing import Any

import torch
from torch import Tensor

import attend

from . import contexts
from .weights import by_attention, gradients_at_weights, weights_shape

# What both operators have behind `context`, with what they are if not given. New ones come last.
_TAIL = {
    "query_offset": "SymInt? query_offset=0", "query_offsets": "Tensor? query_offsets=None",
    "key_offset": "SymInt? key_offset=None", "window": "SymInt[]? window=None",
    "softcap": "float softcap=0.0", "bias_before_softcap": "bool bias_before_softcap=False",
    "sinks": "Tensor? sinks=None", "alibi": "Tensor? alibi=None", "key_lengths": "Tensor? key_lengths=None",
    "blocks": "Tensor? blocks=None", "block_sizes": "SymInt[]? block_sizes=None",
    "cu_seqlens_q": "Tensor? cu_seqlens_q=None", "cu_seqlens_k": "Tensor? cu_seqlens_k=None",
    "max_q": "SymInt? max_q=None", "max_k": "SymInt? max_k=None", "block_table": "Tensor? block_table=None",
    "k_scales": "Tensor? k_scales=None", "v_scales": "Tensor? v_scales=None",
    "dropout_place": "SymInt[]? dropout_place=None", "weights_before_dropout": "bool weights_before_dropout=False",
    "weight_heads": "SymInt[]? weight_heads=None",
}
_NAMES = tuple(_TAIL)
_AS_THEY_ARE = ("key_offset", "softcap", "bias_before_softcap", "sinks", "alibi", "key_lengths", "cu_seqlens_q",
                "cu_seqlens_k", "max_q", "max_k", "block_table", "k_scales", "v_scales")

_library = torch.library.Library("attend", "DEF")
_OPTIONS = "Tensor? mask, Tensor? bias, float? scale, bool causal, float dropout_p, Tensor? seed, "
for _schema in (
    "attention(Tensor q, Tensor k, Tensor v, " + _OPTIONS + "bool need_weights, SymInt context=0, "
    + ", ".join(_TAIL.values()) + ", str? return_scores=None) -> (Tensor out, Tensor lse, Tensor weights, Tensor scores)",
    "attention_backward(Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor weights, Tensor? dout, "
    "Tensor? dlse, Tensor? dweights, " + _OPTIONS + "SymInt context=0, " + ", ".join(_TAIL.values())
    + ") -> (Tensor dq, Tensor dk, Tensor dv, Tensor dbias, Tensor dsinks, Tensor dalibi)",
):
    _library.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))

attention = torch.ops.attend.attention.default
attention_backward = torch.ops.attend.attention_backward.default


def _options(
    mask: Tensor | None, bias: Tensor | None, scale: float | None, causal: bool, dropout_p: float,
    seed: Tensor | None, context: int, tail: tuple[Any, ...],
) -> dict[str, Any]:
    """As attend.attention() takes them. PyTorch leaves out the last arguments that are as if not given."""
    options: dict[str, Any] = {"context": contexts.by_number(context)}
    if mask is not None:
        options["mask"] = mask.detach()
    if bias is not None:
        options["bias"] = bias.detach()
    if scale is not None:
        options["scale"] = scale
    if seed is not None:
        options["dropout"] = (dropout_p, int(seed.item()) % 2**64)
    if causal:
        options["causal"] = True
        options["query_offset"] = 0
    if tail:
        _add_tail(options, dict(zip(_NAMES, tail)))
    return options


def _add_tail(options: dict[str, Any], given: dict[str, Any]) -> None:
    for name in _AS_THEY_ARE:
        value = given.get(name)
        if value is not None:
            options[name] = value.detach() if isinstance(value, Tensor) else value
    each = given.get("query_offsets")
    options["query_offset"] = given["query_offset"] if each is None else each
    window = given.get("window")
    if window is not None:
        options["window"] = tuple(None if side < 0 else side for side in window)
    if given.get("blocks") is not None:
        options["blocks"] = (given["blocks"], *(given.get("block_sizes") or (0, 0)))
    place = given.get("dropout_place")
    if place and "dropout" in options:
        options["dropout"] += (place[0], tuple(place[1:]))


def _of_weights(tail: tuple[Any, ...]) -> tuple[bool, list[int] | None]:
    """(whether they are those before dropout, of which heads)"""
    given = dict(zip(_NAMES, tail))
    return given.get("weights_before_dropout", False), given.get("weight_heads")


def _scores_of(tail: tuple[Any, ...]) -> str | None:
    """return_scores, which the gradient has not."""
    return tail[-1] if len(tail) > len(_NAMES) else None


def _forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, scale: float | None,
    causal: bool, dropout_p: float, seed: Tensor | None, need_weights: bool, context: int = 0, *tail: Any,
) -> tuple[Tensor, ...]:
    """(out, lse, weights, scores); the last two are [0] if they are not asked for."""
    q, k, v = q.detach(), k.detach(), v.detach()
    options = _options(mask, bias, scale, causal, dropout_p, seed, context, tail)
    before, heads = _of_weights(tail)
    stage, before = _scores_of(tail), before or seed is None
    if heads is not None and need_weights and not before:
        raise NotImplementedError(
            "attend::attention: weight_heads are not taken of the weights after dropout; weights_before_dropout=True"
        )
    wanted = {"return_weights": need_weights and before, "return_scores": stage, "weight_heads": heads}
    out, lse, *rest = attend.attention(q, k, v, return_lse=True, **wanted, **options)
    scores = q.new_empty(0) if stage is None else rest.pop()
    weights = q.new_empty(0) if not need_weights else rest.pop() if before else by_attention(q, k, v, options)
    return out, lse, weights, scores


def _backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, weights: Tensor, dout: Tensor | None,
    dlse: Tensor | None, dweights: Tensor | None, mask: Tensor | None, bias: Tensor | None, scale: float | None,
    causal: bool, dropout_p: float, seed: Tensor | None, context: int = 0, *tail: Any,
) -> tuple[Tensor, ...]:
    """(dq, dk, dv, dbias, dsinks, dalibi) from the gradients at the three results; [0] for what has none:
    keys and values of 8 bits, options that were not given.
    """
    q, k, v, out, lse, weights = (x.detach() for x in (q, k, v, out, lse, weights))
    options = _options(mask, bias, scale, causal, dropout_p, seed, context, tail)
    dout = torch.zeros_like(out) if dout is None else dout.detach()
    dlse = None if dlse is None else dlse.detach()
    found = [*attend.attention_backward(q, k, v, out, lse, dout, dlse=dlse, **options)]
    if dweights is not None and weights.dim() == 4:
        before, heads = _of_weights(tail)
        if before:
            options.pop("dropout", None)
        more = gradients_at_weights(q, k, v, weights, lse, dweights.detach(), options, heads)
        for place in (0, 1, *range(3, len(found))):  # all but dv
            if found[place] is not None:
                found[place] += more[place]
    found += [None] * (6 - len(found))
    return tuple(q.new_empty(0) if x is None else x for x in found)


for _device in ("CPU", "CUDA"):
    _library.impl("attention", _forward, _device)
    _library.impl("attention_backward", _backward, _device)


@torch.library.register_fake("attend::attention", lib=_library)
def _fake_forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, scale: float | None,
    causal: bool, dropout_p: float, seed: Tensor | None, need_weights: bool, context: int = 0, *tail: Any,
) -> tuple[Tensor, ...]:
    rows = q.shape[:3]
    stage, heads = _scores_of(tail), _of_weights(tail)[1]
    shape = weights_shape(q, k, **dict(zip(_NAMES, tail))) if need_weights or stage is not None else (0,)
    chosen = shape if heads is None or not need_weights else (shape[0], len(heads), *shape[2:])
    return (
        q.new_empty((*rows, v.size(3))),
        q.new_empty(rows, dtype=torch.float64 if q.dtype == torch.float64 else torch.float32),
        q.new_empty(chosen if need_weights else (0,)), q.new_empty(shape if stage is not None else (0,)),
    )


@torch.library.register_fake("attend::attention_backward", lib=_library)
def _fake_backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, weights: Tensor, dout: Tensor | None,
    dlse: Tensor | None, dweights: Tensor | None, mask: Tensor | None, bias: Tensor | None, scale: float | None,
    causal: bool, dropout_p: float, seed: Tensor | None, context: int = 0, *tail: Any,
) -> tuple[Tensor, ...]:
    given = dict(zip(_NAMES, tail))
    inputs = (q, k, v, bias, given.get("sinks"), given.get("alibi"))
    return tuple(
        q.new_empty(0) if x is None or not x.is_floating_point() else x.new_empty(x.shape) for x in inputs
    )


class _Differentiable(torch.autograd.Function):
    """What torch.library.register_autograd makes, but for the time: that one's grows with the square of
    the number of an operator's arguments, to more than attention itself takes.
    """

    @staticmethod
    def forward(ctx: Any, keys: Any, *arguments: Any) -> tuple[Tensor, ...]:
        results = _below_autograd(keys, *arguments)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(results[3])
        ctx.others = [None if isinstance(x, Tensor) else x for x in arguments]
        ctx.places = [place for place, x in enumerate(arguments) if isinstance(x, Tensor)]
        ctx.save_for_backward(*results[:3], *(arguments[place] for place in ctx.places))
        return results

    @staticmethod
    def backward(
        ctx: Any, dout: Tensor | None, dlse: Tensor | None, dweights: Tensor | None, dscores: None
    ) -> tuple[Tensor | None, ...]:
        out, lse, weights, *tensors = ctx.saved_tensors
        arguments = list(ctx.others)
        for place, x in zip(ctx.places, tensors):
            arguments[place] = x
        found = attention_backward(
            *arguments[:3], out, lse, weights, dout, dlse, dweights, *arguments[3:9], *arguments[10 : 11 + len(_NAMES)]
        )
        gradients: list[Tensor | None] = [None] * len(arguments)
        for place, x in zip(_PLACES, found):
            if place in ctx.places and arguments[place].is_floating_point():
                gradients[place] = x
        return None, *gradients


# Where q, k, v, bias, sinks and alibi are among the arguments.
_PLACES = (0, 1, 2, 4, 11 + _NAMES.index("sinks"), 11 + _NAMES.index("alibi"))


def _below_autograd(keys: Any, *arguments: Any) -> tuple[Tensor, ...]:
    with torch._C._AutoDispatchBelowAutograd():
        return attention.redispatch(keys & torch._C._after_autograd_keyset, *arguments)


def _with_autograd(keys: Any, *arguments: Any) -> tuple[Tensor, ...]:
    if torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments):
        return _Differentiable.apply(keys, *arguments)
    return _below_autograd(keys, *arguments)


def _no_second_gradient(ctx: Any, *gradients: Tensor | None) -> None:
    raise NotImplementedError(
        "attend::attention_backward: attention has first gradients only; a gradient of its gradient "
        "(create_graph=True, gradgradcheck) is not available"
    )


_library.impl("attention", _with_autograd, "Autograd", with_keyset=True)
torch.library.register_autograd("attend::attention_backward", _no_second_gradient, lib=_library)

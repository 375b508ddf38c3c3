"""nn.MultiheadAttention computed by attend, and the swapping of it inside a model."""
import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import attend

from . import contexts
from .calls import call, tapped
from .functional import DEVICES, check_tensor, draw_seed, prepared, split_mask
from .hidden import hidden_rows, without
from .operators import attention

TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class MultiheadAttention(nn.MultiheadAttention):
    """torch.nn.MultiheadAttention: the same constructor, parameters and results, attention by attend.

    Masks mean what they mean there: True = blocked, floats are added to the scores. Different from
    PyTorch's: a query that sees no key gives out_proj(0) and gets no gradient, where PyTorch may give
    NaN; training, evaluation, weights or not, all give the same numbers, since there is no fast path.
    NaN in a row of key or value that no query sees reaches no result and no gradient, those of the
    weights included. `context`, an attend.Context or None, is where it computes; None: with as many
    threads as torch.get_num_threads() says.

    >>> layer = attend.torch.MultiheadAttention(512, 8, batch_first=True)
    >>> x = torch.ones(2, 10, 512)
    >>> out, weights = layer(x, x, x)
    >>> out.shape, weights.shape
    (torch.Size([2, 10, 512]), torch.Size([2, 10, 10]))
    """

    context: attend.Context | None = None

    def __init__(self, *arguments: Any, context: attend.Context | None = None, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.context = context

    # What help() and editors show: PyTorch's own arguments, and ours.
    __signature__ = inspect.signature(nn.MultiheadAttention)
    __signature__ = __signature__.replace(parameters=[
        *__signature__.parameters.values(),
        inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=attend.Context | None),
    ])

    def _reset_parameters(self) -> None:
        self._qkv_same_embed_dim = self.in_proj_weight is not None
        super()._reset_parameters()
        _leave_fast_path(self)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        context: attend.Context | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """query [L, N, E], key [S, N, kdim], value [S, N, vdim]; N first with batch_first; N may be
        missing. attn_mask [L, S] or [N * heads, L, S], key_padding_mask [N, S]. Returns out, of
        query's shape, and the weights [N, L, S], per head [N, heads, L, S], or None. is_causal says
        that attn_mask is the causal mask, which must be there; as in PyTorch it is then not read
        unless there is a key_padding_mask too or weights are needed. A `context` comes before the
        layer's own.
        """
        number = contexts.number_of("MultiheadAttention", self.context if context is None else context)
        for name, x in (("query", query), ("key", key), ("value", value)):
            check_tensor("MultiheadAttention", name, x)
            if x.dim() != query.dim() or x.dim() not in (2, 3):
                raise ValueError(
                    "MultiheadAttention: query, key and value are all [length, features] or all have a batch "
                    f"too; query is {list(query.shape)}, {name} {list(x.shape)}"
                )
        if is_causal and attn_mask is None:
            raise RuntimeError(
                "MultiheadAttention: is_causal says that attn_mask is causal, but there is no attn_mask; "
                "nn.Transformer.generate_square_subsequent_mask makes one"
            )
        causal = is_causal and key_padding_mask is None and not need_weights
        mask, bias = self._masks(None if causal else attn_mask, key_padding_mask, query, key)
        more_keys = causal and self._sizes(key)[1] > self._sizes(query)[1]
        if torch.is_grad_enabled() and (mask is not None or bias is not None or more_keys):
            query, key, value = self._without_hidden(query, key, value, mask, bias)
        batched = query.dim() == 3
        q, k, v = (self._heads(x) for x in self._project(query, key, value))
        k, v, mask, bias = self._more_keys(k, v, mask, bias)
        dropout_p = self.dropout if self.training else 0.0
        seed = draw_seed("MultiheadAttention", dropout_p, q.device)
        arguments = (*prepared("MultiheadAttention", q, k, v), mask, bias, None, causal, dropout_p, seed, need_weights)
        if tapped():
            out, weights = self._tapped(*arguments, number)
        else:
            out, _, weights, _ = attention(*arguments, number)
        out = out.transpose(1, 2) if self.batch_first and batched else out.permute(2, 0, 1, 3)
        out = self.out_proj(out.flatten(2))
        out = out if batched else out.squeeze(1)
        if not need_weights:
            return out, None
        if average_attn_weights:
            weights = weights.mean(dim=1)
        return out, weights if batched else weights.squeeze(0)

    def _tapped(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, scale: float | None, causal: bool,
        dropout_p: float, seed: Tensor | None, need_weights: bool, number: int,
    ) -> tuple[Tensor, Tensor | None]:
        """The same, where somebody looks on."""
        def dropped() -> Tensor:  # PyTorch's weights are those after dropout
            return attention(q, k, v, mask, bias, scale, causal, dropout_p, seed, True, number)[2]

        return call(
            self, q, k, v, mask=mask, bias=bias, causal=causal, query_offset=0 if causal else None,
            dropout=None if seed is None else (dropout_p, int(seed.item())), return_weights=need_weights,
            dropped=dropped if need_weights and seed is not None else None, context=contexts.by_number(number),
        )

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        if self.in_proj_weight is None:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        elif query is key and key is value:
            return F.linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=-1)
        else:
            weights = self.in_proj_weight.chunk(3)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return tuple(F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases))

    def _heads(self, x: Tensor) -> Tensor:
        """[N, heads, length, head_dim], a view."""
        x = x.unflatten(-1, (self.num_heads, self.head_dim))
        if x.dim() == 3:
            return x.transpose(0, 1).unsqueeze(0)
        return x.transpose(1, 2) if self.batch_first else x.permute(1, 2, 0, 3)

    def _without_hidden(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, bias: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Zeros for the rows that nobody sees and that hold NaN or infinity: the gradient of a weight is
        x^T dk, where dk = 0 of such a row, but 0 * NaN is NaN.
        """
        queries, keys = self._sizes(query)[1], self._sizes(key)[1]
        as_query, as_key = hidden_rows(mask, bias, queries, keys, key.device)
        if self.bias_k is not None or self.add_zero_attn:  # every query sees these
            as_query = torch.zeros_like(as_query)

        def clear(x: Tensor, hidden: Tensor) -> Tensor:
            if x.dim() == 3:
                return without(x, hidden if self.batch_first else hidden.transpose(0, 1))
            return without(x, hidden.squeeze(0))

        if query is key and key is value:  # a row of it is a query and a key
            x = clear(query, as_query & as_key)
            return x, x, x
        cleared = clear(key, as_key)
        return clear(query, as_query), cleared, cleared if value is key else clear(value, as_key)

    def _sizes(self, x: Tensor) -> tuple[int, int]:
        """(N, length)"""
        if x.dim() == 2:
            return 1, x.size(0)
        return (x.size(0), x.size(1)) if self.batch_first else (x.size(1), x.size(0))

    def _masks(
        self, attn_mask: Tensor | None, padding: Tensor | None, query: Tensor, key: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """attend's (mask, bias): True = takes part, so booleans turn around; numbers add up."""
        (n, queries), keys, heads = self._sizes(query), self._sizes(key)[1], self.num_heads
        batched = query.dim() == 3
        if attn_mask is not None:
            allowed = [(queries, keys), (n * heads, queries, keys)]
            _check_shape("attn_mask", attn_mask, allowed)
            if attn_mask.dim() == 3:
                attn_mask = attn_mask.unflatten(0, (n, heads))
        if padding is not None:
            _check_shape("key_padding_mask", padding, [(n, keys) if batched else (keys,)])
            padding = padding.reshape(n, 1, 1, keys)
        blocked, bias = split_mask("MultiheadAttention", "attn_mask", attn_mask)
        padded, more = split_mask("MultiheadAttention", "key_padding_mask", padding)
        if blocked is not None and padded is not None:
            blocked = blocked | padded
        elif blocked is None:
            blocked = padded
        if bias is None:
            bias = more
        elif more is not None:
            bias = bias + more
        return None if blocked is None else ~blocked, bias

    def _more_keys(
        self, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Behind the other keys, seen by every query: bias_k with bias_v, and one of zeros."""
        extra = 0
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (_append(x, self._heads(b)) for x, b in ((k, self.bias_k), (v, self.bias_v)))
            extra += 1
        if self.add_zero_attn:
            k, v = (_append(x, x.new_zeros(1, 1, 1, 1)) for x in (k, v))
            extra += 1
        if extra and mask is not None:
            mask = F.pad(mask, (0, extra), value=True)
        if extra and bias is not None:
            bias = F.pad(bias, (0, extra))
        return k, v, mask, bias


def _append(x: Tensor, row: Tensor) -> Tensor:
    row = row.to(x.dtype).expand(x.size(0), x.size(1), 1, x.size(3))
    return torch.cat([x, row], dim=2)


def _check_shape(name: str, mask: Tensor, allowed: list[tuple[int, ...]]) -> None:
    if tuple(mask.shape) not in allowed:
        raise ValueError(
            f"MultiheadAttention: {name} takes {' or '.join(str(list(a)) for a in allowed)}, "
            f"found {list(mask.shape)}"
        )


def _leave_fast_path(module: nn.MultiheadAttention) -> None:
    """nn.TransformerEncoderLayer reads its attention's weights in place of calling it (in eval), if
    they are packed by this flag. Here in_proj_weight itself says whether they are.
    """
    module._qkv_same_embed_dim = False


class Replaced(NamedTuple):
    """What replace() did. str() of it is a table to read."""

    swapped: list[str]  # names, "" is the model itself
    kept: dict[str, str]  # name: why
    changed: dict[str, str]  # what else, by the name of the module

    def __str__(self) -> str:
        lines = [f"swapped  {name or '(the model)'}" for name in self.swapped]
        lines += [f"kept     {name or '(the model)'}: {why}" for name, why in self.kept.items()]
        lines += [f"changed  {name or '(the model)'}: {what}" for name, what in self.changed.items()]
        return "\n".join(lines) or "no nn.MultiheadAttention found"


def replace(model: nn.Module, *, context: attend.Context | None = None) -> Replaced:
    """Makes every nn.MultiheadAttention inside a model, or the model itself, one of attend's.

    They change in place: parameters, hooks, the training flag and every reference stay, so that
    optimizers and tied weights go on working. What is not exactly an nn.MultiheadAttention is kept.
    With a context they compute there, else with as many threads as torch.get_num_threads() says.

    >>> print(attend.torch.replace(nn.TransformerEncoderLayer(64, 4)))
    swapped  self_attn
    """
    contexts.number_of("replace", context)  # refuses what is none
    done = Replaced([], {}, {})
    for name, module in model.named_modules():
        if not isinstance(module, nn.MultiheadAttention):
            continue
        why = _why_not(module)
        if why:
            done.kept[name] = why
            continue
        module.__class__ = MultiheadAttention
        module.context = context
        _leave_fast_path(module)
        done.swapped.append(name)
    for name, module in model.named_modules():
        # A nested tensor would be made for the fast path, which is not taken any more.
        if isinstance(module, nn.TransformerEncoder) and getattr(module, "use_nested_tensor", False):
            if any(isinstance(part, MultiheadAttention) for part in module.modules()):
                module.use_nested_tensor = False
                done.changed[name] = "use_nested_tensor is now False"
    return done


def _why_not(module: nn.MultiheadAttention) -> str:
    if isinstance(module, MultiheadAttention):
        return "it is attend's already"
    if type(module) is not nn.MultiheadAttention:
        return f"{type(module).__name__} is a class of its own, whose forward may differ"
    weight = module.out_proj.weight
    if weight.device.type not in DEVICES:
        return f"it is on {weight.device}, attend.torch computes on the CPU and on NVIDIA GPUs"
    if weight.dtype not in TYPES:
        return f"its type is {weight.dtype}, attend takes float64, float32, bfloat16 and float16"
    return ""

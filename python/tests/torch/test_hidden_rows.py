"""Does NaN in rows that nobody sees stay out of every result and gradient, and what is seen reach them?"""
import math

import pytest
import torch

import attend.torch

N, L, S, E = 2, 4, 6, 8
PADDING = torch.tensor([[False, False, False, False, True, True], [True] * S])
COLUMNS = torch.zeros(L, S, dtype=torch.bool)  # True: blocked
COLUMNS[:, 2] = COLUMNS[1] = True
FLOATS = torch.zeros(L, S).masked_fill(COLUMNS, -math.inf)
CAUSAL = torch.nn.Transformer.generate_square_subsequent_mask(L)
MASKS = {
    "key_padding_mask": {"key_padding_mask": PADDING},
    "padding of floats": {"key_padding_mask": torch.zeros(N, S).masked_fill(PADDING, -math.inf)},
    "attn_mask": {"attn_mask": COLUMNS},
    "attn_mask of floats": {"attn_mask": FLOATS},
    "heads": {"attn_mask": COLUMNS.repeat(N * 2, 1, 1)},
    "both": {"attn_mask": COLUMNS, "key_padding_mask": PADDING},
    "mixed": {"attn_mask": FLOATS, "key_padding_mask": PADDING},
    "causal": {"attn_mask": torch.full((L, S), -math.inf).triu(1), "is_causal": True, "need_weights": False},
}


def hidden(masks):
    """(queries that see no key [N, L], keys that no query sees [N, S])."""
    blocked = torch.zeros(N, 2, L, S, dtype=torch.bool)
    for name in ("attn_mask", "key_padding_mask"):
        mask = masks.get(name)
        if mask is None:
            continue
        mask = mask if mask.dtype == torch.bool else mask == -math.inf
        shape = (N, 1, 1, S) if name == "key_padding_mask" else (N, 2, L, S) if mask.dim() == 3 else (1, 1, L, S)
        blocked |= mask.reshape(shape)
    return blocked.all(3).all(1), blocked.all(2).all(1)


def made(seed=0, **options):
    torch.manual_seed(seed)
    layer = attend.torch.MultiheadAttention(E, 2, dtype=torch.float64, **options)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer


def results(layer, inputs, masks, function=None):
    layer.zero_grad()
    leaves = {id(x): x.clone().requires_grad_() for x in inputs}
    out, weights = (layer if function is None else function)(*(leaves[id(x)] for x in inputs), **masks)
    out.sin().sum().backward()
    found = [out, *(x.grad for x in leaves.values()), *(p.grad for p in layer.parameters())]
    return found + ([] if weights is None else [weights])


def planted(x, rows, value):
    return torch.where(rows.unsqueeze(-1), value, x)


def inputs_with(value, masks, layer, shared_value):
    generator = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    as_query, as_key = hidden(masks)
    query, key = planted(draw(N, L, E), as_query, value), planted(draw(N, S, E), as_key, value)
    val = key if shared_value else planted(draw(N, S, E), as_key, value)
    if layer.batch_first:
        return query, key, val
    turned = key.transpose(0, 1)
    return query.transpose(0, 1), turned, turned if shared_value else val.transpose(0, 1)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", MASKS)
def test_nan_in_rows_that_nobody_sees_changes_no_bit(name, poison):
    for batch_first in (True, False):
        for shared_value in (True, False):
            layer = made(batch_first=batch_first)
            run = lambda value: results(layer, inputs_with(value, MASKS[name], layer, shared_value), MASKS[name])
            for got, want in zip(run(poison), run(0.0), strict=True):
                assert torch.equal(got, want)


def test_a_token_that_is_hidden_as_key_and_as_query_is_hidden():
    blocked = torch.zeros(L, L, dtype=torch.bool)
    blocked[:, 2] = blocked[2] = True
    layer = made(batch_first=True)
    x = torch.randn(N, L, E, dtype=torch.float64)

    def run(value):
        one = x.clone()
        one[:, 2] = value
        return results(layer, (one,) * 3, {"attn_mask": blocked})

    for got, want in zip(run(math.nan), run(0.0), strict=True):
        assert torch.equal(got, want)


def test_nan_that_is_seen_reaches_the_gradients():
    layer = made(batch_first=True)
    for which in range(3):
        inputs = list(inputs_with(0.0, MASKS["key_padding_mask"], layer, False))
        inputs[which] = inputs[which].clone()
        inputs[which][0, 1, 2] = math.nan
        _, *gradients = results(layer, inputs, MASKS["key_padding_mask"])
        assert layer.in_proj_weight.grad.isnan().any(), which


def test_a_compiled_layer_hides_them_too():
    layer = made(batch_first=True)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    masks = MASKS["both"]
    found = results(layer, inputs_with(math.nan, masks, layer, True), masks, compiled)
    for got, want in zip(found, results(layer, inputs_with(0.0, masks, layer, True), masks), strict=True):
        assert torch.equal(got, want)


def test_finite_inputs_are_used_as_they_are():
    """No copy, and so no bit and no time of a usual call is another."""
    layer = made(batch_first=True)
    seen = []
    project, layer._project = layer._project, lambda *inputs: seen.append(inputs) or project(*inputs)
    inputs = [torch.randn(N, n, E, dtype=torch.float64, requires_grad=True) for n in (L, S, S)]
    layer(*inputs, **MASKS["both"])
    assert all(a is b for a, b in zip(seen[0], inputs))

"""attend.torch beside PyTorch in float64, over thousands of random configurations.

Configuration n of a run is made from the seed and n alone, so that one that fails can be repeated:
    ATTEND_SEED=5 ATTEND_ONLY=1234 pytest test_differential.py
Where a query sees no key, or a size is zero, PyTorch gives NaN or stops; there the truth is the
contract's formula (support.contract).
"""
import contextlib
import math
import os
import random
import warnings

import attend.torch
import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from support import TOLERANCE, contract, error, hidden_rows, laid_out, leaf

SEED = int(os.environ.get("ATTEND_SEED", "20250"))
ONLY = os.environ.get("ATTEND_ONLY")
DTYPES = [torch.float64, torch.float64, torch.float32, torch.bfloat16, torch.float16]


def run(name, count, check, capsys):
    numbers = range(count) if ONLY is None else [int(ONLY)]
    by_contract = 0
    for n in numbers:
        rng = random.Random(SEED * 1_000_003 + n)
        torch.manual_seed(rng.randrange(2**62))
        try:
            by_contract += check(rng)
        except Exception as failure:
            raise AssertionError(f"{name}: configuration {n} of seed {SEED}: {failure}") from failure
    with capsys.disabled():
        print(
            f"\n{name}: {len(numbers)}/{len(numbers)} random configurations agree, seed {SEED} "
            f"({by_contract} with hidden rows or empty sizes, held to the contract)"
        )


def length(rng):
    return 0 if rng.random() < 0.02 else rng.randint(1, 9)


def float_mask(rng, shape, dtype):
    mask = laid_out(rng, shape, dtype)
    if rng.random() < 0.5:
        mask = mask.masked_fill(torch.rand(shape) < 0.3, -math.inf)
    return mask


def sdpa(rng):
    """One configuration of scaled_dot_product_attention; whether the contract was its truth."""
    dtype = rng.choice(DTYPES)
    lead = [rng.randint(1, 3) for _ in range(rng.choice([0, 1, 2, 2, 2, 2, 3]))]
    queries, keys, d, dv = length(rng), length(rng), rng.randint(1, 9), rng.randint(1, 9)
    gqa = len(lead) > 1 and rng.random() < 0.3
    group = rng.choice([1, 2, 3]) if gqa else 1

    def lead_of(heads):  # some dimensions left to broadcasting
        own = [1 if rng.random() < 0.1 else n for n in lead[:-1]] + ([heads] if lead else [])
        if own and not gqa and rng.random() < 0.1:
            own[-1] = 1
        return own

    heads = lead[-1] * group if lead else 1
    q = laid_out(rng, (*lead_of(heads), queries, d), dtype)
    key_heads = lead[-1] if lead else 1
    k = laid_out(rng, (*lead_of(key_heads), keys, d), dtype)
    v = laid_out(rng, (*lead_of(key_heads), keys, dv), dtype)
    leads = [q.shape[:-2], *((*x.shape[:-2][:-1], heads) if gqa else x.shape[:-2] for x in (k, v))]
    full = (*torch.broadcast_shapes(*leads), queries, keys)
    scored = (*torch.broadcast_shapes(*leads[:2]), queries, keys)  # PyTorch's masks fit these

    kind = rng.choice(["none", "none", "causal", "bool", "bool", "float", "float"])
    shape = scored[rng.randrange(len(scored) - 1):]
    shape = tuple(1 if rng.random() < 0.2 else n for n in shape)
    mask = bias = None
    if kind == "bool":
        mask = laid_out(rng, shape, torch.float32) < rng.choice([-0.5, 0.5, 2.0])
    elif kind == "float":
        bias = float_mask(rng, shape, rng.choice([dtype, torch.float32]))
    scale = rng.choice([None, None, 0.3, -1.0])
    # gradients that lie in memory unlike out
    dout = laid_out(rng, (*full[:-1], dv), dtype)

    mine = [leaf(x) for x in (q, k, v, bias)]
    out = attend.torch.scaled_dot_product_attention(
        *mine[:3], mask if bias is None else mine[3], 0.0, kind == "causal", scale=scale, enable_gqa=gqa
    )
    out.backward(dout)

    true = [leaf(x, torch.float64) for x in (q, k, v, bias)]
    visible = mask
    if kind == "causal":
        visible = torch.ones(queries, keys, dtype=torch.bool).tril()
    by_contract = 0 in full or hidden_rows(full, visible, bias)
    if by_contract:
        tk, tv = (x.repeat_interleave(group, -3) if gqa else x for x in true[1:3])
        truth, _ = contract(true[0], tk, tv, visible, true[3], scale)
    else:
        # PyTorch's fast causal kernel multiplies -inf by the scale, which makes NaN of a negative one.
        with sdpa_kernel(SDPBackend.MATH) if scale == -1.0 else contextlib.nullcontext():
            truth = F.scaled_dot_product_attention(
                *true[:3], mask if bias is None else true[3], 0.0, kind == "causal", scale=scale,
                enable_gqa=gqa,
            )
    truth.backward(dout.double())
    assert out.dtype == dtype
    what = f"{dtype} q {list(q.shape)} k {list(k.shape)} v {list(v.shape)} {kind} {list(shape)} gqa={gqa}"
    assert error(out, truth) <= TOLERANCE[dtype], f"out off by {error(out, truth)}: {what}"
    for name, a, b in zip(("dq", "dk", "dv", "dbias"), mine, true):
        if a is not None:
            allowed = 4 * max(TOLERANCE[dtype], TOLERANCE[a.dtype])  # the bias may be float32
            assert error(a.grad, b.grad) <= allowed, f"{name} off by {error(a.grad, b.grad)}: {what}"
    return by_contract


def contract_mha(layer, query, key, value, padding, attn_mask, average):
    """nn.MultiheadAttention as its formulas, one after the other, with the contract's attention."""
    batched = query.dim() == 3
    if not batched:
        query, key, value = (x.unsqueeze(0) for x in (query, key, value))
        padding = None if padding is None else padding.unsqueeze(0)
    elif not layer.batch_first:
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    weights = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    if layer.in_proj_weight is not None:
        weights = layer.in_proj_weight.chunk(3)
    biases = [0, 0, 0] if layer.in_proj_bias is None else layer.in_proj_bias.chunk(3)
    q, k, v = (x @ w.T + b for x, w, b in zip((query, key, value), weights, biases))
    n, h = q.size(0), layer.num_heads
    bias = torch.zeros(n, h, q.size(1), k.size(1), dtype=torch.float64)
    for m in (attn_mask, None if padding is None else padding[:, None, None]):
        if m is not None:
            m = m.unflatten(0, (n, h)) if m.dim() == 3 else m
            bias = bias.masked_fill(m, -math.inf) if m.dtype == torch.bool else bias + m
    q, k, v = (x.unflatten(-1, (h, -1)).transpose(1, 2) for x in (q, k, v))
    out, w = contract(q, k, v, None, bias)
    out = layer.out_proj(out.transpose(1, 2).flatten(2))
    w = w.mean(1) if average else w
    if not batched:
        return out[0], w[0]
    return out if layer.batch_first else out.transpose(0, 1), w


def multihead(rng):
    """One configuration of MultiheadAttention; whether the contract was its truth."""
    dtype = rng.choice(DTYPES)
    n, queries, keys, heads = rng.randint(1, 3), rng.randint(1, 7), rng.randint(1, 7), rng.randint(1, 4)
    embed = heads * rng.randint(1, 5)
    batched, alone = rng.random() < 0.8, rng.random() < 0.3
    kdim, vdim = (None, None) if alone or rng.random() < 0.6 else (rng.randint(1, 9), rng.randint(1, 9))
    options = dict(
        bias=rng.random() < 0.7, add_bias_kv=rng.random() < 0.2, add_zero_attn=rng.random() < 0.2,
        kdim=kdim, vdim=vdim, batch_first=rng.random() < 0.5,
    )
    reference = torch.nn.MultiheadAttention(embed, heads, **options, dtype=torch.float64)
    for p in reference.parameters():
        torch.nn.init.normal_(p, std=0.5)
    layer = attend.torch.MultiheadAttention(embed, heads, **options, dtype=dtype)
    layer.load_state_dict(reference.state_dict())
    reference.load_state_dict(layer.state_dict())  # what the narrow type kept of the numbers
    layer.train(rng.random() < 0.5)

    def sequence(size, features):
        first = batched and options["batch_first"]
        shape = ((n, size) if first else (size, n)) if batched else (size,)
        return laid_out(rng, (*shape, features), dtype)

    query = sequence(queries, embed)
    keys = queries if alone else keys
    key = query if alone else sequence(keys, kdim or embed)
    value = query if alone else sequence(keys, vdim or embed)
    n = n if batched else 1
    attn_mask = padding = None
    kind = rng.choice(["none", "bool", "float", "causal"])
    shape = rng.choice([(queries, keys), (n * heads, queries, keys)])
    if kind == "bool":
        attn_mask = laid_out(rng, shape, torch.float32) > rng.choice([-0.5, 1.0])
    elif kind == "float":
        attn_mask = float_mask(rng, shape, dtype)
    elif kind == "causal":
        attn_mask = torch.ones(queries, keys, dtype=torch.bool).triu(1)
    shape = (n, keys) if batched else (keys,)
    padding_kind = rng.choice(["none", "none", "bool", "float"])
    if padding_kind == "bool":
        padding = torch.rand(shape) < 0.3
    elif padding_kind == "float":
        padding = float_mask(rng, shape, dtype)
    need_weights, average = rng.random() < 0.6, rng.random() < 0.5

    def call(module, inputs, masks):
        if alone:
            inputs = [inputs[0]] * 3
        return module(
            *inputs, key_padding_mask=masks[0], need_weights=need_weights, attn_mask=masks[1],
            average_attn_weights=average, is_causal=kind == "causal",
        )

    mine = [leaf(x) for x in (query, key, value)]
    out, weights = call(layer, mine, (padding, attn_mask))
    true = [leaf(x, torch.float64) for x in (query, key, value)]
    wide = [m if m is None or m.dtype == torch.bool else m.double() for m in (padding, attn_mask)]
    hidden = torch.zeros(n, heads, queries, keys)
    for m in (attn_mask, None if padding is None else padding.view(n, 1, 1, keys)):
        if m is not None:
            m = m.unflatten(0, (n, heads)) if m.dim() == 3 else m
            hidden = hidden.masked_fill(m if m.dtype == torch.bool else m == -math.inf, -math.inf)
    more_keys = options["add_bias_kv"] or options["add_zero_attn"]
    by_contract = not more_keys and hidden_rows(hidden.shape, None, hidden)
    if by_contract:
        inputs = [true[0]] * 3 if alone else true
        truth, true_weights = contract_mha(reference, *inputs, *wide, average)
    else:
        truth, true_weights = call(reference, true, wide)

    dout = laid_out(rng, out.shape, dtype)
    loss, true_loss = (out * dout).sum(), (truth * dout.double()).sum()
    if need_weights:
        dweights = laid_out(rng, weights.shape, dtype)
        loss, true_loss = loss + (weights * dweights).sum(), true_loss + (true_weights * dweights.double()).sum()
    loss.backward()
    true_loss.backward()

    what = f"{dtype} {embed}/{heads} {options} query {list(query.shape)} keys {keys} {kind} {padding_kind}"
    tolerance = 4 * TOLERANCE[dtype]
    assert error(out, truth) <= tolerance, f"out off by {error(out, truth)}: {what}"
    assert (weights is not None) == need_weights
    if need_weights:
        assert error(weights, true_weights) <= tolerance, f"weights off by {error(weights, true_weights)}: {what}"
    pairs = [*zip(mine[:1] if alone else mine, true), *zip(layer.parameters(), reference.parameters())]
    for a, b in pairs:
        assert error(a.grad, b.grad) <= 4 * tolerance, f"gradient off by {error(a.grad, b.grad)}: {what}"
    return by_contract


@pytest.mark.filterwarnings("ignore:Support for mismatched")
def test_scaled_dot_product_attention_agrees_with_pytorch(capsys):
    run("scaled_dot_product_attention", 4000, sdpa, capsys)


@pytest.mark.filterwarnings("ignore:Support for mismatched")
def test_multihead_attention_agrees_with_pytorch(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run("MultiheadAttention", 2000, multihead, capsys)

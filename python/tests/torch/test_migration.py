"""The rows of docs/migration.md: what was written for another library, and what is written here."""
import math

import attend
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from support import contract

B, H, KEY_HEADS, L, S, D = 2, 6, 3, 4, 7, 8


def double(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def assert_same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)


@pytest.fixture(autouse=True)
def same_numbers():
    torch.manual_seed(0)


# ---- F.scaled_dot_product_attention

def test_from_scaled_dot_product_attention():
    q, k, v = double(B, H, L, D), double(B, H, S, D), double(B, H, S, D)
    mask, bias = torch.rand(L, S) < 0.8, double(B, 1, L, S)
    theirs = F.scaled_dot_product_attention
    assert_same(attend.attention(q, k, v, mask=mask), theirs(q, k, v, mask))
    assert_same(attend.attention(q, k, v, bias=bias), theirs(q, k, v, bias))
    assert_same(attend.attention(q, k, v, causal=True, query_offset=0), theirs(q, k, v, is_causal=True))
    assert_same(attend.attention(q, k, v, scale=0.3), theirs(q, k, v, scale=0.3))
    assert_same(attend.attention(k, k, v, causal=True), theirs(k, k, v, is_causal=True))
    k, v = k[:, :KEY_HEADS], v[:, :KEY_HEADS]
    assert_same(attend.attention(q, k, v), theirs(q, k, v, enable_gqa=True))


# ---- nn.MultiheadAttention to attend.MultiHeadAttention

def layers(tmp_path, **options):
    theirs = nn.MultiheadAttention(48, H, batch_first=True, dtype=torch.float64, **options)
    for p in theirs.parameters():
        nn.init.normal_(p, std=0.3)
    path = tmp_path / "layer.safetensors"
    attend.save_safetensors(path, {name: x.detach() for name, x in theirs.state_dict().items()})
    return attend.MultiHeadAttention.load(path, heads=H), theirs


@torch.no_grad()
def test_from_the_module_with_its_masks(tmp_path):
    mine, theirs = layers(tmp_path)
    q, x = double(B, L, 48), double(B, S, 48)
    blocked, each = torch.rand(L, S) < 0.3, torch.rand(B * H, L, S) < 0.3
    padding = torch.arange(S) >= torch.tensor([[5], [3]])
    assert_same(mine.forward(q, x, x, mask=~blocked), theirs(q, x, x, attn_mask=blocked)[0])
    expected = theirs(q, x, x, attn_mask=each)[0]
    assert_same(mine.forward(q, x, x, mask=~each.unflatten(0, (B, H))), expected)
    bias = double(L, S)
    assert_same(mine.forward(q, x, x, bias=bias), theirs(q, x, x, attn_mask=bias)[0])
    expected = theirs(q, x, x, key_padding_mask=padding)[0]
    assert_same(mine.forward(q, x, x, mask=~padding[:, None, None, :]), expected)
    assert_same(mine.forward(q, x, x, key_lengths=torch.tensor([5, 3])), expected)
    causal = torch.ones(L, S, dtype=torch.bool).triu(1)
    expected = theirs(q, x, x, attn_mask=causal, is_causal=True, need_weights=False)[0]
    assert_same(mine.forward(q, x, x, causal=True, query_offset=0), expected)
    out, weights = mine.forward(q, x, x, return_weights=True)
    assert_same((out, weights.mean(1)), theirs(q, x, x))
    assert_same(weights, theirs(q, x, x, average_attn_weights=False)[1])


@torch.no_grad()
def test_from_the_module_with_other_widths(tmp_path):
    mine, theirs = layers(tmp_path, kdim=5, vdim=3)
    q, k, v = double(B, L, 48), double(B, S, 5), double(B, S, 3)
    assert_same(mine.forward(q, k, v), theirs(q, k, v)[0])


# ---- flash_attn: [batch, length, heads, dim]; the formulas of its documentation

def positions(queries=L, keys=S):
    """i + keys - queries, j"""
    return torch.arange(queries)[:, None] + keys - queries, torch.arange(keys)[None, :]


def grouped(x):
    return x.repeat_interleave(H // KEY_HEADS, 1)


def test_from_flash_attn_func():
    q, k, v = double(B, L, H, D), double(B, S, KEY_HEADS, D), double(B, S, KEY_HEADS, D)
    mine = [x.transpose(1, 2) for x in (q, k, v)]
    whole = [mine[0], grouped(mine[1]), grouped(mine[2])]
    i, j = positions()
    assert_same(attend.attention(*mine, causal=True), contract(*whole, mask=j <= i)[0])
    window = (j >= i - 2) & (j <= i + 1)
    assert_same(attend.attention(*mine, window=(2, 1)), contract(*whole, mask=window)[0])
    assert_same(attend.attention(*mine, window=(2, None)), contract(*whole, mask=j >= i - 2)[0])
    slopes = torch.rand(H, dtype=torch.float64)
    bias = -slopes[:, None, None] * (i - j).abs()
    assert_same(attend.attention(*mine, alibi=slopes), contract(*whole, bias=bias)[0])
    scores = whole[0] @ whole[1].mT / math.sqrt(D)
    expected = (3 * torch.tanh(scores / 3)).softmax(-1) @ whole[2]
    assert_same(attend.attention(*mine, softcap=3.0), expected)
    lse = attend.attention(*mine, return_lse=True)[1]
    assert_same(lse, scores.logsumexp(-1))


def test_more_queries_than_keys_leave_the_first_rows_empty():
    q, k = double(1, 1, 5, D), double(1, 1, 2, D)
    out = attend.attention(q, k, k, causal=True)
    assert (out[0, 0, :3] == 0).all() and (out[0, 0, 3] == k[0, 0, 0]).all()


def test_from_flash_attn_varlen_func():
    queries, keys = (3, 0, 4), (5, 2, 4)
    q, k = double(7, H, D), double(11, KEY_HEADS, D)
    cu_q, cu_k = (torch.tensor((0, *n)).cumsum(0).int() for n in (queries, keys))
    packed = [x.transpose(0, 1)[None] for x in (q, k, k)]
    out, lse = attend.attention(*packed, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, causal=True, return_lse=True)
    assert lse.shape == (1, H, 7)
    for n, (a, b) in enumerate(zip(q.split(queries), k.split(keys))):
        a, b = a.transpose(0, 1)[None], b.transpose(0, 1)[None]
        alone = attend.attention(a, b, b, causal=True)
        assert torch.equal(out[:, :, cu_q[n] : cu_q[n + 1]], alone)


def test_from_flash_attn_with_kvcache():
    cache = double(B, 16, KEY_HEADS, D)
    new, before = double(B, 2, KEY_HEADS, D), torch.tensor([5, 9])
    for b in range(B):
        cache[b, before[b] : before[b] + 2] = new[b]
    q = double(B, 2, H, D).transpose(1, 2)
    k = cache.transpose(1, 2)
    out = attend.attention(q, k, k, key_lengths=before + 2, causal=True)
    for b, keys in enumerate(before + 2):
        i, j = positions(2, int(keys))
        expected, _ = contract(q[b], *[k[b, :, :keys].repeat_interleave(2, 0)] * 2, mask=j <= i)
        assert_same(out[b], expected)
    # The same keys on pages of 4, [pages, page size, heads, dim], in any order.
    order = torch.randperm(8)
    pages = torch.empty(8, 4, KEY_HEADS, D, dtype=torch.float64)
    pages[order] = cache.reshape(8, 4, KEY_HEADS, D)
    store = pages.transpose(1, 2)
    paged = attend.attention(
        q, store, store, block_table=order.view(B, 4), key_lengths=before + 2, causal=True
    )
    assert torch.equal(paged, out)


# ---- ONNX Attention

def test_from_onnx():
    flat = double(B, L, H * D)
    q = flat.reshape(B, L, H, D).transpose(1, 2)
    past, new = double(B, H, 3, D), double(B, H, L, D)
    k = torch.cat([past, new], 2)
    j = torch.arange(3 + L)
    causal = j[None, :] <= torch.arange(L)[:, None] + 3
    found = attend.attention(q, k, k, query_offset=3, causal=True)
    assert_same(found, contract(q, k, k, mask=causal)[0])
    n = torch.tensor([3, 6])
    found = attend.attention(q, k, k, key_lengths=n, query_offset=n - L, causal=True)
    mask = (j < n[:, None, None, None]) & (j <= (torch.arange(L)[:, None] + (n - L)[:, None, None, None]))
    assert_same(found, contract(q, k, k, mask=mask)[0])
    short = torch.rand(L, 5) < 0.7
    found = attend.attention(q, k, k, mask=short)
    assert_same(found, contract(q, k, k, mask=F.pad(short, (0, 2), value=False))[0])
    bias, scores = double(L, 3 + L), q @ k.mT / math.sqrt(D)
    for stage, expected in (
        ("raw", scores), ("softcapped", 2 * torch.tanh(scores / 2)), ("masked", 2 * torch.tanh(scores / 2) + bias)
    ):
        found = attend.attention(q, k, k, softcap=2.0, bias=bias, return_scores=stage)[1]
        assert_same(found, expected)

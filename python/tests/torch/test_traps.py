"""Defects that PyTorch's own attention had, each as a test of attend.torch. The number is the issue
or pull request of pytorch/pytorch.
"""
import copy

import attend.torch
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from support import contract

sdpa = attend.torch.scaled_dot_product_attention
INF = float("inf")


def assert_same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)


def double(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("need_weights", [True, False])
def test_41508_one_hidden_row_puts_no_nan_into_the_gradients(need_weights):
    layer = attend.torch.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(3, 4, 8, requires_grad=True)
    padding = torch.zeros(3, 4, dtype=torch.bool)
    padding[1] = True
    out, _ = layer(x, x, x, key_padding_mask=padding, need_weights=need_weights)
    out.sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())
    assert x.grad.isfinite().all() and (x.grad[1] == 0).all()


def test_103749_103963_rows_without_keys_are_zero_however_they_come_about():
    q = torch.randn(2, 3, 4, 5)
    mask = torch.ones(2, 3, 4, 4, dtype=torch.bool)
    mask[0, 1, 2] = mask[1, 2] = False
    bias = torch.zeros(2, 3, 4, 4).masked_fill(~mask, -INF)
    out = sdpa(q, q, q, mask)
    assert torch.equal(out, sdpa(q, q, q, bias))
    assert (out[0, 1, 2] == 0).all() and (out[1, 2] == 0).all() and out.isfinite().all()


def test_160064_a_hidden_head_gives_the_same_with_and_without_weights():
    layer = attend.torch.MultiheadAttention(12, 3)
    x = torch.randn(4, 2, 12)
    blocked = torch.zeros(6, 4, 4, dtype=torch.bool)
    blocked[1] = True
    out, weights = layer(x, x, x, attn_mask=blocked, average_attn_weights=False)
    assert torch.equal(out, layer(x, x, x, attn_mask=blocked, need_weights=False)[0])
    assert (weights[0, 1] == 0).all() and out.isfinite().all()


@pytest.mark.parametrize("bias", [True, False])
def test_163997_97128_training_evaluation_and_no_grad_agree(bias):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, bias=bias)
    attend.torch.replace(layer)
    x = torch.randn(2, 5, 8)
    for padding in (None, torch.tensor([[False] * 5, [False] * 2 + [True] * 3])):
        results = [layer.train(mode)(x, src_key_padding_mask=padding) for mode in (True, False)]
        with torch.no_grad():
            results += [layer.train(mode)(x, src_key_padding_mask=padding) for mode in (True, False)]
        assert all(torch.equal(r, results[0]) for r in results)


def test_101967_nan_in_a_hidden_place_leaks_nowhere():
    q, k, v = (torch.randn(1, 2, 4, 5) for _ in range(3))
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[:, 2] = False
    expected = sdpa(q, k, v, mask)
    k[:, :, 2], v[:, :, 2] = float("nan"), INF
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out = sdpa(*leaves, mask)
    assert torch.equal(out, expected)
    out.sum().backward()
    assert all(x.grad.isfinite().all() for x in leaves)


def test_141128_nan_in_a_visible_query_comes_back_as_nan():
    q, k = torch.randn(1, 1, 4, 5), torch.randn(1, 1, 6, 5)
    q[0, 0, 1, 3] = float("nan")
    out = sdpa(q, k, k)
    assert out[0, 0, 1].isnan().all() and out[0, 0, [0, 2, 3]].isfinite().all()


def test_196678_scores_near_minus_120_have_finite_gradients():
    q = torch.full((1, 1, 192, 4), 1.0, requires_grad=True)
    k = torch.full((1, 1, 192, 4), -60.0)
    mask = torch.ones(192, 192, dtype=torch.bool).tril()
    out = sdpa(q, k, torch.randn(1, 1, 192, 4), mask)
    out.sum().backward()
    assert out.isfinite().all() and q.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_109517_110213_the_least_finite_number_hides_nothing(dtype):
    q, v = torch.zeros(1, 1, 2, 4, dtype=dtype), torch.randn(1, 1, 3, 4, dtype=dtype)
    bias = torch.full((2, 3), torch.finfo(dtype).min, dtype=dtype)
    out = sdpa(q, torch.zeros(1, 1, 3, 4, dtype=dtype), v, bias)
    torch.testing.assert_close(out, v.mean(2, keepdim=True).expand(1, 1, 2, 4))


def test_187504_191937_112577_133671_176915_layouts_change_no_bit():
    """Innermost stride 2, keys repeated by stride 0 (length % 32 == 1), permuted, gradients permuted."""
    torch.manual_seed(0)
    q = double(2, 3, 5, 16)[..., ::2]
    k = double(2, 1, 1, 8).expand(2, 3, 33, 8)
    v = double(8, 33, 3, 2).permute(3, 2, 1, 0)
    mask = (torch.rand(33, 5) < 0.7).t()
    dout = double(8, 5, 3, 2).permute(3, 2, 1, 0)
    results = []
    for lay in (lambda x: x.detach(), lambda x: x.contiguous()):
        leaves = [lay(x).requires_grad_() for x in (q, k, v)]
        out = sdpa(*leaves, lay(mask))
        out.backward(lay(dout))
        results.append([out, *(x.grad for x in leaves)])
    assert all(torch.equal(a, b) for a, b in zip(*results))


def test_views_with_a_pending_minus_sign_are_read_right():
    x = torch.randn(1, 2, 3, 4, dtype=torch.complex128).conj().imag
    assert x.is_neg()
    assert torch.equal(sdpa(x, x, x), sdpa(*[x.resolve_neg()] * 3))


def test_176767_184180_values_of_another_width_and_a_mask_for_all_heads():
    q, k, v = double(2, 3, 4, 5), double(2, 3, 6, 5), double(2, 3, 6, 9)
    mask = torch.rand(2, 1, 4, 6) < 0.8
    assert_same(sdpa(q, k, v, mask), contract(q, k, v, mask)[0])


def test_184122_each_call_has_its_own_scale():
    q = double(1, 2, 4, 5)
    for scale in (0.1, 2.0, None, 0.1):
        assert_same(sdpa(q, q, q, scale=scale), F.scaled_dot_product_attention(q, q, q, scale=scale))


def test_142228_a_batch_beyond_65535():
    q, v = torch.ones(65537, 1, 1, 1), torch.arange(65537.0).view(65537, 1, 1, 1)
    assert torch.equal(sdpa(q, q, v), v)


@pytest.mark.parametrize("zero", range(4))
def test_141218_141219_169222_each_size_may_be_zero(zero):
    sizes = [2, 3, 4, 5]
    sizes[zero] = 0
    batch, heads, queries, keys = sizes
    q, k = torch.randn(batch, heads, queries, 6, requires_grad=True), torch.randn(batch, heads, keys, 6)
    out = sdpa(q, k, k)
    out.sum().backward()
    assert out.shape == q.shape and (out == 0).all() == (0 in out.shape or keys == 0)
    assert (q.grad == 0).all() or zero != 3
    if zero != 1:
        layer = attend.torch.MultiheadAttention(6, 3, batch_first=True)
        x, y = torch.randn(batch, queries, 6), torch.randn(batch, keys, 6)
        out, weights = layer(x, y, y)
        assert out.shape == (batch, queries, 6) and weights.shape == (batch, queries, keys)
        out.sum().backward()


def test_110144_causal_with_other_lengths_is_aligned_top_left():
    q, k = double(1, 1, 2, 4), double(1, 1, 5, 4)
    assert_same(sdpa(q, k, k, is_causal=True)[0, 0, 0], k[0, 0, 0])  # the first query sees the first key alone


def test_195910_future_tokens_do_not_leak():
    for length in (1, 3, 4, 5, 8, 67):
        q, k, v = (torch.randn(1, 2, length, 4) for _ in range(3))
        before = sdpa(q, k, v, is_causal=True)
        for i in range(length - 1):
            k2, v2 = k.clone(), v.clone()
            k2[:, :, i + 1:], v2[:, :, i + 1:] = float("nan"), float("nan")
            assert torch.equal(sdpa(q, k2, v2, is_causal=True)[:, :, : i + 1], before[:, :, : i + 1])
            if length > 8 and i > 3:
                break


def causal_layer():
    layer = attend.torch.MultiheadAttention(12, 3, dtype=torch.float64)
    return layer, double(5, 2, 12), torch.ones(5, 5, dtype=torch.bool).triu(1)


def test_99282_is_causal_counts_with_and_without_weights():
    layer, x, blocked = causal_layer()
    plain = layer(x, x, x, attn_mask=blocked, need_weights=False)[0]
    for need_weights in (True, False):
        out, weights = layer(x, x, x, attn_mask=blocked, need_weights=need_weights, is_causal=True)
        assert_same(out, plain)
        if need_weights:
            assert (weights[:, blocked] == 0).all()


def test_107084_float_masks_count_in_evaluation_too():
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, dtype=torch.float64)
    attend.torch.replace(model)
    x, mask = double(2, 5, 8), double(5, 5)
    expected = model(x, src_mask=mask)
    with torch.no_grad():
        assert torch.equal(model.eval()(x, src_mask=mask), expected)
        assert not torch.allclose(model(x), expected)


def test_97409_a_mask_for_every_head_of_every_element():
    theirs = nn.MultiheadAttention(12, 3, dtype=torch.float64)
    mine = copy.deepcopy(theirs)
    attend.torch.replace(mine)
    x = double(4, 2, 12)
    blocked = (torch.rand(6, 4, 4) < 0.5) & ~torch.eye(4, dtype=torch.bool)
    for need_weights in (True, False):
        for mask in (blocked, torch.zeros(6, 4, 4, dtype=torch.float64).masked_fill(blocked, -INF)):
            options = dict(attn_mask=mask, need_weights=need_weights, average_attn_weights=False)
            assert_same(mine(x, x, x, **options), theirs(x, x, x, **options))


def test_34060_a_row_of_a_batch_has_the_bits_of_the_row_alone():
    q, k, v = (torch.randn(7, 3, 10, 8) for _ in range(3))
    whole = sdpa(q, k, v)
    for b in range(7):
        assert torch.equal(sdpa(q[b : b + 1], k[b : b + 1], v[b : b + 1]), whole[b : b + 1])
    assert torch.equal(sdpa(q[:, :, 4:5], k, v), whole[:, :, 4:5])


def test_gradients_are_the_same_bits_each_time():
    leaves = [torch.randn(2, 3, 70, 8, requires_grad=True) for _ in range(3)]
    first = torch.autograd.grad(sdpa(*leaves).sin().sum(), leaves)
    for _ in range(3):
        again = torch.autograd.grad(sdpa(*leaves).sin().sum(), leaves)
        assert all(torch.equal(a, b) for a, b in zip(first, again))


def test_a_default_device_changes_nothing():
    """The seed of dropout and the identity are made on the tensors' device, not on the default one."""
    q = torch.ones(1, 1, 4, 8)
    with torch.device("meta"):
        y = attend.torch.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    assert y.device.type == "cpu" and bool(((y >= 0) & (y <= 8)).all())


def test_tensors_of_two_devices_are_refused():
    q, other = torch.ones(1, 1, 4, 8), torch.ones(1, 1, 4, 8, device="meta")
    with pytest.raises(ValueError, match="cpu and meta"):
        attend.torch.scaled_dot_product_attention(q, other, other)


def test_other_arrays_are_sent_to_the_other_function():
    with pytest.raises(TypeError, match="found ndarray; attend.attention takes"):
        attend.torch.scaled_dot_product_attention(*[torch.ones(1, 1, 2, 2).numpy()] * 3)

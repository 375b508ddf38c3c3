"""Properties that attention must have, for random problems: permutation, splitting, hiding, ..."""
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import attend

problems = st.fixed_dictionaries({
    "batch": st.integers(1, 3), "key_heads": st.integers(1, 2), "group": st.integers(1, 2),
    "queries": st.integers(1, 8), "keys": st.integers(1, 20), "d": st.integers(1, 12),
    "dv": st.integers(1, 12), "seed": st.integers(0, 999), "dtype": st.sampled_from(["f8", "f4"])})


def made(p):
    rng = np.random.default_rng(p["seed"])
    def draw(*shape):
        return rng.standard_normal(shape).astype(p["dtype"])
    heads = p["key_heads"] * p["group"]
    q = draw(p["batch"], heads, p["queries"], p["d"])
    k = draw(p["batch"], p["key_heads"], p["keys"], p["d"])
    v = draw(p["batch"], p["key_heads"], p["keys"], p["dv"])
    mask = rng.random((p["batch"], heads, p["queries"], p["keys"])) < 0.7
    return q, k, v, mask, rng


def same(a, b):
    np.testing.assert_array_equal(a, b)


def close(a, b, p):
    np.testing.assert_allclose(a, b, atol=1e-11 if p["dtype"] == "f8" else 1e-5)


@given(problems)
def test_a_mask_is_a_bias_of_minus_infinity(p):
    q, k, v, mask, _ = made(p)
    bias = np.where(mask, 0, -np.inf).astype(p["dtype"])
    same(attend.attention(q, k, v, mask=mask), attend.attention(q, k, v, bias=bias))


@given(problems)
def test_the_order_of_keys_does_not_matter(p):
    q, k, v, mask, rng = made(p)
    order = rng.permutation(p["keys"])
    close(attend.attention(q, k[:, :, order], v[:, :, order], mask=mask[..., order]),
          attend.attention(q, k, v, mask=mask), p)


@given(problems)
def test_permuted_queries_give_permuted_rows(p):
    q, k, v, mask, rng = made(p)
    order = rng.permutation(p["queries"])
    same(attend.attention(q[:, :, order], k, v, mask=mask[:, :, order]),
         attend.attention(q, k, v, mask=mask)[:, :, order])


@given(problems, st.booleans())
def test_a_row_of_a_batch_is_the_row_alone(p, causal):
    q, k, v, mask, rng = made(p)
    b, i = rng.integers(p["batch"]), rng.integers(p["queries"])
    whole = attend.attention(q, k, v, mask=mask, causal=causal)
    alone = attend.attention(q[b:b + 1, :, i:i + 1], k[b:b + 1], v[b:b + 1], causal=causal,
                             mask=mask[b:b + 1, :, i:i + 1],
                             query_offset=int(p["keys"] - p["queries"] + i))
    same(whole[b, :, i], alone[0, :, 0])


@given(problems, st.sampled_from([np.nan, np.inf, -np.inf, 1e30]))
def test_what_is_hidden_changes_no_bit(p, poison):
    q, k, v, mask, rng = made(p)
    mask = np.broadcast_to(mask[:1, :1, :1], mask.shape)
    hidden = ~mask[0, 0, 0]
    k2, v2 = k.copy(), v.copy()
    k2[:, :, hidden], v2[:, :, hidden] = poison, poison
    out, lse = attend.attention(q, k, v, mask=mask, return_lse=True)
    out2, lse2 = attend.attention(q, k2, v2, mask=mask, return_lse=True)
    same(out, out2)
    same(lse, lse2)
    first = attend.attention_backward(q, k, v, out, lse, out, mask=mask)
    second = attend.attention_backward(q, k2, v2, out, lse, out, mask=mask)
    for a, b in zip(first, second, strict=True):
        same(a, b)


@given(problems)
def test_the_future_changes_no_past(p):
    q, k, v, _, rng = made(p)
    cut = int(rng.integers(p["keys"]))
    k2, v2 = k.copy(), v.copy()
    k2[:, :, cut:] += 1
    v2[:, :, cut:] -= 1
    past = cut - (p["keys"] - p["queries"])              # queries that stand before the cut
    same(attend.attention(q, k, v, causal=True)[:, :, :max(past, 0)],
         attend.attention(q, k2, v2, causal=True)[:, :, :max(past, 0)])


@given(problems)
def test_weights_times_values_are_the_output(p):
    q, k, v, mask, _ = made(p)
    out, weights = attend.attention(q, k, v, mask=mask, return_weights=True)
    close(weights @ v.repeat(p["group"], 1), out, p)
    close(weights.sum(-1), mask.any(-1).astype(float), p)


@given(problems, st.integers(0, 20))
def test_split_keys_merge(p, cut):
    q, k, v, mask, _ = made(p)
    cut = min(cut, p["keys"])
    parts = [attend.attention(q, k[:, :, s], v[:, :, s], mask=mask[..., s], return_lse=True)
             for s in (slice(0, cut), slice(cut, None))]
    out, lse = attend.merge([o for o, _ in parts], [x for _, x in parts])
    whole, whole_lse = attend.attention(q, k, v, mask=mask, return_lse=True)
    close(out, whole, p)
    close(lse, whole_lse, p)


@given(problems)
def test_grouped_heads_are_repeated_heads(p):
    q, k, v, mask, _ = made(p)
    same(attend.attention(q, k, v, mask=mask),
         attend.attention(q, k.repeat(p["group"], 1), v.repeat(p["group"], 1), mask=mask))


@given(problems, st.floats(0.1, 2))
def test_scale_is_a_scaled_query(p, scale):
    q, k, v, mask, _ = made(p)
    scaled = (q * (scale * np.sqrt(p["d"]))).astype(q.dtype)
    close(attend.attention(q, k, v, mask=mask, scale=scale), attend.attention(scaled, k, v, mask=mask), p)


@given(problems, st.floats(-50, 50))
def test_a_constant_added_to_a_row_of_bias_is_nothing(p, constant):
    q, k, v, mask, rng = made(p)
    bias = rng.standard_normal(mask.shape).astype(p["dtype"])
    np.testing.assert_allclose(attend.attention(q, k, v, bias=bias + np.dtype(p["dtype"]).type(constant)),
                               attend.attention(q, k, v, bias=bias),
                               atol=1e-11 if p["dtype"] == "f8" else 1e-4)


@given(problems)
def test_the_output_lies_between_the_values(p):
    q, k, v, mask, _ = made(p)
    mask[..., 0] = True
    out = attend.attention(q, k, v, mask=mask)
    values = np.where(mask[..., None], v.repeat(p["group"], 1)[:, :, None], np.nan)
    slack = 1e-12 if p["dtype"] == "f8" else 1e-6
    assert (out >= np.nanmin(values, 3) - slack).all() and (out <= np.nanmax(values, 3) + slack).all()


@given(problems)
def test_a_query_of_zeros_is_the_mean(p):
    q, k, v, _, _ = made(p)
    close(attend.attention(q * 0, k, v), np.broadcast_to(
        v.repeat(p["group"], 1).mean(2, keepdims=True), q.shape[:3] + (p["dv"],)), p)


@given(problems, st.integers(1, 5))
def test_prefill_in_chunks_has_the_bits_of_one(p, chunk):
    _, k, v, _, rng = made(p)
    q = rng.standard_normal((p["batch"], p["key_heads"], p["keys"], p["d"])).astype(p["dtype"])
    whole = attend.attention(q, k, v, causal=True)
    for begin in range(0, p["keys"], chunk):
        end = min(begin + chunk, p["keys"])
        part = attend.attention(q[:, :, begin:end], k[:, :, :end], v[:, :, :end], causal=True)
        same(whole[:, :, begin:end], part)

"""Does attention() give the formula's result, for every option, type and layout?"""
import formula
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from peak import peak_of

import attend

TOLERANCE = {"float64": 1e-12, "float32": 2e-6, "float16": 4e-3, "bfloat16": 3e-2}
TYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]


def draw(shape, seed=0, dtype=np.float64):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def qkv(batch=2, heads=4, key_heads=2, queries=5, keys=7, d=8, dv=6, dtype=np.float64, seed=0):
    return (draw((batch, heads, queries, d), seed, dtype),
            draw((batch, key_heads, keys, d), seed + 1, dtype),
            draw((batch, key_heads, keys, dv), seed + 2, dtype))


def agree(found, expected, dtype=np.float64):
    assert found.dtype == dtype
    np.testing.assert_allclose(found.astype(np.float64), expected, atol=TOLERANCE[np.dtype(dtype).name],
                               rtol=TOLERANCE[np.dtype(dtype).name])


OPTIONS = {
    "nothing": {},
    "scale": {"scale": 0.3},
    "softcap": {"softcap": 1.5},
    "bias": {"bias": draw((4, 5, 7), 9)},
    "bias of a row": {"bias": draw((7,), 9)},
    "bias before softcap": {"bias": draw((2, 1, 5, 7), 9), "softcap": 2.0, "bias_before_softcap": True},
    "causal": {"causal": True},
    "causal from the start": {"causal": True, "query_offset": 0},
    "offsets": {"causal": True, "query_offset": np.array([1, 3])},
    "window": {"window": (2, 1)},
    "window to the left": {"window": attend.Window(left=2)},
    "window of a dict": {"window": {"right": 1}},
    "mask": {"mask": draw((2, 4, 5, 7), 5) > 0},
    "mask of integers": {"mask": (draw((5, 7), 5) > 0).astype(np.int32)},
    "mask of bytes": {"mask": (draw((2, 1, 1, 7), 5) > 0).astype(np.uint8)},
    "alibi": {"alibi": draw((4,), 6) ** 2},
    "sinks": {"sinks": draw((4,), 7)},
    "key_lengths": {"key_lengths": np.array([3, 7], np.int32), "causal": True},
    "None is not given": {"mask": None, "bias": None, "window": None, "key_lengths": None},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_follows_the_formula(name):
    q, k, v = qkv()
    options = OPTIONS[name]
    plain = dict(options)
    if isinstance(plain.get("window"), dict):
        plain["window"] = (None, 1)
    expected, lse, weights, scores = formula.attention(q, k, v, **plain)
    found = attend.attention(q, k, v, **options, return_lse=True, return_weights=True,
                             return_scores="masked")
    for got, want in zip(found, (expected, lse, weights, scores), strict=True):
        agree(got, want)


def test_weights_of_chosen_heads():
    q, k, v = qkv()
    heads = [q.shape[1] - 1, 0]
    out, lse, weights = attend.attention(q, k, v, causal=True, return_lse=True, return_weights=True)
    found = attend.attention(q, k, v, causal=True, return_lse=True, return_weights=True, weight_heads=heads)
    for got, want in zip(found, (out, lse, weights[:, heads]), strict=True):
        np.testing.assert_array_equal(got, want)
    plan = attend.Plan.attention(q, k, v, causal=True, return_weights=True, weight_heads=(0,))
    np.testing.assert_array_equal(plan.run(q, k, v, causal=True)[1], weights[:, :1])


def test_weights_of_chosen_heads_take_memory_for_these_alone():
    """4 MiB for each of 32 heads, at the worst moment of the call."""
    q = draw((1, 32, 1024, 4), 0).astype("f4")
    one, two, every = (peak_of(lambda: attend.attention(q, q, q, return_weights=True, weight_heads=heads)) for heads in ([5], [31, 0], None))
    assert one < 16 and two < 20 and every > 120


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type(dtype):
    q, k, v = qkv(dtype=dtype)
    out, lse = attend.attention(q, k, v, causal=True, return_lse=True)
    expected, expected_lse, _, _ = formula.attention(q, k, v, causal=True)
    agree(out, expected, dtype)
    assert lse.dtype == (np.float64 if dtype == np.float64 else np.float32)
    np.testing.assert_allclose(lse, expected_lse, atol=2e-5)


@given(batch=st.integers(0, 3), key_heads=st.integers(1, 3), group=st.integers(1, 3),
       queries=st.integers(0, 9), keys=st.integers(0, 9), d=st.integers(1, 9), dv=st.integers(1, 9),
       causal=st.booleans(), softcap=st.sampled_from([0.0, 2.0]), seed=st.integers(0, 99),
       window=st.sampled_from([None, (1, 2), (None, 0), (3, None)]),
       masked=st.booleans(), biased=st.booleans(), offset=st.sampled_from([None, 0, 2, -3]),
       dtype=st.sampled_from(TYPES))
def test_random_problems(batch, key_heads, group, queries, keys, d, dv, causal, softcap, seed, window,
                         masked, biased, offset, dtype):
    q, k, v = qkv(batch, key_heads * group, key_heads, queries, keys, d, dv, dtype, seed)
    options = {"causal": causal, "softcap": softcap, "window": window, "query_offset": offset}
    if masked:
        options["mask"] = draw((queries, keys), seed + 3) > -0.5
    if biased:
        options["bias"] = draw((batch, 1, queries, keys), seed + 4, np.float32 if dtype != np.float64
                               else np.float64)
    out = attend.attention(q, k, v, **options)
    agree(out, formula.attention(q, k, v, **options)[0], dtype)


def test_packed_sequences_are_separate_calls():
    q, k, v = qkv(batch=1, queries=9, keys=9)
    starts = np.array([0, 4, 4, 9])
    packed = attend.attention(q, k, v, causal=True, cu_seqlens_q=starts)
    for begin, end in zip(starts, starts[1:]):
        part = slice(begin, end)
        alone = attend.attention(q[:, :, part], k[:, :, part], v[:, :, part], causal=True)
        np.testing.assert_array_equal(packed[:, :, part], alone)


def test_packed_sequences_of_given_sizes():
    q, k, v = qkv(batch=1, queries=9, keys=9)
    starts = np.array([0, 4, 4, 9])
    out, weights = attend.attention(q, k, v, cu_seqlens_q=starts, return_weights=True)
    more, larger = attend.attention(q, k, v, cu_seqlens_q=starts, max_q=7, max_k=8, return_weights=True)
    np.testing.assert_array_equal(more, out)
    assert larger.shape == (3, 4, 7, 8)
    np.testing.assert_array_equal(larger[:, :, :5, :5], weights)
    assert not larger[:, :, 5:].any() and not larger[:, :, :, 5:].any()
    with pytest.raises(ValueError, match="max_q is 4; the longest sequence of cu_seqlens_q has length 5"):
        attend.attention(q, k, v, cu_seqlens_q=starts, max_q=4)


def test_keys_and_values_of_eight_bits():
    q, k, v = qkv()
    def quantised(x):
        scales = np.abs(x).max(-1) / 127
        return np.round(x / scales[..., None]).astype(np.int8), scales.astype(np.float32)
    (k8, k_scales), (v8, v_scales) = quantised(k), quantised(v)
    plain = attend.attention(q, k8 * k_scales[..., None].astype(float), v8 * v_scales[..., None].astype(float))
    out, lse = attend.attention(q, k8, v8, k_scales=k_scales, v_scales=v_scales, return_lse=True)
    np.testing.assert_allclose(out, plain, rtol=1e-12, atol=1e-15)
    dq, dk, dv = attend.attention_backward(q, k8, v8, out, lse, out, k_scales=k_scales, v_scales=v_scales)
    assert dq.shape == q.shape and dk is None and dv is None
    with pytest.raises(ValueError, match="k is i8, but k_scales is missing"):
        attend.attention(q, k8, v)


def test_keys_of_another_type():
    q, k, v = qkv(dtype=np.float32)
    narrow = k.astype(np.float16)
    agree(attend.attention(q, narrow, v), formula.attention(q, narrow.astype(float), v)[0], np.float32)


def test_paged_keys_are_the_same_keys():
    q, k, v = qkv(batch=1, queries=2, keys=8)
    def to_pages(x):
        return x.reshape(x.shape[1], 2, 4, x.shape[3]).transpose(1, 0, 2, 3)[::-1]
    paged = attend.attention(q, to_pages(k), to_pages(v), key_lengths=np.array([7]),
                             block_table=np.array([[1, 0]]), causal=True)
    np.testing.assert_array_equal(paged, attend.attention(q, k[:, :, :7], v[:, :, :7], causal=True))


def test_blocks_hide_what_a_mask_hides():
    q, k, v = qkv(queries=4, keys=8)
    visible = np.array([[[[1, 0], [1, 1]]]], bool)
    mask = visible.repeat(2, 2).repeat(4, 3)
    for blocks in ((visible, 2, 4), attend.Blocks(visible, 2, 4),
                   {"visible": visible, "query_size": 2, "key_size": 4}):
        np.testing.assert_array_equal(attend.attention(q, k, v, blocks=blocks),
                                      attend.attention(q, k, v, mask=mask))


def test_dropout_drops_and_repeats():
    q, k, v = qkv(queries=40, keys=60)
    dropped = attend.attention(q, k, v, dropout=(0.5, 3))
    assert not np.array_equal(dropped, attend.attention(q, k, v))
    for same in (attend.Dropout(0.5, seed=3), {"p": 0.5, "seed": 3}, (0.5, 3, 0, attend.Origin())):
        np.testing.assert_array_equal(dropped, attend.attention(q, k, v, dropout=same))
    assert not np.array_equal(dropped, attend.attention(q, k, v, dropout=(0.5, 3, 1)))
    part = attend.attention(q[:, :, 10:], k, v, dropout=(0.5, 3, 0, {"i": 10}))
    np.testing.assert_array_equal(part, dropped[:, :, 10:])


def test_numbers_of_numpy_are_numbers():
    x = np.random.default_rng(0).standard_normal((1, 2, 3, 4)).astype(np.float32)
    np.testing.assert_array_equal(
        attend.attention(x, x, x, causal=np.True_, query_offset=np.int64(1), scale=np.float32(0.5),
                         window=(np.int32(1), None)),
        attend.attention(x, x, x, causal=True, query_offset=1, scale=0.5, window=(1, None)))
    np.testing.assert_array_equal(attend.attention(x, x, x, causal=True, query_offset=np.array([1])),
                                  attend.attention(x, x, x, causal=True, query_offset=1))
    for wrong in ({"window": (np.float32(1.5), 1)}, {"window": ("1", 1)}, {"causal": np.int64(1)},
                  {"query_offset": 1.0}):
        with pytest.raises(TypeError):
            attend.attention(x, x, x, **wrong)


def test_out_is_written_and_returned():
    q, k, v = qkv()
    room = np.full((2, 4, 5, 20), np.nan)
    out = room[..., 4:16:2]
    assert attend.attention(q, k, v, out=out) is out
    np.testing.assert_array_equal(out, attend.attention(q, k, v))
    assert np.isnan(room[..., :4]).all() and np.isnan(room[..., 5:16:2]).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_keys_added_in_turn_give_the_bits_of_the_whole(dtype):
    q, k, v = qkv(keys=600, dtype=dtype)
    sinks = np.array([0.5, -1, 2, 0], np.float64 if dtype == np.float64 else np.float32)
    options = {"causal": True, "query_offset": 593, "sinks": sinks}
    whole, whole_lse = attend.attention(q, k, v, return_lse=True, **options)
    parts = [slice(0, 256), slice(256, 512), slice(512, 600)]
    state = None
    for part in parts:
        made = attend.attention_partial(q, k[:, :, part], v[:, :, part], state,
                                        key_offset=part.start, **options)
        assert state is None or made is state
        state = made
    out, lse = attend.finish_partial([state], out=np.empty_like(whole), return_lse=True)
    np.testing.assert_array_equal(out, whole)
    np.testing.assert_array_equal(lse.astype(whole_lse.dtype), whole_lse)

    apart = [attend.attention_partial(q, k[:, :, part], v[:, :, part], key_offset=part.start,
                                      **options | ({} if part.start == 0 else {"sinks": None}))
             for part in parts]
    joined = attend.merge_partial([attend.merge_partial(apart[:2]), apart[2]])
    np.testing.assert_array_equal(attend.finish_partial([joined], out=np.empty_like(whole)), whole)
    assert attend.finish_partial(apart).dtype == np.float64


def test_merge_joins_parts():
    q, k, v = qkv(keys=600, dtype=np.float32)
    parts = [attend.attention(q, k[:, :, part], v[:, :, part], return_lse=True,
                              out=np.empty((2, 4, 5, 6)))
             for part in (slice(0, 256), slice(256, 600))]
    out, lse = attend.merge([o for o, _ in parts], [lse for _, lse in parts])
    whole, whole_lse = attend.attention(q, k, v, return_lse=True)
    np.testing.assert_allclose(out, whole, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(lse, whole_lse, rtol=1e-6)


def test_gradients_are_finite_differences():
    q, k, v = qkv(batch=1, heads=2, key_heads=1, queries=3, keys=4, d=3, dv=2)
    bias, sinks, alibi = draw((2, 3, 4), 7), draw((2,), 8), draw((2,), 9)
    names = ["q", "k", "v", "bias", "sinks", "alibi"]
    inputs = dict(zip(names, (q, k, v, bias, sinks, alibi)))
    dout, dlse = draw((1, 2, 3, 2), 10), draw((1, 2, 3), 11)

    def loss(**x):
        out, lse = attend.attention(**x, softcap=3.0, causal=True, return_lse=True)
        return (out * dout).sum() + (lse * dlse).sum()

    out, lse = attend.attention(**inputs, softcap=3.0, causal=True, return_lse=True)
    gradients = attend.attention_backward(q, k, v, out, lse, dout, dlse=dlse, bias=bias, sinks=sinks,
                                          alibi=alibi, softcap=3.0, causal=True)
    assert isinstance(gradients, attend.BackwardResult)
    for name in names:
        gradient = getattr(gradients, "d" + name)
        for index in np.ndindex(inputs[name].shape):
            changed = inputs[name].copy()
            changed[index] += 1e-6
            up = loss(**{**inputs, name: changed})
            changed[index] -= 2e-6
            slope = (up - loss(**{**inputs, name: changed})) / 2e-6
            assert abs(slope - gradient[index]) < 1e-7, (name, index)


def test_gradients_without_learned_options_are_three():
    q, k, v = qkv()
    out, lse = attend.attention(q, k, v, return_lse=True)
    dq, dk, dv = attend.attention_backward(q, k, v, out, lse, np.ones_like(out))
    assert (dq.shape, dk.shape, dv.shape) == (q.shape, k.shape, v.shape)


def test_plans_run_what_the_functions_run():
    q, k, v = qkv()
    plan = attend.Plan.attention(q, k, v, causal=True, return_lse=True, kernel="reference.forward")
    assert plan.kernel == "reference.forward" and "reference.forward" in plan.describe()
    out, lse = plan.run(k=k, q=q + 1, v=v, causal=True)
    np.testing.assert_allclose(out, attend.attention(q + 1, k, v, causal=True), rtol=1e-12)
    out, lse = attend.Plan.attention(q, k, v, causal=True, return_lse=True).run(q + 1, k, v, causal=True)
    np.testing.assert_array_equal(out, attend.attention(q + 1, k, v, causal=True))
    back = attend.Plan.attention_backward(q + 1, k, v, out, lse, out, causal=True)
    for a, b in zip(back.run_backward(q + 1, k, v, out, lse, out, causal=True),
                    attend.attention_backward(q + 1, k, v, out, lse, out, causal=True), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match="plan: made for"):
        plan.run(q[:, :, 1:], k, v, causal=True)


def test_a_context_changes_no_bit():
    q, k, v = qkv(queries=70)
    with_one = attend.attention(q, k, v, context=attend.Context(threads=1))
    np.testing.assert_array_equal(with_one, attend.attention(q, k, v, context=attend.Context(threads=3)))
    assert attend.default_context().threads >= 1
    assert ("reference.forward", "forward", False) in attend.Context.kernels()


def test_trace_has_the_bits_of_the_call():
    q, k, v = qkv()
    trace = attend.trace_attention(q, k, v, causal=True)
    np.testing.assert_array_equal(trace["heads"], attend.attention(q, k, v, causal=True))
    assert "weights" in trace and "nothing" not in trace
    with pytest.raises(KeyError, match="there is scores"):
        trace["nothing"]
    assert attend.weights_shape(q, k, v) == trace["weights"].shape

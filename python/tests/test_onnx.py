"""attend.onnx: the node cases of the installed onnx, what they do not catch, the API."""
import warnings

import attend.onnx
import numpy as np
import onnx
import pytest
from attend.onnx import AttendBackend
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

NAMES = ["Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"]
OUTPUTS = ["Y", "present_key", "present_value", "qk_matmul_output"]
NEWEST = min(onnx.defs.onnx_opset_version(), 25)


@pytest.fixture(scope="module")
def node_cases():
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the other operators' cases
        cases = collect_testcases("Attention")
    return cases


def randoms(*shapes, dtype="float64", seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def model_of(inputs, outputs=("Y",), opset=NEWEST, **attributes):
    """A model of one Attention node, for inputs by name."""
    last = max(NAMES.index(name) for name in inputs)
    node = helper.make_node("Attention", [x if x in inputs else "" for x in NAMES[:last + 1]],
                            [x if x in outputs else "" for x in OUTPUTS[:OUTPUTS.index(outputs[-1]) + 1]],
                            **attributes)
    kind = {x: helper.np_dtype_to_tensor_dtype(a.dtype) for x, a in inputs.items()}
    out = {"present_value": kind["V"]}
    graph = helper.make_graph(
        [node], "attention", [helper.make_tensor_value_info(x, kind[x], a.shape) for x, a in inputs.items()],
        [helper.make_tensor_value_info(x, out.get(x, kind["Q"]), [None] * (inputs["Q"].ndim if x == "Y" else 4))
         for x in outputs])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11)


def run(inputs, outputs=("Y",), opset=NEWEST, **attributes):
    return AttendBackend.run_model(model_of(inputs, outputs, opset, **attributes), inputs)


def reference(inputs, outputs=("Y",), opset=NEWEST, **attributes):
    inputs = dict(inputs)
    if "attn_mask" in inputs:  # the evaluator counts the queries by the mask's rows: give it all of them
        mask, queries = np.atleast_2d(inputs["attn_mask"]), inputs["Q"].shape[-2]
        inputs["attn_mask"] = np.repeat(mask, queries // mask.shape[-2], axis=-2)
    return ReferenceEvaluator(model_of(inputs, outputs, opset, **attributes)).run(None, inputs)


def formula(q, k, v, bias, scale=None, softcap=0.0):
    """Attention in f64, grouped heads interleaved: Y, and the scores and weights of modes 0 to 3."""
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    raw = q @ k.swapaxes(2, 3) * (1 / np.sqrt(q.shape[3]) if scale is None else scale)
    capped = softcap * np.tanh(raw / softcap) if softcap else raw
    masked = capped + bias
    top = masked.max(-1, keepdims=True)
    p = np.exp(masked - np.where(np.isneginf(top), 0, top))
    p = p / np.where(p.sum(-1, keepdims=True) == 0, 1, p.sum(-1, keepdims=True))
    return p @ v, (raw, capped, masked, p)


# ---- the suite ---------------------------------------------------------------------------------
def test_every_node_case_of_the_installed_onnx(node_cases, capsys):
    from onnx.backend.test.runner import Runner

    cases = [case for case in node_cases if "expanded" not in case.name]
    failed = {}
    for case in cases:
        try:
            for inputs, outputs in case.data_sets:
                found = AttendBackend.prepare(case.model).run(inputs)
                # f16 results are the neighbours of ONNX's, which rounds every step to f16, at worst.
                half = any(np.asarray(x).dtype == np.float16 for x in outputs)
                Runner.assert_similar_outputs(outputs, found, case.rtol, max(case.atol, 5e-4 if half else 0))
        except Exception as error:  # noqa: BLE001: all of them are counted
            failed[case.name] = str(error).strip()[:300]
    with capsys.disabled():
        print(f"\nONNX {onnx.__version__} Attention: {len(cases) - len(failed)}/{len(cases)} node cases")
    assert not failed
    if onnx.__version__ == "1.23.2":
        assert len(cases) == 93
    assert len(cases) >= 93


def random_case(rng):
    """Inputs and attributes of one node, f64, over all that the operator has."""
    pick = lambda *choices: choices[rng.integers(len(choices))]
    batch, key_heads, group = rng.integers(1, 4, 3)
    heads, queries, new, past = key_heads * group, rng.integers(1, 6), rng.integers(1, 8), rng.integers(0, 5)
    d, dv = rng.integers(1, 9, 2)
    cache, flat = pick("none", "past", "nonpad"), pick(True, False)
    keys = new + past if cache == "past" else new
    shapes = [(batch, heads, queries, d), (batch, key_heads, new, d), (batch, key_heads, new, dv)]
    attributes = {"is_causal": pick(0, 1), "softcap": pick(0.0, 1.5), "qk_matmul_output_mode": pick(0, 1, 2, 3),
                  "left_window_size": pick(-1, 0, 2), "right_window_size": pick(-1, 0, 3)}
    if flat:
        shapes = [(b, t, h * width) for b, h, t, width in shapes]
        attributes |= {"q_num_heads": int(heads), "kv_num_heads": int(key_heads)}
    if pick(True, False):
        attributes["scale"] = 0.37
    inputs = dict(zip("QKV", (rng.standard_normal(shape) for shape in shapes)))
    if pick(True, True, False):
        shape = [pick(1, batch), pick(1, heads), pick(1, queries), pick(keys, rng.integers(1, keys + 1))]
        shape = shape[rng.integers(0, 4):]
        inputs["attn_mask"] = rng.standard_normal(shape) if pick(True, False) else rng.random(shape) < 0.6
        if inputs["attn_mask"].dtype != np.bool_ and pick(True, False):
            inputs["attn_mask"][rng.random(shape) < 0.4] = -np.inf
    if cache == "past":
        inputs["past_key"] = rng.standard_normal((batch, key_heads, past, d))
        inputs["past_value"] = rng.standard_normal((batch, key_heads, past, dv))
    if cache == "nonpad":
        inputs["nonpad_kv_seqlen"] = rng.integers(0, keys + 1, batch)
    return inputs, attributes, cache


@pytest.mark.skipif(NEWEST < 25, reason="the windows are of opset 25")
def test_random_nodes_agree_with_the_reference_evaluator(capsys):
    seed, count = 20260, 400
    rng = np.random.default_rng(seed)
    for number in range(count):
        inputs, attributes, cache = random_case(rng)
        outputs = OUTPUTS if cache == "past" else ["Y", "qk_matmul_output"]
        expected = reference(inputs, outputs, **attributes)
        if attributes["qk_matmul_output_mode"] == 0:
            # The evaluator hands out softcapped scores for mode 0, which the operator defines as raw.
            expected[-1] = reference(inputs, outputs, **attributes | {"softcap": 0.0})[-1]
        found = run(inputs, outputs, **attributes)
        for name, a, b in zip(outputs, found, expected, strict=True):
            shapes = {x: y.shape for x, y in inputs.items()}
            # The evaluator takes the root of a scale in f32.
            np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-7,
                                       err_msg=f"case {number} of seed {seed}: {name} {attributes} {shapes}")
    with capsys.disabled():
        print(f"\nONNX reference: {count}/{count} random nodes, seed {seed}")


# ---- what the suite does not catch -------------------------------------------------------------
@pytest.mark.parametrize("rank", [1, 2, 3, 4])
@pytest.mark.parametrize("columns", [1, 2, 4])
@pytest.mark.parametrize("kind", [bool, float])
def test_a_short_mask_hides_the_keys_behind_it(rank, columns, kind):
    q, k, v = randoms((2, 3, 4, 8), (2, 3, 5, 8), (2, 3, 5, 8))
    mask, = randoms((2, 3, 4, columns)[4 - rank:], seed=1)
    mask = mask > -0.5 if kind is bool else mask
    added = np.where(mask, 0, -np.inf) if kind is bool else mask
    room = [(0, 0)] * (rank - 1) + [(0, 5 - columns)]
    padded, shown = (np.pad(added, room, constant_values=value) for value in (-np.inf, 0))
    y, = run(dict(Q=q, K=k, V=v, attn_mask=mask))
    np.testing.assert_allclose(y, formula(q, k, v, padded)[0], rtol=1e-12, atol=1e-14)
    assert np.abs(y - formula(q, k, v, shown)[0]).max() > 0.01


def test_grouped_heads_are_interleaved():
    q, k, v = randoms((1, 6, 4, 8), (1, 3, 5, 8), (1, 3, 5, 8))
    y, = run(dict(Q=q, K=k, V=v))
    np.testing.assert_allclose(y, formula(q, k, v, 0)[0], rtol=1e-12, atol=1e-14)
    tiled = formula(q, np.tile(k, (1, 2, 1, 1)), np.tile(v, (1, 2, 1, 1)), 0)[0]
    assert np.abs(y - tiled).max() > 0.1


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_softcap_comes_before_the_mask_and_each_mode_shows_its_stage(mode):
    q, k, v, mask = randoms((1, 2, 4, 8), (1, 2, 5, 8), (1, 2, 5, 8), (4, 5))
    q, mask = 3 * q, 3 * mask
    mask[1, :3] = mask[2, :] = -np.inf
    y, shown = run(dict(Q=q, K=k, V=v, attn_mask=mask), ["Y", "qk_matmul_output"], softcap=0.75,
                   qk_matmul_output_mode=mode)
    expected, stages = formula(q, k, v, mask, softcap=0.75)
    np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(shown, stages[mode], rtol=1e-12, atol=1e-14)
    assert (y[:, :, 2] == 0).all()
    for other in {0, 1, 2, 3} - {mode}:
        assert not np.allclose(shown, stages[other])
    after = 0.75 * np.tanh((stages[0] + mask) / 0.75)  # the softcap after the mask
    assert not np.allclose(y, formula(q, k, v, after - stages[0])[0])


def test_a_negative_causal_offset_hides_the_first_queries():
    q, k, v = randoms((3, 1, 4, 8), (3, 1, 6, 8), (3, 1, 6, 8))
    nonpad = np.array([2, 6, 0])
    j, i = np.arange(6), np.arange(4)[:, None]
    visible = [(j <= i + n - 4) & (j < n) for n in nonpad]
    bias = np.where(np.stack(visible)[:, None], 0, -np.inf)
    k[0, :, 2:] = v[0, :, 2:] = np.nan  # padding may hold anything
    y, = run(dict(Q=q, K=k, V=v, nonpad_kv_seqlen=nonpad), opset=24, is_causal=1)
    np.testing.assert_allclose(y, formula(q, np.nan_to_num(k), np.nan_to_num(v), bias)[0], rtol=1e-12, atol=1e-14)
    assert (y[0, :, :2] == 0).all() and (y[2] == 0).all()


def test_causal_without_cache_starts_at_the_first_key():
    q, k, v = randoms((1, 1, 2, 8), (1, 1, 6, 8), (1, 1, 6, 8))
    y, = run(dict(Q=q, K=k, V=v), opset=23, is_causal=1)
    np.testing.assert_allclose(y[0, 0, 0], v[0, 0, 0], rtol=1e-12, atol=1e-14)


@pytest.mark.skipif(NEWEST < 25, reason="the windows are of opset 25")
@pytest.mark.parametrize("left, right", [(0, 0), (2, -1), (-1, 1), (1, 2)])
def test_windows_count_from_the_past(left, right):
    q, k, v, pk, pv = randoms((1, 1, 3, 8), (1, 1, 3, 8), (1, 1, 3, 8), (1, 1, 4, 8), (1, 1, 4, 8))
    y, = run(dict(Q=q, K=k, V=v, past_key=pk, past_value=pv), left_window_size=left, right_window_size=right)
    p, j = 4 + np.arange(3)[:, None], np.arange(7)
    visible = (j >= p - left if left >= 0 else True) & (j <= p + right if right >= 0 else True)
    k, v = np.concatenate((pk, k), 2), np.concatenate((pv, v), 2)
    np.testing.assert_allclose(y, formula(q, k, v, np.where(visible, 0, -np.inf))[0], rtol=1e-12, atol=1e-14)


# ---- types -------------------------------------------------------------------------------------
def test_double_softmax_precision_is_honoured(monkeypatch):
    seen, call = [], attend.onnx.attention
    monkeypatch.setattr(attend.onnx, "attention", lambda q, *a, **k: seen.append(q.dtype) or call(q, *a, **k))
    q, k, v = randoms((1, 2, 4, 64), (1, 2, 300, 64), (1, 2, 300, 64), dtype="float32")
    inputs = dict(Q=q, K=k, V=v)
    y, = run(inputs, softmax_precision=TensorProto.DOUBLE)
    wide, = run({name: x.astype("float64") for name, x in inputs.items()})
    assert seen[0] == np.float64  # f32 results of a kernel that adds in f64 could not tell
    assert y.dtype == np.float32 and (y == wide.astype("float32")).all()


@pytest.mark.parametrize("t1, t2", [("float16", "float32"), ("float32", "float16"), ("float16", "bfloat16")])
def test_values_may_have_another_type(t1, t2):
    import ml_dtypes  # noqa: F401: brings bfloat16

    q, k = randoms((1, 2, 4, 8), (1, 2, 5, 8), dtype=t1)
    v, pk, pv = randoms((1, 2, 5, 6), (1, 2, 3, 8), (1, 2, 3, 6))
    inputs = dict(Q=q, K=k, V=v.astype(t2), past_key=pk.astype(t1), past_value=pv.astype(t2))
    y, key, value = run(inputs, OUTPUTS[:3], opset=23)
    assert [x.dtype.name for x in (y, key, value)] == [t1, t1, t2]
    k, v = (np.concatenate((inputs[f"past_{x}"], inputs[x[0].upper()]), 2).astype("f8") for x in ("key", "value"))
    np.testing.assert_allclose(y.astype("f8"), formula(q.astype("f8"), k, v, 0)[0], rtol=1e-3, atol=1e-4)


# ---- the API -----------------------------------------------------------------------------------
def test_run_node_takes_named_or_ordered_inputs():
    q, k, v, mask, pk, pv = randoms((1, 2, 4, 8), (1, 2, 5, 8), (1, 2, 5, 6), (4, 8), (1, 2, 3, 8), (1, 2, 3, 6))
    node = helper.make_node("Attention", ["Q", "K", "V", "", "pk", "pv"], ["Y", "", "now"])
    expected = run(dict(Q=q, K=k, V=v, past_key=pk, past_value=pv), ["Y", "present_value"])
    by_order = AttendBackend.run_node(node, [q, k, v, pk, pv])
    by_name = AttendBackend.run_node(node, dict(Q=q, K=k, V=v, pk=pk, pv=pv), opset_version=23)
    for found in (by_order, by_name):
        assert (found["Y"] == expected[0]).all() and (found.now == expected[1]).all()


def test_several_nodes_and_constants():
    q, k, v, mask = randoms((1, 2, 4, 8), (1, 2, 5, 8), (1, 2, 5, 8), (4, 5), dtype="float32")
    nodes = [helper.make_node("Attention", ["Q", "K", "V", "mask"], ["inner"]),
             helper.make_node("Attention", ["inner", "K", "V"], ["Y"], scale=0.5)]
    info = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "two", [info(name, x.shape) for name, x in zip("QKV", (q, k, v))],
                              [info("Y", [None] * 4), info("inner", [None] * 4)], [onnx.numpy_helper.from_array(mask, "mask")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    prepared = AttendBackend.prepare(model)
    expected = ReferenceEvaluator(model).run(None, dict(Q=q, K=k, V=v))
    for _ in range(2):
        found = prepared.run(dict(Q=q, K=k, V=v))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_outputs_are_no_views_of_inputs():
    q, k, v = randoms((1, 2, 4, 8), (1, 2, 5, 8), (1, 2, 5, 8))
    _, key, value = run(dict(Q=q, K=k, V=v), OUTPUTS[:3], opset=23)
    assert (key == k).all() and (value == v).all()
    assert not np.shares_memory(key, k) and not np.shares_memory(value, v)


def test_other_operators_are_refused_by_name(node_cases):
    expanded = next(case for case in node_cases if "expanded" in case.name)
    assert not AttendBackend.is_compatible(expanded.model)
    with pytest.raises(NotImplementedError, match="the operator is Attention.* MatMul.* Softmax.*"
                       r"; attend.onnx.load_attention\(model\) takes the weights"):
        AttendBackend.prepare(expanded.model)
    with pytest.raises(NotImplementedError, match="Relu"):
        AttendBackend.run_node(helper.make_node("Relu", ["x"], ["y"]), [np.ones(3)])


def test_devices():
    model = model_of(dict(zip("QKV", randoms(*[(1, 1, 2, 4)] * 3))))
    assert AttendBackend.is_compatible(model) and AttendBackend.supports_device("CPU")
    assert not AttendBackend.supports_device("CUDA:0") and not AttendBackend.is_compatible(model, "CUDA")
    with pytest.raises(NotImplementedError, match="CUDA"):
        AttendBackend.prepare(model, "CUDA")


@pytest.mark.parametrize("change, attributes, message", [
    (dict(attn_mask=np.ones((4, 5), "int64")), {}, "attn_mask is bool or floating-point, found int64"),
    (dict(attn_mask=np.ones((4, 6), bool)), {}, "mask"),
    (dict(attn_mask=np.ones((3, 5), bool)), {}, "mask"),
    (dict(nonpad_kv_seqlen=np.array([5])), {}, r"nonpad_kv_seqlen is \[2\], found \[1\]"),
    (dict(nonpad_kv_seqlen=np.array([5, 6])), {}, "key_lengths"),
    (dict(past_key=np.ones((2, 3, 1, 8))), {}, "past_key and past_value come together"),
    (dict(past_key=np.ones((2, 3, 1, 8)), past_value=np.ones((2, 3, 1, 8)), nonpad_kv_seqlen=np.array([5, 5])), {},
     "nonpad_kv_seqlen excludes past_key"),
    (dict(past_key=np.ones((2, 3, 1, 7)), past_value=np.ones((2, 3, 1, 8))), {}, r"past_key \[2, 3, 1, 7\]"),
    (dict(Q=np.ones((2, 4, 8))), {}, r"all 3-D or all 4-D, found \[3, 4, 4\]"),
    (dict(Q=np.ones((2, 4, 4, 8))), {}, "heads"),
    (dict(Q=np.ones((2, 3, 4, 8), "float32")), {}, "Q and K of one type, found float32"),
    ({}, dict(qk_matmul_output_mode=4), "qk_matmul_output_mode is 0, 1, 2 or 3, found 4"),
    ({}, dict(softmax_precision=7), r"softmax_precision is one of \[1, 10, 11, 16\], found 7"),
    ({}, dict(q_num_heads=2), "q_num_heads 2"),
])
def test_wrong_nodes_say_what_is_wrong(change, attributes, message):
    inputs = dict(zip("QKV", randoms((2, 3, 4, 8), (2, 3, 5, 8), (2, 3, 5, 8)))) | change
    last = max(NAMES.index(name) for name in inputs)
    node = helper.make_node("Attention", [x if x in inputs else "" for x in NAMES[:last + 1]], ["Y"], **attributes)
    with pytest.raises(ValueError, match=message):
        AttendBackend.run_node(node, inputs, opset_version=24)


def test_three_dimensional_inputs_need_heads_that_divide():
    inputs = dict(zip("QKV", randoms((2, 4, 9), (2, 5, 9), (2, 5, 9))))
    node = helper.make_node("Attention", list("QKV"), ["Y"])
    with pytest.raises(ValueError, match="need q_num_heads and kv_num_heads"):
        AttendBackend.run_node(node, inputs)
    node = helper.make_node("Attention", list("QKV"), ["Y"], q_num_heads=2, kv_num_heads=3)
    with pytest.raises(ValueError, match=r"Q \[2, 4, 9\] does not divide into 2 heads"):
        AttendBackend.run_node(node, inputs)


def test_missing_inputs_and_versions():
    q, = randoms((1, 1, 2, 4))
    model = model_of(dict(Q=q, K=q, V=q))
    with pytest.raises(ValueError, match=r"takes 3 inputs \(Q, K, V\), found 2"):
        AttendBackend.run_model(model, [q, q])
    with pytest.raises(ValueError, match="lacks the input V"):
        AttendBackend.run_model(model, dict(Q=q, K=q))
    with pytest.raises(onnx.checker.ValidationError):
        run(dict(Q=q, K=q, V=q), opset=22)
    with pytest.raises(onnx.checker.ValidationError):
        run(dict(Q=q, K=q, V=q), opset=24, left_window_size=1)
    if NEWEST >= 25:
        with pytest.raises(ValueError, match="belong to 3-D inputs only"):
            run(dict(Q=q, K=q, V=q), opset=25, q_num_heads=1, kv_num_heads=1)
        with pytest.raises(ValueError, match="window sizes"):
            run(dict(Q=q, K=q, V=q), opset=25, left_window_size=-2)

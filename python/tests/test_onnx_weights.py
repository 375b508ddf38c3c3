"""attend.onnx.load_attention: weights of models that ONNX Runtime runs, no matrix of them square."""
import attend
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from attend.onnx import load_attention
from onnx import TensorProto, helper, numpy_helper

MODEL, HEADS, KEY_HEADS, D, DV = 10, 4, 2, 3, 5
WIDTHS = {"q": (MODEL, HEADS * D), "k": (MODEL, KEY_HEADS * D), "v": (MODEL, KEY_HEADS * DV),
          "o": (HEADS * DV, MODEL)}


class Builder:
    """A graph, node by node; every weight is random and kept by name."""

    def __init__(self, seed=0):
        self.rng, self.nodes, self.constants, self.opsets = np.random.default_rng(seed), [], {}, {"": 23}

    def constant(self, name, value):
        self.constants[name] = np.asarray(value)
        return name

    def weight(self, name, *shape):
        return self.constant(name, (self.rng.standard_normal(shape) / 3).astype("float32"))

    def node(self, kind, inputs, name, domain="", **attributes):
        if domain:
            self.opsets[domain] = 1
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, domain=domain, **attributes))
        return name

    def linear(self, x, part, widths=None, bias=True):
        wide, out = widths or WIDTHS[part]
        y = self.node("MatMul", [x, self.weight(f"W{part}", wide, out)], f"{part}_product")
        return self.node("Add", [self.weight(f"b{part}", out), y], part) if bias else y

    def model(self, inputs, output):
        info = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        graph = helper.make_graph(self.nodes, "model", [info(x, shape) for x, shape in inputs.items()],
                                  [info(output, [None] * 3)],
                                  [numpy_helper.from_array(x, name) for name, x in self.constants.items()])
        opsets = [helper.make_opsetid(*item) for item in self.opsets.items()]
        return helper.make_model(graph, opset_imports=opsets, ir_version=11)


def agrees(model, found, *rows):
    """The layer made of what was found gives what ONNX Runtime gives; returns the layer."""
    names = [x.name for x in model.graph.input]
    rng = np.random.default_rng(7)
    values = [rng.standard_normal(shape).astype("float32") for shape in rows]
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected, = session.run(None, dict(zip(names, values)))
    layer = found.layer()
    np.testing.assert_allclose(layer.forward(*values, **found.options), expected, rtol=1e-4, atol=1e-5)
    return layer


def by_heads(g, x, part, heads, d):
    shaped = g.node("Reshape", [x, g.constant(f"{part}_shape", np.array([0, 0, heads, d]))], f"{part}_heads")
    return g.node("Transpose", [shaped], f"{part}_by_heads", perm=[0, 2, 1, 3])


def test_grouped_self_attention_with_biases():
    g = Builder()
    parts = [g.linear("x", part) for part in "qkv"]
    y = g.node("Attention", parts, "attention", q_num_heads=HEADS, kv_num_heads=KEY_HEADS, is_causal=1)
    model = g.model({"x": [2, 6, MODEL]}, g.linear(y, "o"))
    found = load_attention(model)
    assert (found.heads, found.key_heads, found.options) == (HEADS, KEY_HEADS, {"causal": True, "query_offset": 0})
    for part in "qkvo":
        assert (found.weights[f"{part}.weight"] == g.constants[f"W{part}"].T).all()
        assert (found.weights[f"{part}.bias"] == g.constants[f"b{part}"]).all()
    layer = agrees(model, found, (2, 6, MODEL))
    assert isinstance(layer, attend.MultiHeadAttention) and layer.options["d_v"] == DV


def test_the_saved_layer_gives_the_same_bits(tmp_path):
    g = Builder()
    parts = [g.linear("x", part) for part in "qkv"]
    y = g.node("Attention", parts, "attention", q_num_heads=HEADS, kv_num_heads=KEY_HEADS, is_causal=1)
    found = load_attention(g.model({"x": [2, 6, MODEL]}, g.linear(y, "o")))
    found.layer().save(tmp_path / "layer.safetensors")
    saved = attend.MultiHeadAttention.load(tmp_path / "layer.safetensors")
    x = np.random.default_rng(1).standard_normal((2, 6, MODEL)).astype("float32")
    assert (saved.forward(x, **found.options) == found.layer().forward(x, **found.options)).all()


def test_cross_attention_by_heads_with_scale_and_no_biases():
    g = Builder()
    parts = [by_heads(g, g.linear(x, part, widths, bias=False), part, h, d)
             for x, part, widths, h, d in [("x", "q", None, HEADS, D), ("m", "k", (7, KEY_HEADS * D), KEY_HEADS, D),
                                           ("m", "v", (7, KEY_HEADS * DV), KEY_HEADS, DV)]]
    y = g.node("Attention", parts, "attention", scale=0.3)
    y = g.node("Transpose", [y], "turned", perm=[0, 2, 1, 3])
    y = g.node("Reshape", [y, g.constant("flat", np.array([0, 0, HEADS * DV]))], "concat")
    model = g.model({"x": [2, 4, MODEL], "m": [2, 6, 7]}, g.linear(y, "o", bias=False))
    found = load_attention(model, name="attention")
    assert sorted(found.weights) == ["k.weight", "o.weight", "q.weight", "v.weight"]
    agrees(model, found, (2, 4, MODEL), (2, 6, 7))


def test_packed_projection_by_gemm_and_split():
    g = Builder()
    total = sum(WIDTHS[part][1] for part in "qkv")
    flat = g.node("Reshape", ["x", g.constant("rows", np.array([-1, MODEL]))], "flat")
    y = g.node("Gemm", [flat, g.weight("W", total, MODEL), g.weight("b", total)], "gemm", transB=1)
    y = g.node("Reshape", [y, g.constant("back", np.array([2, -1, total]))], "packed")
    sizes = g.constant("sizes", np.array([WIDTHS[part][1] for part in "qkv"]))
    g.nodes.append(helper.make_node("Split", [y, sizes], ["q", "k", "v"], axis=-1))
    y = g.node("Attention", ["q", "k", "v"], "attention", q_num_heads=HEADS, kv_num_heads=KEY_HEADS)
    model = g.model({"x": [2, 6, MODEL]}, g.linear(y, "o"))
    found = load_attention(model)
    assert (found.weights["k.weight"] == g.constants["W"][HEADS * D:][:KEY_HEADS * D]).all()
    agrees(model, found, (2, 6, MODEL))


@pytest.mark.parametrize("causal", [0, 1])
def test_packed_weights_of_com_microsoft_attention(causal):
    g = Builder()
    sizes = [HEADS * D, HEADS * D, HEADS * DV]
    y = g.node("Attention", ["x", g.weight("W", MODEL, sum(sizes)), g.weight("b", sum(sizes))], "attention",
               "com.microsoft", num_heads=HEADS, qkv_hidden_sizes=sizes, unidirectional=causal)
    model = g.model({"x": [2, 6, MODEL]}, g.linear(y, "o"))
    found = load_attention(model)
    assert found.weights["v.weight"].shape == (HEADS * DV, MODEL)
    agrees(model, found, (2, 6, MODEL))


def test_packed_bias_of_com_microsoft_multi_head_attention():
    g = Builder()
    widths = {"q": (MODEL, HEADS * D), "k": (7, HEADS * D), "v": (7, HEADS * DV)}
    parts = [g.linear(x, part, widths[part], bias=False) for x, part in zip("xmm", "qkv")]
    bias = g.weight("b", sum(out for _, out in widths.values()))
    y = g.node("MultiHeadAttention", [*parts, bias], "attention", "com.microsoft", num_heads=HEADS, scale=0.4)
    model = g.model({"x": [2, 4, MODEL], "m": [2, 6, 7]}, g.linear(y, "o"))
    found = load_attention(model)
    assert (found.weights["v.bias"] == g.constants["b"][2 * HEADS * D:]).all()
    agrees(model, found, (2, 4, MODEL), (2, 6, 7))


def test_a_node_without_output_projection_from_a_file(tmp_path):
    g = Builder()
    parts = [g.linear("x", part) for part in "qkv"]
    y = g.node("Attention", parts, "attention", q_num_heads=HEADS, kv_num_heads=KEY_HEADS)
    model = g.model({"x": [2, 6, MODEL]}, y)
    onnx.save(onnx.ModelProto.FromString(model.SerializeToString()), tmp_path / "model.onnx",
              save_as_external_data=True, location="weights.bin", size_threshold=0)
    found = load_attention(tmp_path / "model.onnx")
    assert "o.weight" not in found.weights
    agrees(model, found, (2, 6, MODEL))


def two_layers():
    g = Builder()
    for layer in "ab":
        parts = [g.node("MatMul", ["x", g.weight(layer + part, *WIDTHS[part])], f"{layer}/{part}") for part in "qkv"]
        g.node("Attention", parts, f"{layer}/attention", q_num_heads=HEADS, kv_num_heads=KEY_HEADS)
    return g, g.model({"x": [2, 6, MODEL]}, "a/attention")


def test_nodes_are_chosen_by_name_or_its_beginning():
    g, model = two_layers()
    assert (load_attention(model, "b/").weights["q.weight"] == g.constants["bq"].T).all()
    assert (load_attention(model, "a/attention").weights["q.weight"] == g.constants["aq"].T).all()
    with pytest.raises(ValueError, match="2 attention nodes; there are: 'a/attention', 'b/attention'"):
        load_attention(model)
    with pytest.raises(ValueError, match="0 attention nodes named 'c'; there are: 'a/attention'"):
        load_attention(model, "c")


@pytest.mark.parametrize("spoil, has_heads, message", [
    (lambda g, q: g.node("Relu", [q], "act"), True, "Relu 'act': it stands between Q and its projection"),
    (lambda g, q: "x", True, "Q is an input of the model"),
    (lambda g, q: q, False, "the number of heads is neither an attribute nor in a constant shape"),
    (lambda g, q: g.node("Transpose", [q], "turn", perm=[1, 0, 2]), True, "Transpose 'turn': it stands between"),
    (lambda g, q: g.node("Reshape", [q, g.constant("s", np.array([2, -1, 4]))], "cut"), True,
     "Reshape 'cut': .* the 12 features, found"),
    (lambda g, q: g.node("Add", [q, g.weight("c", HEADS * D)], "more"), True, "Add 'more': a second bias"),
    (lambda g, q: g.linear("x", "wide", (MODEL, 8)), True, "projections to 8, 6, 10 features for 4 and 2 heads"),
])
def test_what_is_not_well_defined_is_refused(spoil, has_heads, message):
    g = Builder()
    parts = [g.linear("x", part) for part in "qkv"]
    parts[0] = spoil(g, parts[0])
    heads = dict(q_num_heads=HEADS, kv_num_heads=KEY_HEADS) if has_heads else {}
    y = g.node("Attention", parts, "attention", **heads)
    with pytest.raises(ValueError, match=message):
        load_attention(g.model({"x": [2, 6, MODEL]}, y))


def test_a_constant_mask_that_would_mean_something_else_is_refused():
    """ONNX hides the keys past a mask of one column, attend repeats the column."""
    g = Builder()
    parts = [g.linear("x", part) for part in "qkv"]
    mask = g.constant("mask", np.ones((6, 1), bool))
    y = g.node("Attention", [*parts, mask], "attention", q_num_heads=HEADS, kv_num_heads=KEY_HEADS)
    with pytest.raises(ValueError, match="a constant attn_mask of one key is not supported"):
        load_attention(g.model({"x": [2, 6, MODEL]}, y))


def test_a_constant_bias_of_the_scores_is_not_left_out():
    g = Builder()
    parts = [g.node("MatMul", ["x", g.weight(part, MODEL, 12)], part) for part in ("mq", "mk", "mv")]
    bias = g.constant("bias", np.ones((1, 1, 6, 6), np.float32))
    y = g.node("MultiHeadAttention", [*parts, "", "", bias], "attention", domain="com.microsoft", num_heads=HEADS)
    with pytest.raises(ValueError, match=r"a constant mask or bias of the scores \(input 5\)"):
        load_attention(g.model({"x": [2, 6, MODEL]}, y))


def test_an_output_of_another_width_is_no_layer():
    g = Builder()
    parts = [g.linear("x", part) for part in "qkv"]
    y = g.node("Attention", parts, "attention", q_num_heads=HEADS, kv_num_heads=KEY_HEADS)
    found = load_attention(g.model({"x": [2, 6, MODEL]}, g.linear(y, "o", (HEADS * DV, 9))))
    assert found.weights["o.weight"].shape == (9, HEADS * DV)
    with pytest.raises(ValueError, match="the output is 9 wide, the query 10"):
        found.layer()

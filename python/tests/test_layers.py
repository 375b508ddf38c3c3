"""Do the layers compute their formulas, and their gradients the slopes of them?"""
import ctypes
import gc
import subprocess
import sys

import formula
import ml_dtypes
import numpy as np
import pytest

import attend


def draw(*shape, seed=0, dtype=np.float64):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def close(a, b, tolerance=1e-12):
    np.testing.assert_allclose(a, b, atol=tolerance, rtol=tolerance)


def shake(layer, seed=5):
    """Puts something into every parameter, also where they begin as 0 or 1."""
    for n, array in enumerate(layer.parameters().values()):
        array[...] = draw(*array.shape, seed=seed + n) * 0.5
    return layer


# ---- formulas --------------------------------------------------------------------------------------


def test_linear():
    layer = shake(attend.Linear(5, 3, type="f64"))
    p = layer.parameters()
    x = draw(2, 4, 5)
    close(layer.forward(x), x @ p["weight"].T + p["bias"])
    same = attend.Linear.from_weights(p["weight"], p["bias"])
    np.testing.assert_array_equal(same.forward(x), layer.forward(x))
    assert list(attend.Linear(5, 3, bias=False).parameters()) == ["weight"]


def test_weights_that_are_changed_after_a_pass_are_seen():
    layer = attend.Linear(4, 3, type="f64")
    x = draw(2, 4)
    before = layer.forward(x)
    weight = layer.parameters()["weight"]
    for factor in (2, 4):
        weight *= 2
        close(layer.forward(x), factor * before)


def test_norms():
    x = draw(3, 6)
    layer = shake(attend.LayerNorm(6, type=np.float64))
    p = layer.parameters()
    normed = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    close(layer.forward(x), normed * p["weight"] + p["bias"])
    layer = shake(attend.RMSNorm(6, type=np.float64))
    p = layer.parameters()
    close(layer.forward(x), x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * p["weight"])
    kind = attend.Norm(6, kind="rms_norm", epsilon=1e-6, type="f64")
    kind.parameters()["weight"][:] = p["weight"]
    np.testing.assert_array_equal(kind.forward(x), layer.forward(x))


def test_feed_forward():
    x = draw(3, 4)
    layer = shake(attend.FeedForward(4, 6, activation="swiglu", type="f64"))
    p = layer.parameters()
    gate = x @ p["gate.weight"].T + p["gate.bias"]
    up = x @ p["up.weight"].T + p["up.bias"]
    close(layer.forward(x), (gate / (1 + np.exp(-gate)) * up) @ p["down.weight"].T + p["down.bias"])
    layer = shake(attend.FeedForward(4, activation="relu", type="f64"))
    p = layer.parameters()
    assert p["up.weight"].shape == (16, 4)
    close(layer.forward(x), np.maximum(x @ p["up.weight"].T + p["up.bias"], 0) @ p["down.weight"].T
          + p["down.bias"])


def test_embedding_and_positions():
    tokens = np.array([[3, 1], [0, 3]], np.int32)
    layer = attend.Embedding(4, 6, type="f64")
    np.testing.assert_array_equal(layer.forward(tokens=tokens), layer.parameters()["weight"][tokens])
    _, saved = layer.forward_train(tokens)
    gradients = layer.backward(np.ones((2, 2, 6)), saved)
    assert gradients.dx is None
    np.testing.assert_array_equal(gradients.parameters["weight"][:, 0], [1, 1, 0, 2])
    x = draw(2, 3, 6)
    layer = attend.LearnedPositions(9, 6, type="f64")
    np.testing.assert_array_equal(layer.forward(x, offset=4), x + layer.parameters()["weight"][4:7])
    angle = (np.arange(3) + 2)[:, None] / 100.0 ** (2 * np.arange(3) / 6)
    added = np.stack([np.sin(angle), np.cos(angle)], -1).reshape(3, 6)
    layer = attend.SinusoidalPositions(6, base=100.0)
    close(layer.forward(x, offset=2), x + added)
    y, saved = layer.forward_train(x, offset=2)
    np.testing.assert_array_equal(y, layer.forward(x, offset=2))
    gradients = layer.backward(2 * x, saved)
    np.testing.assert_array_equal(gradients.dx, 2 * x)
    assert gradients.parameters == {} == layer.parameters()


def heads_of(x, heads):
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


@pytest.mark.parametrize("cross", [False, True])
def test_multi_head_attention(cross):
    layer = shake(attend.MultiHeadAttention(model_dim=6, heads=4, key_heads=2, d_k=3, d_v=5,
                                            key_dim=7 if cross else 6, type="f64"))
    p = layer.parameters()
    query, key = draw(2, 3, 6), draw(2, 4, 7, seed=1)
    inputs = (query, key) if cross else (query,)
    memory = key if cross else query
    q = heads_of(query @ p["q.weight"].T + p["q.bias"], 4)
    k = heads_of(memory @ p["k.weight"].T + p["k.bias"], 2)
    v = heads_of(memory @ p["v.weight"].T + p["v.bias"], 2)
    out, lse, weights, _ = formula.attention(q, k, v, causal=True)
    expected = out.transpose(0, 2, 1, 3).reshape(2, 3, 20) @ p["o.weight"].T + p["o.bias"]
    found = layer.forward(*inputs, causal=True, return_lse=True, return_weights=True)
    for got, want in zip(found, (expected, lse, weights), strict=True):
        close(got, want)
    trace = layer.trace(*inputs, causal=True)
    close(trace["weights"], weights)
    np.testing.assert_array_equal(trace["output"], found[0])
    assert layer.forward(query[0], *[x[0] for x in inputs[1:]]).shape == (3, 6)


def test_rotary_positions_turn_pairs():
    layer = attend.MultiHeadAttention(model_dim=4, heads=1, rotary=("neighbours", 10.0), type="f64",
                                      output_projection=False, bias=False)
    assert layer.options["rotary"] == attend.Rotary("neighbours", 10.0, 4)
    p = layer.parameters()
    x = draw(1, 5, 4)

    def turned(y):
        angle = np.arange(5)[:, None] * 10.0 ** (-2 * np.arange(2) / 4)
        z = (y[..., 0::2] + 1j * y[..., 1::2]) * np.exp(1j * angle)
        return np.stack([z.real, z.imag], -1).reshape(y.shape)

    q, k, v = (heads_of(x @ p[name + ".weight"].T, 1) for name in "qkv")
    close(layer.forward(x), formula.attention(turned(q), turned(k), v)[0][:, 0])


def test_a_file_without_an_output_projection(tmp_path):
    path = tmp_path / "layer.safetensors"
    weights = {name + ".weight": draw(4, 4) for name in "qkv"}
    attend.save_safetensors(path, weights)
    with pytest.raises(OSError, match="output_projection = false"):
        attend.MultiHeadAttention.load(path, heads=2)
    layer = attend.MultiHeadAttention.load(path, heads=2, output_projection=False)
    assert sorted(layer.parameters()) == sorted(weights)


# ---- gradients -------------------------------------------------------------------------------------


def check_gradients(layer, inputs, call, gradients, dy):
    """Each gradient, of inputs and parameters, against the slope of sum(dy * y)."""
    for name, array in {**inputs, **layer.parameters()}.items():
        gradient = gradients[name]
        assert gradient.shape == array.shape, name
        rng = np.random.default_rng(1)
        for _ in range(min(array.size, 6)):
            index = tuple(rng.integers(n) for n in array.shape)
            kept = array[index]
            slope = 0
            for sign in (1, -1):
                array[index] = kept + sign * 1e-6
                slope += sign * (call() * dy).sum() / 2e-6
            array[index] = kept
            assert abs(slope - gradient[index]) < 1e-6 * max(1, abs(slope)), (name, index)


@pytest.mark.parametrize("make", [
    lambda: attend.Linear(4, 3, type="f64"), lambda: attend.LayerNorm(4, type="f64"),
    lambda: attend.RMSNorm(4, type="f64"),
    lambda: attend.FeedForward(4, 5, activation="gelu_tanh", type="f64"),
    lambda: attend.LearnedPositions(3, 4, type="f64")], ids=["linear", "layer_norm", "rms_norm",
                                                            "feed_forward", "positions"])
def test_gradients_of_simple_layers(make):
    layer, x = shake(make()), draw(2, 3, 4)
    y, saved = layer.forward_train(x)
    np.testing.assert_array_equal(y, layer.forward(x))
    dy = draw(*y.shape, seed=3)
    gradients = layer.backward(dy, saved)
    check_gradients(layer, {"x": x}, lambda: layer.forward(x), {"x": gradients.dx, **gradients.parameters}, dy)


def test_gradients_of_multi_head_attention():
    layer = shake(attend.MultiHeadAttention(model_dim=4, heads=2, key_heads=1, type="f64"))
    query, key, value, bias = draw(1, 3, 4), draw(1, 5, 4, seed=1), draw(1, 5, 4, seed=2), draw(2, 3, 5)
    y, saved = layer.forward_train(query, key, value, bias=bias)
    dy = draw(*y.shape, seed=4)
    g = layer.backward(dy, saved)
    assert g.dx is None and g.dsinks is None
    check_gradients(layer, {"query": query, "key": key, "value": value, "bias": bias},
                    lambda: layer.forward(query, key, value, bias=bias),
                    {"query": g.dquery, "key": g.dkey, "value": g.dvalue, "bias": g.dbias,
                     **g.parameters}, dy)


def test_gradients_of_a_decoder_block():
    block = shake(attend.AttentionBlock({"model_dim": 4, "heads": 2, "type": "f64"}, cross=True,
                                        memory_dim=3, hidden_dim=5, placement="pre"))
    x, memory = draw(1, 3, 4), draw(1, 2, 3, seed=1)
    slopes, bias = np.array([0.5, 0.25]), draw(3, 2, seed=2)
    options = {"causal": True, "alibi": slopes, "cross": {"key_lengths": np.array([2]), "bias": bias}}
    y, saved = block.forward_train(x, memory, **options)
    dy = draw(*y.shape, seed=4)
    g = block.backward(dy, saved)
    check_gradients(block, {"x": x, "memory": memory, "alibi": slopes, "bias": bias},
                    lambda: block.forward(x, memory, **options),
                    {"x": g.dx, "memory": g.dmemory, "alibi": g.self.dalibi, "bias": g.cross.dbias,
                     **g.parameters}, dy)
    assert g.self.dbias is None and g.cross.dalibi is None
    assert "attention.weights" in block.trace(x, memory, **options)
    assert block.options["attention"]["heads"] == 2
    assert block.cross.options["key_dim"] == 3 and encoder().cross is None


# ---- caches ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [0, 4])
def test_token_by_token_has_the_bits_of_all_at_once(page_size):
    layer = attend.MultiHeadAttention(model_dim=8, heads=2, rotary=attend.Rotary())
    x = draw(2, 9, 8, dtype=np.float32)
    whole = layer.forward(x, causal=True)
    cache = layer.make_cache(batch=2, capacity=12, page_size=page_size)
    steps = [layer.forward(x[:, a:b], cache=cache, causal=True) for a, b in ((0, 4), (4, 5), (5, 9))]
    np.testing.assert_array_equal(np.concatenate(steps, 1), whole)
    assert cache.length(1) == 9 and cache.options["capacity"] == 12
    with pytest.raises(ValueError, match="capacity"):
        layer.forward(x, cache=cache, causal=True)
    cache.truncate(0, 4)
    assert list(cache.key_lengths) == [4, 9]
    assert (cache.block_table is None) == (page_size == 0)


def test_a_memory_in_a_cache():
    layer = attend.MultiHeadAttention(model_dim=8, heads=2)
    query, memory = draw(1, 2, 8, dtype=np.float32), draw(1, 5, 8, seed=1, dtype=np.float32)
    cache = layer.make_cache(1, 5)
    layer.append(memory, memory, cache)
    np.testing.assert_array_equal(layer.attend(query, cache), layer.forward(query, memory))
    block = attend.AttentionBlock({"model_dim": 8, "heads": 2}, cross=True)
    kept, own = block.cross.make_cache(1, 5), block.attention.make_cache(1, 5)
    block.cross.append(memory, memory, kept)
    np.testing.assert_array_equal(block.forward(query, kept, cache=own, causal=True),
                                  block.forward(query, memory, causal=True))
    with pytest.raises(ValueError, match="memory is a KvCache too"):
        block.forward(query, memory, cache=own)


@pytest.mark.parametrize("page_size", [0, 4])
def test_a_cache_of_8_bits(page_size):
    layer = attend.MultiHeadAttention(model_dim=8, heads=2)
    x = draw(2, 9, 8, dtype=np.float32)
    cache = layer.make_cache(2, 9, page_size, type="i8")
    assert cache.options["type"] == "i8" and cache.keys.dtype == np.int8
    y = np.concatenate([layer.forward(x[:, a:b], cache=cache, causal=True) for a, b in ((0, 4), (4, 9))], 1)
    np.testing.assert_allclose(y, layer.forward(x, causal=True), atol=0.02)
    assert cache.k_scales.shape == cache.keys.shape[:3] and cache.k_scales.dtype == np.float32
    own = attend.KvCache(batch=1, key_heads=1, d_k=2, capacity=2, type=np.int8)
    own.append(np.array([[[[127.0, -1.5], [0, 0]]]]), np.array([[[[254.0, 3], [np.nan, 0]]]], np.float16))
    assert own.keys.tolist() == [[[[127, -2], [0, 0]]]] and own.k_scales.tolist() == [[[1, 0]]]
    assert own.values.tolist() == [[[[127, 2], [0, 0]]]] and np.isnan(own.v_scales[0, 0, 1])
    assert layer.make_cache(1, 2).k_scales is None
    with pytest.raises(ValueError, match="type is i8; it must be f64, f32, bf16 or f16"):
        attend.MultiHeadAttention(model_dim=8, heads=2, type="i8")


def test_a_model_generates_with_caches_of_8_bits():
    model = attend.LanguageModel(vocabulary=5, length=8, model_dim=8, heads=2)
    assert model.make_caches(1, "i8")[0].options["type"] == "i8"
    assert len(model.generate([0, 1], 4, cache_type="i8")) == 4
    with pytest.raises(TypeError, match="generate: type is f64"):
        model.generate([0, 1], 4, cache_type="i7")


# ---- weights ---------------------------------------------------------------------------------------


def test_split_and_join_are_inverse():
    layer = shake(attend.MultiHeadAttention(model_dim=6, heads=3, type="f64"))
    heads = layer.split()
    assert len(heads) == 3 and heads[0].q.shape == (2, 6)
    again = attend.MultiHeadAttention.join(heads, layer.parameters()["o.bias"], model_dim=6, heads=3,
                                           type="f64")
    x = draw(1, 4, 6)
    np.testing.assert_array_equal(again.forward(x), layer.forward(x))


def test_parameters_are_the_layers_memory():
    layer = attend.Linear(3, 2)
    array = layer.parameters()["weight"]
    array[...] = 0
    assert (layer.forward(np.ones((1, 3), np.float32)) == 0).all()
    del layer
    gc.collect()
    array += 1
    assert (array == 1).all()


def weight_of(layer):
    return layer.parameters()["weight"]


VIEWS = {
    "array": lambda layer: weight_of(layer),
    "slice": lambda layer: weight_of(layer)[1:, ::2],
    "flat": lambda layer: weight_of(layer).reshape(-1),
    "memoryview": lambda layer: np.asarray(memoryview(weight_of(layer))),
    "dlpack": lambda layer: np.from_dlpack(weight_of(layer)),
}


def test_a_view_that_outlives_the_interpreter_prints_nothing():
    """As one that PyTorch holds does."""
    code = """if True:
        import attend, ctypes
        import numpy as np
        kept = np.from_dlpack(attend.Linear(4, 4).parameters()["weight"])
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=540)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_a_view_that_is_kept_writes_what_the_layer_reads(view):
    """However often the layer was used since, and whatever else was dropped."""
    layer, x = attend.Linear(40, 33), np.ones((1, 40), np.float32)
    kept = view(layer)
    gc.collect()
    for _ in range(3):
        before = layer.forward(x)
        kept += 1
        expected = attend.Linear.from_weights(weight_of(layer), layer.parameters()["bias"]).forward(x)
        np.testing.assert_array_equal(layer.forward(x), expected)
        assert (layer.forward(x) != before).any()


@pytest.mark.parametrize("keep", [True, False])
def test_weights_are_packed_again_when_the_last_array_is_gone(keep):
    """Seen by a trick that nobody should use: the weights are written behind the layer's back."""
    layer, x = attend.Linear(40, 33), np.ones((1, 40), np.float32)
    arrays = layer.parameters()
    arrays["weight"][...] = 2
    part = arrays["weight"][0]
    address = arrays["weight"].ctypes.data
    del arrays
    if not keep:
        del part
    gc.collect()
    for _ in range(3):
        assert (layer.forward(x) == 80).all()
    ctypes.memset(address, 0, 40 * 33 * 4)
    assert (layer.forward(x) == (0 if keep else 80)).all()


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32", ml_dtypes.bfloat16, np.float16, np.dtype("f4")])
def test_types_by_any_name(dtype):
    layer = attend.Linear(3, 2, type=dtype)
    weight = layer.parameters()["weight"]
    x = np.ones((1, 3), weight.dtype)
    assert layer.forward(x).dtype == weight.dtype


def encoder():
    return attend.AttentionBlock({"model_dim": 4, "heads": 2})


REFUSED = {
    "attn_mask": (TypeError, "MultiHeadAttention.*'attn_mask'.*opposite",
                  lambda m, x: m.forward(x, attn_mask=x)),
    "key_padding_mask": (TypeError, "opposite", lambda m, x: m.forward(x, key_padding_mask=x)),
    "width": (ValueError, r"query is \[1, 3, 3\]", lambda m, x: m.forward(x[..., :3])),
    "type": (ValueError, "query is f64, the layer is f32; convert it", lambda m, x: m.forward(x.astype("f8"))),
    "value alone": (ValueError, "no key", lambda m, x: m.forward(x, value=x)),
    "list": (TypeError, "query takes a NumPy array", lambda m, x: m.forward([1])),
    "option": (TypeError, "'width'; the options are model_dim",
               lambda m, x: attend.MultiHeadAttention(width=4)),
    "heads": (ValueError, "not divisible", lambda m, x: attend.MultiHeadAttention(model_dim=4, heads=3)),
    "pairing": (ValueError, "pairing is 'halves' or 'neighbours', found 'x'",
                lambda m, x: attend.MultiHeadAttention(model_dim=4, rotary=("x", 1.0))),
    "dtype": (TypeError, r"type is f64, f32, bf16 or f16 \(of a KvCache also i8\), found int32",
              lambda m, x: attend.Linear(3, 2, type="int32")),
    "lengths without a cache": (ValueError, "MultiHeadAttention.forward: lengths= belongs to cache=; use key_lengths=",
                                lambda m, x: m.forward(x, lengths=np.array([2]))),
    "lengths of a block": (ValueError, "AttentionBlock.forward: lengths= belongs to cache=",
                           lambda m, x: encoder().forward(x, lengths=np.array([2]))),
    "cross without a memory": (ValueError, "cross= are options .* does not have",
                               lambda m, x: encoder().forward(x, cross={"causal": True})),
    "cross of a number": (TypeError, "AttentionBlock.forward: the names of options are str, found int",
                          lambda m, x: encoder().forward(x, cross={1: 2})),
    "part of a name": (TypeError, "unexpected keyword argument 'cu_seqlens'",
                       lambda m, x: m.forward(x, cu_seqlens=None)),
    "load of a number": (TypeError, "MultiHeadAttention.load: path takes a str.*found int",
                         lambda m, x: attend.MultiHeadAttention.load(3)),
    "model of a number": (TypeError, "LanguageModel.load: path takes a str.*found int",
                          lambda m, x: attend.LanguageModel.load(3)),
    "model on a GPU": (NotImplementedError, "LanguageModel: it computes on the CPU alone, to.. found cuda:1",
                       lambda m, x: attend.LanguageModel(vocabulary=5, length=8).to("cuda:1")),
    "states of a number": (TypeError, "merge_partial: states takes a list of arrays, found int",
                           lambda m, x: attend.merge_partial(5)),
    "states of None": (TypeError, "finish_partial: states takes a list of arrays, found NoneType",
                       lambda m, x: attend.finish_partial(None)),
    "parts of an array": (TypeError, "merge: lse takes a list of arrays, found NoneType",
                          lambda m, x: attend.merge([x], None)),
    "threads of a word": (TypeError, "Context: threads takes a whole number, found str",
                          lambda m, x: attend.Context(threads="two")),
    "threads by place": (TypeError, r"Context: arguments come by their names.*Context\(threads=4\)",
                         lambda m, x: attend.Context(2)),
    "a name of no argument": (TypeError, "Context: there is no argument 'thread'; there are threads, kernels",
                              lambda m, x: attend.Context(thread=2)),
    "a cache by place": (TypeError, r"KvCache: arguments come by their names, 2 came without.*key_heads=2",
                         lambda m, x: attend.KvCache(1, 2)),
    "a cache of no size": (TypeError, "KvCache: capacity is missing",
                           lambda m, x: attend.KvCache(key_heads=1, d_k=2)),
    "a layer of no size": (TypeError, r"MultiHeadAttention: model_dim is missing.*\(512, heads=8\)",
                           lambda m, x: attend.MultiHeadAttention(heads=2)),
    "activation": (ValueError, "'relu', 'gelu', 'gelu_tanh' or 'swiglu', found 'tanh'",
                   lambda m, x: attend.FeedForward(4, activation="tanh")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_why(name):
    kind, message, call = REFUSED[name]
    with pytest.raises(kind, match=message):
        call(attend.MultiHeadAttention(model_dim=4, heads=2), draw(1, 3, 4, dtype=np.float32))


def test_model_dim_and_heads_may_come_by_their_place():
    assert attend.MultiHeadAttention(512, 8).options["d_k"] == 64
    assert attend.MultiHeadAttention(12, heads=3).options["heads"] == 3
    for call, words in (
        (lambda: attend.MultiHeadAttention(512, 8, 2), "model_dim and heads may come by their place"),
        (lambda: attend.MultiHeadAttention(512, model_dim=3), "model_dim is given twice"),
        (lambda: attend.MultiHeadAttention("512", 8), "model_dim takes a whole number, found str"),
    ):
        with pytest.raises(TypeError, match=words):
            call()


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_nan_behind_the_lengths_reaches_no_gradient(poison):
    layer = attend.MultiHeadAttention(8, 2, type="f64", seed=3)
    rng = np.random.default_rng(0)
    query, memory = rng.standard_normal((2, 3, 8)), rng.standard_normal((2, 5, 8))

    def run(hidden):
        key = memory.copy()
        key[0, 3:] = hidden
        key[1] = hidden
        y, saved = layer.forward_train(query, key, key_lengths=np.array([3, 0]))
        g = layer.backward(np.ones_like(y), saved)
        return [y, g.dquery, g.dkey, g.dvalue, *g.parameters.values()]

    for got, want in zip(run(poison), run(0), strict=True):
        np.testing.assert_array_equal(got, want)

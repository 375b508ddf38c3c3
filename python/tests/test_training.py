"""Does training train, repeat itself, and go on from a checkpoint?"""
import ml_dtypes
import numpy as np
import pytest

import attend


def make():
    return attend.LanguageModel(vocabulary=5, length=8, layers=1, model_dim=16)


TOKENS = np.array([[0, 1, 2, 3, 4, 0, 1, 2]])
TARGETS = np.array([[1, 2, 3, 4, 0, 1, 2, 3]])


def train(model, optimizer, steps):
    rate = attend.LearningRate(peak=1e-2, warmup=5)
    loss = None
    for _ in range(steps):
        logits, saved = model.forward_train(TOKENS)
        loss = attend.cross_entropy(logits, TARGETS)
        gradients = model.backward(loss.gradient, saved)
        attend.clip_gradients(gradients, 1.0)
        optimizer.step(model.parameters(), gradients, rate.at(optimizer.steps))
    return loss.value


def test_a_small_model_learns():
    model = make()
    assert train(model, attend.AdamW(), 60) < 0.1
    assert model.generate([0, 1], 4) == [2, 3, 4, 0]
    assert len(model.generate([0, 1], 20, temperature=1.0, seed=3)) == 20
    caches = model.make_caches(1)
    steps = [model.forward(TOKENS[:, :5], caches), model.forward(TOKENS[:, 5:], caches)]
    np.testing.assert_array_equal(np.concatenate(steps, 1), model.forward(TOKENS))
    assert caches[0].length(0) == 8
    assert "blocks.0.attention.weights" in model.trace(TOKENS)


def test_a_refused_call_leaves_the_caches_as_they_were():
    model = make()
    caches = model.make_caches(1)
    model.forward(TOKENS, caches)
    kept = caches[0].keys.copy()
    with pytest.raises(ValueError):
        model.forward(TOKENS, caches)                    # no room for more
    np.testing.assert_array_equal(caches[0].keys, kept)
    assert caches[0].length(0) == 8


def test_gradients_are_added_by_name():
    total = {"a": np.ones(2), "b": np.zeros(2)}
    attend.accumulate(total, {"b": np.full(2, 3.0), "a": np.full(2, 5.0)})
    assert list(total["a"]) == [6, 6] and list(total["b"]) == [3, 3]
    with pytest.raises(ValueError, match="accumulate"):
        attend.accumulate(total, {"b": np.ones(2), "c": np.ones(2)})
    attend.SGD().step(total, {"b": np.ones(2), "a": np.zeros(2)}, 1.0)
    assert list(total["a"]) == [6, 6] and list(total["b"]) == [2, 2]


def test_a_list_of_caches_holds_one_for_each_block():
    model = attend.LanguageModel(vocabulary=5, length=8, layers=2, model_dim=16)
    caches = model.make_caches(1)
    with pytest.raises(TypeError, match="caches takes a list of KvCache, found NoneType in it"):
        model.forward(TOKENS, [caches[0], None])
    with pytest.raises(ValueError, match="the same cache twice"):
        model.forward(TOKENS, [caches[0], caches[0]])
    assert model.forward(TOKENS, caches).shape == (1, 8, 5)     # unharmed


@pytest.mark.parametrize("optimizer", [attend.AdamW, lambda: attend.SGD(momentum=0.9, nesterov=True)])
def test_going_on_from_a_checkpoint_gives_the_same_bits(optimizer, tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    model, state = make(), optimizer()
    train(model, state, 4)
    attend.save_checkpoint(path, model.parameters(), state, model.metadata())
    train(model, state, 3)
    again, restored = make(), optimizer()
    metadata = attend.load_checkpoint(path, again.parameters(), restored)
    assert metadata["vocabulary"] == "5" and restored.steps == 4
    train(again, restored, 3)
    for name, array in model.parameters().items():
        np.testing.assert_array_equal(array, again.parameters()[name])
    third = optimizer()
    third.restore(state.steps, state.state(), model.parameters())
    assert third.steps == 7 and third.kind == state.kind


def test_losses():
    logits = np.random.default_rng(0).standard_normal((3, 4))
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    loss = attend.cross_entropy(logits, np.array([1, -100, 3]))
    assert loss.count == 2
    np.testing.assert_allclose(loss.value, -(np.log(p[0, 1]) + np.log(p[2, 3])) / 2)
    np.testing.assert_allclose(loss.gradient[0], (p[0] - [0, 1, 0, 0]) / 2)
    assert (loss.gradient[1] == 0).all()
    smooth = attend.cross_entropy(logits, np.array([1, 2, 3]), label_smoothing=0.5)
    np.testing.assert_allclose(smooth.value, -(np.log(p).mean()
                                               + np.log(p[range(3), [1, 2, 3]]).mean()) / 2)
    loss = attend.mse(logits, logits * 0)
    np.testing.assert_allclose(loss.value, (logits ** 2).mean())
    np.testing.assert_allclose(loss.gradient, 2 * logits / 12)


def test_optimizers_follow_their_formulas():
    x, g = np.array([1.0, -2.0]), np.array([0.5, 0.25])
    parameters = {"a": x.copy()}
    optimizer = attend.AdamW(beta1=0.8, beta2=0.9, epsilon=1e-4, weight_decay=0.1)
    m = v = 0
    for t in range(1, 4):
        optimizer.step(parameters, {"a": g}, 0.01)
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g * g
        x = x - 0.01 * (0.1 * x + m / (1 - 0.8 ** t) / (np.sqrt(v / (1 - 0.9 ** t)) + 1e-4))
    np.testing.assert_allclose(parameters["a"], x, rtol=1e-12)
    assert optimizer.kind == "adamw" and set(optimizer.state()) == {"m.a", "v.a"}


def test_gradients_are_clipped_and_added_in_place():
    a, b = np.full((2, 2), 3.0, np.float32), np.array([8.0])
    gradients = {"a": a, "b": b[::-1]}
    assert attend.clip_gradients(gradients, 5.0) == 10
    np.testing.assert_allclose(a, 1.5)
    np.testing.assert_allclose(b, 4)
    with pytest.raises(ValueError):
        attend.clip_gradients({"a": np.array([np.nan])}, 1.0)
    total = {}
    attend.accumulate(total, gradients)
    attend.accumulate(total, gradients)
    np.testing.assert_allclose(total["a"], 3)
    np.testing.assert_allclose(a, 1.5)
    with pytest.raises(TypeError, match="gradients takes a dict"):
        attend.SGD().step({"a": a}, [a], 0.1)
    with pytest.raises(ValueError):
        attend.SGD().step({"a": a}, {"b": a}, 0.1)


def test_learning_rates():
    rate = attend.LearningRate(peak=1.0, warmup=4, total=12, decay="linear", minimum=0.2)
    assert [rate.at(step) for step in (0, 3)] == [0.25, 1.0]
    assert rate.at(12) == pytest.approx(0.2)
    with pytest.raises(ValueError, match="'constant', 'linear' or 'cosine', found 'x'"):
        attend.LearningRate(decay="x")


# ---- 16 bits -----------------------------------------------------------------------------------------


def train_scaled(model, optimizer, scale, steps):
    """As the docstring of LossScale has it; gives how often there was no step."""
    skipped = 0
    while optimizer.steps < steps:
        logits, saved = model.forward_train(TOKENS)
        loss = attend.cross_entropy(logits, TARGETS, gradient_scale=scale.value)
        gradients = model.backward(loss.gradient, saved)
        finite = scale.unscale(gradients)
        if finite:
            assert all(g.dtype == np.float32 for g in gradients.values())
            attend.clip_gradients(gradients, 1.0)
            optimizer.step(model.parameters(), gradients, 1e-2)
        scale.update(finite)
        skipped += not finite
    return skipped


@pytest.mark.parametrize("type", ["bf16", "f16"])
def test_training_of_16_bits_learns_and_resumes(type, tmp_path):
    def make():
        return attend.LanguageModel(vocabulary=5, length=8, layers=1, model_dim=16, type=type)

    def scale():
        return attend.LossScale(initial=2.0**40, interval=3)

    path = tmp_path / "checkpoint.safetensors"
    model, optimizer, scaler = make(), attend.AdamW(), scale()
    skipped = train_scaled(model, optimizer, scaler, 4)
    assert (skipped > 10) == (type == "f16")                   # 2^40 is nothing to bf16
    attend.save_checkpoint(path, model.parameters(), optimizer, model.metadata(), scaler)
    train_scaled(model, optimizer, scaler, 60)
    assert model.generate([0, 1], 4) == [2, 3, 4, 0]
    again, restored, other = make(), attend.AdamW(), scale()
    with pytest.raises(OSError, match="give the LossScale"):
        attend.load_checkpoint(path, again.parameters(), restored)
    attend.load_checkpoint(path, again.parameters(), restored, loss_scale=other)
    train_scaled(again, restored, other, 60)
    assert (other.value, other.good_steps) == (scaler.value, scaler.good_steps)
    for name, array in model.parameters().items():
        assert array.tobytes() == again.parameters()[name].tobytes()
    assert {name for name in optimizer.state() if name.startswith("master.")} == {
        "master." + name for name in model.parameters()}


def test_a_loss_scale_leaves_gradients_alone_that_are_not_finite():
    gradients = {"a": np.array([1, np.inf], np.float16), "b": np.ones(2, np.float32)}
    kept = dict(gradients)
    assert attend.LossScale().unscale(gradients) is False
    assert all(gradients[name] is kept[name] for name in kept)
    del gradients["a"]
    assert attend.LossScale(initial=4.0).unscale(gradients) is True
    assert list(gradients["b"]) == [0.25, 0.25]
    with pytest.raises(ValueError, match="interval is 0"):
        attend.LossScale(interval=0)
    with pytest.raises(ValueError, match="not finite at a scale of 1 either"):
        attend.LossScale(initial=1.0).update(False)
    with pytest.raises(TypeError):
        attend.LossScale().unscale([np.ones(2)])


def test_a_layer_in_another_type():
    layer = attend.MultiHeadAttention(8, heads=2, type="f64")
    narrow = layer.to("bf16")
    assert narrow.options["type"] == "bf16" and layer.options["type"] == "f64"
    for name, array in layer.parameters().items():
        np.testing.assert_array_equal(array.astype(ml_dtypes.bfloat16), narrow.parameters()[name])
    x = np.ones((1, 3, 8), np.float32)
    with pytest.raises(ValueError, match=r"the layer is f64; convert it, or the layer with to\(\)"):
        layer.forward(x)
    assert layer.to("f32").forward(x).dtype == np.float32
    for each in (attend.Linear(3, 2), attend.LayerNorm(4), attend.Embedding(3, 4), attend.LearnedPositions(3, 4),
                 attend.FeedForward(4), attend.AttentionBlock({"model_dim": 4}), make()):
        assert all(p.dtype == np.float16 for p in each.to(np.float16).parameters().values())
    with pytest.raises(TypeError, match="int32"):
        layer.to("int32")


def test_a_layer_of_8_bits():
    linear = attend.Linear(in_=3, out=2)
    linear.parameters()["weight"][:] = [[127, -1.5, 0.5], [0, 0, 0]]
    small = linear.quantize()
    assert small.quantized and not linear.quantized
    numbers = small.parameters()
    assert list(numbers) == ["weight", "weight_scales", "bias"] and numbers["weight"].dtype == np.int8
    assert numbers["weight"].tolist() == [[127, -2, 0], [0, 0, 0]] and numbers["weight_scales"].tolist() == [1, 0]
    np.testing.assert_array_equal(small.forward(np.ones((1, 3), np.float32)), [[125, 0]])
    numbers["weight_scales"][1] = 2  # views, as of every layer
    numbers["weight"][1, 0] = 3
    np.testing.assert_array_equal(small.forward(np.ones((1, 3), np.float32)), [[125, 6]])
    layer = attend.MultiHeadAttention(8, heads=2)
    x = np.random.default_rng(1).standard_normal((1, 5, 8)).astype(np.float32)
    np.testing.assert_allclose(layer.quantize().forward(x), layer.forward(x), atol=0.05)
    assert layer.quantize().to("bf16").options["type"] == "bf16"
    with pytest.raises(NotImplementedError, match=r"the weights are i8, of quantize\(\); gradients need weights of"):
        layer.quantize().forward_train(x)
    for each in (attend.FeedForward(4), attend.AttentionBlock({"model_dim": 4}), make()):
        assert any(p.dtype == np.int8 for p in each.quantize().parameters().values())
    assert not hasattr(attend.LayerNorm(4), "quantize")


def test_a_model_of_8_bits_in_a_file(tmp_path):
    model = make().quantize()
    model.save(tmp_path / "model")
    loaded = attend.LanguageModel.load(tmp_path / "model")
    assert loaded.quantized
    for name, array in model.parameters().items():
        np.testing.assert_array_equal(loaded.parameters()[name], array)

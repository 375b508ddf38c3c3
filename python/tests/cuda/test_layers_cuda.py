"""Layers on tensors in a GPU's memory: to() a device and back, numbers beside the CPU's, streams, what is refused."""
import numpy as np
import pytest
import torch

import attend


def draw(*shape, seed=1):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype("float32"))


LAYERS = {
    "Linear": lambda: attend.Linear(32, 24),
    "LayerNorm": lambda: attend.LayerNorm(32),
    "RMSNorm": lambda: attend.RMSNorm(32),
    "FeedForward": lambda: attend.FeedForward(32, 48, activation="swiglu"),
    "MultiHeadAttention": lambda: attend.MultiHeadAttention(32, 4),
    "AttentionBlock": lambda: attend.AttentionBlock(attention={"model_dim": 32, "heads": 4}, hidden_dim=48),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_goes_to_the_gpu_and_back(name):
    layer = LAYERS[name]()
    gpu = layer.to("cuda")
    assert layer.device == "cpu" and gpu.device == "cuda:0"
    x = draw(2, 11, 32)
    y = gpu.forward(x.cuda())
    assert y.is_cuda and torch.allclose(y.cpu(), layer.forward(x), atol=2e-5)
    home = gpu.to("cpu")
    assert torch.equal(home.forward(x), layer.forward(x))
    parameters = gpu.parameters()
    assert all(p.is_cuda for p in parameters.values())
    for key, value in layer.parameters().items():
        assert np.array_equal(parameters[key].cpu().numpy(), value)


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_are_nearly_those_of_the_cpu(name):
    layer = LAYERS[name]()
    gpu = layer.to(torch.device("cuda", 0))
    x = draw(2, 11, 32)
    y, saved = layer.forward_train(x)
    dy = draw(*y.shape, seed=2)
    on_y, on_saved = gpu.forward_train(x.cuda())
    wanted, found = layer.backward(dy, saved), gpu.backward(dy.cuda(), on_saved)
    assert torch.allclose(found.dx.cpu(), wanted.dx, atol=2e-4)
    for key, value in wanted.parameters.items():
        assert torch.allclose(found.parameters[key].cpu(), value, atol=1e-3), key


def test_work_goes_into_the_current_stream_and_results_outlive_it():
    """The numbers of x come late, in a stream of its own; any other stream would read it before."""
    gpu = attend.FeedForward(64).to("cuda")
    x, truth = torch.zeros(500, 64, device="cuda"), draw(500, 64).cuda()
    expected = gpu(truth)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        x.copy_(truth)
        found = [gpu(x) for _ in range(20)]
    stream.synchronize()
    del stream
    assert all(torch.equal(f, expected) for f in found)


def test_copies_are_made_in_the_current_stream():
    """As above, of a weight."""
    gpu, truth = attend.Linear(64, 64).to("cuda"), draw(64, 64).cuda()
    weight = gpu.parameters()["weight"]
    torch.cuda.synchronize()
    for place in ("cpu", "cuda"):
        weight.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(200_000_000)
            weight.copy_(truth)
            copy = gpu.to(place)
        torch.cuda.synchronize()
        assert torch.equal(torch.as_tensor(copy.parameters()["weight"]).cuda(), truth)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")
def test_cuda_is_the_current_gpu_and_a_layer_goes_from_one_to_another():
    layer = attend.Linear(4, 4)
    with torch.cuda.device(1):
        second = layer.to("cuda")
    assert second.device == "cuda:1"
    first = second.to("cuda:0")
    assert first.device == "cuda:0"
    assert np.array_equal(first.to("cpu").parameters()["weight"], layer.parameters()["weight"])


def test_types_options_and_what_else_is_asked_for():
    layer = attend.MultiHeadAttention(64, 4, key_heads=2, rotary={}, type="bf16")
    gpu = layer.to("cuda")
    x = draw(2, 20, 64).bfloat16()
    lengths = torch.tensor([20, 13])
    y, lse, weights = gpu.forward(x.cuda(), causal=True, key_lengths=lengths.cuda(), return_lse=True, return_weights=True)
    wanted, wanted_lse, _ = layer.forward(x, causal=True, key_lengths=lengths, return_lse=True, return_weights=True)
    assert y.dtype == torch.bfloat16 and weights.is_cuda and weights.shape == (2, 4, 20, 20)
    assert torch.allclose(y.cpu().float(), wanted.float(), atol=0.05)
    assert torch.allclose(lse.cpu(), wanted_lse, atol=0.05)


def test_arrays_of_cupy():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    layer, x = attend.Linear(32, 24), draw(2, 32)
    y = layer.to("cuda")(cupy.asarray(x.numpy()))
    assert isinstance(y, cupy.ndarray)
    np.testing.assert_allclose(cupy.asnumpy(y), layer(x.numpy()), atol=2e-5)


def test_arrays_of_another_place_are_refused():
    layer = attend.Linear(4, 4)
    gpu = layer.to("cuda")
    with pytest.raises(NotImplementedError, match="is on cuda:0.*computes on the CPU"):
        layer(draw(2, 4).cuda())
    with pytest.raises(ValueError, match="x is on cpu, the layer on cuda:0"):
        gpu(draw(2, 4))
    with pytest.raises(NotImplementedError, match="quantize.. takes host memory alone"):
        gpu.quantize()
    with pytest.raises(NotImplementedError, match="a KvCache takes host memory alone"):
        attend.MultiHeadAttention(8, 2).to("cuda").make_cache(1, 4)
    with pytest.raises((NotImplementedError, RuntimeError, ValueError)):
        layer.to("cuda:77")

"""attend's own functions on tensors in a GPU's memory: what they give, where, in which stream, and what they refuse."""
import numpy as np
import pytest
import torch

import attend
from support import TOLERANCE, error
from test_options import CASES

TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def draw(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=torch.float64).to("cuda", dtype)


def to(device, x):
    if isinstance(x, torch.Tensor):
        return x.to(device)
    return type(x)(to(device, y) for y in x) if type(x) in (tuple, list) else x


def near(found, wanted, dtype=torch.float64):
    assert found.is_cuda and error(found.cpu(), wanted.double().cpu()) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("d", [16, 20, 64, 128, 200])
def test_attention_and_gradients(dtype, d):
    q, k, v = draw(2, 4, 70, d, dtype=dtype), draw(2, 2, 90, d, dtype=dtype), draw(2, 2, 90, d, dtype=dtype)
    host = [x.double().cpu() for x in (q, k, v)]
    out, lse = attend.attention(q, k, v, causal=True, return_lse=True)
    truth, truth_lse = attend.attention(*host, causal=True, return_lse=True)
    assert out.dtype == dtype and lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    near(out, truth, dtype)
    near(lse, truth_lse, torch.float64 if dtype == torch.float64 else torch.float32)
    dout = draw(*out.shape, dtype=dtype)
    found = attend.attention_backward(q, k, v, out, lse, dout, causal=True)
    wanted = attend.attention_backward(*host, truth, truth_lse, dout.double().cpu(), causal=True)
    for x, y in zip(found, wanted):
        assert x.dtype == dtype and x.is_cuda and error(x.cpu(), y) < 2 * TOLERANCE[dtype]


def test_the_kernel_is_named():
    q = draw(1, 2, 8, 64, dtype=torch.bfloat16)
    plan = attend.Plan.attention(q, q, q)
    hopper = torch.cuda.get_device_capability() == (9, 0)
    assert plan.kernel == ("cuda.sm90.forward" if hopper else "cuda.portable.forward")
    assert torch.equal(plan.run(q, q, q), attend.attention(q, q, q))
    forced = attend.Plan.attention(q, q, q, kernel="cuda.portable.forward")
    near(forced.run(q, q, q), attend.attention(q, q, q), torch.bfloat16)
    out, lse = attend.attention(q, q, q, return_lse=True)
    back = attend.Plan.attention_backward(q, q, q, out, lse, out)
    for x, y in zip(back.run_backward(q, q, q, out, lse, out), attend.attention_backward(q, q, q, out, lse, out)):
        assert torch.equal(x, y)


@pytest.mark.parametrize("name", CASES)
def test_every_option(name):
    """With the options' own tensors on the GPU: results and gradients are those of the CPU."""
    tensors, options = CASES[name]()
    there, given = to("cuda", tensors), {key: to("cuda", x) for key, x in options.items()}
    if "max_q" in given:
        given.setdefault("max_k", given["max_q"])
    wanted = attend.attention(*tensors, return_lse=True, return_weights=True, **options)
    found = attend.attention(*there, return_lse=True, return_weights=True, **given)
    for x, y in zip(found, wanted):
        finite = y.isfinite()
        assert torch.equal(x.cpu()[~finite], y[~finite])
        near(torch.where(finite.cuda(), x, 0), torch.where(finite, y, 0))
    dout = torch.randn_like(wanted[0])
    gradients = attend.attention_backward(*tensors, *wanted[:2], dout, **options)
    for x, y in zip(attend.attention_backward(*there, *found[:2], dout.cuda(), **given), gradients):
        if y is not None:
            near(x, y)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("d, dv", [(64, 64), (128, 128), (256, 256), (72, 40), (128, 200)])
@pytest.mark.parametrize("heads, kv_heads", [(8, 2), (40, 1), (48, 48)])
def test_token_by_token_has_the_bits_of_the_prompt(dtype, d, dv, heads, kv_heads):
    """With keys of other lengths, spread scores, NaN behind the last key, and one that sees nothing."""
    keys, lengths = 1500, torch.tensor([1500, 0, 333], device="cuda")
    q, k, v = draw(3, heads, 200, d, dtype=dtype) * 3, draw(3, kv_heads, keys, d, dtype=dtype), draw(3, kv_heads, keys, dv, dtype=dtype)
    for b, n in enumerate(lengths.tolist()):
        k[b, :, n:] = v[b, :, n:] = torch.nan
    alone = {199: {}, 0: {"query_offset": lengths - 200}, 77: {"query_offset": lengths - 123}}
    for window, chosen in ((None, (199, 0, 77)), ((700, None), (199,))):
        options = {"causal": True, "window": window, "key_lengths": lengths, "return_lse": True}
        out, lse = attend.attention(q, k, v, **options)
        for i in chosen:
            one, one_lse = attend.attention(q[:, :, i : i + 1], k, v, **options, **alone[i])
            assert torch.equal(one, out[:, :, i : i + 1]) and torch.equal(one_lse, lse[:, :, i : i + 1]), (window, i)
            assert one[0].isfinite().all() and not one[1].any()


def test_what_else_can_be_asked_for():
    q, k = draw(1, 4, 5, 8), draw(1, 2, 9, 8)
    for stage in ("raw", "softcapped", "masked"):
        found = attend.attention(q, k, k, return_scores=stage, softcap=2.0)[1]
        near(found, attend.attention(q.cpu(), k.cpu(), k.cpu(), return_scores=stage, softcap=2.0)[1], torch.float32)
    _, every = attend.attention(q, k, k, return_weights=True)
    _, some = attend.attention(q, k, k, return_weights=True, weight_heads=[2, 0])
    assert torch.equal(some, every[:, [2, 0]])
    out = torch.empty(1, 5, 4, 8, device="cuda").transpose(1, 2)
    assert attend.attention(q, k, k, out=out) is out and torch.equal(out, attend.attention(q, k, k))
    assert attend.weights_shape(q, k, k) == (1, 4, 5, 9)
    assert attend.attention(q[:, :, :0], k, k).shape == (1, 4, 0, 8)
    assert not attend.attention(q, k[:, :, :0], k[:, :, :0]).any()


def test_parts_of_the_keys():
    q, k, v = draw(2, 2, 3, 20), draw(2, 2, 700, 20), draw(2, 2, 700, 12)
    whole, lse = attend.attention(q, k, v, return_lse=True)
    state, cuts = None, (0, 256, 512, 700)
    for begin, end in zip(cuts, cuts[1:]):
        state = attend.attention_partial(q, k[:, :, begin:end], v[:, :, begin:end], state, key_offset=begin)
    out, found = attend.finish_partial([state], out=torch.empty_like(whole), return_lse=True)
    assert torch.equal(out, whole)
    near(found, lse.double(), torch.float32)
    apart = [attend.attention_partial(q, k[:, :, a:b], v[:, :, a:b], key_offset=a) for a, b in zip(cuts, cuts[1:])]
    near(attend.finish_partial([attend.merge_partial(apart)]), whole.double(), torch.float32)
    parts = [attend.attention(q, k[:, :, a:b], v[:, :, a:b], return_lse=True) for a, b in zip(cuts, cuts[1:])]
    out, found = attend.merge([o for o, _ in parts], [lse for _, lse in parts])
    near(out, whole.double(), torch.float32)
    near(found, lse.double(), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_work_is_done_in_the_current_stream(dtype):
    """The numbers of q come late, in a stream of their own; any other stream would read it before."""
    q, truth = torch.zeros(1, 2, 64, 64, device="cuda", dtype=dtype), draw(1, 2, 64, 64, dtype=dtype)
    wanted = attend.attention(truth, truth, truth)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(200_000_000)
        q.copy_(truth)
        out = attend.attention(q, q, q)
        ahead = torch.ops.attend.attention(q, q, q, None, None, None, False, 0.0, None, False)[0]
    torch.cuda.synchronize()
    assert torch.equal(out, wanted) and torch.equal(ahead, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_waits_for_the_gpu(dtype):
    """While a graph is recorded the driver refuses whatever would wait."""
    q, k = draw(1, 4, 100, 64, dtype=dtype), draw(1, 2, 300, 64, dtype=dtype)
    options = {"causal": True, "key_lengths": torch.tensor([290], device="cuda")}

    def step():
        out, lse = attend.attention(q, k, k, return_lse=True, **options)
        return out, *attend.attention_backward(q, k, k, out, lse, out, **options)

    step()  # loads the kernels
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    q.copy_(draw(1, 4, 100, 64, dtype=dtype))
    graph.replay()
    for x, y in zip(found, step()):
        assert torch.equal(x, y)


def test_tensors_on_different_devices_are_refused():
    q = draw(1, 2, 3, 4)
    for options, name in (({"mask": torch.ones(3, 3, dtype=torch.bool)}, "mask"), ({"sinks": torch.zeros(2)}, "sinks"),
                          ({"key_lengths": torch.tensor([2])}, "key_lengths"), ({"out": torch.empty(1, 2, 3, 4)}, "out")):
        with pytest.raises(ValueError, match=f"{name} is on cpu, q on cuda:0; all tensors must be on one device"):
            attend.attention(q, q, q, **options)
    with pytest.raises(ValueError, match="k is on cuda:0, q on cpu"):
        attend.attention(q.cpu(), q, q)
    out, lse = attend.attention(q, q, q, return_lse=True)
    with pytest.raises(ValueError, match="dout is on cpu, q on cuda:0"):
        attend.attention_backward(q, q, q, out, lse, out.cpu())
    with pytest.raises(ValueError, match="on cpu"):
        attend.merge([out, out.cpu()], [lse, lse])


def test_bad_input_is_refused_and_the_device_stays_usable():
    q = draw(1, 2, 3, 4)
    with pytest.raises(ValueError, match="max_q is missing.*cannot read"):
        attend.attention(q, q, q, cu_seqlens_q=torch.tensor([0, 3], device="cuda"))
    with pytest.raises(ValueError, match="key heads|heads"):
        attend.attention(draw(1, 3, 3, 4), q, q)
    with pytest.raises(TypeError, match="requires a gradient"):
        attend.attention(q.clone().requires_grad_(), q, q)
    far = torch.tensor([1 << 40, -5], device="cuda")  # cannot be looked at here, and reach nothing outside
    q = draw(2, 2, 3, 4)
    out = attend.attention(q, q, q, key_lengths=far)
    assert torch.equal(out[0], attend.attention(q[:1], q[:1], q[:1])[0]) and not out[1].any()


def test_statistics_and_windows_of_the_weights():
    q, k = draw(2, 4, 70, 32), draw(2, 2, 90, 32)
    options = {"causal": True, "key_lengths": torch.tensor([90, 50], device="cuda")}
    tokens = torch.randint(5, (2, 90), device="cuda")
    given = {"top_k": 3, "tile_rows": 8, "tile_columns": 8}
    found = attend.inspect(q, k, tokens=tokens, **given, **options)
    host = {name: to("cpu", x) for name, x in options.items()}
    wanted = attend.inspect(q.cpu(), k.cpu(), tokens=tokens.cpu(), **given, **host)
    for name in ("lse", "maximum", "entropy", "top_weights", "key_mass", "tile_mean", "tile_maximum"):
        x, y = getattr(found, name), getattr(wanted, name)
        assert not x.is_cuda and torch.allclose(x, y, atol=1e-5, rtol=1e-5), name
    assert torch.equal(found.top_keys, wanted.top_keys)
    assert [h.label for h in found.heads] == [h.label for h in wanted.heads]
    window = {"batch": 1, "head": 3, "query": 60, "queries": 10, "key": 0, "keys": 60}
    x = attend.weights_of(q, k, found.lse, **window, **options)
    assert torch.allclose(x, attend.weights_of(q.cpu(), k.cpu(), wanted.lse, **window, **host), atol=1e-6)


def test_what_runs_on_the_cpu_alone_says_so():
    q = draw(1, 2, 3, 4)
    for name, call in {
        "view": lambda: attend.view(q, q, q),
        "Linear": lambda: attend.Linear(4, 4)(q),
        "MultiHeadAttention": lambda: attend.MultiHeadAttention(model_dim=4, heads=2)(q[0]),
        "cross_entropy": lambda: attend.cross_entropy(q[0, 0], torch.zeros(3, dtype=torch.int64, device="cuda")),
        "save_npy": lambda: attend.save_npy("never.npy", q),
    }.items():
        with pytest.raises(NotImplementedError, match="is on cuda:0.*computes on the CPU"):
            call()
            pytest.fail(f"{name} took a tensor of a GPU")


def test_arrays_of_cupy():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    host = [np.random.default_rng(n).standard_normal((2, 2, 30, 16)).astype("float32") for n in range(3)]
    with cupy.cuda.Stream(non_blocking=True):
        q, k, v = (cupy.asarray(x) for x in host)
        out, lse = attend.attention(q, k, v, causal=True, return_lse=True)
        assert isinstance(out, cupy.ndarray) and isinstance(lse, cupy.ndarray)
        found = cupy.asnumpy(out)
        state = attend.attention_partial(q, k, v, causal=True)
        assert (cupy.asnumpy(attend.finish_partial([state], out=cupy.empty_like(out))) == found).all()
    np.testing.assert_allclose(found, attend.attention(*host, causal=True), atol=3e-6)
    with pytest.raises(ValueError, match="all tensors must be on one device"):
        attend.attention(q, k, host[2])


def test_a_second_gpu():
    if torch.cuda.device_count() < 2:
        pytest.skip("this machine has one GPU")
    q = draw(1, 2, 30, 64, dtype=torch.bfloat16)
    there = q.to("cuda:1")
    out = attend.attention(there, there, there)
    assert out.device.index == 1 and torch.equal(out.cpu(), attend.attention(q, q, q).cpu())
    with pytest.raises(ValueError, match="k is on cuda:1, q on cuda:0"):
        attend.attention(q, there, there)

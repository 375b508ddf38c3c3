"""torch.ops.attend.*: what PyTorch's own checkers say of them, the compiler, autograd, dropout."""
import attend.torch
import pytest
import torch
from attend.torch.operators import attention, attention_backward
from attend.torch.unheard import calls_unless
from torch.nn import functional as F

sdpa = attend.torch.scaled_dot_product_attention


def tensors(dtype=torch.float64, requires_grad=True):
    q = torch.randn(2, 4, 3, 5, dtype=dtype)
    k, v = torch.randn(2, 2, 6, 5, dtype=dtype), torch.randn(2, 2, 6, 7, dtype=dtype)
    return [x.requires_grad_(requires_grad) for x in (q, k, v)]


def cases():
    """(mask, bias, scale, causal, dropout_p, seed, need_weights) of the operator."""
    mask = torch.rand(2, 1, 3, 6) < 0.6
    bias = torch.randn(4, 3, 6, dtype=torch.float64, requires_grad=True)
    seed = torch.tensor([7])
    yield None, None, None, False, 0.0, None, False
    yield mask, None, 0.3, False, 0.0, None, True
    yield None, bias, None, True, 0.0, None, True
    yield mask, bias, -0.5, True, 0.4, seed, True
    yield None, None, None, False, 0.4, seed, False


@pytest.mark.parametrize("case", range(5))
def test_gradcheck_through_out_lse_and_weights(case):
    torch.manual_seed(case)
    mask, bias, *rest = list(cases())[case]
    q, k, v = tensors()

    def all_results(q, k, v, bias):
        out, lse, weights, _ = attention(q, k, v, mask, bias, *rest)
        return out, lse.clamp(min=-1e3), weights  # a row without keys has lse -inf

    assert torch.autograd.gradcheck(all_results, (q, k, v, bias))


@pytest.mark.parametrize("case", range(5))
def test_opcheck_of_attention(case):
    torch.manual_seed(case)
    torch.library.opcheck(attention, (*tensors(), *list(cases())[case]))


@pytest.mark.parametrize("case", range(5))
def test_opcheck_of_its_gradient(case):
    torch.manual_seed(case)
    q, k, v = tensors(requires_grad=False)
    *options, need_weights = list(cases())[case]
    options[1] = None if options[1] is None else options[1].detach()
    out, lse, weights, _ = attention(q, k, v, *options, need_weights)
    dweights = torch.randn_like(weights) if need_weights else None
    arguments = (q, k, v, out, lse, weights, torch.randn_like(out), torch.randn_like(lse), dweights, *options)
    # Its own gradient is refused, which the other checks would take for a defect.
    utils = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(attention_backward, arguments, test_utils=utils)


def test_second_gradient_is_refused_with_the_reason():
    q = torch.randn(1, 1, 3, 4, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(sdpa(q, q, q).sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="first gradients only"):
        gradient.sum().backward()


def test_forward_mode_is_refused_with_the_reason():
    q = torch.randn(1, 1, 3, 4)
    layer = attend.torch.MultiheadAttention(4, 1)
    for function in (lambda q: sdpa(q, q, q), lambda q: layer(q[0], q[0], q[0])[0]):
        with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
            torch.func.jvp(function, (q,), (q,))
        with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match="no forward-mode"):
            function(torch.autograd.forward_ad.make_dual(q, q))


def compiled_equals_eager(backend, function, *inputs):
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    results = []
    for call in (function, compiled):
        leaves = [x.detach().requires_grad_() for x in inputs]
        out = call(*leaves)
        out.sin().sum().backward()
        results.append([out, *(x.grad for x in leaves)])
    for eager, other in zip(*results):
        torch.testing.assert_close(other, eager)


# Nothing else is in the graph: inductor would call a C++ compiler for it, which takes a minute.
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_torch_compile_takes_the_function_in_one_graph(backend):
    mask = torch.rand(3, 6) < 0.7

    def function(q, k, v):
        return sdpa(q, k, v, mask, enable_gqa=True)

    compiled_equals_eager(backend, function, *tensors(torch.float32, False))


def test_torch_compile_takes_the_module_in_one_graph():
    torch.manual_seed(0)
    layer = attend.torch.MultiheadAttention(12, 3, batch_first=True, add_bias_kv=True)
    padding = torch.tensor([[False, True, False, False], [True, False, False, False]])

    def function(x):
        out, weights = layer(x, x, x, key_padding_mask=padding)
        return out.sum(-1) + weights.sum(-1)

    compiled_equals_eager("aot_eager", function, torch.randn(2, 4, 12))


def test_torch_compile_with_dynamic_shapes():
    causal = lambda q: sdpa(q, q, q, is_causal=True)  # noqa: E731
    function = torch.compile(causal, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (3, 8, 17):
        q = torch.randn(2, 2, length, 4)
        torch.testing.assert_close(function(q), sdpa(q, q, q, is_causal=True))


def test_compiled_dropout_draws_anew_each_time():
    q = torch.randn(1, 2, 9, 4)
    function = torch.compile(lambda q: sdpa(q, q, q, dropout_p=0.5), fullgraph=True, backend="aot_eager")
    assert not torch.equal(function(q), function(q))


def test_torch_export_keeps_the_operator():
    layer = attend.torch.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(2, 5, 8)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x, x, x, need_weights=False)[0]

    program = torch.export.export(Model(), (x,))
    assert any("attend.attention" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(x), layer(x, x, x)[0])


def test_fake_and_meta_tensors_have_the_shapes_of_real_ones():
    q, k, v = (x.to("meta") for x in tensors(torch.bfloat16, False))
    out, lse, weights, _ = attention(q, k, v, None, None, None, False, 0.0, None, True)
    assert out.shape == (2, 4, 3, 7) and out.dtype == torch.bfloat16
    assert lse.shape == (2, 4, 3) and lse.dtype == torch.float32
    assert weights.shape == (2, 4, 3, 6)


class Listens(torch.overrides.TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


def test_who_listens_hears_of_the_operator():
    q = torch.randn(1, 2, 4, 8)
    sdpa = attend.torch.scaled_dot_product_attention
    with Listens() as mode:
        sdpa(q, q, q)
    assert any("attend" in name for name in mode.seen)
    with torch.profiler.profile() as profile:
        sdpa(q, q, q)
    assert any("attend::attention" in event.key for event in profile.key_averages())
    assert sdpa(q.requires_grad_(), q, q).requires_grad


@pytest.mark.parametrize("causal", [False, True])
def test_the_short_way_gives_the_bits_of_the_operator(causal, monkeypatch):
    q, k = torch.randn(2, 4, 3, 8), torch.randn(2, 4, 5, 8)
    sdpa = attend.torch.scaled_dot_product_attention
    short = sdpa(q, k, k, is_causal=causal, scale=0.3)
    monkeypatch.setattr("attend.torch.functional.calls", calls_unless(True))
    assert torch.equal(short, sdpa(q, k, k, is_causal=causal, scale=0.3))


def test_no_input_is_copied():
    """A view of 512 MiB with strides of zero: a copy of it would show in the peak memory."""
    import resource

    k = torch.zeros(1, 1, 1, 64).expand(1, 1, 2**21, 64)
    q = torch.zeros(1, 1, 1, 64)
    sdpa(q, k[:, :, :512], k[:, :, :512])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert sdpa(q, k, k).shape == (1, 1, 1, 64)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 200_000, f"{grown} KiB more"


def test_same_seed_drops_the_same_weights():
    q = torch.randn(2, 3, 8, 4, dtype=torch.float64)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(sdpa(q, q, q, dropout_p=0.3))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_dropout_drops_its_share_and_keeps_the_mean():
    q = torch.zeros(1, 1, 400, 4)
    v = torch.eye(400).expand(1, 1, 400, 400)
    torch.manual_seed(0)
    weights = sdpa(q, q, v, dropout_p=0.25)
    assert abs((weights == 0).float().mean() - 0.25) < 0.01
    assert abs(weights.sum(-1).mean() - 1) < 0.01
    assert sdpa(q, q, v, dropout_p=1.0).abs().max() == 0


def test_activation_checkpointing_repeats_the_dropout():
    from torch.utils.checkpoint import checkpoint

    q = torch.randn(1, 2, 6, 4, dtype=torch.float64)
    gradients = []
    for keep in (True, False):
        x = q.clone().requires_grad_()
        torch.manual_seed(3)
        function = lambda x: sdpa(x, x, x, dropout_p=0.4)  # noqa: E731
        (function(x) if keep else checkpoint(function, x, use_reentrant=False)).sin().sum().backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)


def test_autocast_computes_in_its_type_as_pytorch():
    q = torch.randn(1, 2, 5, 8)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            mine, theirs = sdpa(q, q, q), F.scaled_dot_product_attention(q, q, q)
        assert mine.dtype == theirs.dtype == dtype
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)
    layer = attend.torch.MultiheadAttention(8, 2, add_bias_kv=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, weights = layer(*[torch.randn(4, 1, 8)] * 3, attn_mask=torch.zeros(4, 4))
    assert out.dtype == weights.dtype == torch.bfloat16
    out.float().sum().backward()
    assert layer.in_proj_weight.grad.dtype == torch.float32


def test_many_threads_at_once():
    from concurrent.futures import ThreadPoolExecutor

    inputs = [tensors(torch.float32) for _ in range(16)]
    expected = [sdpa(*x, enable_gqa=True) for x in inputs]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda x: sdpa(*x, enable_gqa=True), inputs))
    assert all(torch.equal(a, b) for a, b in zip(expected, found))

"""attend.torch on tensors in a GPU's memory: the operator, autograd, the compiler, blocks and layers."""
import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import attend
import attend.torch
from support import TOLERANCE, contract, error
from test_options import CASES, case

F64 = torch.float64


def draw(*shape, dtype=F64, grad=False):
    return torch.randn(shape, dtype=F64).to("cuda", dtype).requires_grad_(grad)


def there(x):
    if isinstance(x, torch.Tensor):
        return x.cuda()
    return type(x)(there(y) for y in x) if type(x) in (tuple, list) else x


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_every_option(name):
    """attend.torch.attention through autograd, against itself on the CPU."""
    found = []
    tensors, options = CASES[name]()
    for move in (lambda x: x, there):
        leaves = [move(x).clone().requires_grad_() for x in tensors]
        given = {key: move(x) for key, x in options.items()}
        if "max_q" in given:
            given.setdefault("max_k", given["max_q"])
        for key in ("bias", "sinks", "alibi"):
            if key in given:
                given[key] = given[key].clone().requires_grad_()
                leaves.append(given[key])
        out, lse = attend.torch.attention(*leaves[:3], return_lse=True, **given)
        torch.manual_seed(1)
        (out * move(torch.randn(out.shape, dtype=F64))).sum().backward()
        found.append((out, *(x.grad for x in leaves)))
    for y, x in zip(*found):
        assert x.is_cuda and error(x.cpu(), y) < 1e-12


@pytest.mark.parametrize("dtype", [F64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [False, True])
def test_scaled_dot_product_attention(dtype, causal):
    q, k, v = (draw(2, 4, n, 64, dtype=dtype, grad=True) for n in (50, 80, 80))
    mask = torch.ones(50, 80, dtype=torch.bool, device="cuda").tril() if causal else None
    truth, _ = contract(*(x.double() for x in (q, k, v)), mask)
    wanted = torch.autograd.grad(truth.sum(), (q, k, v))
    out = attend.torch.scaled_dot_product_attention(q, k, v, is_causal=causal)
    assert out.dtype == dtype and error(out, truth) < TOLERANCE[dtype]
    for x, y in zip(torch.autograd.grad(out.sum(), (q, k, v)), wanted):
        assert x.dtype == dtype and error(x, y.double()) < 4 * TOLERANCE[dtype]


def test_pytorchs_checks_of_the_operator():
    tensors, _ = case()
    q, k, v = (x.cuda().requires_grad_() for x in tensors)
    torch.library.opcheck(torch.ops.attend.attention.default, (q, k, v, None, None, None, True, 0.0, None, False))


def test_compiled():
    """The graph of one call, forward and backward; nothing breaks it."""
    q, k, v = (draw(2, 4, 33, 16, dtype=torch.float32, grad=True) for _ in range(3))

    def step(q, k, v):
        return attend.torch.scaled_dot_product_attention(q * 2, k, v, is_causal=True)

    out = torch.compile(step, backend="aot_eager", fullgraph=True)(q, k, v)
    assert torch.equal(out, step(q, k, v))
    for x, y in zip(torch.autograd.grad(out.sum(), (q, k, v)), torch.autograd.grad(step(q, k, v).sum(), (q, k, v))):
        assert torch.equal(x, y)


def test_autocast():
    q = draw(1, 2, 20, 64, dtype=torch.float32)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = attend.torch.scaled_dot_product_attention(q, q, q)
    assert out.dtype == torch.bfloat16 and torch.equal(out, attend.attention(*[q.bfloat16()] * 3))


def test_dropout_is_repeated_by_the_seed():
    """And has the bits it has on the CPU: the same weights are dropped."""
    q = draw(1, 2, 40, 16, grad=True)

    def once(x):
        torch.manual_seed(3)
        return attend.torch.scaled_dot_product_attention(x, x, x, dropout_p=0.4)

    out = once(q)
    assert torch.equal(out, once(q)) and error(out.cpu(), once(q.detach().cpu())) < 1e-12
    assert not torch.equal(out, attend.torch.scaled_dot_product_attention(q, q, q, dropout_p=0.4))
    gradient, = torch.autograd.grad(out.sum(), q)
    host = q.detach().cpu().requires_grad_()
    assert error(gradient.cpu(), torch.autograd.grad(once(host).sum(), host)[0]) < 1e-12


def test_weights_have_gradients():
    q, k = draw(1, 2, 6, 8, grad=True), draw(1, 2, 7, 8, grad=True)
    _, weights = attend.torch.attention(q, k, k, return_weights=True)
    truth = contract(q, k, k)[1]
    assert error(weights, truth) < 1e-12
    for x, y in zip(torch.autograd.grad((weights**2).sum(), (q, k)), torch.autograd.grad((truth**2).sum(), (q, k))):
        assert error(x, y) < 1e-12


def test_a_block_of_sdpa():
    model = nn.TransformerEncoderLayer(64, 4, dropout=0.0, batch_first=True).cuda()
    x = draw(2, 30, 64, dtype=torch.float32)
    wanted = model(x)
    with attend.torch.sdpa(model, strict=True) as calls:
        out = model(x)
    out.sum().backward()
    assert calls.on_attend == 1 and not calls.in_pytorch, str(calls)
    assert error(out, wanted.double()) < 1e-5 and model.self_attn.in_proj_weight.grad.isfinite().all()
    with torch.no_grad(), attend.torch.sdpa(strict=True) as calls:
        q = draw(1, 2, 9, 64, dtype=torch.bfloat16)
        assert torch.equal(F.scaled_dot_product_attention(q, q, q), attend.attention(q, q, q))
    assert calls.on_attend == 1


def test_layers_of_pytorch_are_replaced():
    model = nn.TransformerEncoderLayer(32, 4, dropout=0.0, batch_first=True).cuda().train()
    ours = copy.deepcopy(model)
    assert attend.torch.replace(ours).swapped == ["self_attn"]
    x, padding = draw(2, 9, 32, dtype=torch.float32), torch.arange(9, device="cuda").expand(2, 9) >= 7
    found, wanted = (m(x, src_key_padding_mask=padding) for m in (ours, model))
    assert error(found[:, :7], wanted[:, :7].double()) < 1e-5
    found[:, :7].sum().backward(), wanted[:, :7].sum().backward()
    assert error(ours.self_attn.in_proj_weight.grad, model.self_attn.in_proj_weight.grad.double()) < 1e-4


def test_checkpointing_in_another_stream():
    q = draw(1, 2, 30, 16, grad=True)

    def attention(x):
        return attend.torch.attention(x, x, x, causal=True)

    with torch.cuda.stream(torch.cuda.Stream()):
        found, = torch.autograd.grad(checkpoint(attention, q, use_reentrant=False).sum(), q)
    torch.cuda.synchronize()
    assert torch.equal(found, torch.autograd.grad(attention(q).sum(), q)[0])


def test_weights_and_statistics_are_captured():
    model = nn.TransformerEncoderLayer(32, 4, batch_first=True).cuda().eval()
    attend.torch.replace(model)
    x = draw(1, 6, 32, dtype=torch.float32)
    with torch.no_grad(), attend.torch.capture(model) as run:
        model(x)
    weights = run.steps[0][run.layers[0]].weights
    assert weights.is_cuda and error(weights.sum(-1), torch.ones_like(weights.sum(-1)).double()) < 1e-5
    with torch.no_grad(), attend.torch.capture(model, what="stats") as run:
        model(x)
    entropy = run.steps[0][run.layers[0]].stats.entropy
    assert error(entropy, -(weights * weights.log()).sum(-1).double().cpu()) < 1e-5


def test_tensors_on_different_devices_are_refused():
    q = draw(1, 2, 3, 4)
    with pytest.raises(ValueError, match="on cpu and cuda:0; they must be on one device"):
        attend.torch.scaled_dot_product_attention(q, q, q, torch.ones(3, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match="must be on one device"):
        attend.torch.attention(q, q.cpu(), q)
    with pytest.raises(ValueError, match="sinks is on cpu, q on cuda:0"):
        torch.ops.attend.attention(q, q, q, None, None, None, False, 0.0, None, False, sinks=torch.zeros(2, dtype=F64))

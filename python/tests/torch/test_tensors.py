"""Do PyTorch's tensors go in and come out, without a copy and without losing a gradient?"""
import numpy as np
import pytest
import torch

import attend

TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def draw(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_tensors_in_tensors_out(dtype):
    q, k, v = (draw(1, 2, 3, 4, seed=n, dtype=dtype) for n in range(3))
    mask = torch.ones(3, 3, dtype=torch.bool).tril()
    out, lse = attend.attention(q, k, v, mask=mask, return_lse=True)
    assert isinstance(out, torch.Tensor) and out.dtype == dtype
    expected = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(),
                                                                attn_mask=mask)
    torch.testing.assert_close(out.double(), expected, atol=2e-2, rtol=2e-2)
    dq, dk, dv = attend.attention_backward(q, k, v, out, lse, out, mask=mask)
    assert all(isinstance(x, torch.Tensor) and x.dtype == dtype for x in (dq, dk, dv))


def test_any_strides():
    x = draw(2, 5, 3, 4)                                  # [batch, length, heads, d]
    q = x.transpose(1, 2)
    torch.testing.assert_close(attend.attention(q, q, q), attend.attention(*[q.contiguous()] * 3),
                               rtol=0, atol=0)
    wide = x[:, ::2].expand(2, 3, 3, 4)
    np.testing.assert_array_equal(attend.attention(wide.numpy(), wide.numpy(), wide.numpy()),
                                  attend.attention(wide, wide, wide).numpy())


def test_out_is_written():
    q = draw(1, 2, 3, 4)
    out = torch.zeros_like(q)
    assert attend.attention(q, q, q, out=out) is out
    torch.testing.assert_close(out, attend.attention(q, q, q), rtol=0, atol=0)


def test_empty_tensors():
    q, k = draw(1, 2, 3, 4), draw(1, 2, 0, 4)
    assert (attend.attention(q, k, k) == 0).all()


def test_a_pending_minus_sign_is_read_and_not_written_into():
    x = torch.randn(1, 2, 3, 4, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    y = x.resolve_neg()
    assert torch.equal(attend.attention(x, x, x), attend.attention(y, y, y))
    with pytest.raises(ValueError, match="out is a view with PyTorch's negative bit"):
        attend.attention(y, y, y, out=x)


def test_what_requires_a_gradient_is_refused():
    q = draw(1, 2, 3, 4).requires_grad_()
    with pytest.raises(TypeError, match=r"k requires a gradient.*\.detach\(\).*attend\.torch"):
        attend.attention(q.detach(), q, q.detach())
    with pytest.raises(TypeError, match="requires a gradient"):
        attend.attention(torch.nn.Parameter(q.detach()), q, q)


def test_tensors_without_memory_are_refused():
    q = torch.empty(1, 2, 3, 4, device="meta")
    with pytest.raises((TypeError, NotImplementedError), match="attention: q"):
        attend.attention(q, q, q)


def test_layers_and_training():
    layer = attend.MultiHeadAttention(model_dim=8, heads=2)
    x = draw(1, 3, 8)
    y, saved = layer.forward_train(x, causal=True)
    gradients = layer.backward(torch.ones_like(y), saved)
    assert isinstance(gradients.parameters["q.weight"], torch.Tensor)
    attend.SGD().step(layer.parameters(), gradients.parameters, 0.1)
    assert not torch.equal(layer.forward(x, causal=True), y)
    assert attend.Linear(3, 2, type=torch.bfloat16).parameters()["weight"].dtype == "bfloat16"


def test_results_outlive_inputs():
    def make():
        q = draw(1, 2, 300, 64)
        return attend.attention(q, q, q), q.clone()
    out, q = make()
    junk = [draw(1, 2, 300, 64, seed=n) for n in range(20)]
    torch.testing.assert_close(out, attend.attention(q, q, q), rtol=0, atol=0)
    del junk

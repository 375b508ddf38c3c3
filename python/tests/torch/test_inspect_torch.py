"""Do statistics and pages take PyTorch's tensors?"""
import numpy as np
import pytest
import torch

import attend


@pytest.mark.parametrize("type", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_statistics_of_tensors_are_tensors(type):
    torch.manual_seed(1)
    q, k = torch.randn(1, 2, 6, 8).to(type), torch.randn(1, 2, 6, 8).to(type)
    found = attend.inspect(q, k, causal=True, top_k=2)
    assert isinstance(found.lse, torch.Tensor) and found.top_keys.dtype == torch.int64
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    scores = (q.double() @ k.double().mT / 8 ** 0.5).masked_fill(~mask, -torch.inf)
    weights = scores.softmax(-1)
    torch.testing.assert_close(found.lse.double(), scores.logsumexp(-1), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.key_mass.double(), weights.sum(2), atol=1e-5, rtol=1e-5)
    window = attend.weights_of(q, k, found.lse, head=1, query=3, queries=2, keys=6, causal=True)
    torch.testing.assert_close(window.double(), weights[0, 1, 3:5], atol=1e-5, rtol=1e-5)


def test_pages_of_tensors_are_those_of_arrays():
    torch.manual_seed(2)
    q, k, v = (torch.randn(1, 2, 6, 8) for _ in range(3))
    assert attend.view(q, k, v, causal=True).html == attend.view(
        *(np.asarray(x) for x in (q, k, v)), causal=True).html


def test_a_gradient_would_get_lost():
    q = torch.randn(1, 2, 6, 8, requires_grad=True)
    with pytest.raises((TypeError, ValueError), match="grad"):
        attend.inspect(q, q)

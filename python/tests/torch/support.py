"""What the tests of attend.torch share: random tensors of any layout, and the contract as a formula."""
import math
import random

import torch

# Allowed errors against f64, in units of the largest value (at least 1). Results are rounded to the
# type once; projections in narrow types round q, k and v before.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}


def laid_out(rng: random.Random, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Normal numbers in memory of a random layout: permuted, with gaps, shifted, repeated, or plain."""
    kind = rng.choice(["plain", "permuted", "gaps", "shifted", "repeated"])
    if kind == "permuted" and len(shape) > 1:
        order = rng.sample(range(len(shape)), len(shape))
        back = [order.index(d) for d in range(len(shape))]
        return torch.randn([shape[d] for d in order], dtype=dtype).permute(back)
    if kind == "gaps":
        return torch.randn([2 * n + 1 for n in shape], dtype=dtype)[tuple(slice(1, None, 2) for _ in shape)]
    if kind == "shifted":
        return torch.randn(math.prod(shape) + 3, dtype=dtype)[3:].view(shape)
    if kind == "repeated" and shape:
        d = rng.randrange(len(shape))
        return torch.randn([1 if e == d else n for e, n in enumerate(shape)], dtype=dtype).expand(shape)
    return torch.randn(shape, dtype=dtype)


def leaf(x: torch.Tensor | None, dtype: torch.dtype | None = None) -> torch.Tensor | None:
    """The same numbers and strides, as a leaf that collects a gradient; in another type a copy."""
    if x is None or not x.is_floating_point():
        return x
    x = x.detach()
    return (x if dtype is None else x.to(dtype)).requires_grad_()


def contract(q, k, v, mask=None, bias=None, scale=None):
    """(out, weights) by docs/contract.md: a row that sees no key is 0. True in `mask` takes part."""
    scores = (q @ k.mT) * (1 / math.sqrt(q.size(-1)) if scale is None else scale)
    seen = torch.ones_like(scores, dtype=torch.bool)
    if mask is not None:
        seen = seen & mask
    if bias is not None:
        seen = seen & (bias != -math.inf)
        scores = scores + bias
    nothing = ~seen.any(-1, keepdim=True)
    scores = scores.masked_fill(~seen, -math.inf).masked_fill(nothing, 0)
    weights = scores.softmax(-1).masked_fill(nothing, 0)
    return weights @ v, weights


def hidden_rows(scores_shape, mask, bias):
    """Whether any query sees no key."""
    seen = torch.ones(scores_shape, dtype=torch.bool)
    if mask is not None:
        seen = seen & mask
    if bias is not None:
        seen = seen & (bias.detach() != -math.inf)
    return not bool(seen.any(-1).all())


def error(found: torch.Tensor, truth: torch.Tensor) -> float:
    """The largest difference, in units of the truth's largest value or 1. NaN counts as infinite."""
    assert found.shape == truth.shape, f"{found.shape} is not {truth.shape}"
    if truth.numel() == 0:
        return 0.0
    difference = (found.detach().double() - truth.detach()).abs().max().item()
    return math.inf if math.isnan(difference) else difference / max(1.0, truth.detach().abs().max().item())

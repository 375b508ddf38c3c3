"""The one place through which attend.torch calls attention on behalf of a model's module."""
from typing import Any

from torch import Tensor, nn

from .general import attention


def call(module: nn.Module | None, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    """attend.torch.attention() for `module`, the one whose forward asked for it, None if that is not known."""
    return attention(q, k, v, **options)

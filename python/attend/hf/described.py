"""A mask that knows what it means: options of attend, and the numbers only if somebody looks at them.

Transformers makes one mask for a forward pass and hands it, as a tensor, through code of the model to every
attention. A described mask goes the same way with its description, and no [length, length] numbers. Model code may do
anything with it that it may do with a tensor: the first operation makes the numbers, and from then
on the mask is these numbers alone, since whoever has seen them may have changed them.
"""
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map


class DescribedMask(Tensor):
    """Booleans, True = takes part, [batch, 1, queries, keys]."""

    options: dict[str, Any] | None  # of attend.torch.attention; None: the numbers were looked at
    numbers: Tensor | None
    sizes: tuple[int, int]  # queries, keys
    make: Callable[[], Tensor]

    @staticmethod
    def __new__(cls, shape: tuple[int, ...], options: dict[str, Any], make: Callable[[], Tensor]) -> "DescribedMask":
        mask = Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device="cpu")
        mask.options, mask.numbers, mask.make, mask.sizes = options, None, make, shape[2:]
        return mask

    __torch_function__ = torch._C._disabled_torch_function_impl  # results are plain tensors

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def plain(x: Any) -> Any:
            return x.plain() if isinstance(x, DescribedMask) else x

        return func(*tree_map(plain, args), **tree_map(plain, kwargs or {}))

    def plain(self) -> Tensor:
        """The numbers. The description ends here: a view of them may be written to unseen."""
        if self.numbers is None:
            self.numbers = self.make().contiguous()
        self.options = None
        return self.numbers

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        what = "numbers" if self.options is None else ", ".join(self.options) or "all visible"
        return f"DescribedMask({list(self.shape)}, {what})"

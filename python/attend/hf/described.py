"""A mask that knows what it means: options of attend, and the numbers only if somebody looks at them.

Transformers makes one mask for a forward pass and hands it, as a tensor, through code of the model to every
attention. A described mask goes the same way with its description, and no [length, length] numbers. Model code may do
with it what it may do with a mask of booleans: the first operation makes the numbers, and from then on the mask
is these numbers alone, since whoever has seen them may have changed them. Adding it to scores is refused: whoever does
that computes attention by itself, expects a mask of floats, and would get wrong numbers without a word.
"""
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from attend._attend import TorchOptions
from attend.torch.unheard import plain


DESCRIBED = ("cpu", "cuda")  # devices on which attend computes
_SUMS = {"aten::add", "aten::add_", "aten::sub", "aten::sub_", "aten::rsub", "aten::baddbmm", "aten::baddbmm_"}


class DescribedMask(Tensor):
    """Booleans, True = takes part, [batch, 1, queries, keys]; of what is made of it, any shape."""

    options: dict[str, Any] | None  # of attend.torch.attention; None: the numbers were looked at
    numbers: Tensor | None
    prepared: TorchOptions | None  # the same, read once for all layers
    sizes: tuple[int, int]  # queries, keys
    make: Callable[[], Tensor]

    @staticmethod
    def __new__(
        cls, shape: tuple[int, ...], options: dict[str, Any] | None, make: Callable[[], Tensor],
        device: torch.device | str = "cpu",
    ) -> "DescribedMask":
        mask = Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=device)
        mask.options, mask.numbers, mask.make, mask.sizes = options, None, make, shape[2:]
        tensors = [] if options is None else [x for x in options.values() if isinstance(x, Tensor)]
        mask.prepared = TorchOptions(options, *shape[2:]) if options is not None and plain(*tensors) else None
        return mask

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in _SUMS and any(isinstance(x, Tensor) and x.is_floating_point() for x in args):
            raise NotImplementedError(
                "attend.hf: code of this model adds its mask to scores: it computes attention by itself, and not by "
                'attend. attend.hf.check(model) says which modules do; with attn_implementation="eager" all of it runs'
            )

        def plain(x: Any) -> Any:
            return x.plain() if isinstance(x, DescribedMask) else x

        def guarded(x: Any) -> Any:  # a part of a mask is a mask: it is not added either
            return guard(x) if isinstance(x, Tensor) and x.dtype == torch.bool and x.dim() > 1 else x

        return tree_map(guarded, func(*tree_map(plain, args), **tree_map(plain, kwargs or {})))

    def plain(self) -> Tensor:
        """The numbers. The description ends here: a view of them may be written to unseen."""
        if self.numbers is None:
            self.numbers = self.make().contiguous()
        self.options = self.prepared = None
        return self.numbers

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        what = "numbers" if self.options is None else ", ".join(self.options) or "all visible"
        return f"DescribedMask({list(self.shape)}, {what})"


def guard(numbers: Tensor) -> Tensor:
    """A mask of booleans without a description, which is not added to scores either."""
    if numbers.device.type not in DESCRIBED:
        return numbers
    mask = DescribedMask(tuple(numbers.shape), None, lambda: numbers, numbers.device)
    mask.numbers = numbers
    return mask

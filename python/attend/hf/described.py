"""A mask that knows what it means: options of attend, and the numbers only if somebody looks at them.

Transformers makes one mask for a forward pass and hands it, as a tensor, through code of the model to every
attention. A described mask goes the same way with its description, and no [length, length] numbers. To model code it is the
mask of eager attention, floats that are added to scores, which all code of models knows how to read: to some of it a mask
of booleans would mean something else. The first operation makes the numbers, and from then on the mask is these
numbers alone, since whoever has seen them may have changed them. Adding it to other floats is refused: they are scores of code that
computes attention by itself, and attend would be left out without a word; or, rarely, a bias that is handed to attend afterwards, which
looks the same here.
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
_COPIES = {"aten::clone", "aten::_to_copy", "aten::_unsafe_view"}  # the last: of reshape(), after a clone


class DescribedMask(Tensor):
    """Floats, 0 = takes part, the least of their type = hidden, [batch, 1, queries, keys]; a part of one has any shape."""

    options: dict[str, Any] | None  # of attend.torch.attention; None: the numbers were looked at
    numbers: Tensor | None
    prepared: TorchOptions | None  # the same, read once for all layers
    sizes: tuple[int, int]  # queries, keys
    make: Callable[[], Tensor]

    @staticmethod
    def __new__(
        cls, shape: tuple[int, ...], options: dict[str, Any] | None, make: Callable[[], Tensor],
        dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu", strides: tuple[int, ...] | None = None,
    ) -> "DescribedMask":
        """strides: None: those of a contiguous tensor."""
        mask = Tensor._make_wrapper_subclass(cls, shape, strides, dtype=dtype, device=device)
        mask.options, mask.numbers, mask.make, mask.sizes = options, None, make, shape[2:]
        tensors = [] if options is None else [x for x in options.values() if isinstance(x, Tensor)]
        mask.prepared = TorchOptions(options, *shape[2:]) if options is not None and plain(*tensors) else None
        return mask

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in _SUMS and any(_is_scores(x) for x in args):
            raise NotImplementedError(
                "attend.hf: code of this model adds its mask to scores, and so computes attention by itself, and not by attend; or to a "
                "bias, which it hands to attend afterwards, but the two look the same here. attend.hf.check(model) says which modules "
                'come to attend; with attn_implementation="eager" all of it runs'
            )

        def plain(x: Any) -> Any:
            return x.plain() if isinstance(x, DescribedMask) else x

        found = func(*tree_map(plain, args), **tree_map(plain, kwargs or {}))
        return tree_map(_part, found) if func.is_view or func._schema.name in _COPIES else found

    def plain(self) -> Tensor:
        """The numbers. The description ends here: a view of them may be written to unseen."""
        if self.numbers is None:
            self.numbers = self.make().contiguous()
        self.options = self.prepared = None
        return self.numbers

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        what = "numbers" if self.options is None else ", ".join(self.options) or "all visible"
        return f"DescribedMask({list(self.shape)}, {what})"


def of_booleans(seen: Tensor, dtype: torch.dtype) -> DescribedMask:
    """Of True = takes part, [batch, 1, queries, keys], which attend takes as they are."""
    seen = seen.contiguous()

    def floats() -> Tensor:
        return torch.where(seen, torch.zeros((), dtype=dtype, device=seen.device), torch.finfo(dtype).min)

    return DescribedMask(tuple(seen.shape), {"mask": seen}, floats, dtype, seen.device)


def _part(x: Any) -> Any:
    """A part of a mask is a mask: it is not added to scores either. It says how it lies in memory, by which PyTorch chooses between a
    view and a copy.
    """
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() < 2:
        return x
    mask = DescribedMask(tuple(x.shape), None, lambda: x, x.dtype, x.device, x.stride())
    mask.numbers = x
    return mask


def _is_scores(x: Any) -> bool:
    return isinstance(x, Tensor) and not isinstance(x, DescribedMask) and x.is_floating_point()

"""Where in a model a forward pass is."""
from torch import nn


class Place:
    """Where a tap is in a model: which modules are being called, and what was called in this forward pass."""

    def __init__(self) -> None:
        self.stack: list[nn.Module] = []
        self.calls: dict[nn.Module, int] = {}
        self.order = 0  # attentions in this pass
        self.step = -1  # forward passes with attention, so far
        self.fresh = True  # the next attention is the first of a pass

    def enter(self, module: nn.Module) -> None:
        if not self.stack:
            self.fresh = True
        self.stack.append(module)

    def leave(self, module: nn.Module) -> None:
        if self.stack and self.stack[-1] is module:  # else the block began inside of the module
            self.stack.pop()

    def attend(self, module: nn.Module) -> tuple[int, int]:
        """(which call of the module in this pass, which attention of the pass)"""
        if self.fresh:
            self.calls, self.order, self.fresh = {}, 0, False
            self.step += 1
        nth = self.calls.get(module, 0)
        self.calls[module] = nth + 1
        self.order += 1
        return nth, self.order - 1

    def copy(self) -> "Place":
        other = Place()
        other.calls, other.order, other.step, other.fresh = dict(self.calls), self.order, self.step, self.fresh
        return other

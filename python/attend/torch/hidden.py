"""Which rows of an attention's inputs nobody sees, and inputs without their NaN."""
import torch
from torch import Tensor


def hidden_rows(
    mask: Tensor | None, bias: Tensor | None, queries: int, keys: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """(queries that see no key [n, queries], keys that no query sees [n, keys]); n is N or 1.

    mask and bias broadcast to [N, heads, queries, keys], as attend takes them. Without both it is causal,
    aligned top left.
    """
    if mask is None and bias is None:
        nobody = torch.arange(keys, device=device) >= queries
        return torch.zeros(1, queries, dtype=torch.bool, device=device), nobody.unsqueeze(0)
    visible = mask
    if bias is not None:
        finite = bias.detach() != -torch.inf
        visible = finite if mask is None else finite & mask
    visible = visible.reshape((1,) * (4 - visible.dim()) + tuple(visible.shape))
    sees, seen = visible.any(3).any(1), visible.any(1).any(1)
    return ~sees.expand(-1, queries), ~seen.expand(-1, keys)


def without(x: Tensor, hidden: Tensor) -> Tensor:
    """x [..., features] with zeros in the rows `hidden` [...], if they hold NaN or infinity. In a graph
    that does not know its numbers yet, and on a GPU, where looking would wait for it, they are zeros
    anyhow, which gives the same results.
    """
    hidden = hidden.expand(x.shape[:-1])
    if not x.is_cuda and not torch.compiler.is_compiling() and not torch.jit.is_tracing():
        try:
            if not hidden.any() or x.detach()[hidden].isfinite().all():
                return x
        except RuntimeError:  # tensors without numbers: meta, fake
            pass
    return x.masked_fill(hidden.unsqueeze(-1), 0.0)

"""attend in PyTorch: attention with PyTorch's own signatures and meaning, known to its autograd and compiler.

attention                      attend.attention() with gradients: every option of it, by its names
scaled_dot_product_attention   as torch.nn.functional's; booleans: True = takes part
MultiheadAttention             as torch.nn's, state_dict included; booleans: True = blocked
replace(model)                 swaps every nn.MultiheadAttention inside a model and says which
sdpa()                         a block in which models that call scaled_dot_product_attention run on attend

All compute on the CPU, with as many threads as torch.get_num_threads() says, or in the attend.Context
that a call, a layer or replace() is given. Importing this changes nothing in PyTorch; it adds the operators
torch.ops.attend.attention and .attention_backward.
"""
from .functional import scaled_dot_product_attention
from .general import attention
from .modules import MultiheadAttention, Replaced, replace
from .sdpa import Call, Calls, sdpa

__all__ = [
    "Call",
    "Calls",
    "MultiheadAttention",
    "Replaced",
    "attention",
    "replace",
    "scaled_dot_product_attention",
    "sdpa",
]

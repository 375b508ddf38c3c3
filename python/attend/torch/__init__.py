"""attend in PyTorch: attention with PyTorch's own signatures and meaning, known to its autograd and compiler.

attention                      attend.attention() with gradients: every option of it, by its names
scaled_dot_product_attention   as torch.nn.functional's; booleans: True = takes part
MultiheadAttention             as torch.nn's, state_dict included; booleans: True = blocked
replace(model)                 swaps every nn.MultiheadAttention inside a model and says which
capture(model, ...)            weights or statistics of chosen layers and heads, while a model runs
edit(model, ...)               heads that give something else: nothing, their mean, the pattern of another run
head_importance, attention_rollout, value_weighted   what is read off them
sdpa()                         a block in which models that call scaled_dot_product_attention run on attend

Tensors of the CPU are computed there, with as many threads as torch.get_num_threads() says, or in the attend.Context
that a call, a layer or replace() is given; those of an NVIDIA GPU on it, in PyTorch's current stream. Importing this changes nothing in PyTorch; it adds the operators
torch.ops.attend.attention and .attention_backward, and torch.load() takes what capture() gives for data (weights_only=True).
"""
from torch.serialization import add_safe_globals

from attend import HeadStatistics, Statistics

from .analysis import attention_rollout, head_importance, output_projection, value_weighted
from .capturing import Captured, Run, Step, capture
from .editing import edit
from .functional import scaled_dot_product_attention
from .general import attention
from .layers import Layer
from .modules import MultiheadAttention, Replaced, replace
from .sdpa import Call, Calls, sdpa
from .taps import keep_edits

__all__ = [
    "Call",
    "Calls",
    "Captured",
    "Layer",
    "MultiheadAttention",
    "Replaced",
    "Run",
    "attention",
    "attention_rollout",
    "capture",
    "edit",
    "head_importance",
    "keep_edits",
    "output_projection",
    "replace",
    "scaled_dot_product_attention",
    "sdpa",
    "value_weighted",
]

add_safe_globals([Run, Step, Captured, Layer, Statistics, HeadStatistics])

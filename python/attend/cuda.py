"""NVIDIA GPUs. attention(), attention_backward(), partial results, merge(), inspect(), weights_of() and Plans take
arrays in their memory as they take those of the CPU; attend.torch and attend.hf take such tensors.

why_unavailable(device=0)   why calls on arrays of a GPU cannot be made, in words that follow "this process"; "": they can
device_count()              how many GPUs there are

>>> attend.cuda.device_count() > 0 or attend.cuda.why_unavailable() != ""
True
"""
from ._attend import cuda_device_count as device_count
from ._attend import cuda_why_unavailable as why_unavailable

__all__ = ["device_count", "why_unavailable"]

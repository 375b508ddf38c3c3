"""The tensors of these tests are small: handing them to PyTorch's threads takes most of the time."""
import torch

torch.set_num_threads(1)

"""The tensors of these tests are small: handing them to PyTorch's threads takes most of the time, and ten times as
long on a busy machine. And every test has the same random numbers and threads, whichever ran before it."""
import pytest
import torch


@pytest.fixture(autouse=True)
def alike():
    torch.set_num_threads(1)
    torch.manual_seed(0)

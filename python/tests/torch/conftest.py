"""The tensors of these tests are small: handing them to PyTorch's threads takes most of the time. And every
test has the same random numbers, whichever ran before it."""
import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)

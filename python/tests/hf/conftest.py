"""Models of random weights, so small that handing their tensors to threads takes most of the time; and every test has the
same random numbers, whichever ran before it."""
import os

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing here is looked for in a hub

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: it is for attend.hf alone")

import attend.hf

torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


@pytest.fixture(autouse=True, scope="session")
def registered():
    attend.hf.register()


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)

"""These tests are for arrays in the memory of an NVIDIA GPU; without one they are skipped, and say why."""
import pathlib
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import attend.cuda

HERE = pathlib.Path(__file__).parent
sys.path += [str(HERE.parent / "torch"), str(HERE.parent / "hf")]  # their cases and tiny models, on a GPU


def why_not():
    reason = attend.cuda.why_unavailable()
    if reason:
        return f"attend in this process {reason}"
    return "" if torch.cuda.is_available() else "PyTorch finds no GPU that it can use"


def pytest_collection_modifyitems(items):
    reason = why_not()
    for item in items if reason else ():
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)

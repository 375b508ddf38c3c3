"""The cases of ONNX's Attention on a GPU: the backend's own functions, its calls of attention() on CUDA tensors."""
import pathlib
import sys

import numpy as np
import pytest
import torch

import attend

pytest.importorskip("onnx", reason="onnx is not installed")
sys.path.append(str(pathlib.Path(__file__).parents[1]))  # the suite's cases

import attend.onnx
import test_onnx as suite
from test_onnx import node_cases  # noqa: F401: a fixture


def there(x):
    if not isinstance(x, np.ndarray):
        return x
    if x.dtype.name == "bfloat16":  # NumPy's own types have none
        return torch.from_numpy(np.ascontiguousarray(x).view(np.int16)).cuda().view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(x)).cuda()


def here(x, like):
    return x.cpu().view(torch.int16).numpy().view(like) if x.dtype == torch.bfloat16 else x.cpu().numpy()


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    """attend.onnx computes on the GPU; how often it did."""
    count = []

    def attention(*arrays, out, **options):
        moved = {name: there(x) for name, x in options.items()}
        found = attend.attention(*map(there, arrays), **moved)
        several = isinstance(found, tuple)
        assert all(x.is_cuda for x in (found if several else (found,)))
        count.append(1)
        out[...] = here(found[0] if several else found, out.dtype)
        return (out, *(here(x, out.dtype) for x in found[1:])) if several else out

    monkeypatch.setattr(attend.onnx, "attention", attention)
    return count


def test_every_node_case_of_the_installed_onnx(node_cases, capsys, calls):  # noqa: F811
    suite.test_every_node_case_of_the_installed_onnx(node_cases, capsys)
    assert len(calls) >= 93


def test_random_nodes_agree_with_the_reference_evaluator(capsys, calls):
    if suite.NEWEST < 25:
        pytest.skip("the windows are of opset 25")
    suite.test_random_nodes_agree_with_the_reference_evaluator(capsys)
    assert len(calls) == 400


@pytest.mark.parametrize("kind", [bool, float])
@pytest.mark.parametrize("columns", [1, 2, 4])
@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_a_short_mask_hides_the_keys_behind_it(rank, columns, kind):
    suite.test_a_short_mask_hides_the_keys_behind_it(rank, columns, kind)


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_softcap_comes_before_the_mask_and_each_mode_shows_its_stage(mode):
    suite.test_softcap_comes_before_the_mask_and_each_mode_shows_its_stage(mode)


@pytest.mark.parametrize("name", ["grouped_heads_are_interleaved", "a_negative_causal_offset_hides_the_first_queries",
                                  "causal_without_cache_starts_at_the_first_key"])
def test_what_the_node_cases_do_not_catch(name):
    getattr(suite, f"test_{name}")()


@pytest.mark.parametrize("t1, t2", [("float16", "float32"), ("float32", "float16"), ("float16", "bfloat16")])
def test_values_may_have_another_type(t1, t2):
    suite.test_values_may_have_another_type(t1, t2)

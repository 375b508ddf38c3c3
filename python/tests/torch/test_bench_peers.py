"""PyTorch and the drop-in as libraries of the benchmark, on the tiny cases of test_bench.py."""
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import test_bench  # noqa: E402


@pytest.mark.parametrize("library", [test_bench.peers.Torch, test_bench.peers.AttendTorch])
def test_results_are_those_of_the_formulas(library):
    made, measured = library(), 0
    for case in test_bench.CASES:
        _, answer = test_bench.worker.prepare(made, case)
        if "left" not in answer:
            assert answer["error"] < 5e-6, (case, answer)
            measured += 1
    assert measured == (len(test_bench.CASES) if library is test_bench.peers.Torch else 4)

"""The benchmark's libraries on tiny cases: each gives what the formulas give, and a wrong result is noticed."""
import importlib.util
import pathlib
import sys

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import compare  # noqa: E402
import distributed  # noqa: E402
import ggml_peer  # noqa: E402
import onnx_peer  # noqa: E402
import peers  # noqa: E402
import worker  # noqa: E402

SIZES = {"suite": "notes", "type": "f32", "batch": 2, "heads": 4, "key_heads": 4, "queries": 7, "keys": 7, "d": 8, "causal": False}
CASES = [{**SIZES, "name": f"{operation}{n}", "operation": operation, **change}
         for operation, changes in {
             "forward": ({}, {"causal": True}, {"queries": 1, "keys": 9}, {"queries": 1, "keys": 9, "key_heads": 2}),
             "backward": ({}, {"causal": True}), "forward_backward": ({}, {"causal": True}),
             "layer": ({}, {"queries": 1, "keys": 1}), "layer_train": ({}, {"queries": 1, "keys": 1}),
             "matmul": ({"size": 70},)}.items()
         for n, change in enumerate(changes)]
LEFT = {("attend", "matmul"): "not measured", ("ONNX Runtime", "backward"): "no gradients",
        ("ONNX Runtime", "forward_backward"): "no gradients", ("ONNX Runtime", "layer_train"): "no gradients",
        ("ggml", "backward"): "no gradients", ("ggml", "forward_backward"): "no gradients", ("ggml", "layer"): "not measured",
        ("ggml", "layer_train"): "not measured"}
GGML = pytest.mark.skipif(not importlib.util.find_spec("llama_cpp"), reason="llama-cpp-python is not installed")


@pytest.mark.parametrize("name, library", [("attend", peers.Attend), ("NumPy", peers.NumPy),
                                           ("ONNX Runtime", onnx_peer.OnnxRuntime),
                                           pytest.param("ggml", ggml_peer.Ggml, marks=GGML)])
def test_results_are_those_of_the_formulas(name, library):
    made = library()
    for case in CASES:
        call, answer = worker.prepare(made, case)
        if reason := LEFT.get((name, case["operation"])):
            assert reason in answer["left"]
        else:
            assert answer.get("error", 1) < 5e-6, (case, answer)
            timed = worker.time_calls(call, 1e-4)
            assert min(timed["seconds"]) > 0 and timed["stolen"] >= 0


@pytest.mark.parametrize("type", ["bf16", "f16"])
def test_results_of_16_bits_are_those_of_the_formulas(type):
    made = peers.Attend()
    for case in CASES:
        call, answer = worker.prepare(made, {**case, "type": type})
        if reason := LEFT.get(("attend", case["operation"])):
            assert reason in answer["left"]
        else:
            assert answer.get("error", 1) < compare.ALLOWED_ERROR[type], (case, answer)


@pytest.mark.parametrize("library", [peers.Attend, onnx_peer.OnnxRuntime,
                                     pytest.param(ggml_peer.Ggml, marks=GGML)])
@pytest.mark.parametrize("key_heads", [4, 2])
def test_results_of_8_bits_are_near_those_of_the_formulas(library, key_heads):
    case = {**SIZES, "operation": "forward", "name": "i8", "type": "i8", "queries": 1, "keys": 90, "d": 64,
            "key_heads": key_heads}
    _, answer = worker.prepare(library(), case)
    assert 1e-4 < answer.get("error", 1) < compare.ALLOWED_ERROR["i8"], answer     # 0: nothing was rounded


@GGML
@pytest.mark.parametrize("type", ["f32", "f16", "bf16"])
def test_ggml_knows_long_sequences_and_masks(type):
    """From 64 queries and 512 keys on other functions of ggml compute."""
    made = ggml_peer.Ggml()
    for change in ({"causal": True}, {"queries": 1, "keys": 1000, "key_heads": 2, "batch": 1}):
        case = {**SIZES, "operation": "forward", "name": "long", "type": type, "queries": 200, "keys": 200, "d": 64, **change}
        _, answer = worker.prepare(made, case)
        assert answer.get("error", 1) < compare.allowed_error("ggml", type), (case, answer)


def test_what_a_library_lacks_is_left_out_with_a_reason(monkeypatch, tmp_path):
    case = {**SIZES, "operation": "forward", "name": "left"}
    for made, type, words in ((peers.NumPy(), "f16", "no fast products of f16"), (peers.NumPy(), "i8", "of i8"),
                              (peers.Peer(), "i8", "of 8 bits"), (onnx_peer.OnnxRuntime(), "bf16", "no bf16")):
        assert words in worker.prepare(made, {**case, "type": type})[1]["left"]
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ImportError, match="llama-cpp-python.*not installed"):
        ggml_peer.Ggml()
    (tmp_path / "llama_cpp").mkdir()
    importlib.invalidate_caches()
    with pytest.raises(ImportError, match="no lib/libggml.so"):
        ggml_peer.Ggml()


def test_a_wrong_result_is_noticed():
    for case in CASES:
        data = worker.make_data(case)
        call, results = getattr(peers.NumPy(), case["operation"])(case, data)
        for spoil in (1.001, np.nan):
            for name, array in results(call()).items():
                spoilt = {**results(call()), name: array * spoil}
                if np.max(np.abs(array)) > 1e-5:        # or it is zero, as the gradient at W^Q with one key
                    assert not worker.worst(worker.errors(case, data, spoilt)) < 5e-5, (case, name)


def test_kept_numbers_and_truths_are_those_that_are_made(tmp_path):
    made = peers.NumPy()
    for case in CASES:
        kept, wanted = worker.kept(case, tmp_path)
        for name, array in worker.make_data(case).items():
            assert name == "w" or (kept[name].flags.writeable and np.array_equal(kept[name], array))
        assert len(wanted) == len(list(worker.truths(case, worker.make_data(case))))
        assert worker.prepare(made, case, tmp_path)[1]["error"] == worker.prepare(made, case)[1]["error"]
    other = {**CASES[0], "causal": True}
    assert "another case" in worker.prepare(made, other, tmp_path)[1]["left"]


def test_data_are_those_of_the_name():
    first, again, other = (worker.make_data({**CASES[0], "name": name})["q"] for name in ("a", "a", "b"))
    assert (first == again).all() and not (first == other).any()


def test_growth_counts_what_is_held():
    """One query: memory is that of the keys and values, 64 MiB each."""
    case = {**SIZES, "batch": 1, "heads": 1, "key_heads": 1, "queries": 1, "keys": 1 << 21, "operation": "forward",
            "name": "growth"}
    assert 0.9 * 2**27 < worker.growth(peers.Attend(), case)["memory_bytes"] < 1.5 * 2**27


def made_up(suite, seconds, peer, operation="forward", **sizes):
    """A run on one core of a machine that does 100 operations and reads 10 bytes a second."""
    case = {**SIZES, "suite": suite, "operation": operation, "flops": 80.0, "bytes": None, **sizes}
    case["name"] = f"{suite}/B{case['batch']}_H{case['heads']}_T{case['keys']}_d{case['d']}"
    figures = {name: {"seconds": time, "low": time, "high": time, "wrong": False, "note": ""}
               for name, time in (("attend", seconds), ("PyTorch", peer))}
    return {"case": case, "cores": 1, "left": {}, "figures": figures}


def test_bars_are_what_the_figures_say():
    import bars
    long = {"keys": 4096, "queries": 4096, "d": 128}
    good = {"peaks": {"1": {"flops": 100.0, "read_bytes": 10.0, "reading": []}},
            "growth": [{"keys": n, "cores": 1, "seconds": n**2, "memory_bytes": 5 * n} for n in (10, 20, 40)],
            "runs": [made_up("long", 0.9, 1.8, **long), made_up("long", 0.45, 0.9, causal=True, **long),
                     made_up("decode", 1.1, 2.0, bytes=10.0), made_up("backward", 1.0, 2.0, "backward", **long),
                     made_up("layer", 0.5, 1.0, "layer", batch=2, heads=8, keys=10)]}
    found = list(bars.bars(good, 1))
    assert len(found) == 12 and all(reached for _, _, reached in found), found
    # One figure worse at a time: the bars that must be missed then.
    for at, seconds, words in ((0, 1.9, "every case"), (0, 1.01, "forward from 2048"), (1, 0.55, "causal at 4096"),
                               (2, 1.2, "decode"), (3, 1.2, "backward from 2048"), (4, 0.97, "layer/"),
                               (3, 1.4, "backward: mean")):
        spoilt = {**good, "runs": [dict(run) for run in good["runs"]]}
        figures = spoilt["runs"][at]["figures"]
        spoilt["runs"][at]["figures"] = {**figures, "attend": {**figures["attend"], "seconds": seconds}}
        missed = [wanted for wanted, _, reached in bars.bars(spoilt, 1) if not reached]
        assert any(words in wanted for wanted in missed), (words, missed)
    faster = {**good, "growth": [{**point, "memory_bytes": point["keys"]**2} for point in good["growth"]]}
    assert [wanted.split()[0] for wanted, _, reached in bars.bars(faster, 1) if not reached] == ["memory"]


def in_type(type, *runs, **machine):
    """Results of a type other than f32, or of f32 to hold them against."""
    for run in runs:
        run["case"]["name"] += "" if type == "f32" else "_" + type
    return {"type": type, "peaks": {}, "growth": [], "runs": list(runs),
            "machine": {"processor": "P", "simd": [], "processors": 2, "cores_used": 1, "commit": "c", **machine}}


def test_bars_of_16_and_8_bits_are_held_against_the_wider_type_of_the_same_session():
    import bars
    missed = lambda results, *others: [wanted for wanted, _, reached in bars.bars(results, 1, others) if not reached]
    wide = {"keys": 2048, "queries": 2048, "d": 64}

    def measured(type, decode, layer, notes, gradient, kernel="cpu.avx512.forward", **machine):
        runs = [made_up("decode", decode, 9.0, bytes=10.0), made_up("layer", layer, 9.0, "layer"),
                made_up("notes", notes, 9.0), made_up("long", 1.0, 9.0, **wide),
                made_up("backward", gradient, 9.0, "backward", **wide)]
        for run in runs:
            run["figures"]["attend"]["note"] = kernel
        return in_type(type, *runs, **machine)

    f32 = measured("f32", 1.7, 1.0, 1.0, 1.0)
    vectors = measured("bf16", 1.0, 1.1, 1.2, 1.1)
    assert missed(vectors, f32) == []
    assert [words.split(":")[0] for words in missed(measured("bf16", 1.1, 1.2, 1.3, 4.2), f32)] == [
        "backward/B2_H4_T2048_d64_bf16", "decode/B2_H4_T7_d8_bf16", "without instructions for the type, 10 and 20 tokens",
        "without instructions for the type, longer ones and layers"]
    tiles = measured("bf16", 1.0, 0.6, 1.2, 1.0, kernel="cpu.amx.forward")
    assert ["2x f32" in words for words in missed(tiles, f32)] == [True]
    assert missed(tiles, measured("f32", 1.7, 1.0, 1.0, 1.0, commit="another")) == []      # not of the same session
    eight = in_type("i8", made_up("decode", 0.7, 9.0, bytes=10.0))
    assert ["1.6x bf16" in words for words in missed(eight, vectors, f32)] == [True]
    assert missed(in_type("i8", made_up("decode", 0.6, 9.0, bytes=10.0)), vectors) == []


def test_of_ranks_the_slowest_counts_in_the_round_of_the_single_process():
    rounds = [[(1.0, 0.0), (2.0, 1.0)], [(4.0, 3.0), (1.0, 0.5)], [(1.0, 0.0), (1.0, 0.0)]]   # (seconds, of them waiting), rank by rank
    found = distributed.efficiency([1.0, 1.0, 0.75], rounds)
    assert found["median"] == 0.5 and found["least"] == 0.25 and found["most"] == found["shortest"] == 0.75
    assert found["mean rank"] == 1 / 1.5 and found["seconds"] == 2.0
    row = {"ranks": 2, "calls": {"forward heads": rounds, "forward heads apart": [[(0.5, 0.0), (1.0, 0.0)]] * 3}}
    assert distributed.exposed(row).splitlines()[2:] == ["| forward heads | 25.0 % | 50.0 % | 1.000 | 50 % |"]

"""Do files written here read elsewhere, and the other way round?"""
import os

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import attend

TYPES = ["f8", "f4", "f2", "i8", "i4", "i1", "u1", "b1"]


@pytest.mark.parametrize("dtype", TYPES)
def test_npy_both_ways(dtype, tmp_path):
    x = (np.arange(24) % 2).reshape(2, 3, 4).astype(dtype)
    attend.save_npy(tmp_path / "x.npy", x.transpose(2, 0, 1))
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), x.transpose(2, 0, 1))
    np.save(tmp_path / "y.npy", np.asfortranarray(x))
    found = attend.load_npy(os.fspath(tmp_path / "y.npy"))
    assert found.dtype == x.dtype and found.flags.c_contiguous
    np.testing.assert_array_equal(found, x)


def test_safetensors_both_ways(tmp_path):
    tensors = {str(n): np.arange(6).reshape(2, 3).astype(t) for n, t in enumerate(TYPES)}
    attend.save_safetensors(tmp_path / "a", tensors, {"note": "ä"})
    for name, array in safetensors.numpy.load_file(tmp_path / "a").items():
        np.testing.assert_array_equal(array, tensors[name])
    safetensors.numpy.save_file(tensors, tmp_path / "b", {"note": "x"})
    file = attend.load_safetensors(tmp_path / "b")
    assert file.metadata == {"note": "x"} and set(file.tensors) == set(tensors)
    for name, array in tensors.items():
        np.testing.assert_array_equal(file[name], array)
    with pytest.raises(KeyError):
        file["nothing"]


def test_bfloat16_in_safetensors(tmp_path):
    x = np.arange(6).astype(ml_dtypes.bfloat16)
    attend.save_safetensors(tmp_path / "x", {"x": x})
    array = attend.load_safetensors(tmp_path / "x").tensors["x"]     # its file is gone by now
    assert array.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(array, x)


@pytest.mark.parametrize("per_head", [False, True])
def test_a_layer_and_its_file(per_head, tmp_path):
    layer = attend.MultiHeadAttention(model_dim=8, heads=2, key_heads=1, seed=3, rotary=attend.Rotary())
    layer.save(tmp_path / "layer", per_head=per_head)
    again = attend.MultiHeadAttention.load(tmp_path / "layer")
    x = np.random.default_rng(0).standard_normal((1, 4, 8)).astype(np.float32)
    np.testing.assert_array_equal(again.forward(x), layer.forward(x))
    file = attend.load_safetensors(tmp_path / "layer")
    np.testing.assert_array_equal(attend.MultiHeadAttention.load(file).forward(x), layer.forward(x))


def test_weights_of_other_libraries(tmp_path):
    rng = np.random.default_rng(0)
    packed = rng.standard_normal((24, 8)).astype(np.float32)
    out = rng.standard_normal((8, 8)).astype(np.float32)
    safetensors.numpy.save_file({"x.in_proj_weight": packed, "x.out_proj.weight": out}, tmp_path / "t")
    layer = attend.MultiHeadAttention.load(tmp_path / "t", prefix="x.", heads=2)
    np.testing.assert_array_equal(layer.parameters()["k.weight"], packed[8:16])
    with pytest.raises(OSError):
        attend.MultiHeadAttention.load(tmp_path / "t", heads=2)


def test_blocks_and_models_and_their_files(tmp_path):
    x = np.random.default_rng(0).standard_normal((1, 4, 8)).astype(np.float32)
    block = attend.AttentionBlock({"model_dim": 8, "heads": 2}, hidden_dim=6, norm="rms_norm")
    block.save(tmp_path / "block")
    np.testing.assert_array_equal(attend.AttentionBlock.load(tmp_path / "block").forward(x),
                                  block.forward(x))
    model = attend.LanguageModel(vocabulary=7, length=5, layers=1, model_dim=8, heads=2, seed=4)
    model.save(tmp_path / "model", {"note": "x"})
    again = attend.LanguageModel.load(tmp_path / "model")
    tokens = np.array([[1, 2, 3]])
    np.testing.assert_array_equal(again.forward(tokens), model.forward(tokens))
    assert {**again.options, "seed": 4} == model.options
    model.trace(tokens).save(tmp_path / "trace")
    assert "logits" in attend.load_safetensors(tmp_path / "trace").tensors


def test_parameters_from_a_file(tmp_path):
    layer, other = attend.Linear(3, 2, seed=1), attend.Linear(3, 2, seed=2, type="f64")
    attend.save_safetensors(tmp_path / "x", {"a." + k: v for k, v in layer.parameters().items()})
    attend.load_parameters(attend.load_safetensors(tmp_path / "x"), other.parameters(), prefix="a.")
    np.testing.assert_array_equal(other.parameters()["weight"], layer.parameters()["weight"])
    with pytest.raises((OSError, ValueError), match="weight"):
        attend.load_parameters(attend.load_safetensors(tmp_path / "x"), other.parameters())


def test_what_is_wrong_with_a_file_is_an_os_error(tmp_path):
    with pytest.raises(OSError, match="nothing.npy"):
        attend.load_npy(tmp_path / "nothing.npy")
    (tmp_path / "x").write_bytes(b"\xff" * 100)
    with pytest.raises(OSError, match="x"):
        attend.load_safetensors(tmp_path / "x")

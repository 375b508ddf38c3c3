"""Is text that no file and no page can hold refused in words that name the argument?"""
import numpy as np
import pytest

import attend

LONE = "a\ud800b"
X = np.ones((1, 2, 3, 4), "float32")
LAYER = attend.MultiHeadAttention(4, 2)
SAVED = {"x": np.ones(2)}


@pytest.mark.parametrize("what, call", [
    ("view: tokens", lambda _: attend.view(X, X, tokens=["a", LONE, "c"])),
    ("view: names", lambda _: attend.view(X, X, names=(LONE, ""))),
    ("view: the name of a layer", lambda _: attend.view(X, X, layer_names=[LONE])),
    ("view: title", lambda _: attend.view(X, X, title=LONE)),
    ("view: language", lambda _: attend.view(X, X, language=LONE)),
    ("Context: kernels", lambda _: attend.Context(kernels=LONE)),
    ("Plan: kernel", lambda _: attend.Plan.attention(X, X, X, kernel=LONE)),
    ("load_npy: path", lambda _: attend.load_npy(LONE)),
    ("save_npy: path", lambda _: attend.save_npy(LONE, X)),
    ("load_safetensors: path", lambda _: attend.load_safetensors(LONE)),
    ("save_safetensors: path", lambda _: attend.save_safetensors(LONE, SAVED)),
    ("save_safetensors: a name in tensors", lambda f: attend.save_safetensors(f / "x", {LONE: X})),
    ("save_safetensors: metadata", lambda f: attend.save_safetensors(f / "x", SAVED, {LONE: "a"})),
    ("save_safetensors: metadata", lambda f: attend.save_safetensors(f / "x", SAVED, {"a": LONE})),
    ("MultiHeadAttention.save: path", lambda _: LAYER.save(LONE)),
    ("MultiHeadAttention.load: path", lambda _: attend.MultiHeadAttention.load(LONE)),
    ("MultiHeadAttention.load: prefix", lambda f: attend.MultiHeadAttention.load(f / "x", prefix=LONE)),
    ("FeedForward: activation", lambda _: attend.FeedForward(4, activation=LONE)),
    ("Norm: kind", lambda _: attend.Norm(4, kind=LONE)),
    ("Trace: name", lambda _: attend.trace_attention(X, X, X)[LONE]),
    ("LearningRate: decay", lambda _: attend.LearningRate(decay=LONE)),
    ("save_checkpoint: path", lambda _: attend.save_checkpoint(LONE, SAVED, attend.SGD())),
])
def test_lone_surrogates_are_a_value_error_that_names_the_argument(what, call, tmp_path):
    with pytest.raises(ValueError) as error:
        call(tmp_path)
    message = str(error.value)
    assert message.startswith(what) and ("surrogate" in message or "UTF-8" in message), message
    assert "\ud800" not in message
    assert not list(tmp_path.iterdir())


def test_other_kinds_of_mistakes_in_text_have_their_words():
    with pytest.raises(TypeError, match="Context: kernels takes a str, found int"):
        attend.Context(kernels=3)
    with pytest.raises(TypeError, match="save_safetensors: metadata takes a str, found int"):
        attend.save_safetensors("x", SAVED, {"a": 1})
    with pytest.raises(TypeError, match="save_safetensors: metadata takes a dict of str, found list"):
        attend.save_safetensors("x", SAVED, [1])
    with pytest.raises(ValueError, match="load_npy: path cannot be the name of a file"):
        attend.load_npy("a\0b")
    with pytest.raises(TypeError, match="unexpected keyword argument 'a.ud800b'"):
        attend.MultiHeadAttention(4, 2, **{LONE: 1})


def test_names_that_are_no_utf8_on_disk_are_files_like_others(tmp_path):
    name = tmp_path / b"caf\xe9.npy".decode("utf-8", "surrogateescape")
    attend.save_npy(name, X)
    np.testing.assert_array_equal(attend.load_npy(name), X)

"""Wrong arguments are refused by what was found and what is allowed; PyTorch's habits work, or are answered."""
import numpy as np
import pytest

import attend

X = np.ones((1, 3, 4), np.float32)
Q = np.ones((1, 2, 3, 4), np.float32)


def layer():
    return attend.MultiHeadAttention(4, 2)


def block():
    return attend.AttentionBlock({"model_dim": 4})


def model():
    return attend.LanguageModel(vocabulary=5, length=8, layers=1, model_dim=8)


CONTEXT = "context takes an attend.Context or None, found int"
CACHE = "cache takes a KvCache, as make_cache\\(\\) gives one, found"
REFUSED = {
    "context": (TypeError, CONTEXT, lambda: attend.attention(Q, Q, Q, context=5)),
    "context of a layer": (TypeError, CONTEXT, lambda: layer().forward(X, context=5)),
    "context of a plan": (TypeError, CONTEXT, lambda: attend.Plan.attention(Q, Q, Q, context=5)),
    "context of a page": (TypeError, CONTEXT, lambda: attend.view(Q, Q, context=5)),
    "cache": (TypeError, f"MultiHeadAttention.forward: {CACHE} int", lambda: layer().forward(X, cache=5)),
    "cache of a block": (TypeError, f"AttentionBlock.forward: {CACHE} int", lambda: block().forward(X, cache=5)),
    "cache to append to": (TypeError, f"MultiHeadAttention.append: {CACHE} int", lambda: layer().append(X, X, 5)),
    "no cache": (TypeError, f"MultiHeadAttention.attend: {CACHE} NoneType", lambda: layer().attend(X, None)),
    "return_lse": (TypeError, "attention: return_lse takes True or False, found str",
                   lambda: attend.attention(Q, Q, Q, return_lse="a")),
    "return_lse of None": (TypeError, "return_lse takes True or False, found NoneType",
                           lambda: layer().forward(X, return_lse=None)),
    "return_lse of parts": (TypeError, "finish_partial: return_lse takes True or False, found int",
                            lambda: attend.finish_partial([Q], return_lse=2)),
    "return_weights": (TypeError, "MultiHeadAttention.forward: return_weights takes True or False, found int",
                       lambda: layer().forward(X, return_weights=1)),
    "weight_heads": (TypeError, "attention: weight_heads takes a list of heads, found str",
                     lambda: attend.attention(Q, Q, Q, return_weights=True, weight_heads="1")),
    "head of weight_heads": (TypeError, "Plan.attention: weight_heads takes whole numbers, found float",
                             lambda: attend.Plan.attention(Q, Q, Q, return_weights=True, weight_heads=[0.5])),
    "no weight_heads": (ValueError, "attention: weight_heads is an empty list; None is all heads",
                        lambda: attend.attention(Q, Q, Q, return_weights=True, weight_heads=[])),
    "weight_heads without weights": (ValueError, "attention: weight_heads is given, but weights are not asked for",
                                     lambda: attend.attention(Q, Q, Q, weight_heads=[0])),
    "a head that is not there": (ValueError, "attention: weight_heads holds 77; q has",
                                 lambda: attend.attention(Q, Q, Q, return_weights=True, weight_heads=[77])),
    "token of a prompt": (TypeError, "LanguageModel.generate: each token of prompt takes a whole number, found float",
                          lambda: model().generate([1.5], 2)),
    "prompt": (TypeError, "LanguageModel.generate: prompt takes a list of whole numbers, found str",
               lambda: model().generate("ab", 2)),
    "window": (ValueError, "attention: window holds -1; its numbers are at least 0, or None: no limit",
               lambda: attend.attention(Q, Q, Q, window=(-1, 0))),
    "max_q": (ValueError, f"attention: max_q is out of range; it must be from {-2**63} to {2**63 - 1}",
              lambda: attend.attention(Q, Q, Q, cu_seqlens_q=np.array([0, 3]), max_q=2**63)),
    "model_dim": (ValueError, f"MultiHeadAttention: model_dim is out of range; it must be from {-2**63} to {2**63 - 1}",
                  lambda: attend.MultiHeadAttention(-10**30, 2)),
    "query_offset": (TypeError, "query_offset takes a whole number, or an array of one for each sequence, found float",
                     lambda: attend.attention(Q, Q, Q, query_offset=1.0)),
    "tokens": (TypeError, "inspect: tokens takes a list of str, or an integer array, found a list with int in it",
               lambda: attend.inspect(Q, Q, tokens=[1, 2, 3])),
    "no name": (OSError, "save_npy: the name of the file is empty", lambda: attend.save_npy("", X)),
    "page without a name": (OSError, "View.save: '' is not the name of a file", lambda: attend.View("x").save("")),
    "npy": (OSError, "x.npy: is a .npy file, not safetensors", lambda: attend.load_safetensors("x.npy")),
    "sum": (ValueError, r"accumulate: the gradient of 'a' is \[1\], the sum \[2\]",
            lambda: attend.accumulate({"a": np.ones(2)}, {"a": np.ones(1)})),
    "attn_mask": (TypeError, r"MultiHeadAttention.forward\(\) got .* 'attn_mask': here it is mask=",
                  lambda: layer().forward(X, attn_mask=X)),
    "attn_mask of a block": (TypeError, r"AttentionBlock.forward_train\(\) got .* 'attn_mask': here it is mask=",
                             lambda: block().forward_train(X, attn_mask=X)),
    "embed_dim": (TypeError, r"MultiHeadAttention\(\) got .* 'embed_dim': here it is model_dim=",
                  lambda: attend.MultiHeadAttention(embed_dim=4)),
    "num_heads": (TypeError, r"'num_heads': here it is heads=", lambda: attend.MultiHeadAttention(4, num_heads=2)),
    "d_model": (TypeError, r"AttentionBlock\(\) got .* 'd_model': here it is model_dim=",
                lambda: attend.AttentionBlock({"d_model": 4})),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_why(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    attend.save_npy("x.npy", X)
    kind, message, call = REFUSED[name]
    with pytest.raises(kind, match=message):
        call()


def test_a_page_that_cannot_be_saved_is_named_as_the_caller_knows_it(tmp_path):
    for path in (tmp_path / "no" / "x.html", tmp_path):
        with pytest.raises(OSError) as caught:
            attend.View("x").save(path)
        assert caught.value.filename == str(path)
    assert list(tmp_path.iterdir()) == []


def test_a_prompt_is_any_sequence_of_whole_numbers():
    wanted = model().generate([1, 2], 3)
    for prompt in ((1, 2), np.array([1, 2]), np.array([1, 2], "i4"), range(1, 3)):
        assert model().generate(prompt, 3) == wanted


def test_a_layer_is_called_as_its_forward():
    calls = [(layer(), X), (block(), X), (attend.Linear(4, 3), X), (attend.LayerNorm(4), X), (attend.RMSNorm(4), X),
             (attend.FeedForward(4), X), (attend.LearnedPositions(3, 4), X), (attend.SinusoidalPositions(4), X),
             (attend.Embedding(5, 4), np.array([1, 2])), (model(), np.array([[1, 2]]))]
    for made, x in calls:
        np.testing.assert_array_equal(made(x), made.forward(x))
    y, lse = layer()(X, causal=True, return_lse=True)
    assert (y.shape, lse.shape) == ((1, 3, 4), (1, 2, 3))


def test_a_layer_shows_what_it_is():
    assert repr(attend.Linear(4, 3)) == "<attend.Linear: weight [3, 4], bias [3], f32>"
    assert repr(attend.RMSNorm(4, type="bf16")) == "<attend.RMSNorm: weight [4], bf16>"
    assert repr(attend.SinusoidalPositions(4)) == "<attend.SinusoidalPositions>"
    assert repr(layer()) == (
        "<attend.MultiHeadAttention: model_dim=4, heads=2, key_heads=2, d_k=2, d_v=2, key_dim=4, value_dim=4, "
        "bias=True, output_projection=True, rotary=None, type='f32', seed=0; 80 parameters>")
    assert repr(block()).startswith("<attend.AttentionBlock: attention={'model_dim': 4, ")
    assert repr(model()).startswith("<attend.LanguageModel: vocabulary=5, length=8, layers=1, model_dim=8, ")

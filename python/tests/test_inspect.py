"""Are the statistics those of the explicit matrix?"""
import html.parser
import math

import numpy as np
import pytest

import attend
from formula import attention

RNG = np.random.default_rng(3)


def problem(heads=4, key_heads=2, queries=7, keys=7, type="float64"):
    return (RNG.standard_normal((2, heads, queries, 8)).astype(type),
            RNG.standard_normal((2, key_heads, keys, 8)).astype(type))


CASES = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window": (2, 1)},
    "softcap_and_bias": {"softcap": 1.5, "bias": RNG.standard_normal((1, 4, 7, 7))},
    "alibi_and_sinks": {"alibi": np.array([0.1, 0.2, 0.3, 0.4]), "sinks": np.array([0.0, 1.0, -1.0, 2.0]),
                        "causal": True},
    "mask_and_lengths": {"mask": RNG.random((2, 1, 7, 7)) < 0.7, "key_lengths": np.array([7, 4])},
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES.keys())
def test_rows_and_keys_are_those_of_the_matrix(options):
    q, k = problem()
    found = attend.inspect(q, k, top_k=3, tile_rows=4, tile_columns=4, **options)
    _, lse, p, _ = attention(q, k, k, **options)
    np.testing.assert_allclose(found.lse, lse, atol=1e-12)
    np.testing.assert_allclose(found.maximum, p.max(-1), atol=1e-12)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(p > 0, p * np.log(p), 0).sum(-1)
    np.testing.assert_allclose(found.entropy, entropy, atol=1e-10)
    np.testing.assert_allclose(found.key_mass, p.sum(2), atol=1e-12)
    best = -np.sort(-p, axis=-1)[..., :3]
    np.testing.assert_allclose(found.top_weights, best, atol=1e-12)
    seen = found.top_keys >= 0
    at = np.take_along_axis(p, np.where(seen, found.top_keys, 0), -1)
    np.testing.assert_allclose(np.where(seen, at, 0), found.top_weights, atol=1e-12)
    assert (found.tile_queries, found.tile_keys) == (2, 2)
    assert found.tile_maximum.shape == (2, 4, 4, 4)
    window = attend.weights_of(q, k, found.lse, batch=1, head=3, query=2, queries=4, key=1, keys=5, **options)
    np.testing.assert_allclose(window, p[1, 3, 2:6, 1:6], atol=1e-12)


def test_heads_that_are_made_to_be_seen():
    words = "a b c a b c a b".split()
    ids = np.array([ord(w) for w in words])
    n = len(ids)
    scores = np.full((3, n, n), -50.0)
    for i in range(n):
        scores[0, i, max(0, i - 1)] = 0
        scores[1, i, 0] = 0
        after = [j for j in range(1, i + 1) if ids[j - 1] == ids[i]]
        scores[2, i, after[-1] if after else 0] = 0
    q = np.zeros((1, 3, n, 2))
    found = attend.inspect(q, q, bias=scores[None], causal=True, tokens=ids)
    assert [h.label for h in found.heads] == ["previous token", "first token", "induction"]
    assert found.heads[2].induction > 0.99 and found.heads[0].previous > 0.8
    assert math.isnan(attend.inspect(q, q).heads[0].induction)


def test_equal_texts_are_equal_tokens():
    words = "the cat and the dog and the cat".split()
    q, k = RNG.standard_normal((2, 1, 3, len(words), 4))
    ids = np.array([words.index(word) for word in words])
    by_text, by_number = (attend.inspect(q, k, causal=True, tokens=t).heads for t in (words, ids))
    assert [(h.duplicate, h.induction) for h in by_text] == [(h.duplicate, h.induction) for h in by_number]
    assert by_text[0].duplicate > 0
    layer = attend.MultiHeadAttention(model_dim=12, heads=3, seed=1)
    assert layer.inspect(np.ones((1, 8, 12), "float32"), tokens=tuple(words)).heads[0].duplicate > 0


def test_a_layer_says_what_its_heads_add():
    layer = attend.MultiHeadAttention(model_dim=12, heads=3, seed=1)
    x = RNG.standard_normal((2, 5, 12)).astype("float32")
    found = layer.inspect(x, causal=True)
    parts = layer.trace(x, causal=True)["contributions"]
    np.testing.assert_allclose([h.contribution for h in found.heads],
                               np.linalg.norm(parts, axis=-1).mean(-1).ravel(), rtol=1e-5)
    heads = layer.heads(x, causal=True)
    np.testing.assert_allclose(found.lse, attend.inspect(heads.q, heads.k, causal=True).lse, atol=1e-6)
    out = attend.attention(heads.q, heads.k, heads.v, causal=True)
    np.testing.assert_array_equal(out, layer.trace(x, causal=True)["heads"])
    memory = RNG.standard_normal((2, 4, 12)).astype("float32")
    assert layer.inspect(x, memory).key_mass.shape == (2, 3, 4)


def test_statistics_show_themselves():
    q, k = problem(type="float32")
    table = attend.inspect(q, k)._repr_html_()
    html.parser.HTMLParser().feed(table)
    assert table.count("<tr>") == 1 + 2 * 4
    lines = repr(attend.inspect(q, k)).splitlines()
    assert len(lines) == 1 + 2 * 4 and "entropy" in lines[0] and "contribution" not in lines[0]
    assert {len(line) for line in lines} == {len(lines[0])}
    many = np.ones((1, 40, 2, 2))
    assert repr(attend.inspect(many, many)).endswith("\n... and 8 more heads")
    assert "entropy" in table and "contribution" not in table and "nan" not in table


def test_what_was_not_asked_for_is_none():
    q, k = problem()
    found = attend.inspect(q, k, key_mass=False, metrics=False)
    assert found.key_mass is found.top_keys is found.tile_mean is None
    assert math.isnan(found.heads[0].previous) and found.heads[0].entropy > 0
    assert attend.inspect(q, k, tile_rows=2, tile_columns=4).tile_mean.shape[2:] == (2, 4)


def test_mistakes():
    q, k = problem()
    with pytest.raises(TypeError):
        attend.inspect(q, k, tile_rows="many", tile_columns=2)
    with pytest.raises(TypeError, match="tiles"):
        attend.inspect(q, k, tiles=2)
    with pytest.raises(ValueError, match="top_k"):
        attend.inspect(q, k, top_k=-1)
    with pytest.raises(TypeError, match="inspect: tokens"):
        attend.inspect(q, k, tokens=np.ones(7))
    with pytest.raises(TypeError, match=r"inspect: tokens is one str; .* tokens=text.split\(\)"):
        attend.inspect(q, k, tokens="a b")
    with pytest.raises(TypeError, match="inspect: tokens"):
        attend.inspect(q, k, tokens=["a", 1])
    with pytest.raises(TypeError, match="here it is causal="):
        attend.inspect(q, k, is_causal=True)
    with pytest.raises(ValueError):
        attend.weights_of(q, k, attend.inspect(q, k).lse, queries=8, keys=1)


@pytest.mark.parametrize("rows", [(2, 3), 1 << 70, "many", None])
def test_tiles_that_are_no_numbers_are_refused(rows):
    q = np.ones((1, 1, 4, 8), "float32")
    with pytest.raises(TypeError):
        attend.inspect(q, q, tile_rows=rows, tile_columns=2)

"""Does the page hold what attention computes?"""
import base64
import hashlib
import html
import json
import os
import re
import stat
import zlib

import numpy as np
import pytest

import attend
from formula import attention

RNG = np.random.default_rng(5)
TYPES = {"f32": "<f4", "f16": "<f2", "bf16": "<u2", "i32": "<i4", "u16": "<u2", "log16": "<u2", "u8": "u1", "log8": "u1",
         "bits": "u1"}


def data_of(view):
    """The page's data with its blobs unpacked."""
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', view.html, re.S)[1])
    blobs = re.findall(r'<script type="text/plain" id="blob-\d+">([^<]*)</script>', view.html)

    def unpack(x):
        if isinstance(x, dict) and "blob" in x:
            array = np.frombuffer(zlib.decompress(base64.b64decode(blobs[x["blob"]]), -15), TYPES[x["type"]])
            if x["type"] == "bits":
                array = np.unpackbits(array, bitorder="little")[:np.prod(x["shape"])]
            if x["type"] == "log8":
                array = np.where(array > 0, 2 ** ((array - 255.0) / 8), 0)
            if x["type"] == "log16":
                array = np.where(array < 65535, x.get("scale", 1) * 2 ** (array / -2048.0), 0)
            if x["type"] == "bf16":
                array = (array.astype("u4") << 16).view("f4")
            return array.reshape(x["shape"])
        if isinstance(x, dict):
            return {key: unpack(value) for key, value in x.items()}
        return [unpack(value) for value in x] if isinstance(x, list) else x

    return unpack(data)


def weights_of_page(layer):
    """Every weight of a layer, as the page computes it from q, k, lse and the options."""
    heads, queries, keys = layer["heads"], layer["queries"], layer["keys"]
    k = np.repeat(layer["k"], heads // layer["key_heads"], 0)
    s = layer["scale"] * np.einsum("hid,hjd->hij", layer["q"].astype("f8"), k.astype("f8"))
    i = np.arange(queries)[:, None] + layer["query_offset"]
    j = np.arange(keys)[None, :]
    added = np.zeros((1, 1, 1)) if layer["bias"] is None else layer["bias"]
    if layer["alibi"]:
        added = added - np.array(layer["alibi"])[:, None, None] * abs(i - j)
    if layer["bias_before_softcap"]:
        s = s + added
    if layer["softcap"]:
        s = layer["softcap"] * np.tanh(s / layer["softcap"])
    if not layer["bias_before_softcap"]:
        s = s + added
    seen = j < layer["key_length"]
    if layer["causal"]:
        seen = seen & (j <= i)
    left, right = layer["window"] or (-1, -1)
    seen = seen & ((left < 0) | (j >= i - left)) & ((right < 0) | (j <= i + right))
    if layer["mask"] is not None:
        seen = seen & (layer["mask"] == 1)
    with np.errstate(invalid="ignore"):   # a row that sees nothing has an lse of -inf
        return np.where(seen, np.exp(s - layer["lse"][:, :, None]), 0)


def arrays(queries=9, keys=9, d=8):
    return tuple(RNG.standard_normal(shape).astype("float32")
                 for shape in ((2, 4, queries, d), (2, 2, keys, d), (2, 2, keys, 5)))


CASES = {
    "plain": {},
    "causal": {"causal": True},
    "window_and_offset": {"window": (2, 0), "query_offset": 1, "scale": 0.3},
    "softcap": {"softcap": 1.5, "bias": RNG.standard_normal((2, 4, 9, 9)).astype("f4")},
    "bias_before_softcap": {"softcap": 2.0, "bias_before_softcap": True,
                            "bias": RNG.standard_normal((9,)).astype("f4")},
    "alibi_and_sinks": {"alibi": np.array([0.1, 0.2, 0.3, 0.4], "f4"),
                        "sinks": np.array([0, 1, -1, 2], "f4"), "causal": True},
    "mask_of_heads": {"mask": RNG.random((2, 4, 9, 9)) < 0.6},
    "short_mask": {"mask": RNG.random((9, 6)) < 0.8},
    "empty_mask": {"mask": np.ones((9, 9), bool)[:, :0]},
    "lengths": {"key_lengths": np.array([9, 5])},
    "minus_infinity": {"bias": np.where(RNG.random((9, 9)) < 0.3, -np.inf, 0).astype("f4")},
    "blocks": {"blocks": (RNG.random((1, 1, 3, 5)) < 0.7, 4, 2)},
}


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_keys_of_eight_bits_with_queries_of_any_type(dtype):
    q = arrays()[0].astype(dtype)
    k = np.random.default_rng(1).integers(-9, 9, q.shape).astype(np.int8)
    scales = np.full(k.shape[:3], 0.25, np.float32)
    _, expected = attend.attention(q, k, k, return_weights=True, k_scales=scales, v_scales=scales)
    layer = data_of(attend.view(q, k, k_scales=scales))["runs"][0]["layers"][0]
    np.testing.assert_allclose(weights_of_page(layer), expected[0], atol=1e-3 if dtype == np.float16 else 2e-6)


@pytest.mark.parametrize("options", CASES.values(), ids=CASES.keys())
def test_every_weight_on_the_page_is_attentions(options):
    q, k, v = arrays()
    _, expected = attend.attention(q, k, v, return_weights=True, **options)
    layer = data_of(attend.view(q, k, v, batch=1, **options))["runs"][0]["layers"][0]
    np.testing.assert_allclose(weights_of_page(layer), expected[1], atol=2e-6)
    np.testing.assert_array_equal(layer["v"], v[1])
    np.testing.assert_allclose(layer["mass"], expected[1].sum(1), atol=1e-5)
    np.testing.assert_allclose(layer["maximum"], expected[1].max(-1), atol=1e-6)
    np.testing.assert_allclose(layer["value_norm"], np.linalg.norm(v[1], axis=-1), rtol=1e-6)
    assert layer["output_norm"] is None and layer["why"] is None
    tiles, seen = layer["tiles"], expected[1] > 0
    assert (tiles["rows"], tiles["columns"], tiles["queries"], tiles["keys"]) == (9, 9, 1, 1)
    np.testing.assert_allclose(tiles["mean"], expected[1], rtol=0.045, atol=1e-9)
    np.testing.assert_array_equal(np.broadcast_to(tiles["visible"], seen.shape) == 2, seen)


def test_tiles_of_long_rows_are_means_and_maxima_of_what_is_visible():
    q, k, v = arrays(queries=13, keys=21)
    layer = data_of(attend.view(q, k, v, causal=True, tiles=4))["runs"][0]["layers"][0]
    tiles = layer["tiles"]
    assert (tiles["rows"], tiles["columns"], tiles["queries"], tiles["keys"]) == (4, 3, 4, 8)
    _, _, p, _ = attention(q, k, v, causal=True)
    seen = np.arange(21) <= np.arange(13)[:, None] + 8
    for r in range(4):
        for c in range(3):
            part = (slice(4 * r, 4 * r + 4), slice(8 * c, 8 * c + 8))
            visible = seen[part]
            assert tiles["visible"][0, r, c] == (0 if not visible.any() else 2 if visible.all() else 1)
            if not visible.any():
                continue
            inside = p[0][:, part[0], part[1]]
            np.testing.assert_allclose(tiles["maximum"][:, r, c], inside.max((1, 2)), rtol=0.045)
            np.testing.assert_allclose(tiles["mean"][:, r, c], inside.sum((1, 2)) / visible.sum(), rtol=0.045)


def test_only_the_hashed_script_and_style_may_run():
    q, k, v = arrays()
    page = attend.view(q, k, v).html
    policy = html.unescape(re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)"', page)[1])
    assert policy.startswith("default-src 'none'; ")
    for tag, name in (("style", "style"), ('script type="module"', "script")):
        inside = re.search(f"<{tag}>(.*?)</{name}>", page, re.S)[1]
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy
    assert not re.search(r'(src|href)="(?!data:)', re.sub("<script.*?</script>", "", page, flags=re.S))


def test_tokens_are_data():
    q, k, v = arrays()
    hostile = "</script><!-- \u2028\u202e\x1b[31m<b>&amp;{{data}}"
    page = attend.view(q, k, v, tokens=[hostile] * 9, title=hostile)
    data = data_of(page)
    assert data["runs"][0]["tokens"] == [hostile] * 9 and data["title"] == hostile
    assert page.html.count(hostile) == 0
    assert data["runs"][0]["special"] == []
    special = data_of(attend.view(q, k, v, tokens=["[CLS]", *"abcdefg", "<|end|>"]))["runs"][0]["special"]
    assert special == [0, 8]


def test_queries_at_the_end_take_the_last_tokens():
    q, k, v = arrays(queries=3, keys=9)
    run = data_of(attend.view(q, k, v, causal=True, tokens=list("abcdefghi")))["runs"][0]
    assert run["tokens"] == ["g", "h", "i"] and run["key_tokens"] == list("abcdefghi")


def test_equal_texts_are_equal_tokens():
    q, k, v = arrays()
    by_text = data_of(attend.view(q, k, v, tokens=list("abcabcabc"), causal=True))
    by_number = data_of(attend.view(q, k, v, token_ids=[0, 1, 2] * 3, causal=True))
    first, second = (x["runs"][0]["layers"][0]["metrics"]["induction"] for x in (by_text, by_number))
    assert first == second and first[0] is not None
    assert data_of(attend.view(q, k, v))["runs"][0]["layers"][0]["metrics"]["induction"] is None


def test_layers_and_runs():
    layer = attend.MultiHeadAttention(model_dim=8, heads=2, seed=3)
    other = attend.MultiHeadAttention(model_dim=8, heads=2, seed=4)
    x = RNG.standard_normal((2, 5, 8)).astype("float32")
    data = data_of(attend.view([layer.heads(x), layer.heads(x)], compare=[other.heads(x)] * 2, batch=1,
                               names=("before", "after"), layer_names=["lower", "upper"], language="zh"))
    assert [run["name"] for run in data["runs"]] == ["before", "after"] and data["language"] == "zh"
    assert [x["name"] for x in data["runs"][0]["layers"]] == ["lower", "upper"]
    found = layer.inspect(x)
    contribution = data["runs"][0]["layers"][1]["metrics"]["contribution"]
    assert contribution == [h.contribution for h in found.heads if h.batch == 1]
    q, k, v = arrays()
    assert len(data_of(attend.view(q, k, v, compare=(q, k)))["runs"]) == 2


def test_progress_is_told_and_what_it_raises_ends_the_work(capfd):
    q, k, v = arrays()
    told = []
    attend.view([q] * 3, [k] * 3, progress=lambda done, count: told.append((done, count)))
    assert told == [(4, 12), (8, 12), (12, 12)]
    attend.view(q, k, progress=True)
    assert capfd.readouterr().err == "\rlooking at the heads: 4 of 4\n"

    def stop(done, count):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        attend.view(q, k, progress=stop)


def test_norms_of_what_the_output_takes_of_a_value():
    q, k, v = arrays()
    w_o = RNG.standard_normal((7, 20)).astype("f4")
    layer = data_of(attend.view(q, k, v, batch=1, w_o=w_o))["runs"][0]["layers"][0]
    wanted = [[np.linalg.norm(w_o[:, 5 * h:5 * h + 5] @ v[1, h // 2, j]) for j in range(9)] for h in range(4)]
    np.testing.assert_allclose(layer["output_norm"], wanted, rtol=1e-5)


def test_a_page_is_saved_whole_and_shows_itself(tmp_path):
    q, k, v = arrays()
    view = attend.view(q, k, v)
    view.save(tmp_path / "page.html")
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]
    assert (tmp_path / "page.html").read_bytes().decode() == view.html
    frame = view._repr_html_()
    assert html.unescape(re.search(r'srcdoc="([^"]*)"', frame)[1]) == view.html
    assert len(repr(view)) < 100


def test_what_is_no_file_is_not_replaced_by_a_page(tmp_path):
    """/dev/null would be a file from then on, for every program. A link stays one, and a file keeps its permissions."""
    q, k, _ = arrays()
    view = attend.view(q, k)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("there.html")
    (tmp_path / "to the pipe").symlink_to("pipe")
    for name, told in (("pipe", "is no regular file"), ("to the pipe", "is no regular file"), ("", "is a folder"), ("no/page", "no such folder")):
        with pytest.raises(OSError, match=told):
            view.save(tmp_path / name)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    view.save(tmp_path / "link")
    (tmp_path / "there.html").chmod(0o640)
    view.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "there.html").stat().st_mode & 0o777 == 0o640
    view.save(tmp_path / ("n" * 250 + ".html"))
    assert len(list(tmp_path.iterdir())) == 5


def test_mistakes():
    q, k, v = arrays()
    with pytest.raises(ValueError, match="there are 2 tokens, layer 0 has 9 queries"):
        attend.view(q, k, v, tokens=["a", "b"])
    for name in ("tokens", "key_tokens"):
        with pytest.raises(TypeError, match=rf"view: {name} is one str; .* {name}=text.split\(\)"):
            attend.view(q, k, v, **{name: "a b"})
    with pytest.raises(TypeError, match="'lang'; the options are scale, .* the page are tokens, .*, language,"):
        attend.view(q, k, lang="zh")
    with pytest.raises(ValueError, match="there are 9 tokens, layer 1 has 4 queries and 9 keys"):
        attend.view([q, q[:, :, 5:]], [k, k], tokens=list("abcdefghi"))
    with pytest.raises(ValueError, match="there are 2 q and 1 k; each layer"):
        attend.view([q, q], [k], v)
    with pytest.raises(TypeError, match="layer 0 has no k"):
        attend.view(q)
    with pytest.raises(TypeError, match="q is a MultiHeadAttention, and view takes arrays, or what heads.. returned"):
        attend.view(attend.MultiHeadAttention(8, 2))
    with pytest.raises(ValueError, match=r"a window is \(layer, head,"):
        attend.view(q, k, windows=[(1, 2)])
    with pytest.raises(TypeError, match="progress is True or a function of .done, all., found int"):
        attend.view(q, k, progress=3)
    with pytest.raises(ValueError, match=r"w_o is f32 \[8, 19\]; it must be .* \[model_dim, 20\]: heads \* dv"):
        attend.view(q, k, v, w_o=np.zeros((8, 19), "f4"))
    with pytest.raises(TypeError, match="'embed_bytes'.* the arguments of the page are .*page_bytes"):
        attend.view(q, k, embed_bytes=1)
    with pytest.raises(ValueError, match="language is 'fr'"):
        attend.view(q, k, language="fr")
    with pytest.raises(TypeError, match="view.. got an unexpected keyword argument 'is_causal'"):
        attend.view(q, k, is_causal=True)
    for texts in ([1] * 9, np.arange(9)):
        with pytest.raises(TypeError, match="tokens are texts, found int"):
            attend.view(q, k, v, tokens=texts)
    with pytest.raises(ValueError, match="no UTF-8"):
        attend.view(q, k, v, tokens=["\ud800"] * 9)
    assert "tokens" in data_of(attend.view(q, k, v, tokens=np.array(list("abcdefghi"))))["runs"][0]
    for other in ([], (q,), q):
        with pytest.raises(TypeError, match="compare is"):
            attend.view(q, k, v, compare=other)

"""What a page holds of every row of every head, against the formula in NumPy, whatever fits."""
import re

import numpy as np
import pytest

import attend
from formula import attention, visible_keys
from test_view import data_of, weights_of_page

ROUNDED = 1.8e-4     # of log16, and of scores in f32


def parts(q, k, options, rows=512):
    """The formula on some rows at a time: their numbers, lse, weights and what is visible."""
    queries, keys = q.shape[2], k.shape[2]
    lengths = options.get("key_lengths")
    offset = options.get("query_offset", (keys if lengths is None else int(lengths[0])) - queries)
    for begin in range(0, queries, rows):
        part = slice(begin, min(begin + rows, queries))
        given = {**options, "query_offset": offset + begin}
        for name in ("mask", "bias"):
            x = given.get(name)
            if x is not None and x.ndim > 1 and x.shape[-2] > 1:
                given[name] = x[..., part, :]
        _, lse, p, s = attention(q[:, :, part], k, np.zeros(k.shape[:3] + (1,)), **given)
        hiding = {name: given[name] for name in ("causal", "window", "query_offset", "mask", "key_lengths") if name in given}
        yield part, lse[0], p[0], visible_keys(q[:, :, part], k, **hiding)[0][0] & np.isfinite(s[0])


def check_rows(rows, part, p, seen):
    """Of each row as many keys as it sees, at most k: their weights, the largest first, and none that is larger."""
    begin, end = max(part.start, rows["from"]), min(part.stop, rows["from"] + rows["count"])
    if begin >= end:
        return
    own = slice(begin - rows["from"], end - rows["from"])
    keys, weights = rows["keys"][:, own].astype("i8"), rows["weights"][:, own]
    p, seen = p[:, begin - part.start:end - part.start], seen[:, begin - part.start:end - part.start]
    none = (keys == 65535) | (keys == -1)
    np.testing.assert_array_equal((~none).sum(-1), np.minimum(seen.sum(-1), rows["k"]))
    assert not (none[..., :-1] & ~none[..., 1:]).any() and (weights[none] == 0).all()
    at = np.where(none, 0, keys)
    exact = np.where(none, 0, np.take_along_axis(p, at, -1))
    np.testing.assert_allclose(weights, exact, rtol=ROUNDED, atol=2.4e-10)
    assert np.where(none, True, np.take_along_axis(seen, at, -1)).all()
    assert (weights[..., :-1] >= weights[..., 1:]).all()
    rest = np.concatenate([p, p[..., :1]], -1)      # a column more, for what is none
    np.put_along_axis(rest, np.where(none, p.shape[-1], keys), 0, -1)
    bound = np.where(none[..., -1], 0, weights[..., -1]) * (1 + ROUNDED)
    assert (rest[..., :-1].max(-1) <= np.maximum(bound, 2.4e-10)).all()


class Tiles:
    """Sums and maxima of tiles, cut as the page says."""

    def __init__(self, tiles, heads):
        self.sizes = tiles["queries"], tiles["keys"]
        self.sum, self.largest, self.count = (np.zeros((heads, tiles["rows"], tiles["columns"])) for _ in range(3))

    def add(self, part, p, seen):
        columns = np.arange(0, p.shape[2], self.sizes[1])
        for n, i in enumerate(range(part.start, part.stop)):
            row = i // self.sizes[0]
            self.sum[:, row] += np.add.reduceat(p[:, n], columns, -1)
            self.count[:, row] += np.add.reduceat(seen[:, n].astype(int), columns, -1)
            self.largest[:, row] = np.maximum(self.largest[:, row], np.maximum.reduceat(p[:, n], columns, -1))

    def check(self, layer):
        step = 2 ** (1 / 16) - 1 + 1e-5

        def close(found, wanted):   # byte 1 is whatever is below 2^(-254/8)
            np.testing.assert_allclose(found, wanted, rtol=step, atol=3e-10)

        with np.errstate(invalid="ignore"):
            close(layer["tiles"]["mean"], np.nan_to_num(self.sum / self.count))
            close(layer["over_heads"]["mean"], np.nan_to_num(self.sum.sum(0) / self.count.sum(0)))
        close(layer["tiles"]["maximum"], self.largest)
        close(layer["over_heads"]["maximum"], self.largest.max(0))


def check_layer(layer, q, k, options):
    rows, tiles = layer["rows"], Tiles(layer["tiles"], q.shape[1])
    mass, entropy, begin = np.zeros((q.shape[1], k.shape[2])), [], rows["from"]
    for part, lse, p, seen in parts(q, k, options):
        first = max(part.start, begin)
        np.testing.assert_allclose(layer["lse"][:, first - begin:max(first, part.stop) - begin], lse[:, first - part.start:],
                                   rtol=2e-6, atol=2e-5)
        check_rows(rows, part, p, seen)
        tiles.add(part, p, seen)
        for window in layer["windows"]:
            at, keys = window["query"], slice(window["key"], window["key"] + window["keys"])
            own = range(max(at, part.start), min(at + window["queries"], part.stop))
            np.testing.assert_allclose(window["weights"][[i - at for i in own]],
                                       p[window["head"], [i - part.start for i in own], keys], atol=1e-6)
        mass += p.sum(1)
        entropy.append(-np.sum(np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0), -1))
    assert begin + rows["count"] == q.shape[2]
    tiles.check(layer)
    np.testing.assert_allclose(layer["mass"], mass, rtol=3e-4, atol=1e-6 * len(mass[0]))
    np.testing.assert_allclose(layer["entropy"], np.concatenate(entropy, 1), rtol=1e-3, atol=1e-3)


def layer_of(*arguments, run=0, layer=0, **keywords):
    return data_of(attend.view(*arguments, **keywords))["runs"][run]["layers"][layer]


def least(*arguments, allowed=1, **keywords):
    """The bytes without which there is no page: the writer says them."""
    with pytest.raises(ValueError, match=f"page_bytes is {allowed},") as caught:
        attend.view(*arguments, **keywords, page_bytes=allowed)
    return int(re.search(r"at least (\d+) bytes", str(caught.value))[1])


def arrays(length, heads=4, key_heads=2, d=8, keys=None, seed=0):
    random = np.random.default_rng(seed)
    keys = length if keys is None else keys
    return tuple(random.standard_normal((1, h, n, d)).astype("f4")
                 for h, n in ((heads, length), (key_heads, keys), (key_heads, keys)))


def cases(length):
    random = np.random.default_rng(length)
    mask = random.random((1, 4, length, length)) < 0.5
    mask[:, 1, 3::5] = False      # rows that see nothing
    slopes = np.array([0.5, 0.25, 0.1, 0.0], "f4")
    return {
        "plain": {},
        "causal": {"causal": True},
        "window": {"causal": True, "window": (length // 4, 0)},
        "mask_and_hidden_rows": {"mask": mask},
        "sinks": {"causal": True, "sinks": np.array([0, 3, -1, 9], "f4")},
        "softcap": {"softcap": 1.5, "causal": True},
        "alibi": {"alibi": slopes, "causal": True},
        "bias": {"bias": random.standard_normal((1, 1, length, length)).astype("f4")},
        "bias_of_minus_infinity": {"bias": np.where(mask, 0, -np.inf).astype("f4")},
        "lengths": {"key_lengths": np.array([length - 3]), "scale": 0.7},
        "offset": {"causal": True, "query_offset": -2},   # the first two rows see nothing
    }


@pytest.mark.parametrize("length", [16, 512])
@pytest.mark.parametrize("case", cases(16))
def test_rows_masses_and_tiles_are_those_of_the_formula(case, length):
    q, k, v = arrays(length)
    options = cases(length)[case]
    layer = layer_of(q, k, v, tiles=32, **options)
    assert layer["rows"]["k"] == 16 and layer["rows"]["count"] == length
    check_layer(layer, q, k, options)
    np.testing.assert_allclose(layer["maximum"], layer["rows"]["weights"][..., 0], rtol=ROUNDED, atol=1e-9)
    p = np.concatenate([p for _, _, p, _ in parts(q, k, options)], 1)
    np.testing.assert_allclose(weights_of_page(layer), p, atol=4e-6)   # every cell


@pytest.mark.parametrize("case", ["causal", "mask_and_hidden_rows", "sinks"])
def test_a_reduced_page_has_the_most_keys_that_fit(case):
    """From the least page on: a range of rows, all rows with 1, 2, 4, 8, 16 keys, then q and k, then v."""
    q, k, v = arrays(512, d=16)
    options = cases(512)[case]
    bytes_, found = least(q, k, v, **options), []
    for extra in (30, 40, 50, 60, 80, 130, 230, 720, 1200):
        view = attend.view(q, k, v, page_bytes=bytes_ + (extra << 10), **options)
        assert len(view.html.encode()) <= bytes_ + (extra << 10)
        data = data_of(view)
        layer = data["runs"][0]["layers"][0]
        rows = layer["rows"]
        found.append((rows["count"], rows["k"], layer["q"] is not None, layer["v"] is not None))
        assert bool(data["notes"]) == (layer["entropy"].dtype == np.float16)
        check_layer(layer, q, k, options)
        if layer["q"] is not None:
            p = np.concatenate([p for _, _, p, _ in parts(q, k, options)], 1)
            np.testing.assert_allclose(weights_of_page(layer), p, atol=2e-6)
    assert found == sorted(found) and found[0][0] < 512 and found[0][1] == 1
    assert {1, 2, 4, 8, 16} == {k for count, k, *_ in found if count == 512}
    assert found[-1] == (512, 16, True, True) and layer["tiles"]["rows"] == 128


def test_a_page_without_room_for_statistics_or_rows_has_its_maps():
    q, k, v = arrays(512, d=16)
    data = data_of(attend.view(q, k, v, page_bytes=least(q, k, v)))
    layer = data["runs"][0]["layers"][0]
    assert all(layer[name] is None for name in ("rows", "lse", "entropy", "mass", "maximum", "q", "k", "v", "value_norm"))
    assert layer["tiles"]["rows"] == 16 and len(layer["labels"]) == 4
    assert "no row has its keys" in data["notes"][0] and "statistics of single rows and keys are left out" in data["notes"][-1]


def test_layers_come_one_after_the_other_and_two_runs_together():
    q, k, v = arrays(256, d=64)
    three = ([q] * 3, [k] * 3, [v] * 3)
    bytes_ = least(*three, compare=three)
    seen = set()
    for extra in range(1 << 20, 6 << 20, 1 << 19):
        runs = data_of(attend.view(*three, compare=three, page_bytes=bytes_ + extra))["runs"]
        both = [[(layer["q"] is not None, layer["v"] is not None) for layer in run["layers"]] for run in runs]
        assert both[0] == both[1] == sorted(both[0], reverse=True)
        seen.add(sum(q for q, _ in both[0]))
        for layer in runs[0]["layers"]:
            assert (layer["why"] is None) == (layer["q"] is not None)
    assert seen == {0, 1, 2, 3}


def test_4096_tokens_on_a_page_of_one_mebibyte():
    q, k, v = arrays(4096, heads=2, key_heads=1)
    for options in ({"causal": True}, {"window": (300, 100), "sinks": np.array([1, 5], "f4")}):
        view = attend.view(q, k, v, page_bytes=1 << 20, windows=[(0, 1, 3000, 30, 2900, 200)], **options)
        assert len(view.html.encode()) <= 1 << 20
        layer = data_of(view)["runs"][0]["layers"][0]
        assert layer["rows"]["count"] == 4096 and layer["rows"]["k"] >= 2
        check_layer(layer, q, k, options)
    q, k, v = (x[:, :1] for x in (q, k, v))
    mask = np.random.default_rng(5).random((1, 1, 4096, 4096), "f4") < 0.5
    mask[..., 7::1000, :] = False     # rows that see nothing
    packed = (np.concatenate([x[:, :, :50], x], 2) for x in (q, k, v))
    for given, options, cut in (((q, k, v), {"mask": mask}, {}),
                                (packed, {"causal": True}, {"cu_seqlens_q": np.array([0, 50, 4146]), "batch": 1})):
        layer = data_of(attend.view(*given, page_bytes=1 << 20, windows=[(0, 0, 1990, 30, 1900, 200)], **options, **cut))["runs"][0]["layers"][0]
        assert layer["rows"]["count"] == 4096 and layer["q"] is None
        check_layer(layer, q, k, options)


@pytest.mark.parametrize("queries, options", [(131072, {"causal": True, "window": (256, 0)}), (1024, {"causal": True})],
                         ids=["windowed", "last_queries"])
def test_131072_tokens(queries, options):
    """64 rows drawn at random; masses by their sum. Keys are no 16-bit numbers here."""
    q, k, v = arrays(queries, heads=2, key_heads=1, keys=131072)
    data = data_of(attend.view(q, k, v, page_bytes=5 << 20, **options))
    layer = data["runs"][0]["layers"][0]
    rows, offset = layer["rows"], 131072 - queries
    assert rows["keys"].dtype == np.int32 and layer["q"] is None
    np.testing.assert_allclose(layer["mass"].sum(1), queries, rtol=2e-4)
    for i in np.random.default_rng(1).integers(rows["from"], queries, 64):
        position = int(i) + offset
        begin = max(0, position - 256) if "window" in options else 0
        p, seen = np.zeros((2, 1, 131072)), np.zeros((2, 1, 131072), bool)
        seen[:, :, begin:position + 1] = True
        for h in range(2):
            scores = k[0, 0, begin:position + 1].astype("f8") @ q[0, h, i] / np.sqrt(8)
            lse = scores.max() + np.log(np.exp(scores - scores.max()).sum())
            p[h, 0, begin:position + 1] = np.exp(scores - lse)
            assert layer["lse"][h, i - rows["from"]] == pytest.approx(lse, rel=2e-6, abs=2e-5)
        check_rows(rows, slice(i, i + 1), p, seen)


@pytest.mark.parametrize("length", [16, 512])
@pytest.mark.parametrize("options", [{"causal": True}, {"window": (5, 2)}], ids=["causal", "window"])
def test_a_sequence_of_packed_ones(length, options):
    q, k, v = arrays(length + 100)
    layer = layer_of(q, k, v, cu_seqlens_q=np.array([0, 100, 100 + length]), batch=1, **options)
    q, k = q[:, :, 100:], k[:, :, 100:]
    check_layer(layer, q, k, options)
    np.testing.assert_array_equal(layer["q"], q[0])
    np.testing.assert_allclose(weights_of_page(layer), next(parts(q, k, options))[2], atol=2e-6)


def test_numbers_of_16_bits_and_keys_of_8():
    q, k, v = (x.astype("f2") for x in arrays(64))
    data = attend.view(q, k, v, causal=True)
    assert re.search(r'"q":\{"blob":\d+,"type":"f16"', data.html)
    layer = data_of(data)["runs"][0]["layers"][0]
    check_layer(layer, q.astype("f8"), k.astype("f8"), {"causal": True})
    np.testing.assert_array_equal(layer["q"], q[0])
    eight = np.random.default_rng(3).integers(-100, 100, k.shape).astype("i1")
    scales = np.random.default_rng(4).random(k.shape[:3]).astype("f4") / 50
    layer = layer_of(q, eight, eight, causal=True, k_scales=scales, v_scales=scales)
    check_layer(layer, q.astype("f8"), eight * scales[..., None].astype("f8"), {"causal": True})
    np.testing.assert_array_equal(layer["k"], (eight * scales[..., None])[0])
    # k of another type than q, without scales
    layer = layer_of(q.astype("f4"), k, causal=True, bias=np.ones((64, 64), "f4"))
    check_layer(layer, q.astype("f8"), k.astype("f8"), {"causal": True, "bias": np.ones((64, 64))})


def test_a_row_of_nan_has_no_keys_and_says_so():
    q, k, v = arrays(40)
    q[0, 2, 7, 0] = np.nan
    bytes_ = least(q, k, v)
    for page_bytes in (bytes_ + (30 << 10), 16 << 20):
        layer = layer_of(q, k, v, page_bytes=page_bytes)
        assert np.isnan(layer["lse"]).sum() == 1 and np.isnan(layer["lse"][2, 7 - layer["rows"]["from"]])
        assert (layer["rows"]["keys"][2, 7 - layer["rows"]["from"]] == 65535).all()
        assert np.isnan(layer["mass"][2]).all() and not np.isnan(layer["mass"][1]).any()


def test_windows_that_are_asked_for_come_before_rows():
    q, k, v = arrays(512, d=16)
    window = (0, 1, 100, 200, 50, 300)
    bytes_ = least(q, k, v, windows=[window], allowed=4 * 200 * 300)
    assert bytes_ - least(q, k, v) > 4 * 200 * 300
    layer = layer_of(q, k, v, windows=[window], page_bytes=bytes_ + (20 << 10))
    _, _, p, _ = attention(q, k, v)
    np.testing.assert_allclose(layer["windows"][0]["weights"], p[0, 1, 100:300, 50:350], atol=1e-6)
    assert layer["rows"]["count"] < 512 and "--window 0,HEAD," in layer["why"]


def scores_of(q, k, ids, options):
    """The scores of one head by their definitions (docs/inspect.md); its queries are the last tokens."""
    sums, pairs, keys = {}, {}, k.shape[2]
    offset = keys - q.shape[2]
    for part, _, p, seen in parts(q, k, options):
        i, j = np.arange(part.start, part.stop)[:, None] + offset, np.arange(keys)[None, :]
        hiding = {name: options[name] for name in ("causal", "window") if name in options}
        allowed = visible_keys(q[:, :, part], k, query_offset=offset + part.start, **hiding)[0][0, 0]   # by position
        near = abs(i - j) <= 8
        copies = {"duplicate": (j < i) & (ids[None, :] == ids[i]),
                  "induction": (j > 0) & (j <= i) & (np.concatenate([[-1], ids[:-1]])[None, :] == ids[i])}
        for name, where in copies.items():   # of all rows that might see one
            sums[name] = sums.get(name, 0) + (p[0] * where).sum()
            pairs[name] = pairs.get(name, 0) + (where & allowed).any(1).sum()
        rows = seen[0].any(1)
        p, seen, allowed, near, i = p[0][rows], seen[0][rows], allowed[rows], near[rows], i[rows]
        entropy, visible = -np.sum(np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0), 1), seen.sum(1)
        even = visible > 1
        added = {"entropy": entropy, "maximum": p.max(1, initial=0), "distance": (p * abs(i - j)).sum(1),
                 "evenness": entropy[even] / np.log(visible[even]), "local_uniform": (allowed & near).sum(1) / allowed.sum(1)}
        chosen = {"previous": j == i - 1, "first": j == 0, "diagonal": j == i, "local": near}
        added |= {name: (p * where).sum(1) for name, where in chosen.items()}
        for name, values in added.items():
            sums[name] = sums.get(name, 0) + values.sum()
            pairs[name] = pairs.get(name, 0) + len(values)
    return {name: sums[name] / max(pairs[name], 1) for name in sums}


def label_of(s):
    """The first that holds, by the thresholds of docs/inspect.md."""
    if s["evenness"] >= 0.95:
        return "uniform", s["evenness"]
    habits = {"previous token": "previous", "first token": "first", "current token": "diagonal", "induction": "induction",
              "duplicate token": "duplicate"}
    if s["maximum"] - s["first"] > 0.1:
        del habits["first token"]
    score, name = max((s[metric], name) for name, metric in habits.items())
    if score >= 0.5:
        return name, score
    if s["first"] >= 0.5:
        return "selective", s["first"]
    if s["local"] >= 0.8 and s["local_uniform"] <= 0.5:
        return "local", s["local"]
    return "mixed", s["maximum"]


HIDING = {"causal": {"causal": True}, "window": {"causal": True, "window": (40, 0)}, "both_sides": {"window": (5, 3)},
          "mask": {"causal": True, "mask": None}, "packed": {"causal": True}}


@pytest.mark.parametrize("length, name", [(length, name) for length in (16, 512) for name in HIDING]
                         + [(4096, "causal"), (4096, "window"), (4096, "mask"), (4096, "packed")])
def test_labels_and_scores_of_heads_that_are_made_for_them(length, name):
    """All on the same keys: heads that are grouped."""
    random, options, few = np.random.default_rng(2), dict(HIDING[name]), length > 512
    ids, last, copies = random.integers(0, length // 4, length), {}, []
    for n, token in enumerate(ids):
        copies.append(last.get(token, n))
        last[token] = n
    own, earlier = np.arange(length), np.array(copies)
    wanted = [np.maximum(own - 1, 0), np.minimum(earlier + 1, own), np.zeros(length, int), own, earlier,
              random.integers(0, length, length)][:(2 if name == "causal" else 1) if few else 6]
    if "mask" in options:
        options["mask"] = random.random((1, 1, length, length), "f4") < 0.7
        options["mask"][..., 2::9, :] = False   # rows that see nothing
    k = random.standard_normal((1, 1, length, 64)).astype("f4")
    q = np.stack([4 * k[0, 0, row] for row in wanted] + [np.zeros((length, 64), "f4")] * (name == "causal" or not few))[None]
    given, cut = (q, k), {}
    if name == "packed":
        given, cut = [np.concatenate([x[:, :, :5], x], 2) for x in (q, k)], {"cu_seqlens_q": np.array([0, 5, 5 + length]), "batch": 1}
    layer = layer_of(*given, token_ids=ids.tolist(), page_bytes=4 << 20, **options, **cut)
    for h in range(q.shape[1]):
        scores = scores_of(q[:, h:h + 1], k, ids, options)
        for metric in set(scores) - {"local_uniform"}:
            assert layer["metrics"][metric][h] == pytest.approx(scores[metric], rel=1e-4, abs=3e-5), (h, metric)
        label, score = label_of(scores)
        assert (layer["labels"][h]["name"], layer["labels"][h]["score"]) == (label, pytest.approx(score, rel=1e-4)), h
    if name == "causal":
        assert {label["name"] for label in layer["labels"]} >= {"previous token", "induction", "uniform"}

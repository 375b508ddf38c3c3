"""Pages that hold less than every weight. A tile, the mean and the largest weight of a range of cells, is drawn
and told as a tile; what stands for one cell, on the map or in words, is that cell's weight at every zoom."""

import csv
import io
import re
import xml.etree.ElementTree as xml

import numpy as np
import pytest

import fixtures
from page import Blobs, layer_of, page_of, softmax
from test_map import ALL_WEIGHTS, colour, one_layer

# What a canvas is told to write inside the plot, and where: [text, query, key].
WRITTEN = """async (changes) => {
  const written = [], write = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...rest) {
    const { e, f } = this.getTransform();
    written.push([text, x, y, e, f]);
    return write.call(this, text, x, y, ...rest);
  };
  attend.choose(changes);
  do await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  while (document.getElementById("map").dataset.whole !== "true");
  CanvasRenderingContext2D.prototype.fillText = write;
  const { left, top, w, h } = attend.geometry(), [q0, q1, k0, k1] = attend.state.zoom;
  return written.filter(([, , , e, f]) => Math.abs(e - left) < 1 && Math.abs(f - top) < 1)
    .map(([text, x, y]) => [text, Math.floor(q0 + (y / h) * (q1 - q0)), Math.floor(k0 + (x / w) * (k1 - k0))]);
}"""


def reduced(length=60, tiles=16, top_k=2, windows=((1, 40, 8, 30, 12),), causal=False, seed=5, sharp=2.0):
    """A layer of two heads without q and k: tiles, some top keys and windows. Its page, and the truth."""
    random = np.random.default_rng(seed)
    source = {name: random.normal(size=(2, length, 8)).astype(np.float32) for name in "qkv"}
    source["q"] *= sharp
    source["causal"] = causal
    weights, visible, _ = softmax(source)
    html = one_layer(source, embed=False, tiles=tiles, top_k=top_k, windows=windows)
    return html, weights, visible


def inside_bound(row, k):
    """What the k largest weights of a row leave for the others."""
    best = np.sort(row)[::-1][:k]
    return 1 if k == 0 else 1.0005 * min(best[-1], 1 - best.sum() + 4e-4)  # with what rounding may add


def side(length, tiles):
    return 1 << max(0, int(np.ceil(np.log2(length / tiles))))


CASES = [
    dict(),
    dict(causal=True, seed=6),
    dict(length=61, tiles=8, top_k=1, windows=(), seed=7, sharp=4.0),
    dict(length=13, tiles=128, top_k=0, windows=((0, 2, 3, 1, 5),), seed=8),  # tiles of one cell, rounded
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_cell_has_its_own_weight_or_none(show, case):
    html, weights, visible = reduced(**case)
    cells = show(html).evaluate(ALL_WEIGHTS, list(weights.shape))
    sums, known = np.zeros(weights.shape[:2]), 0
    for (h, i, j), cell in zip(np.ndindex(weights.shape), cells):
        if not visible[h, i, j]:
            assert cell["kind"] == "hidden"
        elif cell["kind"] == "exact":
            assert cell["weight"] == pytest.approx(weights[h, i, j], rel=1.8e-4 if cell["error"] else 1e-5)
            sums[h, i] += cell["weight"]
            known += 1
        else:
            tile, step = cell["tile"], side(case.get("length", 60), case.get("tiles", 16))
            assert cell["kind"] == ("bound" if case.get("top_k", 2) else "tile") and cell["weight"] is None
            assert weights[h, i, j] <= cell["most"] <= inside_bound(weights[h, i], case.get("top_k", 2))
            assert (tile["query"], tile["key"]) == (i - i % step, j - j % step)
            rows = slice(tile["query"], tile["query"] + tile["queries"])
            columns = slice(tile["key"], tile["key"] + tile["keys"])
            inside, seen = weights[h, rows, columns], visible[h, rows, columns]
            assert inside.shape == (tile["queries"], tile["keys"])  # the last ones are smaller
            assert tile["mean"] == pytest.approx(inside[seen].mean(), rel=0.05)
            assert tile["largest"][0] <= inside.max() * 1.0001 and inside.max() <= tile["largest"][1] * 1.0001
    assert known >= case.get("top_k", 2) and sums.max() <= 1 + 2e-4


@pytest.mark.parametrize("case", CASES[:3], ids=str)
def test_numbers_on_the_map_are_those_of_their_cells_at_every_zoom(show, case):
    html, weights, _ = reduced(**case)
    tab, found = show(html, "#head=1"), 0
    for q0, k0, size in [(40, 30, 8), (38, 28, 12), (0, 0, 9), (44, 44, 14)]:
        tab.choose(zoom=None)
        sums = {}
        for text, i, j in tab.evaluate(WRITTEN, {"zoom": [q0, q0 + size, k0, k0 + size]}):
            assert float(text) == pytest.approx(weights[1, i, j], abs=0.0051), (text, i, j)
            sums[i] = sums.get(i, 0) + float(text)
            found += 1
        assert all(total <= 1.05 for total in sums.values())
    assert found > 4


def test_a_tile_is_one_outlined_colour(show):
    html, weights, _ = reduced(top_k=0, windows=((0, 4, 4, 4, 4),))
    tab = show(html, "#zoom=0,12,0,12&bend=sqrt")
    assert tab.tab.get_attribute("#map", "data-level") == "cells"
    pixels = """(places) => {
      const canvas = document.getElementById("map"), { left, top, w, h, width } = attend.geometry(), ratio = canvas.width / width;
      return places.map(([i, j]) => [...canvas.getContext("2d").getImageData(
        Math.round((left + (j / 12) * w) * ratio), Math.round((top + (i / 12) * h) * ratio), 1, 1).data].slice(0, 3));
    }"""
    inside = [[i, j] for i in (0.5, 1, 2, 3.5) for j in (8.5, 9, 10, 11.5)]  # lines between cells among them
    drawn = tab.evaluate(pixels, inside)
    assert len({tuple(pixel) for pixel in drawn}) <= 2  # with the stripes
    corner = tab.evaluate(pixels, [[3.9, 8.1], [3.86, 8.07], [3.92, 8.12]])
    assert len({tuple(pixel) for pixel in corner}) == 1
    assert np.abs(np.array(corner[0]) - colour(np.sqrt(weights[0, 0:4, 8:12].max()))).max() <= 8
    mean = weights[0, 0:4, 8:12].mean()
    assert np.abs(np.array(drawn[0]) - colour(np.sqrt(mean))).max() <= 6
    edge, cells = tab.evaluate(pixels, [[2, 8], [4.5, 6]])
    assert edge != drawn[0]
    exact = tab.pixel(5, 6)
    assert np.abs(exact - colour(np.sqrt(weights[0, 5, 6]))).max() <= 4 and cells != exact  # a line between cells
    assert "not on the page" not in tab.text(".legend")
    assert "not stored: tile of cells" in tab.text(".legend") and "Tiles of 4 × 4 cells" in tab.text("#level")


def lone(weights, top_k):
    """Cells that are not stored, but all of their neighbours are; and these."""
    stored = np.zeros(weights.shape, bool)
    np.put_along_axis(stored, np.argsort(-weights)[:, :top_k], True, axis=1)
    inner = [(i, j) for i, j in np.argwhere(~stored) if 0 < min(i, j) and max(i, j) + 1 < len(weights)]
    around = [[i, j, [[i - 1, j], [i + 1, j], [i, j - 1], [i, j + 1]]] for i, j in np.array(inner).tolist()]
    return [each for each in around if all(stored[i, j] for i, j in each[2])]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_cell_that_is_not_stored_never_looks_like_one_that_is(show, scheme):
    """A stored cell is one colour; what shows of a tile between stored cells has stripes, as has all of it."""
    html, weights, _ = reduced(length=48, tiles=16, top_k=40, windows=(), sharp=1.0)
    tab = show(html, "#bend=sqrt", scheme=scheme)
    for zoom in (None, [12, 36, 8, 32], [15, 37, 8, 30]):
        q0, q1, k0, k1 = zoom or (0, 48, 0, 48)
        seen = [each for each in lone(weights[0], 40) if q0 < each[0] < q1 - 1 and k0 < each[1] < k1 - 1]
        assert len(seen) >= 5
        tab.choose(zoom=zoom)
        stored = sum((around for _, _, around in seen), [])
        assert min(map(len, tab.colours([[i, j] for i, j, _ in seen]))) > 1, zoom
        assert {len(colours) for colours in tab.colours(stored)} == {1}, zoom
        assert "not stored: tile" in tab.text(".legend")
        root = xml.fromstring(tab.evaluate("() => attend.svg()"))
        fills = [part.get("fill") for part in root.iter() if (part.get("fill") or "").startswith("url(#stripes-")]
        assert len(fills) == ((q1 - 1) // 4 - q0 // 4 + 1) * ((k1 - 1) // 4 - k0 // 4 + 1)
    html = one_layer(fixtures.habits(fixtures.SENTENCE * 2), tiles=8)  # all is exact
    tab = show(html, "#head=6", scheme=scheme)
    assert {len(colours) for colours in tab.colours([[20, j] for j in range(20)])} == {1}
    assert "stored" not in tab.text(".legend") and "stripes" not in tab.evaluate("() => attend.svg()")


def test_the_legend_has_what_is_drawn(show):
    """Without tiles the cells that the page does not hold are grey, and nothing is a tile."""
    blobs, runs = Blobs(), []
    for name in ("one", "two"):
        layer = layer_of(fixtures.habits(fixtures.SENTENCE), blobs, "layer", embed=False, windows=((0, 0, 3, 0, 3),))
        layer["tiles"] = None
        runs.append({"name": name, "tokens": None, "key_tokens": None, "special": [], "layers": [layer]})
    tab = show(page_of(runs, blobs))
    legend = tab.text(".legend")
    assert "not on the page" in legend and "tile of several cells" not in legend
    legend = show(page_of(runs, blobs), "#show=difference").text(".below")
    assert "orange: more weight in two; blue: less" in legend and "largest" not in legend


def test_the_readout_describes_the_tile(show):
    html, weights, _ = reduced(length=300, tiles=128)
    tab = show(html, "#zoom=255,275,255,275&head=0")
    best = np.argsort(-weights[0, 260])[:2]
    j = next(j for j in (270, 271, 269) if j not in best)
    words = tab.choose(cell=[260, j]).text("#readout")
    assert "at most" in words and "queries 260–263, keys 268–271" in words and "exact" not in words
    assert "--window 0,0,260,1,%d,1" % j in words and "--window 0,0,260,1,%d,1" % j in tab.text("#explain .command")
    assert weights[0, 260, j] <= float(re.search(r"≤ (\S+)", words)[1]) <= 1.1 * np.sort(weights[0, 260])[-2]
    largest = weights[0, 260:264, 268:272].max()
    from_, to = map(float, re.search(r"largest between (\S+) and ([^;\s]+)", words).groups())
    assert from_ <= largest <= to and to / from_ < 1.25
    low, high = map(float, re.search(r"mean ([\d.]+)–([\d.]+) over", words).groups())  # a step of 2^(1/8) is not a digit
    assert low <= weights[0, 260:264, 268:272].mean() <= high < 1.2 * low
    assert "not in the page" in tab.text("#explain") and "queries 260–263" in tab.text("#explain")
    assert tab.tab.get_attribute("#map", "aria-describedby") == "readout level"
    assert "exact" in tab.choose(cell=[260, int(best[0])]).text("#readout")


@pytest.mark.parametrize("width", [390, 800, 1440])
def test_what_kind_a_cell_is_stands_beside_its_weight(show, width):
    """As wide as its word, on narrow screens too."""
    tab = show(reduced()[0], "#cell=30,30", width=width)
    for cell in ([30, 30], [30, 2]):
        tab.choose(cell=cell)
        assert tab.evaluate("() => document.querySelector('#readout .kind').getBoundingClientRect().width") < 100


def test_the_largest_weight_of_a_tile_is_not_rounded_down(show):
    """0.930 lies between two steps of a tile's bytes, and used to be told as 0.917."""
    score = float(np.log(0.93 / 0.07 * 7))
    source = {"q": np.ones((1, 8, 1)), "k": np.array([[[score]] + [[0.0]] * 7]), "v": np.ones((1, 8, 1)), "scale": 1.0}
    assert softmax(source)[0].max() == pytest.approx(0.93)
    tab = show(one_layer(source, embed=False, tiles=4), "#cell=0,0")
    words = tab.text("#readout")
    from_, to = map(float, re.search(r"largest between (\S+) and (\S+)", words).groups())
    assert from_ <= 0.93 <= to and "0.917" not in words


def test_the_table_tells_tiles_in_words(show):
    html, weights, _ = reduced(length=24, tiles=8, top_k=0, windows=((0, 4, 2, 4, 6),))
    tab = show(html, "#table=1")
    rows = tab.evaluate("() => [...document.querySelectorAll('table.weights tbody tr')].map("
                        "(row) => [...row.querySelectorAll('td')].map((cell) => cell.textContent))")
    for i, row in enumerate(rows):
        numbers = {j: float(words.replace("−", "-")) for j, words in enumerate(row) if re.fullmatch(r"[\d.e−]+", words)}
        assert sum(numbers.values()) <= 1.001
        for j, value in numbers.items():
            assert value == pytest.approx(weights[0, i, j], rel=0.06)  # two digits of the smallest
        others = [words for j, words in enumerate(row) if j not in numbers]
        first = i - i % 4
        assert others and all(f"queries {first}–{first + 3}, keys" in words and "largest" in words for words in others)


def test_the_table_tells_bounds_of_stored_rows(show):
    html, weights, _ = reduced(length=24, tiles=8, top_k=3, windows=())
    tab = show(html, "#table=1")
    rows = tab.evaluate("() => [...document.querySelectorAll('table.weights tbody tr')].map("
                        "(row) => [...row.querySelectorAll('td')].map((cell) => cell.textContent))")
    for i, row in enumerate(rows):
        bounds = {j: float(words[2:].replace("−", "-")) for j, words in enumerate(row) if words.startswith("≤ ")}
        assert len(bounds) == 21 and all(weights[0, i, j] <= bound for j, bound in bounds.items())


def test_a_bound_is_never_rounded_down(show):
    html, weights, _ = reduced(length=24, tiles=8, top_k=6, windows=(), sharp=6.0)
    tab = show(html, "#table=1")
    rows = tab.evaluate("() => [...document.querySelectorAll('table.weights tbody tr')].map("
                        "(row) => [...row.querySelectorAll('td')].map((cell) => cell.textContent))")
    cells, small = tab.evaluate(ALL_WEIGHTS, [1, 24, 24]), 0
    for words, cell in zip(sum(rows, []), cells):
        if cell["kind"] == "bound":
            assert cell["most"] <= float(words[2:].replace("−", "-")) <= 1.1 * cell["most"]
            small += cell["most"] < 1e-4
    assert small > 20


def test_csv_tells_tiles_and_cells_apart(show):
    html, weights, _ = reduced(length=61, tiles=16)
    tab = show(html, "#head=1")
    rows = list(csv.DictReader(io.StringIO(tab.evaluate("() => attend.csv()"), newline="")))
    tiles = [row for row in rows if row["kind"] == "tile"]
    assert len(tiles) == 16 * 16 and {row["kind"] for row in rows} == {"tile", "exact"}
    assert (tiles[-1]["query"], tiles[-1]["queries"]) == ("60", "1")  # no further than the last query
    sums = np.zeros(61)
    for row in rows:
        i, n, j, m = (int(row[name]) for name in ("query", "queries", "key", "keys"))
        part = weights[1, i : i + n, j : j + m]
        if row["kind"] == "tile":
            from_, to = float(row["mean_from"]), float(row["mean_to"])
            assert row["weight"] == "" and from_ <= part.mean() <= to < 1.1 * from_
            assert float(row["largest_from"]) * 0.9999 <= part.max() <= float(row["largest_to"]) * 1.0001
        else:
            assert float(row["weight"]) == pytest.approx(part[0, 0], rel=2e-3) and row["mean_from"] == ""
            sums[i] += float(row["weight"])
    assert 0 < sums.max() <= 1 + 2e-3


def test_svg_draws_tiles_as_tiles(show):
    html, weights, _ = reduced()
    root = xml.fromstring(show(html, "#head=1&zoom=36,52,28,44").evaluate("() => attend.svg()"))
    titles = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")][1:]
    cells = [title for title in titles if "→" in title]
    tiles = [title for title in titles if title.startswith("tile: mean")]
    assert len(tiles) + len(cells) == len(titles) and 4 <= len(tiles) <= 25 and len(cells) >= 8 * 12
    for title in cells:
        i, j, value = re.fullmatch(r"(\d+) \S+ → (\d+) \S+: (\S+)", title).groups()
        assert float(value) == pytest.approx(weights[1, int(i), int(j)], rel=7e-4)


def test_the_text_shades_only_tokens_whose_weight_is_known(show):
    html, weights, _ = reduced(top_k=2, windows=())
    tab = show(html, "#chosen=7")
    best = sorted(np.argsort(-weights[0, 7])[:2].tolist())
    pieces = tab.evaluate("() => [...document.querySelectorAll('.piece')].map((piece) => "
                          "[piece.dataset.value ?? null, piece.classList.contains('in-tile'), piece.title])")
    assert [n for n, (value, _, _) in enumerate(pieces) if value is not None] == best
    for n, (value, in_tile, title) in enumerate(pieces):
        if value is None:
            assert in_tile and f"keys {n - n % 4}–{n - n % 4 + 3}" in title
        else:
            assert float(value) == pytest.approx(weights[0, 7, n], rel=1.8e-4)
    assert tab.count("#text .strongest button") == 2 and "only tiles are known" in tab.text("#text .strongest")
    tab.choose(chosen=best[:1], reverse=True)
    assert tab.count(".piece.in-tile") >= 50


def test_a_difference_of_tiles_names_a_range_and_its_means(show):
    blobs, runs, weights = Blobs(), [], []
    for name, strength in (("a", 1.0), ("b", 3.0)):
        source = fixtures.habits(fixtures.SENTENCE * 3)
        source["q"][7] *= strength
        weights.append(softmax(source)[0])
        layer = layer_of(source, blobs, "layer 0", embed=False, tiles=16)
        runs.append({"name": name, "tokens": None, "key_tokens": None, "special": [], "layers": [layer]})
    tab = show(page_of(runs, blobs), "#show=difference&head=7&cell=20,9")
    tab.tab.wait_for_selector(".largest:not(:has-text('searching'))")
    words = tab.text(".largest")
    i, j = map(int, re.search(r"queries (\d+)–\d+ → keys (\d+)–\d+", words).groups())
    assert i % 4 == 0 and j % 4 == 0 and "of the means" in words and "query" not in words
    readout = tab.text("#readout")
    assert "differ by" in readout and "queries 20–23 and keys 8–11" in readout
    assert tab.tab.get_attribute("#readout", "data-weight") == ""


def test_a_difference_of_an_unknown_cell_has_both_bounds_and_the_flag(show):
    blobs, runs, weights = Blobs(), [], []
    for name, seed in (("a", 31), ("b", 32)):
        random = np.random.default_rng(seed)
        source = {part: random.normal(size=(2, 40, 8)).astype(np.float32) for part in "qkv"}
        weights.append(softmax(source)[0][1])
        layer = layer_of(source, blobs, "layer 0", embed=False, tiles=10, top_k=4)
        runs.append({"name": name, "tokens": None, "key_tokens": None, "special": [], "layers": [layer]})
    a, b = weights
    best = [{(i, int(j)) for i in range(40) for j in np.argsort(-run[i])[:4]} for run in weights]
    one = min(best[0] - best[1])  # known in one of them
    neither = next((i, j) for i in range(20, 40) for j in range(40) if (i, j) not in best[0] | best[1])
    tab = show(page_of(runs, blobs), "#show=difference&head=1")
    for i, j in (one, neither):
        words = tab.choose(cell=[i, j]).text("#readout")
        from_, to = (float(end.replace("−", "-")) for end in re.search(r"this cell differs by (\S+) to (\S+);", words).groups())
        least = [run[i, j] if (i, j) in stored else 0 for run, stored in zip(weights, best)]
        most = [run[i, j] if (i, j) in stored else np.sort(run[i])[-4] for run, stored in zip(weights, best)]
        assert from_ <= b[i, j] - a[i, j] <= to
        assert 1.1 * (least[1] - most[0]) - 1e-3 <= from_ and to <= 1.1 * (most[1] - least[0]) + 1e-3
        assert f"stored with --window 0,1,{i},1,{j},1" in words and "the means over queries" in words
        assert tab.tab.get_attribute("#readout", "data-weight") == ""


def test_a_threshold_leaves_out_no_tile_that_may_reach_it(show):
    html, weights, _ = reduced(top_k=0, windows=(), sharp=3.0)
    largest = weights[0].reshape(15, 4, 15, 4).max(axis=(1, 3))
    least = float(np.sort(largest.ravel())[100]) * 0.999  # just below the largest weight of one tile
    tab = show(html, f"#least={least}")
    kinds = tab.evaluate("""() => Array.from({ length: 15 }, (_, r) => Array.from({ length: 15 }, (_, c) => {
      attend.choose({ cell: [4 * r + 1, 4 * c + 2] });
      return document.getElementById("readout").dataset.kind; }))""")
    assert all(kinds[r][c] == "tile" for r, c in np.argwhere(largest >= least))
    assert sum(row.count("filtered") for row in kinds) > 50

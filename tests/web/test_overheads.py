"""Mean and largest over heads where only tiles are known: each is called what it is, on the map, in its legend and
in files. And a legend that promises no corner where none is drawn."""

import csv
import io
import re

import numpy as np
import pytest

from test_extremes import layer, page
from test_map import colour
from test_rows import model, told
from page import Blobs, layer_of, page_of, softmax

PLACE = "#layer=1&zoom=16,40,0,24"


def tiles_of(tab):
    rows = csv.DictReader(io.StringIO(tab.evaluate("() => attend.csv()"), newline=""))
    return [row for row in rows if row["kind"] == "tile"]


def part(row):
    i, j = int(row["query"]), int(row["key"])
    return slice(i, i + int(row["queries"])), slice(j, j + int(row["keys"]))


def test_the_largest_over_heads_is_called_the_largest(show):
    html, weights, _ = model()
    most, tab = weights[1].max(axis=0), show(html, f"{PLACE}&over=maximum")
    for tile in ("mean", "maximum"):  # the page has one of both, whatever is asked for
        assert "their largest weight" in tab.choose(tile=tile).text("#level")
    rows = tiles_of(tab)
    assert rows
    for row in rows:
        assert row["mean_from"] == row["mean_to"] == ""
        largest = most[part(row)].max()
        assert float(row["largest_from"]) <= largest * 1.0001 and largest <= float(row["largest_to"]) * 1.0001


def test_the_mean_over_heads_is_called_the_mean(show):
    html, weights, _ = model()
    mean, tab = weights[1].mean(axis=0), show(html, f"{PLACE}&over=mean&tile=maximum")
    assert "their mean weight" in tab.text("#level")
    rows = tiles_of(tab)
    assert rows
    for row in rows:
        seen = np.tri(40, dtype=bool)[part(row)]
        assert float(row["mean_from"]) <= mean[part(row)][seen].mean() <= float(row["mean_to"])
        assert row["largest_from"] == row["largest_to"] == ""


def test_a_difference_over_heads_says_of_what(show):
    sources = [layer(seed, heads=2, queries=40, keys=40) for seed in (31, 32)]
    most = [softmax(source)[0].max(axis=0) for source in sources]
    tab = show(page(*([source] for source in sources), embed=False, top_k=2, tiles=8), "#show=difference&over=maximum&cell=9,3")
    assert "the largest weights over queries 8–15 and keys 0–7 differ by" in tab.text("#readout")
    for row in tiles_of(tab):
        apart = most[1][part(row)].max() - most[0][part(row)].max()
        assert row["mean_from"] == "" and float(row["largest_from"]) <= apart <= float(row["largest_to"])
    assert "cells: the difference of their largest weights" in tab.text("#level")
    assert "the means over queries 8–15" in tab.choose(over="mean").text("#readout")
    assert "cells: the difference of their mean weights" in tab.text("#level")


def test_tiles_beside_weights_times_norms_are_called_grey(show):
    tab = show(model()[0], f"{PLACE}&norms=1")
    assert "grey: the page has no mean of weight × norm" in tab.text("#level") and "not on the page" in tab.text(".legend")
    assert "in the colour of their mean weight" in tab.choose(norms=False).text("#level")
    assert "not on the page" not in tab.text(".legend")


@pytest.mark.parametrize("over", ["mean", "maximum"])
def test_a_bound_over_heads_counts_that_known_weights_are_rounded(show, over):
    html, weights, _ = model()
    truth = (weights[1].max if over == "maximum" else weights[1].mean)(axis=0)
    most = show(html, f"#layer=1&over={over}").evaluate("""() => Array.from({ length: 1600 }, (_, n) => {
      attend.choose({ cell: [Math.floor(n / 40), n % 40] });
      return document.getElementById("readout").dataset.most;
    })""")
    bounded = [(n // 40, n % 40, float(text)) for n, text in enumerate(most) if text]
    assert len(bounded) > 400 and all(truth[i, j] <= bound for i, j, bound in bounded)


@pytest.mark.parametrize("over", ["mean", "maximum"])
def test_a_threshold_over_heads_leaves_out_what_is_surely_below_it(show, over):
    html, weights, _ = model()
    truth = (weights[1].max if over == "maximum" else weights[1].mean)(axis=0)
    tab = show(html, f"{PLACE}&over={over}&least=0.2")
    kinds = tab.evaluate("""() => Array.from({ length: 96 }, (_, n) => [24 + Math.floor(n / 6), 4 * (n % 6) + 1]).map(([i, j]) => {
      attend.choose({ cell: [i, j] });
      return [i, j, document.getElementById("readout").dataset.kind];
    })""")
    left_out = [(i, j) for i, j, kind in kinds if kind == "filtered"]
    assert len(left_out) > 20 and all(truth[place] < 0.2 for place in left_out)
    assert all(pixel == [255, 255, 255] for pixel in tab.choose(cell=None).pixels(left_out))
    tab.choose(cell=[30, 5], chosen=[30])
    assert tab.count(".problem") == 0
    tab.choose(least=1, over="none")  # cards over heads answer for the cell
    assert tab.count(".problem") == 0 and tab.text(f'.thumb[data-layer="1"][data-over="{over}"] .figure') == "–"


def test_the_legend_promises_no_corner_where_none_is_drawn(show):
    html = model()[0]
    tab = show(html, PLACE)
    start = tab.evaluate("() => attend.state")
    for changes, corner in (({}, True), ({"over": "mean"}, False), ({"over": "maximum"}, False), ({"norms": True}, False),
                            ({"norms": True, "far": 2}, False), ({"far": 2}, True)):
        words = tab.choose(**{**start, **changes}).text(".legend")
        assert "not stored: tile" in words and ("corner" in words) == corner, changes
    two = page([layer(33)], [layer(34)], embed=False, top_k=2, tiles=8)
    assert "corner" not in show(two, "#show=difference").text(".legend")
    small = page([layer(35, heads=1, queries=800, keys=800)], embed=False, top_k=2)  # 128 tiles: too small for corners
    tab = show(small)
    assert "tile of several cells" in tab.text(".legend") and "corner" not in tab.text(".legend")
    assert "corner" in tab.choose(zoom=[0, 64, 0, 64]).text(".legend")
    assert re.search("tile.+corner", tab.text(".legend"))


@pytest.mark.parametrize("over", ["mean", "maximum"])
def test_over_heads_a_cell_is_drawn_only_where_every_head_stores_it(show, over):
    html, weights, _ = model(top_k=9)
    tab, merged = show(html, f"#layer=1&over={over}&bend=sqrt&zoom=20,40,0,20"), getattr(weights[1], "max" if over == "maximum" else over)
    truth = merged(axis=0)
    order = np.argsort(np.where(np.tri(40, dtype=bool), -weights[1], 1), axis=2, kind="stable")[..., :9]
    stored = np.zeros(weights[1].shape, int)
    np.put_along_axis(stored, order, 1, axis=2)
    cells = [(i, j) for i in range(20, 40) for j in range(20)]
    drawn, sure = tab.colours(cells), {4: 0, 3: 0}
    for (i, j), (pixel, *_) in zip(cells, drawn):  # tiles have stripes besides
        known = stored[:, i, j].sum()
        near = np.abs(pixel - colour(np.sqrt(truth[i, j]))).max() <= 4
        part = slice(i - i % 4, i - i % 4 + 4), slice(j - j % 4, j - j % 4 + 4)
        tile = getattr(np, "max" if over == "maximum" else "mean")(truth[part])
        if known == 4:
            assert near, (i, j)
            sure[4] += 1
        elif 0 < known and i % 4 in (1, 2) and j % 4 in (1, 2):  # off the outline of its tile
            assert np.abs(pixel - colour(np.sqrt(tile))).max() <= 8, (i, j)
            sure[3] += 1
    assert min(sure.values()) > 5


def test_windows_of_all_heads_make_their_mean_and_largest_exact(show):
    """A cell that a window of every head holds is known over heads, on the map, on the card, and among the strongest."""
    source, blobs = layer(36, heads=2, queries=40, keys=40, causal=True), Blobs()
    windows = [(h, 20, 8, 4, 8) for h in range(2)] + [(0, 30, 4, 4, 4)]
    made = layer_of(source, blobs, "layer 0", embed=False, top_k=2, tiles=10, windows=windows)
    run = {"name": "m", "tokens": None, "key_tokens": None, "special": [], "layers": [made]}
    weights = softmax(source)[0]
    tab = show(page_of([run], blobs), "#bend=sqrt&zoom=16,40,0,24")
    for over, truth in (("mean", weights.mean(axis=0)), ("maximum", weights.max(axis=0))):
        for i, j in [(20, 4), (27, 11), (23, 9)]:
            tab.choose(over=over, cell=[i, j])
            assert float(tab.tab.get_attribute("#readout", "data-weight")) == pytest.approx(truth[i, j], rel=1e-3)
            card = tab.text(f'.thumb[data-over="{over}"] .figure')
            assert told(card) == pytest.approx(truth[i, j], abs=6e-4) and "≤" not in card
            assert np.abs(tab.choose(cell=None).pixel(i, j) - colour(np.sqrt(truth[i, j]))).max() <= 4
        i, j = next((i, j) for i in range(30, 34) for j in range(4, 8) if j not in np.argsort(-weights[1, i])[:2])
        tab.choose(cell=[i, j])  # of one head only
        assert float(tab.tab.get_attribute("#readout", "data-most")) >= truth[i, j]

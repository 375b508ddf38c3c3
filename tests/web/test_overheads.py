"""Mean and largest over heads where only tiles are known: each is called what it is, on the map, in its legend and
in files. And a legend that promises no corner where none is drawn."""

import csv
import io
import re

import numpy as np
import pytest

from test_extremes import layer, page
from test_rows import model
from page import softmax

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
    assert "the means over queries 8–15" in tab.choose(over="mean").text("#readout")


def test_the_legend_promises_no_corner_where_none_is_drawn(show):
    html = model()[0]
    tab = show(html, PLACE)
    start = tab.evaluate("() => attend.state")
    for changes, corner in (({}, True), ({"over": "mean"}, False), ({"over": "maximum"}, False), ({"norms": True}, False),
                            ({"norms": True, "far": 2}, False), ({"far": 2}, True)):
        words = tab.choose(**{**start, **changes}).text(".legend")
        assert "tile of several cells" in words and ("corner" in words) == corner, changes
    two = page([layer(33)], [layer(34)], embed=False, top_k=2, tiles=8)
    assert "corner" not in show(two, "#show=difference").text(".legend")
    small = page([layer(35, heads=1, queries=800, keys=800)], embed=False, top_k=2)  # 128 tiles: too small for corners
    tab = show(small)
    assert "tile of several cells" in tab.text(".legend") and "corner" not in tab.text(".legend")
    assert "corner" in tab.choose(zoom=[0, 64, 0, 64]).text(".legend")
    assert re.search("tile.+corner", tab.text(".legend"))

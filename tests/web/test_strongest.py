"""The list of strongest cells: of all cells of a head wherever they can be computed, and what the others are at
most where they cannot."""

import functools
import re

import numpy as np
import pytest

from page import softmax
from test_extremes import layer, page
from test_map import one_layer
from test_rows import told

LONG = 1300  # with d = 64 more multiplications than the page does at once
CORNER = "zoom=0,64,0,64"  # the map has few cells then, and the list those of the whole head
LINES = """() => [...document.querySelectorAll("#strong button")].map((line) =>
  [...line.dataset.cell.split(",").map(Number), line.querySelector(".figure").textContent])"""


def listed(tab):
    """The lines of the list, once it is whole: [query, key, figure]."""
    tab.tab.wait_for_selector("#strong:not(:has-text('searching'))")
    return tab.evaluate(LINES)


@functools.cache
def long_heads():
    """Two heads of which every row stores 16 keys. The first leans to what is near: far keys are not stored. In the
    second the key of the longest value has less weight than the stored ones. The page, weights, norms."""
    random = np.random.default_rng(21)
    source = {name: random.normal(size=(2, LONG, 64)).astype(np.float32) for name in "qkv"}
    source.update(causal=True, alibi=[0.125, 0])
    source["k"][1, 700] *= 0.1
    source["v"][1, 700] *= 4000
    weights = softmax(source)[0]
    return one_layer(source, tiles=32), weights, np.linalg.norm(np.float64(source["v"]), axis=2)


FAR = np.subtract.outer(np.arange(LONG), np.arange(LONG)) >= 60


def check(lines, truth):
    order = np.argsort(-truth.ravel(), kind="stable")[:8]
    assert [(i, j) for i, j, _ in lines] == [divmod(int(n), LONG) for n in order]
    for i, j, text in lines:
        assert told(text) == pytest.approx(truth[i, j], rel=5e-3)


def test_of_a_long_exact_head_no_cell_is_missed(show):
    html, weights, norms = long_heads()
    tab = show(html, f"#{CORNER}")
    for changes, h, factor, stored in (
        ({}, 0, 1, True),
        ({"far": 60}, 0, FAR, False),
        ({"far": 0, "head": 1, "norms": True}, 1, norms[1], False),
    ):
        truth = weights[h] * factor
        check(listed(tab.choose(**changes)), truth)
        assert tab.text("#strong .fine") == ""  # nothing is left to be said
        i, j = np.unravel_index(truth.argmax(), truth.shape)
        assert stored == (weights[h, i, j] >= np.sort(weights[h, i])[-16])


def test_what_is_left_of_a_row_is_listed_when_it_is_renormalised(show):
    html, weights, _ = long_heads()
    left = np.where(FAR, weights[0], 0)
    sums = left.sum(axis=1, keepdims=True)
    check(listed(show(html, f"#far=60&renormalise=1&{CORNER}")), np.divide(left, sums, where=sums > 0, out=np.zeros_like(left)))


def test_a_search_that_takes_long_leaves_the_page_alive(show):
    tab = show(long_heads()[0], f"#{CORNER}")
    frames = tab.evaluate("""async () => {
      const wait = () => new Promise((done) => requestAnimationFrame(done));
      attend.choose({ far: 1, renormalise: true });
      let frames = 0;
      while (document.getElementById("strong").textContent.includes("searching")) {
        await wait();
        ++frames;
      }
      return frames;
    }""")
    assert frames > 3


def test_over_heads_and_with_filters_nothing_goes_wrong(show):
    """Mean and largest over heads that are not exact: the stored cells, and what the others are at most."""
    source = layer(30, heads=2, queries=48, keys=48, causal=True)
    weights = softmax(source)[0]
    tab = show(page([source], embed=False, top_k=4, tiles=16))
    for over, merge in (("mean", np.mean), ("maximum", np.max)):
        for far in (0, 3):
            tab.choose(over=over, far=far)
            lines, merged = listed(tab), merge(weights, axis=0)
            assert lines and tab.count(".problem") == 0
            for i, j, text in lines:
                assert told(text) == pytest.approx(merged[i, j], rel=2e-3) and i - j >= far
            others = re.search(r"Any other is ≤ (\S+)\.", tab.text("#strong"))
            rest = {(i, j) for i in range(48) for j in range(i + 1 - far)} - {(i, j) for i, j, _ in lines}
            assert max(merged[place] for place in rest) <= (float(others[1]) if others else 1)
            assert "Of the stored cells" in tab.text("#strong")

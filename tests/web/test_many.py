"""Pages of as many heads as models have, and of two runs: every head answers, names and scores can be read, and pinned
heads stand side by side."""

import functools
import re

import numpy as np
import pytest

import fixtures
from test_answers import unit
from test_rows import CARDS, ORDER, told

SIZES = {"270": (30, 9, 512), "144": (12, 12, 256)}
# Cards whose words do not fit into them, or lie above each other.
CUT = """() => [...document.querySelectorAll(".thumb[data-head]")].filter((card) => {
  const box = (name) => card.querySelector(name).getBoundingClientRect(), name = box(".thumb-name"), figure = box(".figure");
  const all = card.getBoundingClientRect(), parts = [name, figure];
  if (figure.width > 0 && figure.top >= name.bottom - 2) return true;   // broken into a second line
  return parts.some((part) => part.left < all.left - 1 || part.right > all.right + 1 || part.bottom > all.bottom + 1) ||
    (figure.width > 0 && name.right > figure.left + 1 && name.bottom > figure.top + 1 && figure.bottom > name.top + 1);
}).map((card) => card.textContent)"""


def number(text):
    return told(re.sub("[±+ ]", "", text))


@functools.cache
def sample(layers, heads):
    random = np.random.default_rng(1)
    return [(0, 0), (layers - 1, heads - 1), *((int(random.integers(layers)), int(random.integers(heads))) for _ in range(30))]


@pytest.mark.parametrize("size", SIZES)
def test_all_heads_of_two_runs_answer(show, size):
    layers, heads, length = SIZES[size]
    html, weight = fixtures.two_runs_of_many(layers, heads, length)
    tab = show(html, "#show=difference")
    tab.tab.wait_for_function("() => performance.getEntriesByName('prepared').length > 0")
    rows, i, j = np.arange(length), length - 60, length - 70
    for state, truth in (
            ({"cell": [i, j], "chosen": [i]}, lambda run, at: weight(run, *at, i, j)),
            ({"cell": None, "chosen": [i]}, None),
            ({"reverse": True, "chosen": [j]}, lambda run, at: weight(run, *at, rows, j).sum())):
        cards = tab.choose(show="difference", **state).evaluate(CARDS)
        assert len(cards) == layers * heads and tab.evaluate(CUT) == []
        for at in sample(layers, heads):
            text = cards["{}.{}".format(*at)]
            if truth is None:  # the largest that is known; there may be none
                apart = np.abs(weight(1, *at, i, rows) - weight(0, *at, i, rows)).max()
                assert text == "–" or abs(number(text)) <= apart + 1e-3
                continue
            before, after = (truth(run, at) for run in (0, 1))
            if text.startswith("±"):
                assert abs(after - before) <= number(text)
            else:
                assert abs(number(text) - (after - before)) <= unit(text) + 1e-3  # a narrow range, in the digits that are known
        for run, name in enumerate("ab" if truth and "cell" in state else ""):  # and of each
            own = tab.choose(show=name).evaluate(CARDS)
            for at in sample(layers, heads):
                text, value = own["{}.{}".format(*at)], truth(run, at)
                assert value <= number(text) if text.startswith("≤") else number(text) == pytest.approx(value, abs=1e-3)
    cards = tab.choose(show="difference", sort="selection").evaluate(CARDS)
    order = [number(cards[place]) for place in tab.evaluate(ORDER)]
    assert list(map(abs, order)) == sorted(map(abs, order), reverse=True) and tab.evaluate(CUT) == []


BOXES = """() => [...document.querySelectorAll(".pin canvas")].map((canvas) => {
  const { top, width, height } = canvas.getBoundingClientRect(); return [top, width, height]; })"""


def test_heads_that_are_pinned_stand_side_by_side_in_every_run(show):
    """The same part of each in the same size, in one line; the same cell marked, and the weight there."""
    html, weight = fixtures.two_runs_of_many(12, 12, 256)
    tab = show(html, "#pins=0.3,7.5,11.11&zoom=180,210,170,200&cell=200,190&chosen=200")
    for run, name in enumerate(("a", "b", "difference")):
        tab.choose(show=name)
        tab.tab.wait_for_selector('.pin[data-pin="11.11"]')
        boxes = tab.evaluate(BOXES)
        assert len(boxes) == 3 and all(np.allclose(box, boxes[0], atol=1) for box in boxes)
        for layer, head in ((0, 3), (7, 5), (11, 11)):
            words = tab.text(f'.pin[data-pin="{layer}.{head}"] > .figure')
            own = [weight(n, layer, head, 200, 190) for n in (0, 1)]
            value = own[1] - own[0] if run == 2 else own[run]
            text = words.split(": ")[1]
            if text.startswith("≤"):
                assert value <= told(text.replace(" ", ""))
            elif text.startswith("±"):
                assert run == 2 and abs(value) <= number(text)
            else:
                assert number(text) == pytest.approx(value, rel=2e-3, abs=1e-6)
    # the same cells at the same places as on the map of the head itself
    tab.choose(show="a", layer=0, head=3)
    own, pinned = (tab.evaluate("""(name) => { const canvas = document.querySelector(name), map = canvas.id === "map";
      const { left, top, w, h } = map ? attend.geometry() : { left: 0, top: 0, w: canvas.clientWidth, h: canvas.clientHeight };
      const ratio = canvas.width / canvas.clientWidth, context = canvas.getContext("2d");
      return [[185, 175], [195, 172], [205, 171], [209, 199], [190, 188]].map(([i, j]) => [...context.getImageData(
        Math.floor(ratio * (left + ((j + 0.3 - 170) / 30) * w)), Math.floor(ratio * (top + ((i + 0.3 - 180) / 30) * h)), 1, 1).data]);
    }""", name) for name in ("#map", '.pin[data-pin="0.3"] canvas'))
    assert own == pinned and len(set(map(tuple, own))) > 2

"""Whether what is drawn is what the head computes: values, pixels, zoom, and what is only known about."""

import re

import numpy as np
import pytest

import fixtures
from page import Blobs, layer_of, log8, page_of, softmax

# The ends and stops of the page's colours, written a second time.
LIGHT = ["f3f1ea", "d3e2de", "9cc8cd", "5ba1bd", "2f739f", "1d4779", "111f4b"]
DARK = ["1b1e25", "1d3350", "235a7f", "388ba4", "77bfb3", "cfe9bf", "fffbe3"]


def colour(place, stops=LIGHT):
    """The colour at a place in [0, 1] between evenly spaced stops."""
    rgb = np.array([[int(stop[n : n + 2], 16) for n in (0, 2, 4)] for stop in stops], float)
    x = round(255 * place) / 255 * (len(stops) - 1)
    at = min(int(x), len(stops) - 2)
    return rgb[at] + (rgb[at + 1] - rgb[at]) * (x - at)


def one_layer(source, **keywords):
    blobs = Blobs()
    layer = layer_of(source, blobs, "layer", **keywords)
    run = {"name": "run", "tokens": None, "key_tokens": None, "special": [], "layers": [layer]}
    return page_of([run], blobs)


def everything(seed=0):
    """A layer with every option at once: grouped heads, window, mask, bias, softcap, slopes, sinks, lengths."""
    random = np.random.default_rng(seed)
    heads, queries, keys, d = 4, 9, 14, 8
    return {
        "q": random.normal(size=(heads, queries, d)).astype(np.float32),
        "k": random.normal(size=(2, keys, d)).astype(np.float32),
        "v": random.normal(size=(2, keys, 5)).astype(np.float32),
        "causal": True,
        "window": [7, -1],
        "query_offset": 4,
        "softcap": 3.0,
        "scale": 0.7,
        "key_length": 12,
        "bias": random.normal(size=(1, queries, keys)).astype(np.float32),
        "alibi": [0.5, 0.25, 0.125, 0.0625],
        "sinks": [0.5, -1.0, 2.0, 0.0],
        "mask": random.random(size=(heads, queries, keys)) > 0.2,
    }


ALL_WEIGHTS = """async ([heads, queries, keys]) => {
  const all = [];
  for (let h = 0; h < heads; ++h) for (let i = 0; i < queries; ++i) for (let j = 0; j < keys; ++j) {
    all.push(await attend.weight(0, h, i, j));
  }
  return all;
}"""


@pytest.mark.parametrize("before", [False, True])
def test_every_weight_is_that_of_the_matrix(show, before):
    source = {**everything(), "bias_before_softcap": before}
    weights, visible, _ = softmax(source)
    cells = show(one_layer(source)).evaluate(ALL_WEIGHTS, list(weights.shape))
    assert [cell["kind"] for cell in cells] == ["exact" if seen else "hidden" for seen in visible.ravel()]
    np.testing.assert_allclose([cell["weight"] for cell in cells], weights.ravel(), rtol=2e-6, atol=1e-9)


CURVES = {"linear": lambda x: x, "sqrt": np.sqrt, "log": lambda x: max(0, 1 + np.log10(max(x, 1e-9)) / 4)}


def test_the_pixel_of_a_cell_has_the_colour_of_its_weight(show):
    source = fixtures.habits(fixtures.SENTENCE)
    weights, visible, _ = softmax(source)
    tab, cells = show(fixtures.small(), "#head=7"), np.argwhere(visible[7]).tolist()
    for bend, curve in CURVES.items():
        for (i, j), pixel in zip(cells, tab.choose(bend=bend).pixels(cells)):
            expected = colour(curve(weights[7, i, j]))
            assert np.abs(pixel - expected).max() <= 3, (bend, i, j, weights[7, i, j])


def test_dark_colours_are_drawn_where_the_reader_wants_dark(show):
    weights, _, _ = softmax(fixtures.habits(fixtures.SENTENCE))
    tab = show(fixtures.small(), "#head=7", scheme="dark")
    for i, j in [(3, 1), (6, 5), (12, 9)]:
        assert np.abs(tab.pixel(i, j) - colour(np.sqrt(weights[7, i, j]), DARK)).max() <= 3
    light, dark = ("rgb(251, 250, 246)", "rgb(20, 22, 26)")
    background = "() => getComputedStyle(document.documentElement).backgroundColor"
    assert tab.evaluate(background) == dark
    tab.tab.emulate_media(color_scheme="light")
    assert tab.drawn().evaluate(background) == light
    assert np.abs(tab.pixel(3, 1) - colour(np.sqrt(weights[7, 3, 1]))).max() <= 3


def test_hidden_is_hatched_and_zero_is_plain(show):
    tab = show(fixtures.small(), "#head=0")
    colours = """([i, j]) => {
      const canvas = document.getElementById("map"), { left, top, w, h, width } = attend.geometry(), [rows, columns] = attend.shape();
      const ratio = canvas.width / width, x = (left + (j / columns) * w + 3) * ratio, y = (top + (i / rows) * h + 3) * ratio;
      const data = canvas.getContext("2d").getImageData(x, y, w / columns - 6, h / rows - 6).data;
      return new Set(Array.from({ length: data.length / 4 }, (_, n) => data.slice(4 * n, 4 * n + 3).join())).size;
    }"""
    assert tab.evaluate(colours, [2, 9]) > 3  # hidden: lines on paper
    assert tab.evaluate(colours, [9, 2]) == 1  # seen, with almost no weight: one colour
    tab.point(2, 9)
    assert "causal" in tab.text("#readout") and tab.tab.get_attribute("#readout", "data-kind") == "hidden"


def test_thumbnails_show_the_tiles_of_their_heads(show):
    weights, visible, _ = softmax(fixtures.habits(fixtures.SENTENCE))
    tab = show(fixtures.small())
    for head in (0, 6, 7):
        pixels = tab.evaluate(
            """(head) => {
          const canvas = document.querySelector(`.thumb[data-layer="0"][data-head="${head}"] canvas`);
          return [canvas.width, canvas.height, [...canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data]];
        }""",
            head,
        )
        assert pixels[:2] == [13, 13]
        drawn = np.array(pixels[2]).reshape(13, 13, 4)
        stored = np.where(log8(weights[head]) > 0, 2.0 ** ((log8(weights[head]) - 255.0) / 8), 0)
        for i in range(13):
            for j in range(13):
                if not visible[head, i, j]:
                    assert drawn[i, j, 3] == 0
                else:
                    assert np.abs(drawn[i, j, :3] - colour(np.sqrt(stored[i, j]))).max() <= 3


def test_pointing_at_a_cell_says_its_exact_weight(show):
    weights, _, _ = softmax(fixtures.habits(fixtures.SENTENCE))
    tab = show(fixtures.small(), "#head=7")
    between = np.argwhere((weights[7] > 0.05) & (weights[7] < 0.95))
    for i, j in between[:4].tolist():
        tab.point(i, j)
        assert float(tab.tab.get_attribute("#readout", "data-weight")) == pytest.approx(
            weights[7, i, j], rel=1e-5
        )
        words = tab.text("#readout")
        assert "exact" in words and f"{weights[7, i, j]:.4f}" in words
        assert fixtures.SENTENCE[i].strip() in words and fixtures.SENTENCE[j].strip() in words


def test_wheel_drag_and_buttons_move_the_view(show):
    tab = show(fixtures.many_heads(64, layers=1, heads=2))
    x, y = tab.cell_on_screen(40, 20)
    tab.tab.mouse.move(x, y)
    tab.tab.mouse.wheel(0, -400)
    tab.tab.wait_for_function("() => attend.state.zoom")
    tab.drawn()
    q0, q1, k0, k1 = tab.state("zoom")
    assert q1 - q0 == pytest.approx(64 / np.exp(0.75), rel=0.02) and q1 - q0 == pytest.approx(
        k1 - k0, rel=0.02
    )
    assert np.allclose(tab.cell_on_screen(40, 20), [x, y], atol=2)  # what was under the pointer stays there
    before = tab.state("zoom")
    tab.tab.mouse.down()
    tab.tab.mouse.move(x + 30, y - 40, steps=3)
    tab.tab.mouse.up()
    after = tab.drawn().state("zoom")
    assert (
        after[2] < before[2]
        and after[0] > before[0]
        and after[1] - after[0] == pytest.approx(before[1] - before[0])
    )
    assert tab.state("cell") is None  # a drag chooses nothing
    tab.tab.click('button[aria-label="Show all"]')
    assert tab.drawn().state("zoom") is None
    tab.tab.click('button[aria-label="Zoom in"]')
    assert tab.drawn().state("zoom") == [16, 48, 16, 48]


def test_zoomed_cells_keep_their_colours(show):
    random = np.random.default_rng(3)
    source = {name: random.normal(size=(1, 60, 8)).astype(np.float32) for name in "qkv"}
    weights, _, _ = softmax(source)
    tab = show(one_layer(source), "#zoom=30,50,20,40")
    for same, top in ((True, 1), (False, weights[0].max())):
        tab.choose(same=same)
        for i, j in [(31, 21), (40, 35), (48, 28)]:
            assert np.abs(tab.pixel(i, j) - colour(np.sqrt(weights[0, i, j] / top))).max() <= 3


UNIFORM = {
    6: ("#", np.sqrt(1 / 6), ["0", "0.063", "0.25", "0.56", "1"]),
    200: ("#zoom=20,40,100,120", 1 + np.log10(1 / 200) / 4, ["≤ 0.00010", "0.0010", "0.010", "0.10", "1"]),
}


@pytest.mark.parametrize("length", UNIFORM)
def test_a_uniform_head_is_as_pale_as_its_weights(show, length):
    """Weights are drawn on a scale from 0 to 1, for all heads alike: 1/6 never looks like 1."""
    address, place, ticks = UNIFORM[length]
    source = {"q": np.zeros((1, length, 4)), "k": np.ones((1, length, 4)), "v": np.ones((1, length, 4))}
    tab = show(one_layer(source), address)
    assert np.abs(tab.pixel(25 if length > 6 else 2, 110 if length > 6 else 3) - colour(place)).max() <= 3
    assert tab.evaluate("() => attend.scale().ticks") == ticks
    assert "0 to 1, the same for all heads" in tab.text(".below")
    thumb = "() => [...document.querySelector('.thumb canvas').getContext('2d').getImageData(1, 1, 1, 1).data].slice(0, 3)"
    assert np.abs(tab.evaluate(thumb) - colour(place)).max() <= 6  # a tile is rounded
    tab.choose(same=False)
    assert "in this head" in tab.text(".below") and tab.evaluate("() => attend.scale().ticks")[-1] != "1"
    assert np.abs(tab.pixel(25 if length > 6 else 2, 110 if length > 6 else 3) - colour(1)).max() <= 3


def ends_at(weights):
    """All but the highest 1/200 of the weights."""
    return np.sort(weights.ravel())[int(np.ceil(0.995 * (weights.size - 1)))]


def test_a_long_causal_head_is_scaled_by_the_cells_in_view(show):
    random = np.random.default_rng(3)
    source = {name: random.normal(size=(1, 250, 8)).astype(np.float32) for name in "qkv"}
    weights, visible, _ = softmax({**source, "causal": True})
    tab = show(one_layer({**source, "causal": True}), "#same=0&bend=sqrt")
    for q0, q1, k0, k1 in [(0, 250, 0, 250), (200, 240, 40, 80), (0, 40, 0, 40)]:
        tab.choose(zoom=[q0, q1, k0, k1])
        part = weights[0, q0:q1, k0:k1]
        top = ends_at(part[visible[0, q0:q1, k0:k1]])
        for i, j in np.argwhere(visible[0, q0:q1, k0:k1])[7:: max(1, part.size // 9)]:
            place = np.sqrt(min(1, part[i, j] / top))
            assert np.abs(tab.pixel(int(i) + q0, int(j) + k0) - colour(place)).max() <= 4, (q0, i, j)
        assert "≥" in tab.evaluate("() => attend.scale().ticks")[-1]
    assert weights[0, 0, 0] == pytest.approx(1)  # as the largest weight of the head it would leave all others pale


def test_many_cells_on_a_pixel_are_their_mean_or_their_largest(show):
    random = np.random.default_rng(4)
    source = {name: random.normal(size=(1, 1500, 4)).astype(np.float32) for name in "qkv"}
    weights, _, _ = softmax(source)
    tab = show(one_layer(source), "#same=0&bend=sqrt", width=768)
    assert tab.tab.get_attribute("#map", "data-level") == "merged"
    pixel = """() => {
      const { left, top, w, h } = attend.geometry(), canvas = document.getElementById("map");
      return [w, h, [...canvas.getContext("2d").getImageData(left + 100, top + 200, 1, 1).data]];
    }"""
    top = ends_at(weights[0, ::6, ::6])  # the page looks at 250 x 250 of them
    for tile, merge in (("mean", np.mean), ("maximum", np.max)):
        w, h, rgb = tab.choose(tile=tile).evaluate(pixel)
        columns = [j for j in range(1500) if int((j + 0.5) / 1500 * w) == 100]
        rows = [i for i in range(1500) if int((i + 0.5) / 1500 * h) == 200]
        expected = colour(np.sqrt(min(1, merge(weights[0][np.ix_(rows, columns)]) / top)))
        assert np.abs(np.array(rgb[:3]) - expected).max() <= 4


def test_a_page_of_131072_tokens_opens_and_zooms(show):
    tab = show(fixtures.long_page())
    assert tab.tab.get_attribute("#map", "data-level") == "tiles"
    tab.evaluate("""async () => {
      const canvas = document.getElementById("map"), box = canvas.getBoundingClientRect();
      for (let n = 0; n < 16; ++n) {
        canvas.dispatchEvent(new WheelEvent("wheel", { deltaY: -300, clientX: box.left + 300, clientY: box.top + 300, cancelable: true }));
        await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
      }
    }""")
    assert tab.drawn().tab.get_attribute("#map", "data-level") == "cells"
    tab.choose(zoom=[131008, 131072, 131008, 131072], cell=[131050, 131049])
    assert "exact" in tab.text("#readout") and "0.3333" in tab.text("#readout")
    tab.choose(cell=[131050, 5])
    assert "queries 130048–131071, keys 0–1023" in tab.text("#readout") and tab.tab.get_attribute("#readout", "data-kind") == "tile"
    assert "201 MB" in tab.text(".page-notes")


def test_what_is_not_a_number_is_drawn_so_and_said(show):
    source = fixtures.habits(fixtures.SENTENCE)
    source["q"][0, 4] = np.nan
    tab = show(one_layer(source), "#cell=4,2&chosen=4&pins=0.0")
    assert "not a number" in tab.text("#readout") and "not numbers" in tab.text("#one .note")
    tab.tab.wait_for_selector(".pin .figure:has-text('not a number')")
    titles = tab.evaluate("() => [...document.querySelectorAll('.piece')].map((piece) => piece.title)")
    titles += re.findall("<title>(.*?)</title>", tab.evaluate("() => attend.svg()"))
    assert sum("not a number" in title for title in titles) == 5 + 5 and "NaN" not in "".join(titles)
    magenta = [0xC2, 0x1A, 0x5B]
    assert tab.pixel(4, 2) == magenta and tab.pixel(3, 2) != magenta
    assert tab.text('[data-step="values"] .figure') == "NaN · NaN"  # nor is the row of the output
    strips = tab.evaluate("""() => {
      const { left, top, w, h } = attend.geometry(), context = document.getElementById("map").getContext("2d");
      const at = (x, y) => [...context.getImageData(x, y, 1, 1).data].slice(0, 3).join();
      const middle = (n, size) => Math.round(((n + 0.5) / 13) * size);
      return [[3, 4, 5].map((i) => at(left + w + 4, top + middle(i, h))), [3, 4, 5].map((j) => at(left + middle(j, w), top + h + 4))];
    }""")
    assert [[place == ",".join(map(str, magenta)) for place in strip] for strip in strips] == [[False, True, False], [True, True, False]]


def test_a_ruler_names_no_token_before_the_first(show):
    """No cell is pointed at when a page opens, and what a canvas is told to write can be heard."""
    tab = show(fixtures.long_page())
    written = """async () => {
      const written = [], write = CanvasRenderingContext2D.prototype.fillText;
      CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
        written.push(text);
        return write.call(this, text, ...rest);
      };
      attend.choose({ bend: "linear" });
      do await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
      while (document.getElementById("map").dataset.whole !== "true");
      return written;
    }"""
    words = tab.evaluate(written)
    assert "0" in words and len(words) > 8 and "-1" not in words


def test_thumbnails_draw_what_is_not_a_number_as_the_map_does(show):
    source = fixtures.habits(fixtures.SENTENCE)
    source["q"][0, 4] = np.nan
    pixels = """(head) => [2, 3, 4].map((row) => [
      ...document.querySelector(`.thumb[data-head="${head}"] canvas`).getContext("2d").getImageData(2, row, 1, 1).data])"""
    tab = show(one_layer(source))
    magenta = [0xC2, 0x1A, 0x5B, 255]
    assert [pixel == magenta for pixel in tab.evaluate(pixels, 0)] == [False, False, True]
    assert [pixel == magenta for pixel in tab.evaluate(pixels, 1)] == [False, False, False]

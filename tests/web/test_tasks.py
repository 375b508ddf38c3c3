"""What people come to the page for, counted in steps: one thing typed, or one click."""

import base64
import functools
import json
import os
import re
import struct
import subprocess
import xml.etree.ElementTree as xml

import numpy as np
import pytest

from page import Blobs, layer_of, page_of, softmax
from test_map import colour
from test_rows import check_hover

ATTEND = os.environ.get("ATTEND_COMMAND")
MOVERS = {(1, 2): 120, (4, 0): 44}  # heads that look from token 300 at these


@functools.cache
def page_of_512():
    """Six layers of four heads at 512 tokens: q and k of the first, of all 16 keys a row."""
    blobs, parts, truth, random = Blobs(), [], {}, np.random.default_rng(5)
    for n in range(6):
        source = {name: random.normal(size=(4, 512, 16)).astype(np.float32) for name in "qkv"}
        source["causal"] = True
        for h in range(4):
            key = {(5, 3): 17, **MOVERS}.get((n, h))
            if key is not None:
                source["q"][h, 300] += 2.2 * source["k"][h, key]
        scores = np.einsum("hc,hjc->hj", np.float64(source["q"][:, 300]), np.float64(source["k"][:, :301])) / 4
        truth.update({(n, h): np.exp(row) / np.exp(row).sum() for h, row in enumerate(scores)})
        if n in (0, 5):  # all of one head
            truth["all", n, 3] = softmax({name: x[3:] for name, x in source.items() if name in "qkv"} | {"causal": True})[0][0]
        parts.append(layer_of(source, blobs, f"layer {n}", embed=n == 0, top_k=16))
    tokens = [f" t{n}" for n in range(512)]
    run = {"name": "m", "tokens": tokens, "key_tokens": None, "special": [], "layers": parts}
    return page_of([run], blobs, title="512 tokens"), truth


class Steps:
    """A reader, and the steps that were taken."""

    def __init__(self, tab):
        self.tab, self.count = tab, 0

    def type(self, selector, text):
        self.count += 1
        self.tab.tab.fill(selector, text)
        self.tab.tab.press(selector, "Enter")
        self.tab.drawn()

    def click(self, selector):
        self.count += 1
        self.tab.tab.click(selector)
        self.tab.drawn()


def test_the_weight_of_a_pair_is_typed(show):
    html, truth = page_of_512()
    reader = Steps(show(html))
    reader.type("input.goto", "5.3 300 17")
    words, weight = reader.tab.text("#readout"), truth[5, 3][17]
    assert reader.count == 1 and "exact" in words and weight > 0.2
    assert float(re.search(r"0\.\d+", words)[0]) == pytest.approx(weight, rel=2e-3)
    assert reader.tab.text("#map-title") == "layer 5, head 3"
    reader.type("input.goto", "2.1 300 17")
    words, row = reader.tab.text("#readout"), truth[2, 1]
    assert "at most" in words and "--window 2,1,300,1,17,1" in words
    assert row[17] <= float(re.search(r"≤ (\S+)", words)[1]) <= 1.1 * np.sort(row)[-16]
    assert "attend view … --window 2,1,300,1,17,1" in reader.tab.text("#explain")


def test_which_heads_move_a_token_is_one_click(show):
    html, truth = page_of_512()
    tab = show(html)
    reader = Steps(tab)
    reader.click('.piece[data-n="300"]')
    scores = tab.evaluate("""() => Object.fromEntries([...document.querySelectorAll(".thumb[data-head]")].map((card) =>
      [`${card.dataset.layer},${card.dataset.head}`, card.getAttribute("aria-label")]))""")
    assert reader.count == 1 and len(scores) == 24
    values = {}
    for place, words in scores.items():
        n, h = map(int, place.split(","))
        values[n, h] = float(words.split(", ")[-1])
        assert values[n, h] == pytest.approx(truth[n, h].max(), abs=6e-4)
    best = sorted(values, key=values.get, reverse=True)[:3]
    assert set(best) == {*MOVERS, (5, 3)}
    for (n, h), key in MOVERS.items():
        assert f"→ {key} ·t{key}" in scores[f"{n},{h}"]


@pytest.fixture(scope="module")
def page_of_4096(tmp_path_factory):
    """A head of 4096 x 4096 as `attend view` writes it, without q and k: the token before, and a line far from the
    diagonal. Its page and its weights."""
    if not ATTEND:
        pytest.skip("ATTEND_COMMAND is not set")
    folder = tmp_path_factory.mktemp("long")
    random, n = np.random.default_rng(6), 4096
    k = random.normal(size=(n, 16)).astype(np.float32)
    k /= np.linalg.norm(k, axis=1, keepdims=True)
    looks = np.maximum(np.arange(n) - 1, 0)
    looks[3700:3740] -= 2900
    q = 60 * k[looks]
    for name, x in (("q", q), ("k", k)):
        np.save(folder / f"{name}.npy", x[None, None])
    subprocess.run([ATTEND, "view", "--q", "q.npy", "--k", "k.npy", "--causal", "--page-size", "0.7", "--output", "page.html"],
                   cwd=folder, check=True, capture_output=True)
    weights = np.exp(q @ k.T / 4 - 20) * np.tri(n, dtype=np.float32)
    return (folder / "page.html").read_text(), weights / weights.sum(axis=1, keepdims=True)


def test_the_strongest_structure_far_from_the_diagonal(show, page_of_4096):
    html, weights = page_of_4096
    reader = Steps(show(html))
    assert "0 of 1 layers" in reader.tab.text(".page-notes")
    reader.type('input[data-key="far"]', "2500")
    lines = reader.tab.evaluate("""() => [...document.querySelectorAll("#strong button")].map((line) =>
      [line.dataset.cell.split(",").map(Number), line.querySelector(".figure").textContent])""")
    far = np.sort(np.partition(np.tril(weights, -2500).ravel(), -9)[-9:])  # of all 8 million cells, stored or not
    assert reader.count == 1 and len(lines) == 8
    assert all(3700 <= i < 3740 and j == i - 2901 for (i, j), _ in lines)  # the line
    assert min(weights[i, j] for (i, j), _ in lines) >= far[1] * (1 - 4e-4)
    for (i, j), text in lines:
        assert float(text) == pytest.approx(weights[i, j], rel=1e-3)
    others = re.search(r"Any other is ≤ (\S+)\.", reader.tab.text("#strong"))
    assert others is None or float(others[1]) >= far[0]
    reader.click("#strong li:first-child button")
    assert "exact" in reader.tab.text("#readout") and reader.tab.state("cell") == lines[0][0]
    q0, q1, k0, k1 = reader.tab.state("zoom")
    assert q0 <= lines[0][0][0] < q1 and k0 <= lines[0][0][1] < k1
    assert reader.count == 2 and reader.tab.pixel(*lines[0][0]) != reader.tab.pixel(lines[0][0][0], lines[0][0][1] - 3)


class Known:
    """What a page holds of a head: the largest weights of each row, and the means of tiles."""

    def __init__(self, html, layer, weights):
        data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)[1])
        self.layer, self.weights = data["runs"][0]["layers"][layer], weights
        self.k, self.tiles = self.layer["rows"]["k"], self.layer["tiles"]

    def colour(self, i, j):
        """Of a cell, exact or one that surely is or is not stored; None where the outline or corner of a tile may lie."""
        row = self.weights[i]
        if self.layer["q"] is not None or row[j] >= np.sort(row)[-self.k] * 1.0001:
            return colour(np.sqrt(row[j]))
        queries, keys = self.tiles["queries"], self.tiles["keys"]
        rows, columns = (slice(n - n % side, n - n % side + side) for n, side in ((i, queries), (j, keys)))
        inside = [0.4 < (n % side) / side < 0.6 for n, side in ((i, queries), (j, keys))]
        if row[j] > np.sort(row)[-self.k] * 0.9999 or not all(inside):
            return None
        seen = np.arange(len(row))[None, columns] <= np.arange(len(row))[rows, None]
        return colour(np.sqrt(self.weights[rows, columns][seen].mean()))


def check_zooms(tab, known, zooms, strong):
    """The pixels of strong cells, and of some others, wherever a cell is a pixel or more; and there hover and click."""
    random, found = np.random.default_rng(4), 0
    for q0, q1, k0, k1 in zooms:
        tab.choose(zoom=[q0, q1, k0, k1], cell=None, chosen=[])
        assert tab.tab.get_attribute("#map", "data-level") == "cells"
        cells = [(i, j) for i, j in strong if q0 <= i < q1 and k0 <= j < k1]
        assert len(cells) > 1
        cells += [(int(i), int(j)) for i, j in zip(random.integers(q0, q1, 150), random.integers(k0, k1, 150)) if j < i]
        for (i, j), (pixel, *_) in zip(cells, tab.colours(cells)):  # tiles have stripes besides
            expected = known.colour(i, j)
            if expected is not None:
                assert np.abs(pixel - expected).max() <= 8, (i, j, [q0, q1, k0, k1])
                found += 1
        check_hover(tab)
    assert found > 60


@pytest.mark.parametrize("layer", [0, 5], ids=["exact", "rows"])
def test_the_pixels_of_512_tokens_are_right_at_every_zoom(show, layer):
    html, truth = page_of_512()
    known = Known(html, layer, truth["all", layer, 3])
    strong = [(i, int(row.argmax())) for i, row in enumerate(known.weights)]
    tab = show(html, f"#layer={layer}&head=3&bend=sqrt")
    check_zooms(tab, known, ([100, 400, 0, 300], [260, 330, 0, 70], [290, 312, 5, 95], [296, 304, 0, 96]), strong)
    check_hover(tab.choose(zoom=None))


def test_the_pixels_of_4096_tokens_are_right_at_every_zoom(show, page_of_4096):
    html, weights = page_of_4096
    known, tab = Known(html, 0, weights), show(html, "#bend=sqrt")
    best = [int(row.argmax()) for row in weights]
    check_zooms(tab, known, ([3600, 3900, 700, 1000], [3690, 3750, 790, 850], [3710, 3734, 808, 832], [3718, 3726, 817, 825]),
                list(enumerate(best)))
    tab.tab.mouse.move(0, 0)
    tab.choose(zoom=None)  # several cells a pixel: tiles, and the strongest of each as a dot
    assert tab.tab.get_attribute("#map", "data-level") == "tiles"
    left, top, w, h = tab.evaluate("() => { const { left, top, w, h } = attend.geometry(); return [left, top, w, h]; }")
    dots = {}
    for i, j in enumerate(best):
        at = (int((i + 0.5) / 4096 * h), int((j + 0.5) / 4096 * w))
        dots[at] = max(dots.get(at, 0), weights[i, j])
    places = [(y, x) for y, x in list(dots)[::37]]
    drawn = tab.evaluate("""([places, left, top]) => { const context = document.getElementById("map").getContext("2d");
      return places.map(([y, x]) => [...context.getImageData(left + x, top + y, 1, 1).data].slice(0, 3)); }""", [places, left, top])
    for place, pixel in zip(places, drawn):
        assert np.abs(pixel - colour(np.sqrt(dots[place]))).max() <= 4, place
    check_hover(tab)


SVG = "{http://www.w3.org/2000/svg}"
# Both files drawn: their sizes, a corner of the PNG, the share of pixels that differ, and the most at given points.
COMPARE = """async ([svg, png, points]) => {
  const draw = async (data, type, times) => {
    const image = new Image();
    image.src = URL.createObjectURL(new Blob([data], { type }));
    await image.decode();
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [times * image.width, times * image.height];
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  };
  const bytes = Uint8Array.from(atob(png), (letter) => letter.charCodeAt(0));
  const a = await draw(svg, "image/svg+xml", 3), b = await draw(bytes, "image/png", 1);
  const off = (n) => Math.max(...[0, 1, 2].map((c) => Math.abs(a.data[4 * n + c] - b.data[4 * n + c])));
  let apart = 0;
  for (let n = 0; n < a.width * a.height; ++n) apart += off(n) > 40;
  return { sizes: [a.width, a.height, b.width, b.height], corner: [...b.data.slice(0, 3)],
    apart: apart / (a.width * a.height),
    most: Math.max(...points.map(([x, y]) => off(Math.floor(3 * y) * a.width + Math.floor(3 * x)))) };
}"""


# What the map has on the screen and what a PNG has of it, at pixels of the map: the most that they differ.
ON_SCREEN = """async ([png, points]) => {
  const bytes = Uint8Array.from(atob(png), (letter) => letter.charCodeAt(0)), image = new Image();
  image.src = URL.createObjectURL(new Blob([bytes], { type: "image/png" }));
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.width, image.height];
  canvas.getContext("2d").drawImage(image, 0, 0);
  const at = (each, x, y) => [...each.getContext("2d").getImageData(x, y, 1, 1).data];
  return Math.max(...points.map(([x, y]) => {
    const map = at(document.getElementById("map"), x, y), file = at(canvas, 3 * x + 1, 3 * (y + 30) + 1);
    return Math.max(...map.map((value, c) => Math.abs(value - file[c])));
  }));
}"""


def check_screen(tab, png, cells, zoom):
    """The pixels off the middle of some cells."""
    left, top, w, h = tab.evaluate("() => { const { left, top, w, h } = attend.geometry(); return [left, top, w, h]; }")
    q0, q1, k0, k1 = zoom
    points = [[int(left + (j + 0.25 - k0) / (k1 - k0) * w), int(top + (i + 0.25 - q0) / (q1 - q0) * h)] for i, j in cells]
    assert len(set(map(tuple, tab.pixels(cells)))) > 5  # there is something to compare
    assert tab.evaluate(ON_SCREEN, [base64.b64encode(png).decode(), points]) <= 2


def saved(reader, kind):
    with reader.tab.tab.expect_download() as download:
        reader.click(f'[data-export="{kind}"]')
    return open(download.value.path(), "rb").read()


def test_a_figure_for_a_paper_is_one_click(show):
    tab = show(page_of_512()[0], "#layer=5&head=3&cell=300,17&chosen=300", scheme="dark")
    for zoom in ([292, 304, 10, 22], None):
        check_figure(tab.choose(zoom=zoom))


def check_figure(tab):
    reader = Steps(tab)
    text = saved(reader, "svg").decode()
    assert reader.count == 1 and "foreignObject" not in text and "var(" not in text and "<style" not in text
    root = xml.fromstring(text)
    words = [node.text for node in root.iter(f"{SVG}text")]
    assert {"query", "key", "weight", "layer 5, head 3", "1", "0.10", "0.010"} <= set(words)
    assert ("·t300" in words and "·t17" in words) or "300" in words
    first = next(root.iter(f"{SVG}rect"))
    assert first.get("fill") == "#ffffff" and float(first.get("width")) >= tab.evaluate("() => attend.geometry().width")
    accents = {node.get("stroke") for node in root.iter(f"{SVG}rect")}
    assert not accents & {"#b8410b", "#ffa263"} and all("dash" not in name for node in root.iter() for name in node.keys())
    png = saved(reader, "png")
    assert struct.unpack(">II", png[16:24])[0] == 3 * tab.evaluate("() => attend.geometry().width")
    left, top, w, h = tab.evaluate("() => { const { left, top, w, h } = attend.geometry(); return [left, top, w, h]; }")
    cells = [(y, x * y) for y in (0.3, 0.55, 0.9) for x in (0.2, 0.45, 0.8)]  # none that is hidden, and hatched
    points = [[left + x * w, 30 + top + y * h] for y, x in cells]
    drawn = tab.evaluate(COMPARE, [text, base64.b64encode(png).decode(), points])
    assert drawn["sizes"][:2] == drawn["sizes"][2:] and drawn["corner"] == [255, 255, 255]
    assert drawn["most"] <= 20 and drawn["apart"] < 0.03  # letters, hatching and stripes are set a little differently


def test_a_figure_is_what_is_drawn_on_the_screen(show):
    random = np.random.default_rng(3)
    tab = show(page_of_512()[0], "#layer=5&head=3&cell=300,17&chosen=300&zoom=292,304,10,22")  # tiles and cells
    check_screen(tab, saved(Steps(tab), "png"), [(i, j) for i in range(292, 304) for j in range(10, 22)], (292, 304, 10, 22))
    tab.choose(layer=0, zoom=None)  # all of an exact head, a pixel a cell
    cells = [(int(i), int(j)) for i, j in random.integers(0, 512, (200, 2)) if j <= i and abs(i - 300) > 4]
    check_screen(tab, saved(Steps(tab), "png"), cells, (0, 512, 0, 512))


def test_a_link_opens_at_the_same_place(show):
    html, _ = page_of_512()
    reader = Steps(show(html))
    reader.type("input.goto", "5.3 300 17")
    reader.tab.choose(zoom=[290, 310, 8, 28], pins=["1.2"], sort="selection")
    reader.tab.tab.wait_for_function("() => location.hash.includes('pins=1.2') && location.hash.includes('cell=300%2C17')")
    other = show(html, reader.tab.evaluate("() => location.hash"))
    assert other.evaluate("() => attend.state") == reader.tab.evaluate("() => attend.state")
    assert other.text("#readout") == reader.tab.text("#readout") and other.pixel(300, 17) == reader.tab.pixel(300, 17)

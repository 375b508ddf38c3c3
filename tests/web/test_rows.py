"""Pages of stored rows: what is known of a cell, what it is at most, how both are drawn, and what the selection
asks of all heads, against explicit matrices."""

import functools
import re

import numpy as np
import pytest

import fixtures
from page import Blobs, layer_of, page_of, softmax
from test_map import ALL_WEIGHTS, colour, everything, one_layer
from test_pointer import SAID, UNDER

ERROR = 1.8e-4  # of a stored weight, and a little for f32


def known_by(row, visible, k):
    """The keys that a row stores."""
    order = np.argsort(np.where(visible, -row, 1), kind="stable")[:k]
    return {int(j) for j in order if visible[j]}


MASKS = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window": [9, -1]},
    "grouped and every option": None,
}


@pytest.mark.parametrize("name", MASKS)
def test_a_stored_key_is_exact_and_any_other_has_its_bound(show, name):
    random = np.random.default_rng(3)
    source = everything() if MASKS[name] is None else {
        **{part: random.normal(size=(2, 24, 8)).astype(np.float32) * 2 for part in "qkv"}, **MASKS[name]}
    weights, visible, lse = softmax(source)
    heads, queries, keys = weights.shape
    begin = 0 if MASKS[name] is None else 4
    html = one_layer(source, embed=False, top_k=4, tiles=8, begin=begin)
    sinks = np.zeros(heads) if source.get("sinks") is None else np.array(source["sinks"])
    for (h, i, j), cell in zip(np.ndindex(weights.shape), show(html).evaluate(ALL_WEIGHTS, list(weights.shape))):
        stored = known_by(weights[h, i], visible[h, i], 4) if i >= begin else set()
        if not visible[h, i, j]:
            assert cell["kind"] == "hidden" or (cell["weight"] is None and MASKS[name] is None)
        elif j in stored:
            assert cell["kind"] == "exact" and cell["weight"] == pytest.approx(weights[h, i, j], rel=ERROR)
            assert cell["error"] > 0
        elif i >= begin:
            best = sorted(weights[h, i, sorted(stored)])
            sink = 0 if source.get("sinks") is None else np.exp(sinks[h] - lse[h, i])
            most = min(best[0], 1 - sum(best) - sink + 4e-4)
            assert cell["kind"] == "bound" and weights[h, i, j] <= cell["most"] <= 1.001 * most + 1e-9
        else:
            assert cell["kind"] == "tile" and cell["weight"] is None


@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_q_and_k_of_16_bits_are_read_as_they_are(show, kind):
    random = np.random.default_rng(4)
    source = {name: np.round(random.normal(size=(1, 9, 8)) * 16).astype(np.float32) / 16 for name in "qkv"}
    weights = softmax(source)[0]
    cells = show(one_layer(source, kind=kind)).evaluate(ALL_WEIGHTS, list(weights.shape))
    np.testing.assert_allclose([cell["weight"] for cell in cells], weights.ravel(), rtol=2e-6)


@functools.cache
def rows_page(length, top_k=4, sharp=3.0, tiles=16):
    random = np.random.default_rng(7)
    source = {name: random.normal(size=(1, length, 8)).astype(np.float32) for name in "qkv"}
    source["q"] *= sharp
    source["causal"] = True
    weights, visible, _ = softmax(source)
    return one_layer(source, embed=False, top_k=top_k, tiles=tiles), weights[0], visible[0]


def tile_mean(weights, visible, i, j, side):
    rows, columns = slice(i - i % side, i - i % side + side), slice(j - j % side, j - j % side + side)
    return weights[rows, columns][visible[rows, columns]].mean()


def test_the_pixels_of_a_known_head_are_right_at_every_zoom(show):
    html, weights, visible = rows_page(120)
    tab = show(html, "#bend=sqrt")
    for zoom in (None, [40, 100, 10, 70], [90, 110, 30, 50], [100, 108, 40, 48]):
        check_pixels(tab.choose(zoom=zoom), zoom or [0, 120, 0, 120], weights, visible)


def check_pixels(tab, zoom, weights, visible):
    q0, q1, k0, k1 = zoom
    cells = [(i, j) for i in range(q0, q1) for j in range(k0, min(k1, i + 1))]
    random = np.random.default_rng(1)
    drawn = [cells[n] for n in random.choice(len(cells), 24)]
    for (i, j), (pixel, *_) in zip(drawn, tab.colours(drawn)):  # tiles have stripes besides
        known = j in known_by(weights[i], visible[i], 4)
        value = weights[i, j] if known else tile_mean(weights, visible, i, j, 8)
        expected = colour(np.sqrt(value))
        if known or (i % 8 in (1, 2, 3) and j % 8 in (1, 2, 3)):  # off the outline and the corner
            assert np.abs(pixel - expected).max() <= (4 if known else 8), (i, j, known)
    last = {j for j in known_by(weights[q1 - 1], visible[q1 - 1], 4) if k0 <= j < k1}
    for j in last:
        assert np.abs(tab.pixel(q1 - 1, j) - colour(np.sqrt(weights[q1 - 1, j]))).max() <= 4


def test_stored_cells_smaller_than_a_pixel_are_pixels(show):
    html, weights, visible = rows_page(700, top_k=1, tiles=32)
    tab = show(html, "#bend=sqrt", width=768)
    assert tab.tab.get_attribute("#map", "data-level") == "tiles"
    w, h = tab.evaluate("() => [attend.geometry().w, attend.geometry().h]")
    best = {}
    for i in range(700):
        (j,) = known_by(weights[i], visible[i], 1)
        at = (int((i + 0.5) / 700 * h), int((j + 0.5) / 700 * w))
        best[at] = max(best.get(at, 0), weights[i, j])
    places = list(best)[::29]
    pixels = tab.evaluate("""(places) => {
      const { left, top } = attend.geometry(), context = document.getElementById("map").getContext("2d");
      return places.map(([y, x]) => [...context.getImageData(left + x, top + y, 1, 1).data].slice(0, 3));
    }""", places)
    for place, pixel in zip(places, pixels):
        assert np.abs(pixel - colour(np.sqrt(best[place]))).max() <= 4


def test_hover_and_click_name_the_same_cell(show):
    tab = show(rows_page(120)[0])
    for zoom in (None, [40, 100, 10, 70], [100, 108, 40, 48]):
        check_hover(tab.choose(zoom=zoom))


def check_hover(tab):
    box = tab.evaluate("""() => { document.getElementById("map").scrollIntoView({ block: "center" });
      const box = document.getElementById("map").getBoundingClientRect(), { left, top, w, h } = attend.geometry();
      return [box.left + left, box.top + top, w, h]; }""")
    for across, down in [(0.03, 0.02), (0.3, 0.77), (0.61, 0.62), (0.99, 0.99)]:
        x, y = round(box[0] + across * box[2]), round(box[1] + down * box[3])  # whole px, as pointers have them
        tab.tab.mouse.move(x, y)
        cell = tab.evaluate(UNDER, [x, y])
        tab.tab.wait_for_selector(f'#readout[data-query="{cell[0]}"][data-key="{cell[1]}"]')
        tab.tab.mouse.click(x, y)
        assert tab.drawn().state("cell") == cell == tab.evaluate(SAID)
        assert f"query {cell[0]}" in tab.text("#explain") and f"key {cell[1]}" in tab.text("#explain")
        tab.choose(cell=None, chosen=[])


@functools.cache
def model(length=40, layers=3, heads=4, top_k=4):
    """Layers of random heads; the first is exact, of the others rows are stored. Its page and its weights."""
    blobs, parts, weights = Blobs(), [], []
    random = np.random.default_rng(8)
    for n in range(layers):
        source = {name: random.normal(size=(heads, length, 8)).astype(np.float32) for name in "qkv"}
        source["q"] *= 2
        source["causal"] = True
        weights.append(softmax(source)[0])
        parts.append(layer_of(source, blobs, f"layer {n}", embed=n == 0, top_k=top_k, tiles=16))
        parts[-1]["norms"] = np.linalg.norm(source["v"], axis=2).tolist()
    norms = np.array([part.pop("norms") for part in parts])
    run = {"name": "m", "tokens": [f"w{n}" for n in range(length)], "key_tokens": None, "special": [], "layers": parts}
    return page_of([run], blobs), np.array(weights), norms


CARDS = """() => Object.fromEntries([...document.querySelectorAll(".thumb[data-head]")].map((card) =>
  [`${card.dataset.layer}.${card.dataset.head}`, card.querySelector(".figure").textContent]))"""
ORDER = "() => [...document.querySelectorAll('.thumb[data-head]')].map((card) => `${card.dataset.layer}.${card.dataset.head}`)"


def told(text):
    return float(re.sub("[≤≥]", "", text).replace("−", "-"))


def test_every_head_answers_for_the_chosen_cell(show):
    html, weights, _ = model()
    tab = show(html, "#bend=linear").choose(cell=[30, 11], chosen=[30])
    cards = tab.evaluate(CARDS)
    bounds = {}
    for n, layer in enumerate(weights):
        for h, head in enumerate(layer):
            text, row = cards[f"{n}.{h}"], head[30]
            known = n == 0 or 11 in known_by(row, np.arange(40) <= 30, 4)
            assert text.startswith("≤") != known
            best = np.sort(row)[-4:]
            most = tab.evaluate("([n, h]) => attend.weight(n, h, 30, 11)", [n, h]).get("most")
            bounds[f"{n}.{h}"] = row[11] if known else min(most, best[0], 1 - best.sum() + 4e-4)
            if known:
                assert told(text) == pytest.approx(row[11], abs=6e-4)
            else:  # rounded up, and the same above the map
                assert row[11] <= told(text) and -4e-4 <= told(text) - bounds[f"{n}.{h}"] <= 1.5e-3
    colours = """(place) => { const [layer, head] = place.split(".");
      const canvas = document.querySelector(`.thumb[data-layer="${layer}"][data-head="${head}"] canvas`);
      const at = (x, y) => [...canvas.getContext("2d").getImageData(x, y, 1, 1).data].slice(0, 3);
      return [at(2, 2), at(13, 13)]; }"""
    for place, text in cards.items():
        first, last = tab.evaluate(colours, place)
        assert (first == last) == (not text.startswith("≤") or told(text) < 0.002)  # half a square is a bound
        if first == last and told(text) > 0.01:
            assert np.abs(first - colour(bounds[place])).max() <= 4
    over = tab.evaluate("""() => [...document.querySelectorAll(".thumb[data-over]")].map((card) =>
      [Number(card.dataset.layer), card.dataset.over, card.querySelector(".figure").textContent])""")
    for n, which, text in over:
        own = [bounds[f"{n}.{h}"] for h in range(4)]
        assert told(text) == pytest.approx(np.mean(own) if which == "mean" else max(own), abs=1.6e-3)
        assert (which == "maximum" or text.startswith("≤")) if n else not text.startswith("≤")
    order = tab.choose(sort="selection").evaluate(ORDER)
    assert [told(cards[place]) for place in order] == sorted(map(told, cards.values()), reverse=True)
    assert tab.count(".cards .head-layer") >= 3  # groups, and the rows over heads


def test_every_head_answers_for_the_chosen_query_and_key(show):
    html, weights, _ = model()
    tab = show(html).choose(chosen=[33])
    cards, words = tab.evaluate(CARDS), tab.text('.thumb[data-layer="1"][data-head="2"]')
    for n, h in np.ndindex(weights.shape[:2]):
        assert told(cards[f"{n}.{h}"]) == pytest.approx(weights[n, h, 33].max(), abs=6e-4)
    assert f"→ {weights[1, 2, 33].argmax()} w{weights[1, 2, 33].argmax()}" in words
    tab.choose(chosen=[5], reverse=True)
    cards = tab.evaluate(CARDS)
    for n, h in np.ndindex(weights.shape[:2]):
        assert told(cards[f"{n}.{h}"]) == pytest.approx(weights[n, h, :, 5].sum(), rel=2e-3, abs=6e-4)
    tab.choose(chosen=[])
    assert "≤" not in "".join(tab.evaluate(CARDS).values())


def test_mean_and_largest_over_heads_are_heads_of_the_grid(show):
    html, weights, _ = model()
    tab = show(html)
    for over, merge in (("mean", np.mean), ("maximum", np.max)):
        tab.tab.click(f'.thumb[data-layer="0"][data-over="{over}"]')
        tab.drawn().choose(cell=[20, 7])
        value = float(tab.tab.get_attribute("#readout", "data-weight"))
        assert value == pytest.approx(merge(weights[0, :, 20, 7]), rel=1e-5)
        assert np.abs(tab.choose(bend="sqrt", cell=None).pixel(20, 7) - colour(np.sqrt(value))).max() <= 4
    tab.choose(layer=2, over="maximum", cell=[30, 2])
    assert float(tab.tab.get_attribute("#readout", "data-most")) >= weights[2, :, 30, 2].max()
    assert "over=maximum" in tab.evaluate("() => location.hash") or tab.state("over") == "maximum"
    tab.tab.click('.thumb[data-layer="1"][data-head="3"]')
    assert tab.drawn().state("over") == "none" and tab.text("#map-title") == "layer 1, head 3"


def test_weights_times_value_norms(show):
    html, weights, norms = model()
    tab = show(html, "#norms=1&bend=linear")
    for i, j in [(9, 3), (30, 11)]:
        tab.choose(cell=[i, j])
        value = weights[0, 0, i, j] * norms[0, 0, j]
        assert float(tab.tab.get_attribute("#readout", "data-weight")) == pytest.approx(value, rel=1e-5)
    top = (weights[0, 0] * norms[0, 0]).max()
    assert np.abs(tab.choose(cell=None).pixel(9, 3) - colour(weights[0, 0, 9, 3] * norms[0, 0, 3] / top)).max() <= 4
    tab.choose(layer=1, cell=[30, 11])  # rows: no tile has a product, and a bound stays a bound
    i, j = 30, next(j for j in range(30) if j not in known_by(weights[1, 0, 30], np.arange(40) <= 30, 4))
    tab.choose(cell=[i, j])
    assert float(tab.tab.get_attribute("#readout", "data-most")) >= weights[1, 0, i, j] * norms[1, 0, j]


def test_pinned_heads_stand_side_by_side(show):
    html, weights, _ = model()
    tab = show(html, "#pins=0.1,2.3&cell=30,11")
    tab.tab.wait_for_selector('.pin[data-pin="2.3"]')
    assert tab.count(".pin") == 2 and f"{weights[0, 1, 30, 11]:.3g}"[:5] in tab.text('.pin[data-pin="0.1"]')
    canvas = tab.tab.locator('.pin[data-pin="0.1"] canvas')
    box = canvas.bounding_box()
    canvas.click(position={"x": 7.5 / 40 * box["width"], "y": 20.5 / 40 * box["height"]})
    assert tab.drawn().state("cell") == [20, 7]
    tab.press("i")
    assert tab.state("pins") == ["0.1", "2.3", "0.0"]
    tab.tab.click('.pin[data-pin="0.1"] button[aria-label^="Unpin"]')
    assert tab.drawn().count(".pin") == 2


GOES = [
    ("2.3", {"layer": 2, "head": 3}),
    ("L1H2 30 11", {"layer": 1, "head": 2, "cell": [30, 11], "chosen": [30]}),
    ("12 4", {"cell": [12, 4], "chosen": [12]}),
    ("0.1 q7 k3", {"layer": 0, "head": 1, "cell": [7, 3]}),
    ("21", {"cell": None, "chosen": [21], "reverse": False}),
    ("k9", {"cell": None, "chosen": [9], "reverse": True}),
    ("w17", {"chosen": [17], "reverse": False}),
    ("w2w2", {}), ("w22w23", {"chosen": [22]}),
    ("L2", {"layer": 2, "head": 1, "chosen": [22]}), ("h3", {"layer": 2, "head": 3}), ("l1 20 6", {"layer": 1, "head": 3, "cell": [20, 6]}),
]


def test_the_field_goes_where_it_is_told(show):
    tab = show(model()[0])
    for text, expected in GOES:
        before = tab.evaluate("() => ({ ...attend.state })")
        tab.tab.fill("input.goto", text)
        tab.tab.press("input.goto", "Enter")
        state = tab.drawn().evaluate("() => ({ ...attend.state })")
        assert {name: state[name] for name in expected or before} == (expected or before), text
        assert bool(tab.text(".goto-box")) == (not expected)
    for text, words in (("9.0", "no layer 9"), ("0.9", "no head 9"), ("L9", "no layer 9"), ("h9", "no head 9"), ("44 1", "no query 44"), ("k40", "no key 40")):
        tab.tab.fill("input.goto", text)
        tab.tab.press("input.goto", "Enter")
        assert words in tab.text(".goto-words")


def goes(tab, text):
    """Types a text, and returns what is chosen then."""
    tab.tab.fill("input.goto", text)
    tab.tab.press("input.goto", "Enter")
    return tab.drawn().evaluate("() => [attend.state.reverse ? 'key' : 'query', ...attend.state.chosen]")


def text_page(queries, keys, **tokens):
    random, blobs = np.random.default_rng(9), Blobs()
    source = {name: random.normal(size=(1, n, 4)).astype(np.float32) for name, n in zip("qkv", (queries, keys, keys))}
    run = {"name": "m", "key_tokens": None, "special": [], "layers": [layer_of(source, blobs, "layer 0")], **tokens}
    return page_of([run], blobs)


def test_a_word_is_found_in_the_text_of_the_keys_too_and_enter_goes_on(show):
    tab = show(text_page(3, 5, tokens=["the", " un", " the"], key_tokens=["the", " a", " b", " the", " c"]))
    places = [["query", 0], ["query", 2], ["key", 0], ["key", 3], ["query", 0]]
    assert [goes(tab, "the") for _ in places] == places
    assert goes(tab, "c") == ["key", 4] and goes(tab, "un") == ["query", 1] and goes(tab, "un") == ["query", 1]
    # the last queries of a text, of which the keys before them are no queries
    tab = show(text_page(3, 6, tokens=["a", " w", " w", " b", " w", " c"]))
    places = [["key", 1], ["key", 2], ["query", 1], ["key", 1]]
    assert [goes(tab, "w") for _ in places] == places


def test_the_strips_are_entropy_and_mass(show):
    _, weights, _ = model()
    tab = show(model()[0])
    lengths = tab.evaluate("""() => {
      const { left, top, w, h, strip } = attend.geometry(), canvas = document.getElementById("map");
      const dark = (x, y) => { const [r, g, b, a] = canvas.getContext("2d").getImageData(x, y, 1, 1).data; return a && r + g + b < 600; };
      const run = (at) => { let n = 0; while (n < strip + 4 && at(n)) ++n; return n; };
      const middle = (n, all, size) => Math.round(((n + 0.5) / all) * size);
      return [strip, Array.from({ length: 40 }, (_, i) => run((n) => dark(left + w + 3 + n, top + middle(i, 40, h)))),
        Array.from({ length: 40 }, (_, j) => run((n) => dark(left + middle(j, 40, w), top + h + 3 + n)))];
    }""")
    strip, rows, columns = lengths
    p = weights[0, 0]
    entropy = -np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0).sum(axis=1)
    np.testing.assert_allclose(rows, strip * entropy / np.log(40), atol=1.2)
    np.testing.assert_allclose(columns, strip * p.sum(axis=0) / p.sum(axis=0).max(), atol=1.2)


def test_heads_are_sorted_by_the_score_of_either_run(show):
    tab = show(fixtures.two_runs(), "#show=difference")
    values = "() => Object.fromEntries([...document.querySelectorAll('.thumb[data-head]')].map((card) => [card.dataset.layer + '.' + card.dataset.head, card.querySelector('.figure').textContent]))"
    for run in ("a", "b"):
        tab.tab.select_option('select[data-key="sort"]', f"entropy@{run}")
        order, cards = tab.drawn().evaluate(ORDER), tab.evaluate(values)
        assert all("→" not in text for text in cards.values())
        shown = [told(cards[place]) for place in order]
        assert shown == sorted(shown, reverse=True)


def test_near_keys_are_left_out_by_their_distance(show):
    html, weights, _ = model()
    tab = show(html, "#far=6&cell=30,27")
    assert tab.tab.get_attribute("#readout", "data-kind") == "filtered"
    tab.choose(cell=[30, 24])
    assert tab.tab.get_attribute("#readout", "data-kind") == "exact"
    listed = tab.evaluate("() => [...document.querySelectorAll('#strong button')].map((line) => line.dataset.cell)")
    far = np.where(np.subtract.outer(np.arange(40), np.arange(40)) >= 6, weights[0, 0], 0)
    best = [f"{n // 40},{n % 40}" for n in np.argsort(-far.ravel())[:8]]
    assert listed == best

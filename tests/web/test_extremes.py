"""Pages at their edges: layers and runs of unequal sizes, norms beside differences, texts of two sides, what is hidden
or not a number where something is selected, and digits that nobody knows."""

import csv
import io
import re
import xml.etree.ElementTree as xml

import numpy as np
import pytest

import fixtures
from page import Blobs, assemble, layer_of, page_of, softmax
from test_hostile import data
from test_map import colour
from test_rows import CARDS, known_by, told

SVG = "{http://www.w3.org/2000/svg}"


def layer(seed, heads=2, queries=20, keys=20, **options):
    random = np.random.default_rng(seed)
    sizes = {"q": queries, "k": keys, "v": keys}
    return {**{name: random.normal(size=(heads, n, 8)).astype(np.float32) for name, n in sizes.items()}, **options}


def page(*runs, tokens=None, key_tokens=None, **keywords):
    """A page of runs, each a list of layers."""
    blobs, names = Blobs(), {"tokens": tokens, "key_tokens": key_tokens, "special": []}
    return page_of([{"name": f"run {n}", **names, "layers": [layer_of(each, blobs, f"layer {at}", **keywords)
                                                             for at, each in enumerate(layers)]}
                    for n, layers in enumerate(runs)], blobs)


def test_runs_that_cannot_be_compared_are_told_and_keys_still_work(show):
    tab = show(page([layer(0)], [layer(1, queries=12)]), "#show=difference&cell=3,2&chosen=3")
    assert "queries is 20 in one and 12 in the other" in tab.text("#one .note")
    tab.press("Escape", "Escape", "+", "2", "ArrowDown", "Enter", "v")
    assert tab.count(".problem") == 0 and tab.tab.get_attribute("#map", "data-whole") == "true"


def test_a_run_with_fewer_layers_is_told_where_they_end(show):
    tab = show(page([layer(0)] * 2, [layer(1)]), "#show=difference&norms=1&cell=3,2")
    assert len(tab.evaluate(CARDS)) == 4 and tab.count(".problem") == 0
    assert "no such layer" in tab.press("}").text("#one .note")


def test_a_page_without_layers_takes_every_key(show):
    html = assemble(data(runs=[{"name": "a", "layers": []}])[0], [])
    tab = show(html).press("]", "}", "{", "1", "2", "Enter", "n", "o", "T", "g", "Escape")
    assert "no layers" in tab.text("#page") and tab.count(".problem") == 0


def test_layers_of_unequal_sizes_answer_for_what_they_have(show):
    layers = [layer(3, heads=1, causal=True), layer(4, queries=6, keys=6)]
    tab = show(page(layers, embed=False, top_k=4), "#chosen=9&reverse=1")
    assert tab.evaluate(CARDS)["1.0"] in ("0", "–")  # it has no key 9; another head's sixth is none of it
    assert told(tab.evaluate(CARDS)["0.0"]) == pytest.approx(softmax(layers[0])[0][0, :, 9].sum(), abs=6e-4)


def test_what_is_hidden_where_somebody_selects_is_no_weight(show):
    tab = show(page([layer(5, heads=2, causal=True)]), "#cell=4,9")
    assert set(tab.evaluate(CARDS).values()) == {"–"}
    alpha = "() => document.querySelector('.thumb[data-head]').querySelector('canvas').getContext('2d').getImageData(3, 3, 1, 1).data[3]"
    assert tab.evaluate(alpha) == 0  # the hatching of the style shows
    bars = """() => [...document.querySelector('.thumb[data-head]').querySelector('canvas').getContext('2d')
      .getImageData(0, 0, 20, 1).data].filter((_, n) => n % 4 === 3)"""
    tab.choose(cell=None, chosen=[4])
    assert tab.evaluate(bars) == [255] * 5 + [0] * 15


def test_bars_of_a_query_show_what_is_known_and_what_is_at_most(show):
    source = layer(6, heads=1)
    weights = softmax(source)[0][0, 7]
    tab = show(page([source], embed=False, top_k=4), "#chosen=7&bend=linear")
    rows = tab.evaluate("""() => { const canvas = document.querySelector(".thumb[data-head] canvas");
      return [0, 1].map((y) => { const { data } = canvas.getContext("2d").getImageData(0, y, 20, 1);
        return Array.from({ length: 20 }, (_, n) => [...data.slice(4 * n, 4 * n + 3)]); }); }""")
    known = known_by(weights, np.ones(20, bool), 4)
    # what the map says: of the row, or of the tile, which is a cell here
    cells = tab.evaluate("() => Promise.all(Array.from({ length: 20 }, (_, j) => attend.weight(0, 0, 7, j)))")
    least = sorted(weights[j] for j in known)[0]
    for j in range(20):
        upper, lower = (weights[j], weights[j]) if j in known else (0, cells[j]["most"])
        assert j in known or weights[j] <= lower <= min(least, 1.1 * weights[j]) * 1.0002
        assert np.abs(rows[0][j] - colour(upper)).max() <= 4 and np.abs(rows[1][j] - colour(lower)).max() <= 4


def test_what_a_key_receives_counts_its_norm(show):
    source = layer(7, heads=1)
    norm = np.linalg.norm(source["v"][0, 3])
    tab = show(page([source]), "#chosen=3&reverse=1&norms=1")
    assert told(tab.evaluate(CARDS)["0.0"]) == pytest.approx(softmax(source)[0][0, :, 3].sum() * norm, abs=6e-4)


def test_a_difference_of_weights_times_norms_may_be_any_number(show):
    a, b = layer(8, heads=1), layer(9, heads=1)
    for run in (a, b):
        run["v"] *= 20
    value = [softmax(run)[0][0] * np.linalg.norm(run["v"][0], axis=1) for run in (a, b)]
    apart = value[1] - value[0]
    i, j = np.unravel_index(apart.argmin(), apart.shape)
    assert apart[i, j] < -4  # as far below 0 as what once stood for hidden cells
    tab = show(page([a], [b]), f"#show=difference&norms=1&cell={i},{j}")
    assert float(tab.tab.get_attribute("#readout", "data-weight")) == pytest.approx(apart[i, j], rel=1e-4)
    best = np.unravel_index(np.abs(apart).argmax(), apart.shape)
    assert tab.tab.get_attribute("#strong button", "data-cell") == f"{best[0]},{best[1]}"
    rows = list(csv.DictReader(io.StringIO(tab.evaluate("() => attend.csv()"), newline="")))
    assert {row["kind"] for row in rows} == {"exact"} and float(rows[20 * i + j]["difference"]) == pytest.approx(apart[i, j])


def test_norms_beside_tiles_are_exported_as_they_are_drawn(show):
    tab = show(page([layer(10, heads=1, queries=40, keys=40)], embed=False, top_k=2, tiles=8), "#norms=1")
    rows = list(csv.DictReader(io.StringIO(tab.evaluate("() => attend.csv()"), newline="")))
    assert {row["kind"] for row in rows} == {"unknown", "exact"}
    root = xml.fromstring(tab.evaluate("() => attend.svg()"))
    fills = [rect.get("fill") for rect in root.iter(f"{SVG}rect")]
    assert fills.count("rgb(201, 199, 194)") == 25  # every tile is grey, none is hatched as hidden
    others = re.search(r"Any other is ≤ (\S+)\.", tab.text("#strong"))
    listed = [told(text) for text in tab.tab.locator("#strong .figure").all_inner_texts()]
    assert others is None or float(others[1]) > listed[-1]


def test_other_cells_weigh_no_more_than_the_list_says(show):
    source = layer(11, heads=1, queries=64, keys=64, causal=True)
    weights = softmax(source)[0][0]
    tab, norms = show(page([source], embed=False, top_k=1, tiles=16)), np.linalg.norm(source["v"][0], axis=1)
    for changes, scale in (({}, np.ones(64)), ({"norms": True}, norms), ({"norms": False, "far": 20}, np.ones(64))):
        tab.choose(**changes)
        listed = {tuple(map(int, line.get_attribute("data-cell").split(","))) for line in tab.tab.locator("#strong button").all()}
        most = float(re.search(r"Any other is ≤ (\S+)\.", tab.text("#strong"))[1])
        stored = {(i, int(weights[i].argmax())) for i in range(64)}
        far = changes.get("far", 0)
        rest = [weights[i, j] * scale[j] for i in range(64) for j in range(i + 1 - far) if (i, j) not in stored | listed]
        assert max(rest) <= most


def test_each_of_two_texts_has_its_own_page(show):
    tokens = {"tokens": [f"q{n}" for n in range(600)], "key_tokens": [f"k{n}" for n in range(700)]}
    tab = show(page([layer(12, heads=1, queries=600, keys=700)], embed=False, top_k=2, tiles=16, **tokens), "#chosen=300")
    first = """() => [...document.querySelectorAll("#text .tokens")].map((box) => box.firstChild.textContent)"""
    assert tab.evaluate(first) == ["q60", "k0"]  # the chosen query is in the middle
    for side, pages in (("keys", ["q60", "k220"]), ("queries", ["q120", "k220"])):
        tab.tab.locator(f'#text div:has(> [data-side="{side}"]) button', has_text="Later").click()
        assert tab.evaluate(first) == pages


def test_a_row_that_is_not_a_number_is_no_bound(show):
    source = layer(13, heads=1, queries=70, keys=70)
    blobs = Blobs()
    made = layer_of(source, blobs, "layer 0", embed=False, top_k=4, tiles=16)
    lse = softmax(source)[2].copy()
    lse[0, 5] = np.nan
    made["lse"] = blobs.add(lse)
    run = {"name": "m", "tokens": None, "key_tokens": None, "special": [], "layers": [made]}
    tab = show(page_of([run], blobs), "#chosen=5")
    assert tab.evaluate(CARDS)["0.0"] == "–"
    tab.choose(chosen=[6])
    assert told(tab.evaluate(CARDS)["0.0"]) == pytest.approx(softmax(source)[0][0, 6].max(), abs=6e-4)


def test_beside_a_row_that_is_not_a_number_no_bound_is_too_low(show):
    """The bytes of a tile have no NaN: where a row of it has, they say nothing of the others."""
    source = layer(13, heads=2, queries=70, keys=70)
    source["q"][0, 5] = np.nan
    with np.errstate(invalid="ignore"):
        weights, everything = softmax(source)[0], np.ones(70, bool)
        pages = [page([source], embed=False, top_k=4, tiles=16), page([source], embed=False, top_k=4, tiles=16, begin=30)]
    best = known_by(weights[0, 6], everything, 4)
    j = next(j for j in range(70) if j not in best)
    tab = show(pages[0], f"#cell=6,{j}")
    most = float(tab.tab.get_attribute("#readout", "data-most"))
    assert weights[0, 6, j] <= most <= 1.01 * np.sort(weights[0, 6])[-4]
    assert weights[0, 6, j] <= told(tab.text("#readout .value")) and tab.evaluate(CARDS)["0.0"] != "≤0"
    tab.choose(cell=[5, j])
    assert "not a number" in tab.text("#readout")
    others = re.search(r"Any other is ≤ (\S+)\.", tab.text("#strong"))
    most = float(others[1]) if others else told(tab.text("#strong li:last-child .figure"))
    for i in (*range(5), *range(6, 70)):
        assert max(weights[0, i, j] for j in set(range(70)) - known_by(weights[0, i], everything, 4)) <= most
    tab = show(pages[1])  # rows from 30 on are stored: of the others entropy tells which are not numbers
    cells = tab.evaluate("(j) => Promise.all([5, 6].map((i) => attend.weight(0, 0, i, j)))", j)
    assert cells[0]["kind"] == "exact" and np.isnan(cells[0]["weight"])
    assert cells[1]["kind"] == "tile" and weights[0, 6, j] <= cells[1]["most"]


def test_what_a_key_receives_is_hatched_where_the_mask_hides_it(show):
    block = np.arange(40) // 10
    source = layer(16, heads=1, queries=40, keys=40, mask=(block[:, None] == block[None, :])[None])
    alpha = """() => { const canvas = document.querySelector(".thumb[data-head] canvas");
      const { data } = canvas.getContext("2d").getImageData(0, 0, 1, 40);
      return Array.from({ length: 40 }, (_, n) => data[4 * n + 3]); }"""
    for masked in (True, False):  # without the mask itself, the tiles tell what they know
        blobs = Blobs()
        made = layer_of(source, blobs, "layer 0", embed=False, top_k=4, tiles=4 if masked else 40)
        if not masked:
            made["mask"] = None
        run = {"name": "m", "tokens": None, "key_tokens": None, "special": [], "layers": [made]}
        tab = show(page_of([run], blobs), "#chosen=3&reverse=1")
        assert tab.evaluate(alpha) == [255] * 10 + [0] * 30


def test_queries_are_answered_with_the_filters_of_the_map(show):
    """Head 6 sees all alike: query 4 gives each of five keys 0.2, without the first each of four 0.25."""
    tab = show(fixtures.small(), "#head=6&noFirst=1&chosen=4")
    for changes, value in (({}, 0.2), ({"renormalise": True}, 0.25), ({"norms": True}, None)):
        cards = tab.choose(**changes).evaluate(CARDS)
        shown = tab.choose(cell=[4, 1]).tab.get_attribute("#readout", "data-weight")
        tab.choose(cell=None)
        if value is None:  # of the key with the longest value
            value = max(float(each) for each in tab.evaluate(
                "() => [...document.querySelectorAll('.piece[data-value]')].map((piece) => piece.dataset.value)"))
        else:
            assert float(shown) == pytest.approx(value, rel=1e-4)
        assert told(cards["0.6"]) == pytest.approx(value, abs=6e-4)


def test_a_bound_counts_that_norms_are_rounded(show):
    source = layer(17, heads=1, queries=30, keys=30)
    blobs = Blobs()
    made = layer_of(source, blobs, "layer 0", embed=False, top_k=4, tiles=8)
    norms = 2.0 ** ((0.499 - np.arange(30)) / 2048)  # all a little below half a step: rounded down
    made["value_norm"] = blobs.add(norms[None], "log16")
    run = {"name": "m", "tokens": None, "key_tokens": None, "special": [], "layers": [made]}
    tab, weights = show(page_of([run], blobs)), softmax(source)[0][0]
    for i in (3, 20):
        j = next(j for j in range(30) if j not in known_by(weights[i], np.ones(30, bool), 4))
        plain = float(tab.choose(norms=False, cell=[i, j]).tab.get_attribute("#readout", "data-most"))
        most = float(tab.choose(norms=True).tab.get_attribute("#readout", "data-most"))
        assert plain * norms[j] <= most <= plain * norms[j] * (1 + 4e-4)


def test_a_text_of_its_own_side_points_at_no_cell(show):
    tokens = {"tokens": ["un", "deux", "trois"], "key_tokens": ["one", "two", "three", "four", "five"]}
    tab = show(page([layer(18, heads=1, queries=3, keys=5)], **tokens), "#chosen=1")
    for reverse, own, other, cell in ((False, "queries", "keys", (1, 2)), (True, "keys", "queries", (2, 1))):
        tab.choose(reverse=reverse, chosen=[1])
        tab.tab.hover(f'[data-side="{other}"] .piece[data-n="2"]')
        tab.tab.wait_for_selector(f'#readout[data-query="{cell[0]}"][data-key="{cell[1]}"]')
        tab.tab.hover(f'[data-side="{own}"] .piece[data-n="2"]')
        tab.tab.wait_for_selector("#readout:not([data-query])")


def test_a_difference_of_stored_weights_has_only_the_digits_that_are_known(show):
    a = layer(14, heads=1, queries=30, keys=30)
    b = {**a, "q": a["q"] * np.float32(1.00002)}  # apart by less than what is stored
    weights = [softmax(run)[0][0] for run in (a, b)]
    i = int(weights[0].max(axis=1).argmax())
    j = int(weights[0][i].argmax())
    tab = show(page([a], [b], embed=False, top_k=4, tiles=8), f"#show=difference&cell={i},{j}")
    words = tab.text("#readout .value")
    if words != "0":
        assert float(re.fullmatch(r"± (\S+)", words)[1]) <= 4e-4 * weights[0][i, j] * 1.1
    tab = show(page([a], [b]), f"#show=difference&cell={i},{j}")
    digits = re.sub(r"e.*|[^\d]", "", tab.text("#readout .value")).lstrip("0")
    off = 1e-6 * 2 * weights[0][i, j] / abs(weights[1][i, j] - weights[0][i, j])
    assert len(digits) <= max(1, int(-np.log10(2 * off)) + 1)


def test_a_long_label_of_an_svg_is_as_wide_as_on_the_page(show):
    tokens = ["W" * 12] * 6 + ["\ufffe\uffff", "a"]
    root = xml.fromstring(show(page([layer(15, heads=1, queries=8, keys=8)], tokens=tokens)).evaluate("() => attend.svg()"))
    rows = [node for node in root.iter(f"{SVG}text") if node.text.startswith("W") and node.get("text-anchor") == "end"]
    assert len(rows) == 6 and all(0 < float(node.get("textLength")) < 110 for node in rows)
    assert any(node.text.startswith("‹U+FFFE›") for node in root.iter(f"{SVG}text"))


def test_a_figure_waits_for_no_cell(show):
    tab = show(fixtures.many_heads(300, layers=1, heads=1), "#layer=0&zoom=0,300,0,300")
    assert tab.evaluate("""async () => {
      const picture = () => /<image[^>]*>/.exec(attend.svg())[0];
      attend.choose({ far: 1 });  // every cell is to be computed anew
      const early = picture();
      do await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
      while (document.getElementById("map").dataset.whole !== "true");
      return early === picture();
    }""")

"""What a page of two runs says of their difference, and of weights that are not numbers: no more than it knows."""

import re

import numpy as np
import pytest

import fixtures
from page import Blobs, layer_of, page_of, softmax
from test_answers import MAGENTA, PICTURE
from test_compare import ENDS, reduced_runs
from test_extremes import layer, page
from test_rows import told


def searched(tab):
    tab.tab.wait_for_selector(".largest:not(:has-text('searching'))")
    return tab.text(".largest")


def test_where_attention_moved_counts_though_one_run_only_bounds_it(show):
    """Key 7 of query 20 has next to nothing before, and is not stored: it differs by at least what is left."""
    html, (a, b) = reduced_runs(before=-3.0)
    assert 7 not in np.argsort(-a[20])[:4] and b[20, 7] > 0.9
    most = np.sort(a[20])[-4]  # of what is not stored before
    tab = show(html, "#show=difference&bend=linear")
    words = searched(tab)
    assert "Largest known difference at least +" in words and "query 20 → key 7" in words
    least = told(re.search(r"at least \+(\S+)", words)[1])
    assert 0.9 * (b[20, 7] - most) - 0.01 <= least <= b[20, 7] - a[20, 7]
    assert told(tab.evaluate(ENDS)[1].replace("+", "")) < least  # it has no colour: the scale ends at one that has
    tab.tab.click(".largest button")
    assert tab.drawn().state("cell") == [20, 7] and "differs by" in tab.text("#readout")


def test_the_largest_difference_of_exact_runs_is_not_of_rounded_weights(show):
    """Too much work for every cell: the stored ones are searched, and told as the page computes them."""
    tab = show(*large_runs())
    words, value = searched(tab), float(tab.tab.get_attribute("#readout", "data-weight"))
    told_value = told(re.search(r"difference ([+−]\S+) at", words)[1].replace("+", ""))
    assert told_value == pytest.approx(value, abs=0.6 * 10 ** (np.floor(np.log10(abs(value))) - 3))
    assert "Largest known difference" in words


def large_runs():
    """Two exact runs of one layer many times, more cells than a search looks at, and where they differ most."""
    blobs, runs, weights = Blobs(), [], []
    for seed in (71, 72):
        random = np.random.default_rng(seed)
        source = {name: 2 * random.normal(size=(1, 1024, 64)).astype(np.float32) for name in "qk"}
        weights.append(softmax(source)[0][0])
        layers = [layer_of(source, blobs, "layer 0", tiles=16)] * 31
        runs.append({"name": str(seed), "tokens": None, "key_tokens": None, "special": [], "layers": layers})
    apart = weights[1] - weights[0]
    i, j = np.unravel_index(np.abs(apart).argmax(), apart.shape)
    return page_of(runs, blobs), f"#show=difference&cell={i},{j}"


def test_runs_are_equal_only_where_every_cell_was_looked_at(show):
    source = layer(73, heads=2, queries=24, keys=24)
    words = searched(show(page([source], [source]), "#show=difference"))
    assert "The two runs are equal in every cell." in words
    for options in ({"embed": False, "top_k": 4, "tiles": 8}, {"embed": False, "top_k": 0, "tiles": 8}):
        words = searched(show(page([source], [source], **options), "#show=difference"))
        assert "No difference is known" in words and "equal" not in words
    blobs = Blobs()  # the first layer whole, of the second rows
    run = {"tokens": None, "key_tokens": None, "special": [],
           "layers": [layer_of(source, blobs, f"layer {n}", embed=n == 0, top_k=4, tiles=8) for n in range(2)]}
    words = searched(show(page_of([{"name": name, **run} for name in "ab"], blobs), "#show=difference"))
    assert "No difference is known" in words and "equal" not in words
    broken = {**source, "q": source["q"].copy()}
    broken["q"][0, 3, 0] = np.nan
    words = searched(show(page([source], [broken]), "#show=difference"))
    assert "equal in every cell that is a number" in words


def test_a_difference_of_means_is_a_range(show):
    sources = [layer(seed, heads=1, queries=64, keys=64) for seed in (74, 75)]
    means = [softmax(source)[0][0].reshape(8, 8, 8, 8).mean(axis=(1, 3)) for source in sources]
    words = searched(show(page(*([source] for source in sources), embed=False, top_k=0, tiles=8), "#show=difference"))
    from_, to, i, j = re.search(r"difference (\S+) to (\S+) of the means at .*queries (\d+)–\d+ → keys (\d+)–", words).groups()
    apart = (means[1] - means[0])[int(i) // 8, int(j) // 8]
    assert told(from_) <= apart <= told(to)


def with_norms(kind):
    source = layer(76, heads=2, queries=20, keys=20)
    if kind == "output":
        source["w_o"] = 7 * np.random.default_rng(1).normal(size=(6, 2 * source["v"].shape[2]))
    if kind == "none":
        source["v"] = None
    return source


@pytest.mark.parametrize("a, b", [("output", "value"), ("value", "output"), ("output", "none")])
def test_a_difference_has_the_same_norms_on_both_sides(show, a, b):
    sources = [with_norms(a), with_norms(b)]
    tab = show(page(*([source] for source in sources)), "#show=difference&norms=1&head=1&cell=9,4&chosen=9&pins=0.1")
    assert float(tab.tab.get_attribute("#readout", "data-weight")) == 0  # the runs are the same
    assert told(re.sub(".*: ", "", tab.text('.pin .figure'))) == 0
    assert ("norm" in tab.text(".scale-is")) == (b != "none")
    tab.choose(show="a")
    assert float(tab.tab.get_attribute("#readout", "data-weight")) > 0


def broken_rows(begin=20, at=9):
    """A head of stored rows of which lse begins at `begin`; row `at` sees what is not a number."""
    source = layer(77, heads=2, queries=40, keys=40)
    blobs = Blobs()
    made = layer_of(source, blobs, "layer 0", embed=False, top_k=3, tiles=10, begin=begin)
    entropy = np.ones((2, 40))
    entropy[1, at] = np.nan
    made["entropy"] = blobs.add(entropy, "f16")
    return made, blobs, source


def test_a_row_that_is_not_a_number_is_noticed_by_its_entropy(show):
    made, blobs, _ = broken_rows()
    run = {"name": "m", "tokens": None, "key_tokens": None, "special": [], "layers": [made]}
    tab = show(page_of([run], blobs), "#head=1")
    assert "not numbers" in tab.text("#one .note") and "not a number" in tab.text(".legend")
    drawn = tab.evaluate(PICTURE, 1)
    assert [n for n, pixel in enumerate(drawn) if pixel == MAGENTA] == [9 // 4]
    assert "not numbers" not in tab.choose(head=0).text("#one")


def test_a_difference_with_what_is_not_a_number_is_none(show):
    made, blobs, source = broken_rows()
    other = layer_of(source, blobs, "layer 0", embed=False, top_k=3, tiles=10, begin=20)
    runs = [{"name": name, "tokens": None, "key_tokens": None, "special": [], "layers": [each]}
            for name, each in (("a", made), ("b", other))]
    tab = show(page_of(runs, blobs), "#show=difference&head=1&cell=9,4&chosen=9&table=1")
    assert "not a number" in tab.text("#readout") and "NaN" not in tab.text("#readout")
    assert "No difference is known" in searched(tab)  # nor is that of its tile


def test_one_scale_for_all_heads_is_that_of_the_text_too(show):
    tab = show(fixtures.two_runs(), "#show=difference&chosen=3")
    searched(tab)
    colours = "() => [...document.querySelectorAll('.piece[data-value]')].map((piece) => piece.style.backgroundColor)"
    before = tab.drawn().evaluate(colours)
    tab.tab.click('input[data-key="same"]')
    after = tab.drawn().evaluate(colours)
    assert after != before and after == tab.choose(combine="mean").choose(combine="sum").evaluate(colours)


def test_over_heads_with_masks_of_their_own_nothing_known_is_missed(show):
    """The first head hides key 7 from most queries: what the others store of it is known, and a mean over those
    that see it is no more than its bound."""
    source = layer(78, heads=3, queries=40, keys=40)
    mask = np.random.default_rng(3).random((3, 40, 40)) < 0.15  # rows are whole: they store all that they see
    mask[:, np.arange(40), np.arange(40)] = True
    mask[0, :, 7], mask[1:, 25:, 7] = False, True
    source.update(mask=mask)
    source["k"][1:, 7] *= 3
    weights, visible, _ = softmax(source)
    blobs = Blobs()
    made = {**layer_of(source, blobs, "layer 0", embed=False, top_k=8, tiles=8), "mask": None}
    run = {"name": "m", "tokens": None, "key_tokens": None, "special": [], "layers": [made]}
    tab = show(page_of([run], blobs))
    merged = {"mean": weights.sum(axis=0) / np.maximum(visible.sum(axis=0), 1), "maximum": weights.max(axis=0)}
    stored = [[set(np.argsort(np.where(visible[h, i], -weights[h, i], 1), kind="stable")[:8]) for i in range(40)] for h in range(3)]
    for over, truth in merged.items():
        tab.choose(over=over)
        lines = tab.evaluate("() => [...document.querySelectorAll('#strong button')].map((line) => "
                             "[...line.dataset.cell.split(',').map(Number), line.querySelector('.figure').textContent])")
        whole = visible.sum(axis=2) < 8  # rows of which every seen key is stored
        known = {(i, j): truth[i, j] for i in range(40) for j in range(40) if visible[:, i, j].any()
                 and all(whole[h, i] or j in stored[h][i] and visible[h, i, j] for h in range(3))}
        best = sorted(known, key=lambda at: -known[at])[:8]
        assert [(i, j) for i, j, _ in lines] == best and any(not visible[0, i, j] for i, j in best)
        for i in range(0, 40, 3):
            for j in (7, 3, 20):
                if not visible[:, i, j].any():
                    continue
                readout = tab.choose(cell=[i, j]).evaluate("() => ({...document.getElementById('readout').dataset})")
                if "most" in readout:
                    assert float(readout["most"]) >= truth[i, j] * 0.999, (i, j)
                elif readout["kind"] == "exact":
                    assert float(readout["weight"]) == pytest.approx(truth[i, j], rel=3e-4)
        tab.choose(cell=None)


def test_a_cell_of_a_row_that_is_not_stored_is_at_most_and_says_what_would_store_it(show):
    source = layer(79, heads=2, queries=40, keys=40, causal=True)
    weights = softmax(source)[0]
    tab = show(page([source], embed=False, top_k=2, tiles=10, begin=24), "#head=1&pins=0.0&cell=12,5")
    words = tab.text("#readout")
    assert "at most" in words and "stored with --window 0,1,12,1,5,1" in words and "mean" in words and "largest" in words
    assert weights[1, 12, 5] <= told(re.search(r"≤ (\S+)", words)[1]) <= 1.2 * weights[1, 12:16, 4:8].max()
    assert "≤" in tab.text(".pin .figure") and "at most" in tab.text("#explain")


def test_pictures_of_tiles_are_marked(show):
    html = page([layer(80, heads=2, queries=40, keys=40)], embed=False, top_k=2, tiles=10)
    tab = show(html)
    edge = "() => getComputedStyle(document.querySelector('.thumb[data-head=\"1\"] canvas')).outlineStyle"
    assert tab.evaluate(edge) == "dotted" and "Dotted: mean of tiles." in tab.text("#heads .hint")
    assert "Dotted: largest of tiles." in tab.choose(tile="maximum").text("#heads .hint")
    tab.choose(cell=[3, 4])  # an answer is no tile
    assert tab.evaluate(edge) == "none" and "Dotted" not in tab.text("#heads .hint")
    tab = show(fixtures.small())  # tiles of one cell
    assert tab.evaluate(edge) == "none" and "Dotted" not in tab.text("#heads .hint")

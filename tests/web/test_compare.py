"""Two runs in one page: their difference, its largest, labels and scores of both."""

import csv
import io

import numpy as np
import pytest

import fixtures
from page import Blobs, layer_of, page_of, softmax
from test_map import colour
from test_rows import told

A = softmax(fixtures.habits(fixtures.SENTENCE))[0]


def two(width=3):
    """Two runs of one layer that differ most in one known cell."""
    blobs, runs = Blobs(), []
    for name, strength in (("f32", 0.0), ("bf16", 4.0)):
        source = fixtures.habits(fixtures.SENTENCE)
        source["q"][7, 9] += strength * source["k"][7, 4]
        runs.append(
            {
                "name": name,
                "tokens": fixtures.SENTENCE,
                "key_tokens": None,
                "special": [0],
                "layers": [layer_of(source, blobs, "layer 0", fixtures.ids_of(fixtures.SENTENCE))],
            }
        )
        if name == "bf16":
            after = softmax(source)[0]
    return page_of(runs, blobs, title="Two runs"), after - A


def test_the_difference_of_two_runs_is_drawn_and_its_largest_found(show):
    html, difference = two()
    h, i, j = np.unravel_index(np.abs(difference).argmax(), difference.shape)
    tab = show(html, f"#show=difference&head={h}&cell={i},{j}")
    tab.tab.wait_for_selector(".largest:not(:has-text('searching'))")
    words = tab.text(".largest")
    assert f"query {i} → key {j}" in words and f"head {h}" in words and "about" not in words
    assert f"{difference[h, i, j]:+.3f}".replace("-", "−")[:5] in words
    assert float(tab.tab.get_attribute("#readout", "data-weight")) == pytest.approx(
        difference[h, i, j], rel=1e-4
    )
    for column in range(9):
        red, _, blue = tab.pixel(9, column)
        if abs(difference[h, 9, column]) > 0.02:
            assert (red > blue) == (difference[h, 9, column] > 0)  # orange more, blue less
    other = tab.choose(head=0, cell=None)
    assert "equal" in other.text(".largest")
    other.tab.click(".largest button")
    assert other.drawn().state("head") == h and other.state("cell") == [i, j]
    assert other.state("chosen") == [i] and other.state("reverse") is False
    assert "f32" in tab.text("#explain") and "bf16" in tab.text("#explain")


def test_the_search_is_finished_in_the_other_language_too(show):
    tab = show(two()[0], "#show=difference")
    tab.tab.wait_for_selector(".largest:not(:has-text('searching'))")
    assert "查找中" not in tab.press("l").text(".largest") and "最大差值" in tab.text(".largest")


def test_v_goes_through_the_runs(show):
    tab = show(two()[0])
    assert [tab.press("v").state("show") for _ in range(3)] == ["b", "difference", "a"]


def test_runs_of_other_shapes_are_not_subtracted_but_said_so(show):
    blobs = Blobs()
    runs = [
        fixtures.run_of(fixtures.SENTENCE, blobs, "a"),
        fixtures.run_of(fixtures.SENTENCE[:9], blobs, "b"),
    ]
    tab = show(page_of(runs, blobs), "#show=difference")
    assert "cannot be subtracted" in tab.text("#one .note") and "13" in tab.text("#one .note")
    assert tab.press("v").text("#map-title") == "layer 0, head 0"  # each of them is still there


DIVERGING = ["0b3c7d", "3f83bd", "a5cbe2", "f3f1ea", "f6c18b", "d9752b", "8a3503"]
THUMBNAIL = """(head) => {
  const canvas = document.querySelector(`.thumb[data-layer="0"][data-head="${head}"] canvas`);
  return [canvas.height, canvas.width, [...canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data]];
}"""


def thumbnail(tab, head):
    rows, columns, data = tab.evaluate(THUMBNAIL, head)
    return np.array(data).reshape(rows, columns, 4)


def slightly_apart(embed=True):
    """Two runs whose weights differ by less than a step of a tile, 9 %, in every cell of one head."""
    blobs, runs, weights = Blobs(), [], []
    for factor in (1, 1.01):
        source = fixtures.habits(fixtures.SENTENCE)
        source["q"][7] *= factor
        weights.append(softmax(source)[0])
        layer = layer_of(source, blobs, "layer 0", embed=embed)
        runs.append({"name": str(factor), "tokens": None, "key_tokens": None, "special": [], "layers": [layer]})
    return page_of(runs, blobs), weights[1] - weights[0]


def test_thumbnails_of_small_differences_are_exact(show):
    html, difference = slightly_apart()
    tab = show(html, "#show=difference&bend=linear")
    tab.tab.wait_for_selector(".largest:not(:has-text('searching'))")
    drawn, top = thumbnail(tab.drawn(), 7), np.abs(difference).max()
    assert 0 < top < 0.09
    for i in range(13):
        for j in range(13):
            if j > i:
                assert drawn[i, j, 3] == 0
            else:
                expected = colour(0.5 + difference[7, i, j] / top / 2, DIVERGING)
                assert np.abs(drawn[i, j, :3] - expected).max() <= 4, (i, j)
    assert "tiles" not in tab.tab.get_attribute('.thumb[data-head="7"]', "aria-label")


def test_thumbnails_of_differences_of_tiles_say_so(show):
    tab = show(slightly_apart(embed=False)[0], "#show=difference")
    assert "means of tiles" in tab.tab.get_attribute('.thumb[data-head="7"]', "aria-label")
    assert "≈" in tab.text('.thumb[data-head="7"]') and "means of tiles" in tab.text("#heads .hint")
    assert "tiles" not in tab.choose(show="a").tab.get_attribute('.thumb[data-head="7"]', "aria-label")
    assert "tiles" not in tab.text("#heads .hint")


def test_a_difference_tells_labels_and_scores_of_both_runs(show):
    """The head changes from the token before to the first token; all others stay as they are."""
    blobs, runs = Blobs(), []
    for name, rows in (("before", [max(0, i - 1) for i in range(13)]), ("after", [0] * 13)):
        source = fixtures.habits(fixtures.SENTENCE)
        source["q"][2], source["k"][2] = fixtures.wanting(rows, noise=0.6)
        layer = layer_of(source, blobs, "layer 0", fixtures.ids_of(fixtures.SENTENCE))
        tokens = {"tokens": fixtures.SENTENCE, "key_tokens": None, "special": [0]}
        runs.append({"name": name, **tokens, "layers": [layer]})
    first = [run["layers"][0]["metrics"]["first"][2] for run in runs]
    tab = show(page_of(runs, blobs), "#show=difference&head=2&sort=first&colour=first")
    assert "previous token → first token" in tab.text(".label")
    assert f"First {first[0]:.3f} → {first[1]:.3f}" in tab.text(".label")  # one metric on both sides
    assert tab.text('[data-metric="first"]') == f"{first[0]:.3f} → {first[1]:.3f}"
    thumb = '.thumb[data-head="2"]'
    assert f"{first[0]:.2f} → {first[1]:.2f}" in tab.text(thumb)
    order = "() => [...document.querySelectorAll('.thumb[data-head]')].map((thumb) => Number(thumb.dataset.head))"
    assert tab.evaluate(order)[0] == 2 and "First: change" in tab.text('select[data-key="colour"]')
    rows = list(csv.DictReader(io.StringIO(tab.evaluate("() => attend.csv()"), newline="")))
    assert {row["run"] for row in rows} == {"after − before"}
    tab.choose(show="b", sort="order", colour="none")
    assert tab.text(".label").startswith(f"first token {first[1]:.3f}")
    assert f"{first[1]:.2f}" in tab.text(thumb) and "→" not in tab.text(thumb)
    assert '"after"' in tab.evaluate("() => attend.csv()")
    head = tab.choose(show="difference", head=0)
    assert "previous token 0." in head.text(".label")  # one name, where both runs have it


def test_both_scores_of_a_head_are_of_one_metric(show):
    """Every pair of labels, whose scores are of different metrics: beside an arrow stands one metric, that of
    the head's score in the list of its metrics."""
    names = {"mixed": "maximum", "induction": "induction", "first token": "first", "uniform": "evenness",
             "previous token": "previous", "selective": "first", "none": None}
    random, pairs = np.random.default_rng(2), [(a, b) for a in names for b in names]
    blobs, runs = Blobs(), []
    source = {name: random.normal(size=(len(pairs), 6, 4)).astype(np.float32) for name in "qkv"}
    for at, name in enumerate(("before", "after")):
        layer = layer_of(source, blobs, "layer 0", [0, 1, 2, 0, 1, 2])
        layer["metrics"]["evenness"] = [0.0] * len(pairs)
        for metric in sorted(set(names.values()) - {None}):
            layer["metrics"][metric] = random.uniform(size=len(pairs)).round(2).tolist()  # as many digits as are shown
        layer["labels"] = [
            {"name": pair[at], "score": layer["metrics"][names[pair[at]]][h] if names[pair[at]] else 0}
            for h, pair in enumerate(pairs)
        ]
        runs.append({"name": name, "tokens": None, "key_tokens": None, "special": [], "layers": [layer]})
    tab = show(page_of(runs, blobs), "#show=difference")
    both = [run["layers"][0]["metrics"] for run in runs]
    for h, (a, b) in enumerate(pairs):
        allowed = {names[a], names[b], "maximum"} - {None}
        spoken = tab.tab.get_attribute(f'.thumb[data-head="{h}"]', "aria-label")
        texts = [f"{both[0][metric][h]:.2f} → {both[1][metric][h]:.2f}" for metric in allowed]
        if a != b:
            assert any(text in spoken for text in texts), (a, b, spoken)
            assert "→" in spoken.split(",")[2]
        elif names[a]:
            assert f"{both[0][names[a]][h]:.2f} → {both[1][names[a]][h]:.2f}" in spoken
    tab.choose(head=pairs.index(("mixed", "induction")))
    shown = tab.text('[data-metric="induction"]')
    assert "mixed → induction" in tab.text(".label") and f"Induction {shown}" in tab.text(".label")


def test_orange_is_more_and_blue_is_less_everywhere(show):
    """On the map of a difference, in its legend, and in the bars of an explanation."""
    html, difference = two()
    tab = show(html, "#show=difference&head=7&cell=9,4&chosen=9")
    tab.tab.wait_for_selector("#explain .bars")
    assert "orange: more weight in bf16; blue: less; to the largest known difference of all heads" in tab.text(".below")
    assert tab.text("#explain").count("orange above 0, blue below") >= 2
    source = fixtures.habits(fixtures.SENTENCE)
    products = source["q"][7, 9] * source["k"][7, 4]
    pixels = tab.evaluate("""() => {
      const canvas = document.querySelector("#explain .bars"), step = canvas.width / 13, context = canvas.getContext("2d");
      return Array.from({ length: 13 }, (_, c) => [34, 37].map(
        (y) => [...context.getImageData(Math.floor((c + 0.3) * step), y, 1, 1).data]));
    }""")
    for product, (above, below) in zip(products, pixels):
        red, _, blue, alpha = above if product > 0 else below
        if abs(product) > 0.1 * np.abs(products).max():
            assert alpha == 255 and (red > blue) == (product > 0)
    bars = tab.evaluate("() => [...document.querySelectorAll('#text .strongest button')].map((row) => "
                        "[row.querySelector('.figure').textContent, row.querySelector('.bar').style.backgroundColor])")
    for value, css in bars:
        red, _, blue = map(int, css[4:-1].split(","))
        assert (red > blue) == value.startswith("+")


def test_a_page_opens_on_the_run_that_it_names(show):
    assert show(fixtures.two_runs(), "#").state("show") == "a"
    tab = show(fixtures.two_runs(open=1), "#")
    assert tab.state("show") == "b" and tab.tab.get_attribute('.runs [data-value="b"]', "aria-pressed") == "true"
    tab.choose(show="a")
    tab.tab.wait_for_function("() => location.hash.includes('show=a')")  # a link to the other run says so
    assert show(fixtures.two_runs(open=1), "#show=a").state("show") == "a"
    assert show(fixtures.small(open=1), "#").state("show") == "a"


def reduced_runs(before, after=7.0, **options):
    """Two runs of which the rows are stored, and that differ in query 20: it looks at key 7. The page, both weights."""
    blobs, runs, weights, random = Blobs(), [], [], np.random.default_rng(41)
    source = {name: random.normal(size=(1, 40, 8)).astype(np.float32) for name in "qkv"}
    for name, strength in (("before", before), ("after", after)):
        mine = {**source, **(options if name == "before" else {}), "q": source["q"].copy()}
        mine["q"][0, 20] = strength * source["k"][0, 7]
        weights.append(softmax(mine)[0][0])
        layer = layer_of(mine, blobs, "layer 0", embed=False, top_k=4, tiles=8)
        runs.append({"name": name, "tokens": None, "key_tokens": None, "special": [], "layers": [layer]})
    return page_of(runs, blobs), weights


ENDS = "() => { const { ticks } = attend.scale(); return [ticks[0], ticks.at(-1)]; }"


def test_the_scale_of_differences_ends_at_the_largest_that_is_drawn(show):
    """On a reduced page a stored cell differs more than any two means of tiles."""
    html, (a, b) = reduced_runs(before=0.9)
    apart = b - a
    assert abs(apart[20, 7]) > 2 * np.abs(apart.reshape(5, 8, 5, 8).mean(axis=(1, 3))).max()
    tab = show(html, "#show=difference&bend=linear")
    tab.tab.wait_for_selector(".largest:not(:has-text('searching'))")
    words = tab.text(".largest")
    assert "query 20 → key 7" in words and f"{apart[20, 7]:+.3f}"[:5] in words and "of the means" not in words
    low, high = (told(end.replace("+", "")) for end in tab.evaluate(ENDS))  # no "≥": nothing is beyond
    assert -low == high == pytest.approx(apart[20, 7], rel=0.06)
    assert np.abs(tab.pixel(20, 7) - colour(1, DIVERGING)).max() <= 4
    # The largest weights of tiles differ as they like, and what a filter leaves out counts as 0.
    for changes in ({"noFirst": True}, {"noFirst": False, "least": 0.1}):
        assert [end[0] for end in tab.choose(**changes).evaluate(ENDS)] == ["≤", "≥"]
    tab.choose(least=0, norms=True)
    assert "to the largest weight × norm of this head" in tab.text(".below") and "≥" not in tab.evaluate(ENDS)[1]


def test_tiles_that_differ_more_than_the_scale_say_so(show):
    blobs, runs, random = Blobs(), [], np.random.default_rng(42)
    for name, sharp in (("before", 1), ("after", 9)):
        source = {name: random.normal(size=(1, 64, 8)).astype(np.float32) for name in "qkv"}
        source["q"] *= sharp
        layer = layer_of(source, blobs, "layer 0", embed=False, top_k=0, tiles=8)
        runs.append({"name": name, "tokens": None, "key_tokens": None, "special": [], "layers": [layer]})
    tab = show(page_of(runs, blobs), "#show=difference")
    tab.tab.wait_for_selector(".largest:not(:has-text('searching'))")
    assert "≥" not in tab.evaluate(ENDS)[1] and "of the means" in tab.text(".largest")
    assert tab.choose(tile="maximum").evaluate(ENDS)[1].startswith("≥ ")


def test_what_one_run_hides_and_the_other_stores_is_known(show):
    html, (a, b) = reduced_runs(before=0.5, after=6.0, causal=True)
    i = 3
    j = max(range(i + 1, 40), key=lambda j: b[i, j])
    assert a[i, j] == 0 and j in np.argsort(-b[i])[:4]
    tab = show(html, f"#show=difference&cell={i},{j}")
    tab.tab.wait_for_selector(".largest:not(:has-text('searching'))")
    assert float(tab.tab.get_attribute("#readout", "data-weight")) == pytest.approx(b[i, j], rel=2e-4)
    known = {}  # in both: stored, or hidden; the first four rows of the first run are whole
    for i in range(40):
        stored = [set(np.argsort(np.where(seen, -w[i], 1), kind="stable")[:4])
                  for seen, w in ((np.arange(40) <= i, a), (np.ones(40, bool), b))]
        known.update({(i, int(j)): b[i, j] - a[i, j] for j in stored[1] if j > i or j in stored[0]})
    lines = tab.evaluate("() => [...document.querySelectorAll('#strong button')].map((line) => line.dataset.cell)")
    assert lines == [f"{i},{j}" for i, j in sorted(known, key=lambda at: -abs(known[at]))[:8]]
    top = max(abs(value) for value in known.values())
    assert told(tab.evaluate(ENDS)[1].replace("+", "")) == pytest.approx(top, rel=0.06)

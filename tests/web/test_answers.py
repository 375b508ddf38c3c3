"""What the cards of the grid answer to a selection, and the digits of every figure: no card, title, table or export tells
or draws more than the page knows."""

import csv
import io
import re

import numpy as np
import pytest

import fixtures
from page import Blobs, layer_of, page_of, softmax
from test_compare import DIVERGING
from test_extremes import layer, page
from test_map import colour, one_layer
from test_rows import CARDS, known_by, model, told
from test_tiles import reduced

STORED = 1.7e-4  # of itself, a stored number is off


def unit(text):
    """The place of the last digit of a number in words; zeros at the end of a whole number are none."""
    digits, _, power = text.replace("−", "-").lstrip("+-").partition("e")
    whole, point, decimals = digits.partition(".")
    zeros = 0 if point else len(whole) - len(whole.rstrip("0"))
    return 10.0 ** (zeros - len(decimals) + int(power or 0))


def check_digits(text, value, off):
    """The last digit is known to a half, or is the only one."""
    single = sum(letter in "123456789" for letter in text.replace("−", "-").partition("e")[0]) == 1
    assert unit(text) / 2 >= 0.99 * off or (single and abs(told(text)) > 0.6 * off), text
    assert abs(told(text) - value) <= unit(text) / 2 + 1.01 * off, text


MASSES = [9.876, 2998.7, 131071.0, 131.37, 0.9996, 0.4117, 12.345, 3e-4]


def test_a_card_and_the_facts_have_no_digit_that_is_not_known(show):
    blobs = Blobs()
    made = layer_of(layer(20, heads=1, queries=8, keys=8), blobs, "layer 0", embed=False, top_k=2)
    made["mass"] = blobs.add(np.array([MASSES]), "scaled")
    run = {"name": "m", "tokens": None, "key_tokens": None, "special": [], "layers": [made]}
    tab = show(page_of([run], blobs), "#reverse=1&chosen=0")
    for j, mass in enumerate(MASSES):
        tab.choose(chosen=[j])
        check_digits(tab.evaluate(CARDS)["0.0"], mass, STORED * mass)
        tab.tab.wait_for_function("() => document.querySelector('.facts').textContent")
        check_digits(re.search(r"receives (\S+) in all", tab.text(".facts"))[1], mass, STORED * mass)


def nearly_equal():
    """Two runs whose weights are a little apart, many of them by less than what is stored. Their page and weights."""
    a = layer(21, heads=1, queries=24, keys=24)
    b = {**a, "q": a["q"] * np.float32(1.0005)}
    return page([a], [b], embed=False, top_k=16, tiles=8), [softmax(run)[0][0] for run in (a, b)]


def test_the_table_of_a_difference_has_only_the_digits_that_are_known(show):
    html, (a, b) = nearly_equal()
    tab, small = show(html, "#show=difference&table=1"), 0
    cells = tab.evaluate("() => [...document.querySelectorAll('table.weights tbody tr')].map("
                         "(row) => [...row.querySelectorAll('td')].map((cell) => cell.textContent))")
    for i, row in enumerate(cells):
        for j, words in enumerate(row):
            off = STORED * (a[i, j] + b[i, j])
            if words.startswith("±"):
                assert abs(b[i, j] - a[i, j]) <= 2 * off and 0.9 * off <= told(words[2:]) <= 2 * off
                small += 1
            elif "queries" not in words and words != "0":
                check_digits(words, b[i, j] - a[i, j], off)
    assert small > 20


def test_csv_has_only_the_digits_that_are_known(show):
    html, weights, _ = reduced(length=61, tiles=16, windows=((1, 40, 8, 30, 12),))
    rows = csv.DictReader(io.StringIO(show(html, "#head=1").evaluate("() => attend.csv()"), newline=""))
    cells = [row for row in rows if row["kind"] == "exact"]
    for row in cells:
        i, j = int(row["query"]), int(row["key"])
        if 40 <= i < 48 and 30 <= j < 42:
            assert float(row["weight"]) == pytest.approx(weights[1, i, j])  # of the window
        else:
            check_digits(row["weight"], weights[1, i, j], STORED * weights[1, i, j])
    assert len(cells) > 61
    html, (a, b) = nearly_equal()
    rows = csv.DictReader(io.StringIO(show(html, "#show=difference").evaluate("() => attend.csv()"), newline=""))
    for row in rows:
        if row["kind"] == "exact" and row["difference"] != "0":
            i, j = int(row["query"]), int(row["key"])
            check_digits(row["difference"], b[i, j] - a[i, j], STORED * (a[i, j] + b[i, j]))


GROUPS = """() => [...document.querySelectorAll(".cards .head-layer")].map((title) => [title.textContent,
  [...title.nextElementSibling.querySelectorAll(".thumb[data-head] .figure")].map((figure) => figure.textContent)])"""


def test_the_title_of_a_group_says_what_is_only_a_bound(show):
    groups = show(model()[0], "#sort=selection").choose(cell=[30, 11], chosen=[30]).evaluate(GROUPS)
    ends = [(title.split(" · ")[0], cards[0], cards[-1]) for title, cards in groups if cards]
    assert len(ends) >= 2 and any("≤" in first + last for _, first, last in ends)
    for title, first, last in ends:
        assert title == (first if first == last else f"{first} – {last}")


BARS = """(upright) => { const canvas = document.querySelector(".thumb[data-head] canvas"), { width, height } = canvas;
  const { data } = canvas.getContext("2d").getImageData(0, 0, width, height), n = upright ? height : width;
  const at = (part, bar) => 4 * (upright ? bar * width + part : part * width + bar);
  return [0, 1].map((part) => Array.from({ length: n }, (_, bar) => [...data.slice(at(part, bar), at(part, bar) + 4)])); }"""


def check_bars(tab, upper, lower, visible, upright=False, stops=None):
    def place(value):  # of a difference both ways from the middle
        return colour((1 + value) / 2, stops) if stops else colour(value)

    for drawn, values in zip(tab.evaluate(BARS, upright), (upper, lower)):
        assert len(drawn) == len(values)
        for bar, value, seen in zip(drawn, values, visible):
            assert bar[3] == (255 if seen else 0)
            assert not seen or np.abs(bar[:3] - place(value)).max() <= 4, (bar, value)


@pytest.mark.parametrize("reverse", [False, True], ids=["queries", "keys"])
def test_what_one_of_several_knows_does_not_hide_the_bound_of_another(show, reverse):
    source = layer(22, heads=1, queries=30, keys=30)
    source["q"] *= 2
    source["v"] *= np.where(np.arange(30) % 2, 0.1, 1)[None, :, None]
    weights = softmax(source)[0][0]
    known = np.array([[j in known_by(row, np.ones(30, bool), 3) for j in range(30)] for row in weights])
    bounds = np.repeat(np.sort(weights, axis=1)[:, -3:-2], 30, axis=1)
    if reverse:  # of one row no bound is above what is known, but times norms
        norms = np.linalg.norm(source["v"][0], axis=1)
        weights, known, bounds = (weights * norms).T, known.T, (bounds * norms).T
    upper, lower = np.where(known, weights, 0), np.where(known, weights, bounds)

    def hiding(pair):  # how many bars have a bound above what one of the two knows
        return ((lower[pair].max(axis=0) > 1.1 * upper[pair].max(axis=0)) & (upper[pair].max(axis=0) > 0)).sum()

    pair = max(([b, a] for a in range(30) for b in range(a)), key=hiding)
    assert hiding(pair) > 0
    upper, lower = upper[pair].max(axis=0), lower[pair].max(axis=0)
    scale = lower.max() if reverse else 1
    address = f"#chosen={pair[0]},{pair[1]}&bend=linear&reverse={int(reverse)}&norms={int(reverse)}"
    check_bars(show(page([source], embed=False, top_k=3, tiles=1), address), upper / scale, lower / scale, np.ones(30), reverse)


def test_bars_of_exact_layers_are_exact_on_the_scale_of_the_map(show):
    source = layer(23, heads=1, queries=64, keys=64, causal=True)
    weights, visible, _ = softmax(source)
    weights, visible = weights[0], visible[0]
    tab = show(page([source]), "#chosen=60&bend=linear")
    check_bars(tab, weights[60], weights[60], visible[60])
    tab.choose(chosen=[5], reverse=True)
    check_bars(tab, weights[:, 5], weights[:, 5], visible[:, 5], True)
    top = weights[:, 5].max()
    tab.choose(same=False)  # then to the largest that is drawn, and not to the sum
    check_bars(tab, weights[:, 5] / top, weights[:, 5] / top, visible[:, 5], True)
    for norms in (0, 1):
        same = show(fixtures.many_heads(64, 1, 1), f"#chosen=60&norms={norms}").evaluate(BARS, False)
        assert same[0] == same[1]


def test_the_scale_of_norms_ends_at_the_largest_of_all_cells(show):
    n = np.arange(64)
    v = np.ones((1, 64, 4))
    v[0, 40] = 50  # |v| = 100, beyond the keys that are stored of a uniform row
    source = {"q": np.zeros((1, 64, 4)), "k": np.eye(64, 4)[None], "v": v}
    tab = show(one_layer(source), "#norms=1&cell=9,40&bend=linear")
    assert float(tab.tab.get_attribute("#readout", "data-weight")) == pytest.approx(100 / 64)
    assert told(tab.evaluate("() => attend.scale().ticks")[-1]) == pytest.approx(100 / 64, rel=0.04)
    assert np.abs(tab.pixel(9, 40) - colour(1)).max() <= 3 and np.abs(tab.pixel(9, 39) - colour(0.02)).max() <= 3
    for seed in (24, 25):
        source = layer(seed, heads=1, queries=64, keys=64, causal=True)
        source["v"] *= np.where(n % 7 == 0, 0.01, 1 + n % 5)[None, :, None]
        weighed = softmax(source)[0][0] * np.linalg.norm(source["v"][0], axis=1)
        tab = show(page([source], top_k=2), "#norms=1&bend=linear")
        for i, j in [*np.argwhere(weighed == weighed.max()), (60, 4), (33, 7), (63, 50)]:
            assert np.abs(tab.pixel(int(i), int(j)) - colour(weighed[i, j] / weighed.max())).max() <= 4


OVER = """([layer, over]) => { const card = document.querySelector(`.thumb[data-layer="${layer}"][data-over="${over}"]`);
  const canvas = card.querySelector("canvas"), { width, height } = canvas;
  const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
  return { words: card.getAttribute("aria-label"), figure: card.querySelector(".figure").textContent,
    pixels: Array.from({ length: height }, (_, y) => [...data.slice(4 * y * width, 4 * y * width + 4)]) }; }"""
PICTURE = """(head) => { const canvas = document.querySelector(`.thumb[data-head="${head}"] canvas`), { width, height } = canvas;
  const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
  return Array.from({ length: height }, (_, y) => [...data.slice(4 * y * width, 4 * y * width + 4)]); }"""
MAGENTA = [0xC2, 0x1A, 0x5B, 255]


@pytest.mark.parametrize("begin", [0, 20])
def test_a_head_that_is_not_a_number_is_seen_in_the_cards_over_heads(show, begin):
    source = layer(26, heads=3, queries=40, keys=40)
    blobs = Blobs()
    made = layer_of(source, blobs, "layer 0", embed=False, top_k=2, tiles=10, begin=begin)
    lse = softmax(source)[2][:, begin:].copy()
    lse[1, 30 - begin] = np.nan
    made["lse"] = blobs.add(lse)
    run = {"name": "m", "tokens": None, "key_tokens": None, "special": [], "layers": [made]}
    tab = show(page_of([run], blobs))
    for over in ("mean", "maximum"):
        drawn = tab.evaluate(OVER, [0, over])["pixels"]
        assert [n for n, pixel in enumerate(drawn) if pixel == MAGENTA] == [30 // 4]
    own = [tab.evaluate(PICTURE, head) for head in range(3)]  # and in its own
    assert [[n for n, pixel in enumerate(drawn) if pixel == MAGENTA] for drawn in own] == [[], [30 // 4], []]


def test_cards_over_heads_count_norms_as_their_map_does(show):
    html, weights, norms = model()
    tab = show(html, "#norms=1&bend=linear&cell=20,7&chosen=20")
    weighed = weights * norms[:, :, None, :]
    for over, merge in (("mean", np.mean), ("maximum", np.max)):
        value = merge(weighed[0, :, 20, 7])
        assert told(tab.evaluate(OVER, [0, over])["figure"]) == pytest.approx(value, abs=6e-4)
        tab.choose(layer=0, over=over)
        assert float(tab.tab.get_attribute("#readout", "data-weight")) == pytest.approx(value, rel=1e-5)
        assert np.abs(tab.choose(cell=None).pixel(20, 7) - colour(value / weighed[0].max())).max() <= 4
        tab.choose(layer=1, cell=[30, 2])  # rows: a bound, and the same on the card
        most = float(tab.tab.get_attribute("#readout", "data-most"))
        assert most >= merge(weighed[1, :, 30, 2])
        text = tab.evaluate(OVER, [1, over])["figure"]
        assert text.startswith("≤") and most - 1e-9 <= told(text) <= most + 1.1e-3
        assert "not on the page" in tab.text(".legend")
        tab.choose(cell=[20, 7])


def test_cards_over_heads_answer_for_a_query_and_a_key(show):
    """Where every head is exact with the weight of their mean and largest, where rows are stored with what is known."""
    html, weights, _ = model()
    tab = show(html, "#chosen=33")
    merged = {"mean": weights.mean(axis=1), "maximum": weights.max(axis=1)}
    for over, truth in merged.items():
        assert told(tab.evaluate(OVER, [0, over])["figure"]) == pytest.approx(truth[0, 33].max(), abs=6e-4)
        assert f"→ {truth[0, 33].argmax()} " in tab.evaluate(OVER, [0, over])["words"]
        for n in (1, 2):
            text, value = tab.evaluate(OVER, [n, over])["figure"], truth[n, 33].max()
            if over == "maximum":  # the largest of a row is stored of every head
                assert told(text) == pytest.approx(value, abs=6e-4)
            else:
                assert (text[0] == "≤" and value <= told(text)) or (text[0] == "≥" and value >= told(text))
    tab.choose(reverse=True, chosen=[5])
    for over, truth in merged.items():
        assert told(tab.evaluate(OVER, [0, over])["figure"]) == pytest.approx(truth[0, :, 5].sum(), abs=6e-4)
        text, value = tab.evaluate(OVER, [1, over])["figure"], truth[1, :, 5].sum()
        assert told(text) <= value if over == "maximum" else told(text) == pytest.approx(value, abs=6e-4)
        assert text.startswith("≥") == (over == "maximum")
    drawn = tab.choose(bend="linear").evaluate(OVER, [0, "mean"])["pixels"]  # its bars, a query each
    for i in range(5, 40):
        assert np.abs(drawn[i][:3] - colour(weights[0, :, i, 5].mean())).max() <= 4
    card = tab.choose(cell=[30, 2], chosen=[], reverse=False).evaluate(OVER, [0, "mean"])
    assert card["words"].endswith(card["figure"])
    card = tab.choose(cell=None).evaluate(OVER, [0, "mean"])
    assert card["words"] == "layer 0, mean over heads" and len(card["pixels"]) > 2


def test_cards_over_heads_answer_in_a_difference(show):
    sources = [layer(seed, heads=3, queries=20, keys=20) for seed in (61, 62)]
    weights = [softmax(source)[0] for source in sources]
    tab = show(page(*([source] for source in sources)), "#show=difference&cell=4,2")
    for over, merge in (("mean", np.mean), ("maximum", np.max)):
        apart = merge(weights[1], axis=0) - merge(weights[0], axis=0)
        assert told(tab.evaluate(OVER, [0, over])["figure"]) == pytest.approx(apart[4, 2], abs=6e-4)
        key = int(np.abs(apart[7]).argmax())
        card = tab.choose(cell=None, chosen=[7]).evaluate(OVER, [0, over])
        assert told(card["figure"]) == pytest.approx(apart[7, key], abs=6e-4) and f"→ {key}" in card["words"]
        tab.choose(cell=[4, 2], chosen=[])


def test_a_difference_answers_for_a_query_with_one_key(show):
    """The largest weight of both runs is the same, on different keys: their difference is not 0."""
    source = layer(63, heads=2, queries=24, keys=24)
    other = {**source, "k": source["k"][:, ::-1].copy()}
    weights = [softmax(each)[0] for each in (source, other)]
    for embed in (True, False):
        tab = show(page([source], [other], embed=embed, top_k=6, tiles=8), "#show=difference&chosen=9")
        assert "largest known difference at query 9" in tab.text("#heads .hint")
        for h in range(2):
            a, b = weights[0][h, 9], weights[1][h, 9]
            stored = [set(np.argsort(-row)[:6]) for row in (a, b)]
            known = sorted(stored[0] & stored[1]) if not embed else range(24)
            card, label = tab.evaluate(CARDS)[f"0.{h}"], tab.text(f'.thumb[data-head="{h}"] .thumb-label')
            if not len(known):
                assert card == "–"
                continue
            key = max(known, key=lambda j: abs(b[j] - a[j]))
            assert told(card) == pytest.approx(b[key] - a[key], abs=6e-4) and label == f"→ {key}"


def stored_runs(heads=2, length=24, top_k=6):
    """Two runs of which the rows are stored; page and weights."""
    sources = [layer(seed, heads=heads, queries=length, keys=length, causal=True) for seed in (65, 66)]
    for source in sources:
        source["q"] *= 2
    return page(*([source] for source in sources), embed=False, top_k=top_k, tiles=8), [softmax(each)[0] for each in sources]


def test_a_difference_answers_for_a_cell_that_a_run_only_bounds(show):
    html, (a, b) = stored_runs()
    tab, bounds = show(html, "#show=difference"), 0
    for i, j in [(20, 3), (22, 11), (17, 16), (9, 2), (23, 0), (15, 14)]:
        cards = tab.choose(cell=[i, j]).evaluate(CARDS)
        assert "half a square, ±: at most" in tab.text("#heads .hint")
        for h in range(2):
            text, apart = cards[f"0.{h}"], b[h, i, j] - a[h, i, j]
            ends = [tab.evaluate("([h, i, j, run]) => attend.weight(0, h, i, j, run)", [h, i, j, run]) for run in (0, 1)]
            (a0, a1), (b0, b1) = [(0, end["most"]) if end["weight"] is None else (end["weight"],) * 2 for end in ends]
            low, high = b0 - a1, b1 - a0
            if text.startswith("±"):
                assert max(-low, high) <= told(text[1:]) <= max(-low, high) + 1.1e-3
                bounds += low < high
            else:
                assert abs(told(text) - apart) <= 1.1 * (high - low) / 2 + unit(text) / 2 + 2 * STORED
    assert bounds > 4
    between = tab.evaluate("""async () => {
      const all = [];
      for (let i = 6; i < 24; ++i) for (let j = 0; j <= i; ++j) for (const head of [0, 1]) {
        attend.choose({ cell: [i, j] });
        await attend.settled();
        const ends = [];
        for (const run of [0, 1]) {
          const { weight, most } = await attend.weight(0, head, i, j, run);
          ends.push(weight ?? 0, weight ?? most);
        }
        all.push([document.querySelector(`.thumb[data-head="${head}"] .figure`).textContent, ends[3] - ends[0] - ends[2] + ends[1]]);
      }
      return all;
    }""")
    assert all(text[0] == "±" or apart <= 1.001 * unit(text) for text, apart in between)  # one digit at least is known
    order = tab.choose(cell=[20, 3], sort="selection").evaluate(GROUPS)
    ranks = [told(text.replace("±", "").replace("+", "")) for _, cards in order for text in cards]
    assert list(map(abs, ranks)) == sorted(map(abs, ranks), reverse=True)


@pytest.mark.parametrize("reverse", [False, True], ids=["query", "key"])
def test_a_difference_has_a_bar_for_every_key_and_query(show, reverse):
    html, (a, b) = stored_runs(heads=1)
    tab = show(html, f"#show=difference&bend=linear&chosen={5 if reverse else 21}&reverse={int(reverse)}")
    places = [(i, 5) if reverse else (21, i) for i in range(24)]
    known, furthest = [], []
    for i, j in places:
        ends = [tab.evaluate("([i, j, run]) => attend.weight(0, 0, i, j, run)", [i, j, run]) for run in (0, 1)]
        (a0, a1), (b0, b1) = [(0, end["most"]) if end["weight"] is None else (end["weight"],) * 2 for end in ends]
        known.append(b0 - a0 if a0 == a1 and b0 == b1 else 0)
        furthest.append(max(b0 - a1, b1 - a0, key=abs))
        assert min(b0 - a1, b1 - a0) - 1e-3 <= b[0, i, j] - a[0, i, j] <= max(b0 - a1, b1 - a0) + 1e-3
    assert sum(x != y for x, y in zip(known, furthest)) > 5 and any(known)
    top, seen = max(map(abs, furthest)), [j <= i for i, j in places]
    check_bars(tab, [x / top for x in known], [x / top for x in furthest], seen, reverse, DIVERGING)
    card = tab.evaluate(CARDS)["0.0"]
    apart = (b - a)[0].sum(axis=0)[5] if reverse else max(known, key=abs)
    assert told(card.replace("+", "")) == pytest.approx(apart, abs=2e-3)


def test_cards_over_heads_answer_for_a_key_in_a_difference(show):
    sources = [layer(seed, heads=3, queries=20, keys=20) for seed in (61, 62)]
    weights = [softmax(source)[0] for source in sources]
    tab = show(page(*([source] for source in sources)), "#show=difference&chosen=7&reverse=1&bend=linear")
    for over, merge in (("mean", np.mean), ("maximum", np.max)):
        apart = (merge(weights[1], axis=0) - merge(weights[0], axis=0))[:, 7]
        card = tab.evaluate(OVER, [0, over])
        assert told(card["figure"]) == pytest.approx(apart.sum(), abs=6e-4) and len(card["pixels"]) == 20


HINT = "([layer, which]) => document.querySelector(`.thumb[data-layer='${layer}'][${which}]`).title"


def test_the_hint_of_a_card_says_what_its_picture_is_and_what_would_store_it(show):
    html, weights, _ = model()
    tab = show(html)
    assert tab.evaluate(HINT, [1, "data-head='2'"]).endswith(
        "\npicture: mean of tiles of 4 × 4 cells; stored with --window 1,2,0,40,0,40")
    assert tab.evaluate(HINT, [0, "data-head='2'"]).endswith("\npicture: mean of tiles of 4 × 4 cells")  # q and k are there
    for tile in ("mean", "maximum"):  # over heads each is what it is
        assert tab.choose(tile=tile).evaluate(HINT, [1, "data-over='maximum'"]).endswith("picture: largest of tiles of 4 × 4 cells")
    assert "picture: largest" in tab.evaluate(HINT, [1, "data-head='2'"])
    tab.choose(cell=[30, 11], chosen=[30])
    for h in range(4):
        known = 11 in known_by(weights[1, h, 30], np.arange(40) <= 30, 4)
        assert tab.evaluate(HINT, [1, f"data-head='{h}'"]).endswith(f"stored with --window 1,{h},30,1,11,1") != known
    assert "--window" not in tab.evaluate(HINT, [0, "data-head='2'"])
    assert tab.choose(cell=None).evaluate(HINT, [1, "data-head='2'"]).endswith("stored with --window 1,2,30,1,0,40")
    assert tab.choose(reverse=True, chosen=[5]).evaluate(HINT, [1, "data-head='2'"]).endswith("stored with --window 1,2,0,40,5,1")


def test_heads_without_masses_are_sorted_by_what_a_key_receives_at_most(show):
    """A page without room for statistics: a bound where only that is known, in groups of their own."""
    blobs, parts, weights = Blobs(), [], []
    for n in range(3):
        source = layer(67 + n, heads=2, queries=24, keys=24, causal=True)
        weights.append(softmax(source)[0])
        parts.append({**layer_of(source, blobs, f"layer {n}", embed=n == 0, top_k=3, tiles=8), "mass": None})
    tab = show(page_of([{"name": "m", "tokens": None, "key_tokens": None, "special": [], "layers": parts}], blobs),
               "#reverse=1&chosen=5&sort=selection")
    cards, groups = tab.evaluate(CARDS), tab.evaluate(GROUPS)
    for n in range(3):
        for h in range(2):
            text, value = cards[f"{n}.{h}"], weights[n][h, :, 5].sum()
            assert text.startswith("≤") == (n > 0)
            assert value <= told(text) if n else told(text) == pytest.approx(value, abs=6e-4)
    values = [told(text) for _, cards in groups for text in cards]
    assert values == sorted(values, reverse=True) and not any("no score" in title for title, cards in groups if cards)


def test_cards_of_a_cell_count_filters_as_the_readout_does(show):
    tab = show(fixtures.small(), "#head=6&noFirst=1&renormalise=1&cell=4,1")
    assert float(tab.tab.get_attribute("#readout", "data-weight")) == pytest.approx(0.25)
    assert told(tab.evaluate(CARDS)["0.6"]) == 0.25
    tab.choose(cell=[4, 0])
    assert tab.evaluate(CARDS)["0.6"] == "–" and "left out" in tab.tab.get_attribute('.thumb[data-head="6"]', "aria-label")
    tab.choose(renormalise=False, cell=[4, 1], least=0.21)
    assert tab.evaluate(CARDS)["0.6"] == "–"


def test_what_cannot_be_renormalised_is_left_empty(show):
    html, weights, _ = model()
    tab = show(html, "#cell=30,11&chosen=30&renormalise=1&far=3")
    left = np.where(np.arange(40) <= 27, weights[0, :, 30], 0)
    for changes, value in (({}, left[:, 11]), ({"cell": None}, left.max(axis=1))):
        cards = tab.choose(**changes).evaluate(CARDS)
        for h in range(4):
            assert told(cards[f"0.{h}"]) == pytest.approx(value[h] / left[h].sum(), abs=6e-4)
            assert cards[f"1.{h}"] == "–"
            assert "not in the page" in tab.tab.get_attribute(f'.thumb[data-layer="1"][data-head="{h}"]', "aria-label")
    groups = tab.choose(sort="selection").evaluate(GROUPS)
    assert groups[-3][0].startswith("no score · 8") and set(groups[-3][1]) == {"–"}
    # a key: what filters leave of it, where every weight is known
    tab.choose(renormalise=False, reverse=True, chosen=[5], sort="order")
    cards = tab.evaluate(CARDS)
    for h in range(4):
        assert told(cards[f"0.{h}"]) == pytest.approx(weights[0, h, 8:, 5].sum(), abs=6e-4)
        assert cards[f"1.{h}"] == "–"
    cards = tab.choose(far=0, pattern="^w5$").evaluate(CARDS)
    assert told(cards["1.0"]) == pytest.approx(weights[1, 0, :, 5].sum(), abs=6e-4)
    assert set(tab.choose(pattern="^w6$").evaluate(CARDS).values()) == {"–"}


@pytest.mark.parametrize("rows", [{"begin": 0}, {"begin": 24}, {"top_k": 0}], ids=["all", "some", "none"])
def test_the_bars_of_a_key_are_what_the_map_says(show, rows):
    """Of rows that are stored, and of those that have only tiles; before and after it was worked out ahead."""
    source = layer(27, heads=2, queries=40, keys=40, causal=True, window=[30, -1])
    tab = show(page([source], embed=False, tiles=8, **{"top_k": 3, **rows}), "#chosen=7&reverse=1&bend=linear")
    for j in (7, 21):
        cells = tab.choose(chosen=[j]).evaluate(
            "(j) => Promise.all(Array.from({ length: 40 }, (_, i) => attend.weight(0, 0, i, j)))", j)
        upper = [cell["weight"] or 0 for cell in cells]
        lower = [cell["most"] if cell["weight"] is None else cell["weight"] for cell in cells]
        check_bars(tab, upper, lower, [cell["kind"] != "hidden" for cell in cells], True)
        tab.tab.wait_for_function("() => performance.getEntriesByName('prepared').length > 0")


def test_the_bars_of_a_key_know_windows(show):
    html, weights, _ = reduced(length=60, tiles=16, windows=((0, 20, 30, 30, 12),))
    drawn = show(html, "#chosen=35&reverse=1&bend=linear").evaluate(BARS, True)
    for i in range(20, 50):  # every weight there is known: both halves are one colour, and its own
        assert drawn[0][i] == drawn[1][i] and np.abs(drawn[0][i][:3] - colour(weights[0, i, 35])).max() <= 4


def test_a_choice_of_very_many_is_cut_and_says_so(show):
    tab = show(fixtures.many_heads(80, 1, 1), "#chosen=0-70")
    assert "The first 64 of the 71 that are chosen." in tab.text("#heads .hint")
    assert "first 64" not in tab.choose(chosen=list(range(64))).text("#heads .hint")


def test_what_is_stored_as_0_is_below_the_least(show):
    blobs = Blobs()
    made = layer_of(layer(64, heads=1, queries=8, keys=8), blobs, "layer 0", embed=False, top_k=2)
    made["mass"] = blobs.add(np.array([[3.0] + 7 * [1e-11]]), "scaled")
    made["entropy"] = blobs.add(np.array([[1e-9, 3e-7] + 6 * [1.0]]), "f16")
    run = {"name": "m", "tokens": None, "key_tokens": None, "special": [], "layers": [made]}
    tab = show(page_of([run], blobs), "#reverse=1&chosen=3")
    assert re.fullmatch(r"≤[78]e−10", tab.evaluate(CARDS)["0.0"])
    facts = "() => document.querySelector('.facts').textContent"
    tab.tab.wait_for_function(facts)
    assert re.search(r"receives ≤ 7\.\de−10 in all", tab.evaluate(facts))
    # entropies next to 0 have steps of 2^-24: 3e-7 is 2.98e-7, off by as much as 3e-8
    for query, words in ((0, "≤ 3.0e−8"), (1, "3e−7")):
        tab.choose(reverse=False, chosen=[query])
        tab.tab.wait_for_function(f"() => ({facts})().includes('entropy')")
        assert f"entropy {words} nats" in tab.evaluate(facts)


def test_a_picture_that_is_late_does_not_cover_a_newer_one(show):
    html, weights, _ = model()
    tab = show(html, "#cell=30,11&chosen=30")
    tab.evaluate("() => { attend.choose({ colour: 'none' }); attend.choose({ colour: 'selection' }); }")
    sizes = tab.drawn().evaluate(
        "() => [...document.querySelectorAll('.thumb canvas')].map((canvas) => [canvas.width, canvas.height])")
    assert len(sizes) == 18 and all(size == [16, 16] for size in sizes)  # answers, and no maps

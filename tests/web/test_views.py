"""The views around the map: filters, the shaded text, the explanation of a cell, the table, the list of heads."""

import itertools

import numpy as np
import pytest

import fixtures
from page import Blobs, layer_of, page_of, softmax
from test_map import everything, one_layer

WEIGHTS, VISIBLE, _ = softmax(fixtures.habits(fixtures.SENTENCE))
ROW = """(i) => {
  const [, keys] = attend.shape(), row = [];
  for (let j = 0; j < keys; ++j) { attend.choose({ cell: [i, j] }); row.push({ ...document.getElementById("readout").dataset }); }
  return row.map(({ weight, kind }) => [Number(weight), kind]);
}"""


def row_of(tab, i):
    """What the page says of row i: weights, and which are left out."""
    cells = tab.evaluate(ROW, i)
    return np.array([weight for weight, _ in cells]), [kind for _, kind in cells]


def top_p(row, p):
    """Which keys the smallest set with a share p of the row holds."""
    order = np.argsort(-row, kind="stable")
    enough = np.searchsorted(np.cumsum(row[order]), p * row.sum()) + 1
    return set(order[:enough].tolist())


def test_top_p_keeps_the_fewest_keys_with_that_share(show):
    tab = show(fixtures.small(), "#head=7")
    for p, i in itertools.product((0.5, 0.9, 0.99), (4, 10, 12)):
        tab.choose(p=p)
        weights, kinds = row_of(tab, i)
        kept = {j for j, kind in enumerate(kinds) if kind == "exact"}
        assert kept == top_p(WEIGHTS[7, i, : i + 1], p)
        np.testing.assert_allclose(weights[sorted(kept)], WEIGHTS[7, i, sorted(kept)], rtol=1e-5)


def test_the_threshold_leaves_out_what_is_below_it(show):
    tab = show(fixtures.small(), "#head=6&least=0.1")
    for i in (5, 9, 10):  # the uniform head: 1 / (i + 1)
        _, kinds = row_of(tab, i)
        assert set(kinds[: i + 1]) == {"exact" if 1 / (i + 1) >= 0.1 else "filtered"}
    tab.choose(cell=[10, 3])
    assert "left out" in tab.text("#readout") and "0.09091" in tab.text("#readout")


def test_left_out_keys_are_divided_out_only_if_renormalised(show):
    tab = show(fixtures.small(), "#head=6&noFirst=1")
    weights, kinds = row_of(tab, 4)
    assert (
        kinds[0] == "filtered"
        and weights[1] == pytest.approx(0.2)
        and weights[:5].sum() == pytest.approx(0.8)
    )
    tab.choose(renormalise=True)
    weights, kinds = row_of(tab, 4)
    assert weights[1] == pytest.approx(0.25) and weights[:5].sum() == pytest.approx(1)
    assert "renormalised" in tab.choose(cell=[4, 1]).text("#readout")


def test_special_tokens_and_patterns_choose_keys(show):
    tab = show(fixtures.small(), "#head=6&noSpecial=1")
    assert row_of(tab, 6)[1][:7] == ["filtered"] + ["exact"] * 6
    tab.choose(noSpecial=False)
    tab.tab.fill('input[data-key="pattern"]', "^ (cat|the)$")
    kept = [j for j, kind in enumerate(row_of(tab, 12)[1]) if kind == "exact"]
    assert kept == [j for j, token in enumerate(fixtures.SENTENCE) if token in (" cat", " the")]


def test_a_bad_pattern_is_an_error_in_words_and_hides_nothing(show):
    tab = show(fixtures.small(), "#head=6")
    tab.tab.fill('input[data-key="pattern"]', "(cat")
    assert "cannot be read" in tab.drawn().text("#pattern-bad")
    assert row_of(tab, 6)[1][:7] == ["exact"] * 7
    tab.tab.fill('input[data-key="pattern"]', "cat")
    assert tab.drawn().text("#pattern-bad") == ""


def test_left_out_cells_are_drawn_as_paper(show):
    tab = show(fixtures.small(), "#head=6&noFirst=1")
    assert tab.pixel(5, 0) == [255, 255, 255] and tab.pixel(5, 1) != [255, 255, 255]
    assert tab.choose(noFirst=False).pixel(5, 0) != [255, 255, 255]


def test_left_out_tokens_do_not_look_hidden(show):
    tab = show(fixtures.small(), "#head=7&chosen=6&pattern=at")
    looks = tab.evaluate('''() => [...document.querySelectorAll(".piece")].map((piece) => {
      const style = getComputedStyle(piece);
      return [style.backgroundImage !== "none", style.textDecorationLine === "line-through", piece.title];
    })''')
    for n, (hatched, struck, title) in enumerate(looks):
        if n > 6:
            assert hatched and not struck and "hidden" in title
        elif n != 6:
            matches = "at" in fixtures.SENTENCE[n]
            assert not hatched and struck != matches and ("left out" in title) != matches


def test_sliders_and_switches_do_what_they_say(show):
    tab = show(fixtures.small(), "#head=7")
    tab.tab.locator('input[data-key="p"]').fill("0.5")
    tab.tab.check('input[data-key="renormalise"]')
    assert tab.drawn().state("p") == 0.5 and tab.state("renormalise") is True
    tab.tab.click("text=Clear filters")
    assert tab.drawn().state("p") == 1 and tab.state("renormalise") is False


def shades(tab, side="text"):
    values = tab.evaluate(
        """(side) => [...document.querySelectorAll(`[data-side="${side}"] .piece`)].map((piece) => piece.dataset.value ?? null)""",
        side,
    )
    return [None if value is None else float(value) for value in values]


def test_the_text_is_shaded_by_what_the_chosen_query_sees(show):
    tab = show(fixtures.small(), "#head=7&chosen=10")
    values = shades(tab)
    np.testing.assert_allclose(values[:11], WEIGHTS[7, 10, :11], rtol=1e-5, atol=1e-12)
    assert values[11:] == [None, None]  # hidden is not zero
    assert "cat" in tab.text(".chosen") and "entropy" in tab.text(".facts")


def test_several_queries_are_summed_or_averaged_and_the_reverse(show):
    tab = show(fixtures.small(), "#head=7&chosen=4,10-12")
    rows = WEIGHTS[7, [4, 10, 11, 12]]
    np.testing.assert_allclose(shades(tab), rows.sum(axis=0), rtol=1e-5, atol=1e-12)
    np.testing.assert_allclose(shades(tab.choose(combine="mean")), rows.mean(axis=0), rtol=1e-5, atol=1e-12)
    values = shades(tab.choose(reverse=True, combine="sum", chosen=[2, 3]))
    assert values[:2] == [None, None]
    np.testing.assert_allclose(values[2:], WEIGHTS[7, 2:, [2, 3]].sum(axis=0), rtol=1e-5, atol=1e-12)


def test_clicking_tokens_chooses_them_and_shift_adds(show):
    tab = show(fixtures.small(), "#head=7")
    tab.tab.click('.piece[data-n="6"]')
    assert tab.drawn().state("chosen") == [6]
    tab.tab.click('.piece[data-n="9"]', modifiers=["Shift"])
    assert tab.drawn().state("chosen") == [6, 9]
    tab.tab.mouse.click(*tab.cell_on_screen(4, 2))
    assert tab.drawn().state("chosen") == [4] and tab.state("cell") == [4, 2]
    best = tab.text("#text .strongest li:first-child")
    assert fixtures.SENTENCE[int(WEIGHTS[7, 4].argmax())].strip() in best


def test_pointing_in_one_view_shows_in_the_other(show):
    tab = show(fixtures.small(), "#head=7&chosen=10")
    tab.tab.hover('.piece[data-n="2"]')
    tab.tab.wait_for_selector('#readout[data-query="10"][data-key="2"]')
    assert float(tab.tab.get_attribute("#readout", "data-weight")) == pytest.approx(WEIGHTS[7, 10, 2], rel=1e-5)
    tab.tab.mouse.move(*tab.cell_on_screen(10, 5))
    tab.tab.wait_for_selector('.piece.pointed[data-n="5"]')
    tab.tab.hover('.thumb[data-layer="1"][data-head="2"]')
    tab.tab.wait_for_selector("#heads .hint:has-text('current token')")
    assert "current token" in tab.text("#heads .hint") and tab.count(".piece.pointed") == 0


def test_cross_attention_has_two_texts(show):
    random = np.random.default_rng(0)
    source = {
        "q": random.normal(size=(1, 3, 4)),
        "k": random.normal(size=(1, 5, 4)),
        "v": random.normal(size=(1, 5, 4)),
        "query_offset": 0,
    }
    blobs = Blobs()
    run = {
        "name": "run",
        "tokens": ["un", "deux", "trois"],
        "key_tokens": ["one", "two", "three", "four", "five"],
        "special": [],
        "layers": [layer_of(source, blobs, "cross")],
    }
    tab = show(page_of([run], blobs), "#chosen=1")
    np.testing.assert_allclose(shades(tab, "keys"), softmax(source)[0][0, 1], rtol=1e-5)
    assert shades(tab, "queries") == [None] * 3 and "deux" in tab.text(".chosen")
    tab.tab.click('[data-side="keys"] .piece[data-n="4"]')
    np.testing.assert_allclose(shades(tab.drawn(), "queries"), softmax(source)[0][0, :, 4], rtol=1e-5)
    assert tab.state("reverse") is True


def figures(tab, step):
    text = tab.text(f'#explain [data-step="{step}"] .figure')
    return [float(part.replace("−", "-")) for part in text.split(" · ")]


def test_the_explanation_is_the_formula_with_every_option(show):
    source = everything()
    weights, visible, lse = softmax(source)
    tab = show(one_layer(source), "#head=3")
    h, (i, j) = 3, np.argwhere(visible[3])[7]
    tab.choose(cell=[int(i), int(j)])
    tab.tab.wait_for_selector('#explain [data-step="values"]')
    dot = float(np.float64(source["q"][h, i]) @ np.float64(source["k"][1, j]))
    assert figures(tab, "dot") == [pytest.approx(dot, rel=1e-4)]
    assert figures(tab, "raw") == [pytest.approx(0.7 * dot, rel=1e-4)]
    largest = lse[h, i] - np.log(figures(tab, "sum")[0])  # sum = exp(lse - m), m a score or the sink
    scores = np.append(lse[h, i] + np.log(weights[h, i][visible[h, i]]), source["sinks"][h])
    assert largest == pytest.approx(scores.max(), abs=1e-4)
    assert figures(tab, "weight") == [pytest.approx(weights[h, i, j], rel=1e-4)]
    value = source["v"][1].astype(float)
    norms = [np.linalg.norm(weights[h, i, j] * value[j]), np.linalg.norm(weights[h, i] @ value)]
    assert figures(tab, "values") == pytest.approx(norms, rel=1e-3)
    words = tab.text("#explain")
    assert all(word in words for word in ("softcap", "bias", "ALiBi", "sink included"))
    assert tab.count("#explain .products tbody tr") == 8


def test_the_explanation_of_a_hidden_cell_says_what_hides_it(show):
    tab = show(fixtures.small(), "#head=0&cell=2,9")
    tab.tab.wait_for_selector("#explain .steps")
    assert "causal" in tab.text("#explain") and "exactly 0" in tab.text("#explain")


def test_without_q_and_k_the_explanation_says_why(show):
    blobs = Blobs()
    tab = show(page_of([fixtures.run_of(fixtures.SENTENCE, blobs, embed=False)], blobs), "#cell=4,2")
    assert "not in the page" in tab.text("#explain") and "small" in tab.text("#explain")


def test_the_table_holds_every_weight_for_screen_readers(show):
    tab = show(fixtures.small(), "#head=7")
    table = tab.evaluate(
        "() => [...document.querySelectorAll('table.weights tr')].map((row) => [...row.children].map((cell) => cell.textContent))"
    )
    assert len(table) == 14 and table[0][3] == "·cat" and table[4][0] == "·sat"
    assert tab.evaluate(
        "() => document.querySelector('table.weights caption').textContent.includes('head 7')"
    )
    for i in range(13):
        for j in range(13):
            words = table[i + 1][j + 1]
            assert (
                words == "hidden"
                if j > i
                else float(words.replace("−", "-")) == pytest.approx(WEIGHTS[7, i, j], rel=0.06)
            )
    assert tab.evaluate("() => document.querySelectorAll('table.weights th[scope=row]').length") == 13
    box = "() => document.querySelector('.table-box').getBoundingClientRect().width"
    assert tab.evaluate(box) <= 1
    tab.tab.click("text=Show the table")
    assert tab.drawn().evaluate(box) > 100


def test_no_table_beyond_64_tokens_but_a_word_why(show):
    tab = show(fixtures.many_heads(65, layers=1, heads=1), "#table=1")
    assert tab.count("table.weights") == 0 and "64" in tab.text(".table-box")


def test_heads_are_sorted_and_coloured_by_their_metrics(show):
    tab = show(fixtures.small())
    order = "() => [...document.querySelectorAll('.thumb[data-head]')].map((thumb) => `${thumb.dataset.layer}.${thumb.dataset.head}`)"
    assert tab.evaluate(order) == [f"{layer}.{head}" for layer in range(2) for head in range(8)]
    tab.tab.select_option('select[data-key="sort"]', "first")
    first = tab.drawn().evaluate(order)
    assert {place.split(".")[1] for place in first[:2]} == {"1"}  # the heads made to rest on token 0
    tab.tab.select_option('select[data-key="colour"]', "entropy")
    bars = tab.drawn().evaluate(
        "() => [...document.querySelectorAll('.thumb[data-head] .bar')].map((bar) => bar.style.backgroundColor)"
    )
    assert len(bars) == 16 and len(set(bars)) > 3
    label = tab.evaluate("() => document.querySelector('.thumb[data-head=\"0\"]').title")
    assert "the key just before the query" in label


def test_the_label_of_a_head_has_score_and_definition(show):
    tab = show(fixtures.small(), "#head=0")
    assert "previous token" in tab.text(".label") and "0.92" in tab.text(".label")
    assert "just before the query" in tab.text(".label")
    assert float(tab.text('[data-metric="first"]')) == pytest.approx(WEIGHTS[0, :, 0].mean(), rel=0.01)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_can_be_read_on_every_colour(show, scheme):
    def luminance(text):
        rgb = np.array([int(part) for part in text[4:-1].split(",")]) / 255
        return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]

    tab = show(fixtures.small(), "#head=7&bend=log", scheme=scheme)
    for i in range(4, 13):
        tab.choose(chosen=[i])
        for ink, paper in tab.evaluate("""() => [...document.querySelectorAll(".piece[data-value]")]
            .map((piece) => [piece.style.color, piece.style.backgroundColor])"""):
            light, dark = sorted((luminance(ink), luminance(paper)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) > 4

"""The page as a whole: keyboard, links, widths, languages, its policy, frames and colours."""

import numpy as np
import pytest

import fixtures
from page import Blobs, layer_of, page_of


KEYS = [
    (["]"], "head", 1),
    (["[", "["], "layer", 1),
    (["}"], "layer", 1),
    (["{"], "layer", 1),
    (["+"], "zoom", [2.5, 10.5, 2.5, 10.5]),
    (["+", "-"], "zoom", None),
    (["+", "0"], "zoom", None),
    (["t"], "reverse", True),
    (["m"], "combine", "mean"),
    (["f"], "noFirst", True),
    (["c"], "noSpecial", True),
    (["r"], "renormalise", True),
    (["p", "p", "P"], "p", 0.95),
    (["Shift+H"], "least", 0.00016),
    (["s"], "bend", "log"),
    (["a"], "tile", "maximum"),
    (["o"], "sort", "label"),
    (["o", "o"], "sort", "selection"),
    (["n"], "norms", True),
    (["i"], "pins", ["0.0"]),
    (["i", "i"], "pins", []),
    (["g", "1", ".", "3", "Enter"], "head", 3),
    (["l"], "language", "zh"),
    (["Shift+T"], "table", True),
    (["2", "ArrowDown", "ArrowDown", "ArrowRight"], "cell", [1, 1]),
    (["2", "ArrowDown", "ArrowDown", "Enter"], "chosen", [1]),
    (["2", "ArrowDown", "End"], "cell", [0, 12]),
    (["2", "+", "Shift+ArrowDown"], "zoom", [4.5, 12.5, 2.5, 10.5]),
    (["3", "ArrowRight", "Enter"], "chosen", [1]),
    (["3", "Enter", "ArrowRight", "ArrowRight", "Shift+Enter"], "chosen", [0, 2]),
    (["1", "ArrowRight"], "head", 1),
    (["1", "ArrowDown"], "head", 4),
    (["2", "ArrowDown", "Escape"], "cell", None),
    (["/", "c", "a", "t"], "pattern", "cat"),
]


def test_every_key_does_what_the_help_says(show):
    tab = show(fixtures.small())
    start = tab.evaluate("() => attend.state")
    for keys, name, value in KEYS:
        tab.press(*keys)
        wanted = pytest.approx(value) if isinstance(value, (float, list)) else value
        assert tab.state(name) == wanted, keys
        tab.evaluate("(start) => { document.activeElement.blur(); attend.choose(start); }", start)
        tab.drawn()


def test_the_help_opens_and_closes_by_key(show):
    tab = show(fixtures.small()).press("?")
    assert tab.tab.is_visible("dialog.help") and tab.count("dialog kbd") > 30
    tab.press("t")
    assert tab.state("reverse") is False  # keys belong to the open dialog
    tab.press("Escape")
    assert not tab.tab.is_visible("dialog.help")


def test_focus_can_be_seen_and_reaches_every_part(show):
    tab = show(fixtures.small())
    tab.evaluate("() => document.body.focus()")
    seen = set()
    for _ in range(45):
        tab.tab.keyboard.press("Tab")
        seen.add(tab.evaluate("""() => {
          const node = document.activeElement, style = getComputedStyle(node);
          if (node === document.body) return "page true";   // past the last, the browser's own turn
          return `${node.closest("section")?.id ?? "page"} ${style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1}`;
        }"""))
    assert {"heads true", "one true", "text true", "page true"} <= seen and not any(
        "false" in each for each in seen
    )


LINK = (
    "#layer=1&head=7&show=b&zoom=2,12,1,11&cell=6,3&chosen=4,6-8&reverse=1&combine=mean&p=0.9&least=0.01&far=2&noFirst=1"
    "&noSpecial=1&renormalise=1&pattern=a&bend=log&same=0&tile=maximum&sort=entropy@a&colour=first&pins=0.1,1.2&norms=1&table=1&language=zh"
)


def test_a_link_restores_everything(show):
    tab = show(fixtures.two_runs(), LINK)
    state = tab.evaluate("() => attend.state")
    assert state["chosen"] == [4, 6, 7, 8] and state["zoom"] == [2, 12, 1, 11] and state["pattern"] == "a"
    tab.choose(least=0.02)
    tab.tab.wait_for_function("() => location.hash.includes('least=0.02')")
    address = tab.evaluate("() => location.hash")
    other = show(fixtures.two_runs(), address)
    assert other.evaluate("() => attend.state") == {**state, "least": 0.02}
    assert other.text("#readout") == tab.text("#readout") and other.pixel(6, 5) == tab.pixel(6, 5)
    assert other.tab.input_value('select[data-key="sort"]') == "entropy@a"
    other.evaluate("() => { location.hash = '#head=2&language=en'; }")
    other.tab.wait_for_function("() => attend.state.head === 2")
    assert (
        other.drawn().state("head") == 2
        and other.state("pattern") == ""
        and "head 2" in other.text("#map-title")
    )


@pytest.mark.parametrize(
    "address",
    [
        "#layer=99&head=-4&cell=1e9,2&zoom=5,1,9,NaN&chosen=7-2,x,99999999&show=c",
        "#%E0%A4%A&p=abc&least=-3&sort=nothing&__proto__=1",
        "#zoom=-50,500,3,3&cell=a,b&show=b",
    ],
)
def test_a_link_that_makes_no_sense_does_no_harm(show, address):
    tab = show(fixtures.small(), address)
    assert tab.count(".problem") == 0 and tab.tab.get_attribute("#map", "data-whole") == "true"


FOLLOW = """(address) => new Promise((done) => {
  addEventListener("hashchange", () => done(), { once: true });
  location.hash = address;
})"""


@pytest.mark.parametrize("pages", ["one run", "two runs"])
def test_a_link_that_makes_no_sense_does_no_harm_on_an_open_page(show, pages):
    tab = show(fixtures.small() if pages == "one run" else fixtures.two_runs(), "#head=2")
    for address, expected in (
        ("show=b", {"show": "a" if pages == "one run" else "b", "head": 0}),
        ("language=zh&layer=99", {"language": "zh", "layer": 1}),
        ("sort=nothing", {"sort": "order", "language": "en", "layer": 0}),
        ("colour=nothing&head=77", {"colour": "selection", "head": 7}),
        ("show=difference&sort=difference", {"sort": "order" if pages == "one run" else "difference"}),
        ("sort=difference&layer=0.5", {"sort": "order", "show": "a", "layer": 0}),
    ):
        tab.evaluate(FOLLOW, address)
        tab.drawn()
        assert {key: tab.state(key) for key in expected} == expected
        assert tab.count(".problem") == 0 and tab.text("#one .note") == ""
        assert "_nothing" not in tab.evaluate("() => document.getElementById('page').innerHTML")
        assert tab.tab.input_value('select[data-key="sort"]') == tab.state("sort")


def test_a_narrower_window_makes_a_narrower_map(show):
    tab = show(fixtures.small(), width=1440)
    tab.tab.set_viewport_size({"width": 500, "height": 800})
    tab.tab.wait_for_function("() => attend.geometry().width < 500")
    tab.drawn()
    assert tab.count(".problem") == 0


OUTSIDE = """(width) => [...document.querySelectorAll("#page *")].filter((node) => {
  const box = node.getBoundingClientRect();
  return box.right > width + 1 && box.width > 1 && !node.closest(".table-scroll, .skip, .visually-hidden");
}).map((node) => node.outerHTML.slice(0, 80))"""
WIDE = ["a" * 300, "https://example.org/" + "x/" * 90] + fixtures.SENTENCE


def test_nothing_is_wider_than_the_screen(show):
    blobs = Blobs()
    html = page_of(
        [fixtures.run_of(WIDE, blobs, name="n" * 90), fixtures.run_of(WIDE, blobs, seed=3)],
        blobs,
        title="t" * 200,
    )
    for scheme, address in (
        ("light", "#cell=5,1&chosen=5,6&show=difference"),
        ("dark", "#language=zh&table=1&cell=9,0&sort=first"),
    ):
        tab = show(html, address, scheme=scheme)
        tab.tab.wait_for_selector("#explain .steps")
        for width in (360, 768, 1440):
            tab.resize(width)
            assert tab.evaluate("() => document.documentElement.scrollWidth") <= width
            assert tab.evaluate(OUTSIDE, width) == []


def test_the_views_stand_beside_each_other_where_there_is_room(show):
    tab = show(fixtures.small())
    for width, columns in ((360, 1), (768, 1), (1440, 3)):
        lefts = tab.resize(width).evaluate(
            "() => ['heads', 'one', 'text'].map((id) => Math.round(document.getElementById(id).getBoundingClientRect().left / 20))"
        )
        assert len(set(lefts)) == columns


def test_both_languages_say_everything(show):
    tab = show(fixtures.small(language="zh"), "#cell=4,2&chosen=4")
    assert tab.evaluate("() => document.documentElement.lang") == "zh"
    assert (
        "注意力头" in tab.text("#heads")
        and "精确" in tab.text("#readout")
        and "前一词元" in tab.text(".label")
    )
    assert tab.text("#map-title") == "第 0 层，头 0" and tab.text(".head-layer >> nth=1") == "第 1 层"
    tab.tab.click('button[data-value="en"]')
    assert tab.drawn().evaluate("() => document.documentElement.lang") == "en"
    assert "Heads" in tab.text("#heads") and "exact" in tab.text("#readout") and tab.state("cell") == [4, 2]


def test_the_policy_is_in_force(show):
    tab = show(fixtures.small())
    tab.evaluate("""() => {
      const script = document.createElement("script");
      script.textContent = "window.ran = true";
      document.body.append(script);
      const style = document.createElement("style");
      style.textContent = "body { display: none }";
      document.body.append(style);
    }""")
    assert tab.evaluate(
        "() => window.ran === undefined && getComputedStyle(document.body).display === 'block'"
    )
    assert (
        tab.evaluate("() => fetch('https://example.org/').then(() => 'sent', () => 'refused')") == "refused"
    )
    assert len(tab.complaints) >= 3
    tab.complaints.clear()
    tab.requests.clear()


def test_the_page_works_in_the_frame_of_a_notebook(browser, tmp_path):
    outer = tmp_path / "notebook.html"
    quoted = fixtures.small().replace("&", "&amp;").replace('"', "&quot;")
    outer.write_text(f'<!doctype html><iframe srcdoc="{quoted}" width="900" height="700"></iframe>')
    context, complaints = browser.new_context(), []
    tab = context.new_page()
    tab.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.goto(outer.as_uri())
    frame = tab.frame_locator("iframe")
    frame.locator("#map[data-whole=true]").wait_for()
    inside = tab.frames[1]  # whose address is written a little later, or not at all
    inside.evaluate('''() => {
      const write = history.replaceState;
      history.replaceState = (...what) => { window.wrote = true; write.apply(history, what); };
    }''')
    frame.locator('.thumb[data-head="3"]').first.click()
    frame.locator("#map-title:has-text('head 3')").wait_for()
    inside.wait_for_function("() => window.wrote")
    assert frame.locator(".problem").count() == 0 and complaints == []
    context.close()


def lightness(tab):
    """Of the legend's colours from left to right."""
    linear = (np.array(tab.evaluate("() => attend.scale().colours")) / 255.0) ** 2.2
    return linear @ [0.2126, 0.7152, 0.0722]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_can_be_told_apart_by_their_lightness(show, scheme):
    """Which every kind of colour vision sees: one way for weights, both ways from the middle for differences."""
    tab = show(fixtures.two_runs(), scheme=scheme)
    steps = np.diff(lightness(tab)[::8]) * (1 if scheme == "dark" else -1)
    assert (steps > 0).all()
    steps = np.diff(lightness(tab.choose(show="difference"))[::8]) * (1 if scheme == "dark" else -1)
    assert (steps[:14] < 0).all() and (steps[-14:] > 0).all()


def test_everything_that_can_be_used_has_a_name(show):
    tab = show(fixtures.two_runs(), "#cell=4,2&chosen=4&show=difference")
    nameless = tab.evaluate("""() => [...document.querySelectorAll("button, select, input, [role=img], [role=listbox], [role=group]")]
      .filter((node) => !(node.getAttribute("aria-label") || node.textContent.trim() || node.labels?.length))
      .map((node) => node.outerHTML.slice(0, 100))""")
    assert nameless == []
    assert tab.evaluate("() => [...document.querySelectorAll('section')].every((each) => "
                        "document.getElementById(each.getAttribute('aria-labelledby')).textContent)")


def test_the_console_knows_no_weight_of_a_cell_that_is_not_there(show):
    tab = show(fixtures.small())
    for place in ([0, 9, 3, 5], [0, -1, 3, 3], [2, 0, 3, 3], [0, 0, 13, 3], [0, 0, 3, 1.5], [0, 0, 3, 3, 1]):
        assert tab.evaluate("(place) => attend.weight(...place)", place) is None, place
    assert tab.evaluate("() => attend.weight(0, 7, 3, 3)")["kind"] == "exact"


def test_the_header_promises_no_exact_cells_where_tiles_are_drawn(show):
    assert "every cell is exact" in show(fixtures.small()).text("header")
    long = show(fixtures.many_heads(300, layers=1, heads=1)).text("header")
    assert "every cell" not in long and "single cells are exact, tiles are rounded means" in long
    tab = show(fixtures.long_page())
    assert "elsewhere tiles" in tab.text("header") and "Tiles of 1024 × 1024" in tab.text(".level")


def test_both_runs_must_be_exact_for_the_header_to_say_so(show):
    blobs = Blobs()
    runs = [fixtures.run_of(fixtures.SENTENCE, blobs, embed=embed) for embed in (True, False)]
    assert "elsewhere tiles" in show(page_of(runs, blobs)).text("header")


# Of each card, what is wider than its place.
CUT = """() => [...document.querySelectorAll(".thumb")].flatMap((card) =>
  [".thumb-top", ".thumb-name", ".thumb-top .figure", ".thumb-label"].map((name) => card.querySelector(name))
    .filter((node) => node.scrollWidth > node.clientWidth).map((node) => node.className + " " + node.textContent))"""
LABELS = ["previous token", "first token", "selective", "current token", "induction", "duplicate token", "local", "uniform",
          "mixed", "not finite", "none"]


def page_of_144_heads():
    blobs, random, parts = Blobs(), np.random.default_rng(51), []
    for n in range(12):
        source = {name: random.normal(size=(12, 24, 4)).astype(np.float32) for name in "qkv"}
        made = layer_of({**source, "causal": True}, blobs, f"layer {n}", embed=n == 0, top_k=2, tiles=8)
        made["labels"] = [{"name": LABELS[(n + h) % len(LABELS)], "score": 0.8765} for h in range(12)]
        parts.append(made)
    tokens = [f" token{n}" for n in range(24)]
    return page_of([{"name": "m", "tokens": tokens, "key_tokens": None, "special": [], "layers": parts}], blobs)


def test_name_score_and_label_of_144_heads_are_not_cut(show):
    tab = show(page_of_144_heads())
    assert tab.count(".thumb[data-head]") == 144 and tab.count(".heads.dense") == 1
    start = tab.evaluate("() => attend.state")
    for language in ("en", "zh"):
        for changes in ({}, {"cell": [20, 3]}, {"chosen": [21]}, {"reverse": True, "chosen": [2]},
                        {"sort": "entropy", "colour": "entropy"}):
            tab.choose(**{**start, "language": language, **changes})
            for width in (390, 800, 1440):
                tab.resize(width)
                assert tab.evaluate(CUT) == [], (language, width, changes)


def test_the_other_language_is_named_in_letters_that_every_reader_has(show):
    tab = show(fixtures.small())
    other = tab.tab.locator('header [data-value="zh"]')
    assert other.inner_text() == "ZH" and other.get_attribute("title") == "中文"
    assert tab.text("header").isascii() or not any("\u3000" <= letter <= "\u9fff" for letter in tab.text("header"))
    other.click()
    assert tab.drawn().state("language") == "zh" and other.inner_text() == "中文"

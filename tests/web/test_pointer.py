"""Pointer, wheel and keys on the map: what is pointed at stays where it is, and what is said is what is there."""

import pytest

import fixtures
from page import Blobs, page_of
from test_tiles import reduced

LONG = ["w" * 60, "https://example.org/" + "x/" * 40, " ", *fixtures.SENTENCE]
# The cell under a point of the screen, from the geometry of the map alone.
UNDER = """([x, y]) => {
  const box = document.getElementById("map").getBoundingClientRect(), { left, top, w, h } = attend.geometry();
  const [q0, q1, k0, k1] = attend.state.zoom ?? [0, attend.shape()[0], 0, attend.shape()[1]];
  return [Math.floor(q0 + ((y - box.top - top) / h) * (q1 - q0)), Math.floor(k0 + ((x - box.left - left) / w) * (k1 - k0))];
}"""
SAID = "() => { const { query, key } = document.getElementById('readout').dataset; return [Number(query), Number(key)]; }"
TOPS = """() => ["#map", ".legend", ".heads", ".texts"].map(
  (name) => document.querySelector(name).getBoundingClientRect().top + scrollY)"""


def long_tokens():
    blobs = Blobs()
    runs = [fixtures.run_of(LONG, blobs), fixtures.run_of(LONG, blobs, seed=3)]
    for run in runs:
        for n, layer in enumerate(run["layers"]):
            layer["name"] = f"model.decoder.layers.{n}.self_attention.core"
    return page_of(runs, blobs)


PAGES = {
    "tokens": (long_tokens, "#", [(0, 0), (5, 1), (4, 9), (15, 1), (1, 0), (12, 4)]),
    "difference": (long_tokens, "#show=difference&noFirst=1&least=0.02", [(0, 0), (5, 1), (4, 9), (15, 1)]),
    "tiles": (lambda: reduced(length=300, tiles=32)[0], "#language=zh", [(3, 280), (120, 7), (299, 299), (0, 0)]),
    "renormalised": (long_tokens, "#renormalise=1&p=0.9&head=7", [(5, 1), (12, 4), (15, 2)]),
}


WIDTHS = [360, 768, 1440]


@pytest.mark.parametrize("name", PAGES)
def test_nothing_moves_under_the_pointer_and_a_click_lands_where_it_points(show, name):
    make, address, cells = PAGES[name]
    tab = show(make(), address)
    for width in WIDTHS:
        check_pointer(tab.resize(width), cells)


def check_pointer(tab, cells):
    for cell in cells:
        tab.tab.mouse.move(2, 2)
        x, y = tab.cell_on_screen(*cell)
        tops = tab.evaluate(TOPS)
        tab.tab.mouse.move(x, y)
        tab.tab.wait_for_selector(f'#readout[data-query="{cell[0]}"][data-key="{cell[1]}"]')
        assert tab.evaluate(TOPS) == tops, cell
        assert tab.evaluate("() => { const box = document.getElementById('readout');"
                            "return box.scrollHeight <= box.clientHeight + 1 && box.scrollWidth <= box.clientWidth + 1; }")
        tab.tab.mouse.down()
        tab.tab.mouse.up()
        assert tab.drawn().state("cell") == list(cell)
        assert tab.evaluate(TOPS) == tops, cell  # nor does the click move anything
        tab.choose(cell=None, chosen=[])


def test_pointing_at_heads_does_not_move_them(show):
    tab = show(long_tokens(), "#show=difference")
    tops = """() => [...document.querySelectorAll('.thumb')].map((thumb) => Math.round(thumb.getBoundingClientRect().top
      + scrollY + document.getElementById('heads').scrollTop + document.querySelector('.heads').scrollTop))"""
    for width in (360, 1440):
        before = tab.resize(width).evaluate(tops)
        for head in (0, 4, 7):
            tab.tab.hover(f'.thumb[data-layer="1"][data-head="{head}"]')
            assert tab.evaluate(tops) == before


def test_after_a_wheel_turn_the_readout_is_of_the_cell_under_the_pointer(show):
    tab = show(fixtures.many_heads(64, layers=1, heads=2))
    x, y = tab.cell_on_screen(40, 12)
    tab.tab.mouse.move(x + 3, y + 2)
    for turn in (-300, -300, 300, -300, -300, -300, 900):
        tab.tab.mouse.wheel(0, turn)
        tab.drawn()
        tab.tab.wait_for_function(f"() => String(({SAID})()) === String(({UNDER})([{x + 3}, {y + 2}]))")
    for key in ("+", "+", "-", "0"):
        tab.press(key)
        assert tab.evaluate(SAID) == tab.evaluate(UNDER, [x + 3, y + 2])


def test_after_the_page_scrolled_the_readout_is_of_the_cell_under_the_pointer(show):
    tab = show(fixtures.many_heads(64, layers=1, heads=2))
    x, y = tab.cell_on_screen(30, 12)
    tab.tab.mouse.move(x, y)
    for by in (60, -40, 25):
        tab.evaluate("(by) => scrollBy({ top: by, behavior: 'instant' })", by)
        tab.tab.wait_for_function(f"() => String(({SAID})()) === String(({UNDER})([{x}, {y}]))")
    tab.tab.mouse.move(2, 2)
    tab.tab.wait_for_selector("#readout:not([data-query])")
    assert "Point at" in tab.text("#readout")


@pytest.mark.parametrize("zoom", ["key", "button"])
def test_zooming_in_keeps_the_chosen_cell_where_it_is(show, zoom):
    tab = show(fixtures.many_heads(64, layers=1, heads=2))
    for cell in ([60, 3], [2, 1], [33, 20]):
        tab.choose(cell=cell, zoom=None)
        before = tab.cell_on_screen(*cell)
        for _ in range(3):
            if zoom == "key":
                tab.press("+")
            else:
                tab.tab.click('button[aria-label="Zoom in"]')
            q0, q1, k0, k1 = tab.drawn().state("zoom")
            assert q0 <= cell[0] and cell[0] + 1 <= q1 and k0 <= cell[1] and cell[1] + 1 <= k1
        assert tab.state("cell") == cell and q1 - q0 == pytest.approx(8)
        assert max(abs(a - b) for a, b in zip(before, tab.cell_on_screen(*cell))) < 40


def test_escape_takes_back_one_thing_at_a_time_and_never_the_filters(show):
    tab = show(fixtures.small(), "#head=7&cell=6,3&chosen=6&p=0.9&noFirst=1&pattern=a&zoom=2,12,1,11")
    filters = {"p": 0.9, "noFirst": True, "pattern": "a", "zoom": [2, 12, 1, 11]}
    for cell, chosen in ((None, [6]), (None, []), (None, []), (None, [])):
        tab.press("Escape")
        assert (tab.state("cell"), tab.state("chosen")) == (cell, chosen)
        assert {name: tab.state(name) for name in filters} == filters
    tab.tab.click("text=Clear filters")
    assert tab.drawn().state("pattern") == "" and tab.state("p") == 1


# Where the letters of every token are, and what lies below the text.
PLACES = """() => [...document.querySelectorAll(".piece, #text .strongest, #strong")].map((node) => {
  const range = document.createRange();
  range.selectNodeContents(node);
  const { left, top } = (node.dataset.n ? range : node).getBoundingClientRect();
  return [node.dataset.n ?? node.id, Math.round(2 * (left + scrollX)), Math.round(2 * (top + scrollY))];
})"""
# A token, scrolled to where it can be clicked: its middle.
AT = """([n, block]) => {
  const piece = document.querySelector(`.piece[data-n="${n}"]`);
  piece.scrollIntoView({ block });
  const { left, top, width, height } = piece.getBoundingClientRect();
  return [left + width / 2, top + height / 2];
}"""
UNDER_POINTER = "([x, y]) => ({ ...document.elementFromPoint(x, y).closest('.piece, [data-cell]')?.dataset })"


def click_token(tab, n, block="center", shift=False):
    """Clicks a token; neither it nor any other moves."""
    at = tab.evaluate(AT, [n, block])
    before = tab.evaluate(PLACES)
    if shift:
        tab.tab.keyboard.down("Shift")
    tab.tab.mouse.click(*at)
    if shift:
        tab.tab.keyboard.up("Shift")
    assert tab.drawn().evaluate(UNDER_POINTER, at)["n"] == str(n)
    assert tab.evaluate(PLACES) == before, n


@pytest.mark.parametrize("name", ["tokens", "tiles"])
def test_choosing_tokens_moves_none(show, name):
    make, address, _ = PAGES[name]
    tab = show(make(), address)
    for width in WIDTHS:
        check_tokens(tab.resize(width))
        tab.choose(reverse=False)


def check_tokens(tab):
    last = tab.evaluate("() => attend.shape()[0] - 1")
    click_token(tab, 4)
    for n in (9, 0, last, 9):  # the last takes one back
        click_token(tab, n, shift=True)
    click_token(tab, 2)
    tab.press("t")
    click_token(tab, 6)
    tab.press("Escape", "Escape")
    assert tab.state("chosen") == []


def test_the_page_of_a_long_text_stays_where_it_was_clicked(show):
    tab = show(fixtures.many_heads(700, layers=1, heads=1))
    shown = """() => { const { firstElementChild: first, lastElementChild: last } = document.querySelector(".tokens");
      return [Number(first.dataset.n), Number(last.dataset.n)]; }"""
    assert tab.evaluate(shown) == [0, 479]
    for n, block, shift in ((100, "center", False), (400, "end", False), (20, "start", True), (470, "end", True)):
        click_token(tab, n, block, shift)
        assert tab.evaluate(shown) == [0, 479]
    tab.tab.click("#text .pages button:last-of-type")
    assert tab.drawn().evaluate(shown) == [220, 699]
    click_token(tab, 690, shift=True)
    assert tab.evaluate(shown) == [220, 699]
    assert tab.choose(chosen=[5]).evaluate(shown) == [0, 479]  # from elsewhere: its page is shown


def test_a_click_in_the_frame_of_the_scrolling_leaves_the_text_where_it_is(show):
    tab = show(fixtures.many_heads(700, layers=1, heads=1))
    tab.evaluate("""() => {
      const box = document.querySelector(".tokens"), piece = box.querySelector('[data-n="100"]');
      box.scrollTop = 60;
      piece.dispatchEvent(new PointerEvent("pointerdown", { bubbles: true }));
      piece.click();
    }""")
    assert tab.drawn().state("chosen") == [100]
    assert tab.evaluate("() => document.querySelector('.tokens').scrollTop") == 60


@pytest.mark.parametrize("name", ["tokens", "tiles"])
def test_a_click_on_a_strong_cell_does_not_move_it(show, name):
    make, address, _ = PAGES[name]
    tab = show(make(), address)
    for n in (0, 3, 7):
        at = tab.evaluate("""(n) => {
          const button = document.querySelectorAll("#strong button")[n];
          button.scrollIntoView({ block: "center" });
          const { left, top, width, height } = button.getBoundingClientRect();
          return [left + width / 2, top + height / 2];
        }""", n)
        cell = tab.evaluate(UNDER_POINTER, at)["cell"]
        tab.tab.mouse.click(*at)
        assert tab.drawn().evaluate(UNDER_POINTER, at)["cell"] == cell == ",".join(map(str, tab.state("cell")))
        assert tab.count("#text .strongest button") > 0

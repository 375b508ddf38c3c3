"""What is switched, chosen and copied stays where it is: filters, cards of a difference, the button of the link."""

import pytest

import fixtures
from test_pointer import long_tokens
from test_strongest import CORNER, long_heads
from test_tiles import reduced

# Where everything is that stands below a filter, in the page.
BELOW = """() => ["#map", ".filters", ".clear button", 'input[data-key="p"]', 'input[data-key="renormalise"]', ".metrics",
  "#text", "#strong", "#explain", "footer"].map((name) => {
    const { left, top } = document.querySelector(name).getBoundingClientRect();
    return [name, Math.round(2 * (left + scrollX)), Math.round(2 * (top + scrollY))];
  })"""
FILTER_STEPS = [{"p": 0.9}, {"renormalise": True}, {"least": 0.2}, {"least": 0.9}, {"far": 3}, {"p": 1, "least": 0}, {"renormalise": False}]


WIDTHS = [390, 800, 1440]


@pytest.mark.parametrize("name", ["rows", "exact", "searched"])
def test_filters_move_nothing(show, name):
    """On layers with q and k and without, and where the strongest cells take a while to be found."""
    make, address = {
        "rows": (lambda: reduced(length=300, tiles=32)[0], ""),
        "exact": (lambda: fixtures.many_heads(300, layers=1, heads=2), ""),
        "searched": (lambda: long_heads()[0], f"#{CORNER}"),
    }[name]
    tab = show(make(), address)
    for width in WIDTHS:
        check_filters(tab.resize(width), name)
        tab.choose(renormalise=False, far=0)


def check_filters(tab, name):
    tab.tab.wait_for_selector("#strong:not(:has-text('searching'))")
    before = tab.evaluate(BELOW)
    for changes in FILTER_STEPS:
        seen = tab.evaluate(f"(changes) => {{ attend.choose(changes); return ({BELOW})(); }}", changes)  # at once, and later
        assert seen == before, changes
        assert tab.drawn().evaluate(BELOW) == before, changes
    box = tab.tab.locator('input[data-key="renormalise"]')
    box.click()
    assert tab.drawn().evaluate(BELOW) == before and tab.state("renormalise")
    limits = tab.evaluate("() => { const box = document.querySelector('.limits'); return [box.textContent, box.scrollHeight <= box.clientHeight]; }")
    assert ("need exact rows" in limits[0]) == (name == "rows") and limits[1]


def test_choosing_heads_of_a_difference_moves_none(show):
    tab = show(long_tokens(), "#show=difference")
    tab.tab.wait_for_selector(".largest:not(:has-text('searching'))")
    for width in WIDTHS:
        check_heads(tab.resize(width))
        tab.choose(show="difference")


def check_heads(tab):
    tops = """() => [...document.querySelectorAll('main, .thumb')].map((node) => Math.round(2 * (node.getBoundingClientRect().top
      + scrollY + document.getElementById('heads').scrollTop + document.querySelector('.heads').scrollTop)))"""
    before = tab.evaluate(tops)
    for layer, head in ((1, 2), (0, 6), (1, 7), (0, 0)):
        tab.choose(layer=layer, head=head)
        assert tab.evaluate(tops) == before, (layer, head)
        assert tab.text(".largest .here") and "Largest" in tab.tab.get_attribute(".largest", "title")
    group = "() => document.querySelector('.runs .segmented').getBoundingClientRect().top + scrollY"
    top = tab.evaluate(group)
    assert [tab.choose(show=run).evaluate(group) for run in ("a", "difference")] == [top, top]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("refused", [False, True])
def test_copying_the_link_does_not_move_the_button(show, width, refused):
    tab = show(fixtures.small(), width=width)
    how = "Promise.reject(new Error('no'))" if refused else "Promise.resolve()"
    tab.evaluate(f"() => {{ navigator.clipboard.writeText = () => {how}; }}")
    places = "() => [...document.querySelectorAll('header button, main')].map((node) => { const { left, top } = node.getBoundingClientRect(); return [left, top]; })"
    before = tab.evaluate(places)
    tab.tab.click("text=Copy link")
    tab.tab.wait_for_selector(".link-place:not(:empty)")
    assert tab.evaluate(places) == before
    seen = tab.evaluate("() => { const { left, right } = document.querySelector('.link-place').getBoundingClientRect(); return left >= 0 && right <= innerWidth; }")
    assert seen and tab.evaluate("() => document.documentElement.scrollWidth <= innerWidth")

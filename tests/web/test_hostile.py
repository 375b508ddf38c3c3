"""Tokens are data, and data may be broken: nothing of it becomes markup, and the page is never blank."""

import csv
import io
import re
import xml.etree.ElementTree as xml

import numpy as np
import pytest

import fixtures
from page import Blobs, assemble, layer_of, page_of

HOSTILE = [
    "</script><script>window.pwned = 1</script>",
    "<!--",
    "<img src=x onerror='window.pwned = 2'>",
    "\u2028\u2029",
    "\x1b[31mred\x1b[0m",
    "\u202eesrever",
    "\u05e9\u05dc\u05d5\u05dd",
    "a\x00b",
    "\ud800".encode("utf-16", "surrogatepass").decode("utf-16", "replace"),
    "",
    " ",
    "\n\t",
    "{{data}}",
    "__proto__",
    '=HYPERLINK("http://x")',
    "&lt;b&gt;",
    "e\u0301\u0302\u0303" * 20,
    "\U000e0041\ufeff\u200b",
    "🙂",
    "${pwned}",
]


def hostile(**keywords):
    blobs = Blobs()
    source = fixtures.habits(HOSTILE)
    run = {
        "name": HOSTILE[0],
        "tokens": HOSTILE,
        "key_tokens": None,
        "special": [],
        "layers": [layer_of(source, blobs, HOSTILE[2], **keywords)],
    }
    return page_of([run], blobs, title=HOSTILE[0], notes=[HOSTILE[2]])


def test_no_token_becomes_markup(show):
    html = hostile()
    tab = show(html, "#head=7&cell=19,1&chosen=1,19&table=1&pattern=%3C")
    for head in range(8):
        tab.choose(head=head, cell=[19, 2 * head], chosen=[head, 19])
    tab.choose(reverse=True, language="zh", pattern="", head=7)
    assert tab.evaluate("() => window.pwned") is None
    assert tab.count("#page img, #page script, #page b") == 0
    assert tab.tab.title() == HOSTILE[0] and HOSTILE[2] in tab.text(".page-notes")
    pieces = tab.evaluate("() => [...document.querySelectorAll('.piece')].map((piece) => piece.textContent)")
    assert (
        len(pieces) == len(HOSTILE)
        and pieces[0] == HOSTILE[0]
        and pieces[1] == "<!--"
        and pieces[15] == "&lt;b&gt;"
    )


def test_what_has_no_glyph_is_shown_as_a_mark(show):
    tab = show(hostile())
    pieces = tab.evaluate("() => [...document.querySelectorAll('.piece')].map((piece) => piece.textContent)")
    assert pieces[3] == "‹U+2028›‹U+2029›" and pieces[4] == "␛[31mred␛[0m" and pieces[5] == "‹U+202E›esrever"
    assert (
        pieces[7] == "a␀b"
        and pieces[9] == "∅"
        and pieces[11] == "⏎⇥"
        and pieces[17] == "‹U+E0041›‹U+FEFF›‹U+200B›"
    )
    assert pieces[6] == HOSTILE[6] and pieces[18] == "🙂"
    everything = tab.evaluate("() => document.getElementById('page').textContent")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069\u2028\u2029]", everything)
    assert tab.evaluate("() => getComputedStyle(document.querySelector('.piece')).unicodeBidi") == "isolate"


def test_exports_of_hostile_tokens_are_whole(show):
    tab = show(hostile(), "#head=7")
    root = xml.fromstring(tab.evaluate("() => attend.svg()"))
    assert len(list(root.iter("{http://www.w3.org/2000/svg}script"))) == 0
    rows = list(csv.reader(io.StringIO(tab.evaluate("() => attend.csv()"), newline="")))
    assert len(rows) == 1 + 20 * 20 and {len(row) for row in rows} == {9}
    assert rows[15][6] == "'" + HOSTILE[14] and rows[1][6] == HOSTILE[0]


def data(**changes):
    blobs = Blobs()
    page = {
        "format": "attend.view/2",
        "made_by": "attend",
        "title": "t",
        "language": "en",
        "notes": [],
        "runs": [fixtures.run_of(fixtures.SENTENCE, blobs)],
    }
    return {**page, **changes}, blobs.texts


def with_layer(**changes):
    page, blobs = data()
    page["runs"][0]["layers"][0].update(changes)
    return assemble(page, blobs)


def without_blob(name, text=None):
    """The page without a blob of the first layer, or with another text in its place."""
    page, blobs = data()
    html, number = assemble(page, blobs), page["runs"][0]["layers"][0][name]["blob"]
    element = f'<script type="text/plain" id="blob-{number}">{blobs[number]}</script>'
    assert element in html
    return html.replace(element, "" if text is None else element.replace(blobs[number], text))


def cut(mark, after):
    """The page up to some letters after a mark: the script stands before the data, and tells what is missing."""
    html = assemble(*data())
    return html[: html.index(mark) + after]


BROKEN = {
    "nothing": (lambda: assemble("", []), "broken"),
    "json": (lambda: assemble('{"format": "attend.view/2", "runs": [', []), "broken"),
    "nan": (lambda: assemble('{"format": "attend.view/2", "runs": [NaN]}', []), "broken"),
    "null": (lambda: assemble("null", []), "attend.view/2"),
    "format": (lambda: assemble({"format": "other/9", "runs": []}, []), "other/9"),
    "no_element": (lambda: assemble("{}", []).replace('id="data"', 'id="elsewhere"'), "no data"),
    "no_runs": (lambda: assemble(data(runs=[])[0], []), "no run"),
    "no_layers": (lambda: assemble(data(runs=[{"name": "a", "layers": []}])[0], []), "no layers"),
    "no_tokens": (lambda: with_layer(queries=0), "0 queries"),
    "no_keys": (lambda: with_layer(keys=0), "0 keys"),
    "no_number": (lambda: with_layer(d=None), "whole number"),
    "lost_blob": (lambda: without_blob("q"), "missing"),
    "broken_blob": (lambda: without_blob("q", "AAAA"), "cannot be unpacked"),
    "no_base64": (lambda: without_blob("q", "???"), "cannot be unpacked"),
    "short_blob": (lambda: without_blob("q", "AwA="), "0 bytes instead of"),
    "cut_in_data": (lambda: cut("id=\"data\"", 900), "broken"),
    "cut_in_blobs": (lambda: cut("id=\"blob-3\"", 20), "the page"),
    "shape": (lambda: with_layer(d=99), "instead of"),
    "type": (lambda: with_layer(q={"blob": 0, "type": "f99", "shape": [1]}), "f99"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_data_is_told_on_the_page(show, name):
    make, words = BROKEN[name]
    assert words in show(make()).text("#page")


def test_broken_data_is_told_in_chinese_too(show):
    assert "损坏" in show(BROKEN["json"][0]().replace('lang="en"', 'lang="zh"')).text("#page")


def test_the_other_layers_of_a_broken_page_are_still_there(show):
    tab = show(without_blob("q"))
    assert "missing" in tab.text("#one .note")
    tab.press("}")
    assert tab.text("#one .note") == "" and tab.tab.get_attribute("#map", "data-whole") == "true"


def test_parts_that_may_be_missing_may_be_missing(show):
    empty = dict.fromkeys(
        [
            "q",
            "k",
            "v",
            "lse",
            "mask",
            "bias",
            "windows",
            "entropy",
            "maximum",
            "rows",
            "over_heads",
            "value_norm",
            "mass",
            "metrics",
            "labels",
            "window",
            "sinks",
            "alibi",
            "key_length",
            "softcap",
        ]
    )
    tab = show(with_layer(**empty), "#chosen=4&cell=4,2")
    assert tab.tab.get_attribute("#readout", "data-kind") == "tile" and tab.count(".problem") == 0
    tab = show(with_layer(**{**empty, "tiles": None}), "#cell=4,2")
    assert tab.count(".problem") == 0 and "not in the page" in tab.text("#readout")


def test_too_few_tokens_are_told_and_counted(show):
    page, blobs = data()
    page["runs"][0]["tokens"] = fixtures.SENTENCE[:5]
    tab = show(assemble(page, blobs))
    assert "5 tokens for 13 positions" in tab.text(".page-notes")
    pieces = tab.evaluate("() => [...document.querySelectorAll('.piece')].map((piece) => piece.textContent)")
    assert pieces[3:7] == [" sat", " on", "5", "6"]


def test_a_row_that_sees_nothing_is_hidden_and_explained(show):
    source = fixtures.habits(fixtures.SENTENCE)
    source["mask"] = np.ones((1, 13, 13), bool)
    source["mask"][0, 5] = False
    blobs = Blobs()
    run = {
        "name": "r",
        "tokens": None,
        "key_tokens": None,
        "special": [],
        "layers": [layer_of(source, blobs, "l")],
    }
    tab = show(page_of([run], blobs), "#cell=5,3&chosen=5")
    assert "mask" in tab.text("#readout") and tab.count(".problem") == 0 and tab.count(".piece.unseen") == 12


def test_without_a_script_the_page_still_says_what_it_is(browser, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(fixtures.small())
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(file.as_uri())
    assert "JavaScript" in tab.inner_text("body")
    context.close()

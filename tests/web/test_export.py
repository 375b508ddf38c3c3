"""What is in view as a file: SVG, PNG, CSV."""

import base64
import csv
import io
import struct
import xml.etree.ElementTree as xml

import pytest

import fixtures
from page import softmax

A = softmax(fixtures.habits(fixtures.SENTENCE))[0]
SVG = "{http://www.w3.org/2000/svg}"


def test_svg_holds_every_cell_in_view(show):
    tab = show(fixtures.small(), "#head=7&zoom=2,12,1,11")
    root = xml.fromstring(tab.evaluate("() => attend.svg()"))
    titles = [
        rect.find(f"{SVG}title").text
        for rect in root.iter(f"{SVG}rect")
        if rect.find(f"{SVG}title") is not None
    ]
    assert len(titles) == sum(j <= i for i in range(2, 12) for j in range(1, 11))
    row = next(title for title in titles if title.startswith("6 ·mat → 3 ·sat"))
    assert float(row.split(": ")[1]) == pytest.approx(A[7, 6, 3], rel=1e-4)
    assert {"·mat", "·sat"} <= {text.text for text in root.iter(f"{SVG}text")}


def test_a_large_svg_holds_a_picture(show):
    tab = show(fixtures.many_heads(300, layers=1, heads=1))
    image = xml.fromstring(tab.evaluate("() => attend.svg()")).find(f".//{SVG}image")
    assert base64.b64decode(image.get("href").split(",")[1]).startswith(b"\x89PNG")


def test_csv_holds_the_numbers_in_view(show):
    tab = show(fixtures.small(), "#head=7&zoom=0,13,0,13&noFirst=1")
    rows = list(csv.DictReader(io.StringIO(tab.evaluate("() => attend.csv()"), newline="")))
    assert len(rows) == 169
    for row in rows:
        i, j = int(row["query"]), int(row["key"])
        kind = "hidden" if j > i else "filtered" if j == 0 else "exact"
        assert (row["kind"], row["query_token"]) == (kind, fixtures.SENTENCE[i])
        assert (
            float(row["weight"]) == pytest.approx(A[7, i, j], rel=1e-5)
            if kind == "exact"
            else row["weight"] == ""
        )


def test_csv_of_tiles_says_so(show):
    tab = show(fixtures.long_page())
    rows = list(csv.DictReader(io.StringIO(tab.evaluate("() => attend.csv()"), newline="")))
    assert (
        len(rows) == 128 * 128
        and {row["kind"] for row in rows} == {"tile", "hidden"}
        and rows[0]["queries"] == "1024"
    )


@pytest.mark.parametrize(
    "kind, start", [("svg", b"<svg "), ("png", b"\x89PNG"), ("csv", b"run,layer,head,query,key")]
)
def test_files_are_saved(show, kind, start):
    tab = show(fixtures.small(), "#head=7")
    with tab.tab.expect_download() as download:
        tab.tab.click(f'[data-export="{kind}"]')
    data = open(download.value.path(), "rb").read()
    assert data.startswith(start) and download.value.suggested_filename == f"attend-layer-0-head-7.{kind}"
    if kind == "png":
        width, height = struct.unpack(">II", data[16:24])
        assert [width, height] == tab.evaluate(
            "() => [3 * attend.geometry().width, 3 * (attend.geometry().height + 30)]")

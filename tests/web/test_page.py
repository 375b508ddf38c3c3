"""The page as a whole: keyboard, links, two runs, exports, widths, languages, and its sources."""

import base64
import csv
import io
import json
import re
import struct
import xml.etree.ElementTree as xml

import numpy as np
import pytest

import fixtures
from page import Blobs, WEB, layer_of, page_of, softmax
from test_map import colour

A = softmax(fixtures.habits(fixtures.SENTENCE))[0]
SVG = "{http://www.w3.org/2000/svg}"


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
    (["o"], "sort", "entropy"),
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
    "#layer=1&head=7&show=b&zoom=2,12,1,11&cell=6,3&chosen=4,6-8&reverse=1&combine=mean&p=0.9&least=0.01&noFirst=1"
    "&noSpecial=1&renormalise=1&pattern=a&bend=log&same=1&tile=maximum&sort=entropy&colour=first&table=1&language=zh"
)


def test_a_link_restores_everything(show):
    tab = show(fixtures.two_runs(), LINK)
    state = tab.evaluate("() => attend.state")
    assert state["chosen"] == [4, 6, 7, 8] and state["zoom"] == [2, 12, 1, 11] and state["pattern"] == "a"
    tab.choose(least=0.02)
    tab.tab.wait_for_timeout(250)
    address = tab.evaluate("() => location.hash")
    other = show(fixtures.two_runs(), address)
    assert other.evaluate("() => attend.state") == {**state, "least": 0.02}
    assert other.text("#readout") == tab.text("#readout") and other.pixel(6, 5) == tab.pixel(6, 5)
    assert other.tab.input_value('select[data-key="sort"]') == "entropy"
    other.evaluate("() => { location.hash = '#head=2&language=en'; }")
    other.tab.wait_for_timeout(50)
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


def test_a_narrower_window_makes_a_narrower_map(show):
    tab = show(fixtures.small(), width=1440)
    tab.tab.set_viewport_size({"width": 500, "height": 800})
    tab.tab.wait_for_timeout(100)
    assert tab.drawn().evaluate("() => attend.geometry().width") < 500
    assert tab.count(".problem") == 0


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


def test_csv_of_tiles_says_that_they_are_about(show):
    tab = show(fixtures.long_page())
    rows = list(csv.DictReader(io.StringIO(tab.evaluate("() => attend.csv()"), newline="")))
    assert (
        len(rows) == 128 * 128
        and {row["kind"] for row in rows} == {"about", "hidden"}
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
        assert [width, height] == [
            2 * size for size in tab.evaluate("() => [attend.geometry().width, attend.geometry().height]")
        ]


WIDE = ["a" * 300, "https://example.org/" + "x/" * 90] + fixtures.SENTENCE


@pytest.mark.parametrize("width", [360, 768, 1440])
def test_nothing_is_wider_than_the_screen(show, width):
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
        tab = show(html, address, width=width, scheme=scheme)
        tab.tab.wait_for_selector("#explain .steps")
        assert tab.evaluate("() => document.documentElement.scrollWidth") <= width
        outside = tab.evaluate(
            """(width) => [...document.querySelectorAll("#page *")].filter((node) => {
          const box = node.getBoundingClientRect();
          return box.right > width + 1 && box.width > 1 && !node.closest(".table-scroll, .skip, .visually-hidden");
        }).map((node) => node.outerHTML.slice(0, 80))""",
            width,
        )
        assert outside == []


@pytest.mark.parametrize("width, columns", [(360, 1), (768, 1), (1440, 3)])
def test_the_views_stand_beside_each_other_where_there_is_room(show, width, columns):
    tab = show(fixtures.small(), width=width)
    lefts = tab.evaluate(
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


def test_every_sentence_is_there_in_both_languages_and_none_is_missing():
    text = (WEB / "text.js").read_text()
    table = text[text.index("const kText = {") : text.index("\n};")]
    pairs = re.findall(r'(\w+):\s+\[\s*"((?:[^"\\]|\\.)+)",\s*"((?:[^"\\]|\\.)+)"\s*\]', table)
    assert len(pairs) > 150 and len(pairs) == len(re.findall(r"\b\w+:\s+\[", table))
    for key, english, chinese in pairs:
        assert set(re.findall(r"\{\w+\}", english)) >= set(re.findall(r"\{\w+\}", chinese)), key
    known, used = {key for key, _, _ in pairs}, set()
    for file in WEB.glob("*.js"):
        used |= set(re.findall(r'\bsay(?:With)?\(\s*"(\w+)"', file.read_text()))
    assert used <= known
    sources = "".join(file.read_text() for file in WEB.glob("*.js") if file.name != "text.js")
    families = ("hidden_", "legend_", "level_", "metric_", "label_", "key_")
    unused = [
        key
        for key in known - used
        if f'"{key}"' not in sources and not key.startswith(families) and not re.search(r"_word(_1)?$", key)
    ]
    assert unused == []


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


def test_the_modules_fit_together():
    """Names are unique, imports exist, the order holds every file: they end in one script."""
    names, order = {}, (WEB / "modules.txt").read_text().split()
    assert sorted(order) == sorted(file.name for file in WEB.glob("*.js")) and order[-1] == "main.js"
    exported = {}
    for name in order:
        text = (WEB / name).read_text()
        assert "</script" not in text and "<!--" not in text
        exported[name] = set(re.findall(r"^export (?:async )?(?:function|const|class|let) (\w+)", text, re.M))
        for line in re.findall(r"^(?:export )?(?:async )?(?:function|const|class|let) (.+)", text, re.M):
            for top in re.findall(r"(?:^|, )(\w+)(?= =|\(| \{| extends|;)", line.split("=>")[0])[:1]:
                assert top not in names, f"{top} in {name} and {names.get(top)}"
                names[top] = name
    for name in order:
        text = (WEB / name).read_text()
        for words, source in re.findall(r'^import \{(.*)\} from "\./(.*)";$', text, re.M):
            assert set(words.split(", ")) <= exported[source], (name, source)
            for word in words.split(", "):
                assert len(re.findall(rf"\b{word}\b", text)) > 1, f"{name} imports {word} for nothing"
        assert len(re.findall(r"^import", text, re.M)) == len(
            re.findall(r'^import \{.*\} from "\./.*";$', text, re.M)
        )


def test_json_of_the_page_has_no_letter_that_could_end_it():
    html = page_of([{"name": "</script><!--\u2028&", "layers": []}], Blobs(), title="<b>&\"'")
    data = re.search(r'id="data">(.*?)</script>', html, re.S)[1]
    assert (
        not set("<>&\u2028\u2029") & set(data)
        and json.loads(data)["runs"][0]["name"] == "</script><!--\u2028&"
    )
    assert "<title>&lt;b&gt;" in html


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
    frame.locator('.thumb[data-head="3"]').first.click()
    frame.locator("#map-title:has-text('head 3')").wait_for()
    tab.wait_for_timeout(250)  # the address is written a little later, or not at all
    assert frame.locator(".problem").count() == 0 and complaints == []
    context.close()


def lightness(tab):
    """Of the legend's colours from left to right."""
    data = tab.evaluate(
        "() => [...document.querySelector('.ramp').getContext('2d').getImageData(0, 0, 256, 1).data]"
    )
    linear = (np.array(data).reshape(256, 4)[:, :3] / 255.0) ** 2.2
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
    assert "about" not in tab.tab.get_attribute('.thumb[data-head="7"]', "aria-label")


def test_thumbnails_of_differences_of_tiles_say_that_they_are_about(show):
    tab = show(slightly_apart(embed=False)[0], "#show=difference")
    assert "about" in tab.tab.get_attribute('.thumb[data-head="7"]', "aria-label")
    assert "≈" in tab.text('.thumb[data-head="7"]') and "only about" in tab.text("#heads .hint")
    assert "about" not in tab.choose(show="a").tab.get_attribute('.thumb[data-head="7"]', "aria-label")
    assert "about" not in tab.text("#heads .hint")


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
    scores = [run["layers"][0]["labels"][2]["score"] for run in runs]
    tab = show(page_of(runs, blobs), "#show=difference&head=2&sort=first&colour=first")
    assert "previous token → first token" in tab.text(".label")
    assert f"{scores[0]:.3f} → {scores[1]:.3f}" in tab.text(".label")
    assert tab.text('[data-metric="first"]') == f"{first[0]:.3f} → {first[1]:.3f}"
    thumb = '.thumb[data-head="2"]'
    assert f"{first[0]:.2f} → {first[1]:.2f}" in tab.text(thumb)
    order = "() => [...document.querySelectorAll('.thumb')].map((thumb) => Number(thumb.dataset.head))"
    assert tab.evaluate(order)[0] == 2 and "First: change" in tab.text('select[data-key="sort"]')
    rows = list(csv.DictReader(io.StringIO(tab.evaluate("() => attend.csv()"), newline="")))
    assert {row["run"] for row in rows} == {"after − before"}
    tab.choose(show="b", sort="order", colour="none")
    assert tab.text(".label").startswith(f"first token {scores[1]:.3f}")
    assert f"{scores[1]:.2f}" in tab.text(thumb) and "→" not in tab.text(thumb)
    assert '"after"' in tab.evaluate("() => attend.csv()")
    head = tab.choose(show="difference", head=0)
    assert "previous token 0." in head.text(".label")  # one name, where both runs have it


@pytest.mark.parametrize("place", [(0, 9, 3, 5), (0, -1, 3, 3), (2, 0, 3, 3), (0, 0, 13, 3), (0, 0, 3, 1.5), (0, 0, 3, 3, 1)])
def test_the_console_knows_no_weight_of_a_cell_that_is_not_there(show, place):
    tab = show(fixtures.small())
    assert tab.evaluate("(place) => attend.weight(...place)", place) is None
    assert tab.evaluate("() => attend.weight(0, 7, 3, 3)")["kind"] == "exact"


def test_the_header_promises_no_exact_cells_where_tiles_are_drawn(show):
    assert "every cell is exact" in show(fixtures.small()).text("header")
    long = show(fixtures.many_heads(300, layers=1, heads=1)).text("header")
    assert "every cell" not in long and "single cells are exact, tiles are rounded means" in long
    tab = show(fixtures.long_page())
    assert "elsewhere about" in tab.text("header") and "about: tiles of 1024 × 1024" in tab.text(".level")


def test_both_runs_must_be_exact_for_the_header_to_say_so(show):
    blobs = Blobs()
    runs = [fixtures.run_of(fixtures.SENTENCE, blobs, embed=embed) for embed in (True, False)]
    assert "elsewhere about" in show(page_of(runs, blobs)).text("header")

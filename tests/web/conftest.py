"""A headless Chromium for all tests of a file, and pages in it. Every page is watched: an error on its console,
or any request besides the file itself, fails the test that opened it."""

import pathlib
import sys

import pytest

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parents[2] / "tools")]
import screenshots  # noqa: E402


@pytest.fixture(scope="session")
def browser():
    if not screenshots.browser_path():
        pytest.skip("no Chromium is installed")
    with pytest.importorskip("playwright.sync_api").sync_playwright() as playwright:
        browser = screenshots.launch(playwright)
        yield browser
        browser.close()


class Tab:
    """A page in a tab, and the few things that the tests do with it."""

    def __init__(self, tab, file):
        self.tab, self.file = tab, file
        self.complaints, self.requests = [], []
        tab.on("console", self.listen)
        tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        tab.on("request", lambda request: self.requests.append(request.url))

    def listen(self, message):
        own = "willReadFrequently" in message.text  # the tests read pixels; the page never does
        if message.type in ("error", "warning") and not own:
            self.complaints.append(message.text)

    def go(self, address=""):
        self.tab.goto("about:blank")
        self.tab.goto(self.file.as_uri() + address)
        return self.drawn()

    def drawn(self):
        """Waits until the map shows what the state says."""
        self.tab.wait_for_selector("#map[data-whole=true], .problem, #one.empty", state="attached")
        self.evaluate("() => attend.settled()")
        self.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        self.tab.wait_for_selector("#map[data-whole=true], .problem, #one.empty", state="attached")
        return self

    def evaluate(self, script, argument=None):
        return self.tab.evaluate(script, argument)

    def choose(self, **changes):
        self.evaluate("(changes) => attend.choose(changes)", changes)
        return self.drawn()

    def state(self, key):
        return self.evaluate("(key) => attend.state[key]", key)

    def press(self, *keys):
        for key in keys:
            self.tab.keyboard.press(key)
        return self.drawn()

    def text(self, selector):
        return self.tab.inner_text(selector)

    def count(self, selector):
        return self.tab.locator(selector).count()

    def pixel(self, i, j, selector="#map"):
        """The colour of a cell of the map: off its middle, where its number may stand."""
        return self.evaluate(
            """([i, j]) => {
          const canvas = document.getElementById("map"), { left, top, w, h, width } = attend.geometry();
          const { zoom } = attend.state, layer = attend.shape(), [q0, q1, k0, k1] = zoom ?? [0, layer[0], 0, layer[1]];
          const x = left + ((j + 0.25 - k0) / (k1 - k0)) * w, y = top + ((i + 0.25 - q0) / (q1 - q0)) * h;
          const ratio = canvas.width / width;
          return [...canvas.getContext("2d").getImageData(Math.floor(x * ratio), Math.floor(y * ratio), 1, 1).data];
        }""",
            [i, j],
        )[:3]

    def point(self, i, j):
        """Moves the mouse to a cell, and waits until the page has noticed."""
        self.tab.mouse.move(*self.cell_on_screen(i, j))
        self.tab.wait_for_selector(f'#readout[data-query="{i}"][data-key="{j}"]')

    def cell_on_screen(self, i, j):
        """Where the middle of a cell is, for the mouse."""
        return self.evaluate(
            """([i, j]) => {
          document.getElementById("map").scrollIntoView({ block: "center" });
          const box = document.getElementById("map").getBoundingClientRect(), { left, top, w, h } = attend.geometry();
          const [q0, q1, k0, k1] = attend.state.zoom ?? [0, attend.shape()[0], 0, attend.shape()[1]];
          return [box.left + left + ((j + 0.5 - k0) / (k1 - k0)) * w, box.top + top + ((i + 0.5 - q0) / (q1 - q0)) * h];
        }""",
            [i, j],
        )


@pytest.fixture
def show(browser, tmp_path):
    """show(html, address, width=..., scheme=...) -> Tab"""
    tabs, contexts = [], []

    def show(html, address="", width=1440, scheme="light"):
        file = tmp_path / f"page{len(tabs)}.html"
        file.write_text(html, encoding="utf-8")
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, accept_downloads=True
        )
        context.set_default_timeout(600_000)   # for what hangs; the machine may be busy
        tab = Tab(context.new_page(), file)
        tabs.append(tab)
        contexts.append(context)
        return tab.go(address)

    yield show
    for tab, context in zip(tabs, contexts):
        context.close()
        assert tab.complaints == []
        assert {url for url in tab.requests if not url.startswith(("blob:", "data:", "about:"))} <= {
            url for url in tab.requests if url.split("#")[0] == tab.file.as_uri()
        }

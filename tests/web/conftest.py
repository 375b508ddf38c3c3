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


# The map is whole, the answers are there, and two frames later it still is; or there is none. And the
# cards in sight have their pictures.
DRAWN = """async () => {
  const end = performance.now() + 600e3;   // for what hangs; the machine may be busy
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const whole = async () => {
    while (!document.querySelector("#map[data-whole=true], .problem, #one.empty")) {
      if (performance.now() > end) throw new Error("the map is not whole");
      await frame();
    }
  };
  await whole();
  await attend.settled();
  await frame();
  await frame();
  await whole();
  const seen = await new Promise((done) => {
    const observer = new IntersectionObserver((entries) => {
      observer.disconnect();
      done(entries.filter((entry) => entry.isIntersecting).map((entry) => entry.target));
    });
    const bare = document.querySelectorAll(".thumb:not([data-drawn])");
    for (const card of bare) observer.observe(card);
    if (bare.length === 0) done([]);
  });
  while (seen.some((card) => card.isConnected && card.dataset.drawn === undefined)) {
    if (performance.now() > end) throw new Error("a card has no picture");
    await frame();
  }
}"""


class Tab:
    """A page in a tab, and the few things that the tests do with it."""

    def __init__(self, tab, file):
        self.tab, self.file = tab, file
        self.complaints, self.requests = [], []
        self.heard = {
            "console": self.listen,
            "pageerror": lambda error: self.complaints.append(str(error)),
            "request": lambda request: self.requests.append(request.url),
        }
        for event, hear in self.heard.items():
            tab.on(event, hear)

    def leave(self):
        for event, hear in self.heard.items():
            self.tab.remove_listener(event, hear)

    def listen(self, message):
        own = "willReadFrequently" in message.text  # the tests read pixels; the page never does
        if message.type in ("error", "warning") and not own:
            self.complaints.append(message.text)

    def go(self, address=""):
        if self.tab.url.startswith(self.file.as_uri()):
            self.tab.goto("about:blank")   # another address alone would load nothing
        self.tab.goto(self.file.as_uri() + address)
        return self.drawn()

    def drawn(self):
        """Waits until the map shows what the state says."""
        self.evaluate(DRAWN)
        return self

    def evaluate(self, script, argument=None):
        return self.tab.evaluate(script, argument)

    def choose(self, **changes):
        self.evaluate("(changes) => attend.choose(changes)", changes)
        return self.drawn()

    def resize(self, width):
        """Another window; the page opens anew in none."""
        self.tab.set_viewport_size({"width": width, "height": 900})
        self.tab.wait_for_function("(width) => innerWidth === width", arg=width)
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

    def pixel(self, i, j):
        """The colour of a cell of the map: off its middle, where its number may stand, if there is room."""
        return self.pixels([[i, j]])[0]

    def pixels(self, cells):
        return self.evaluate(
            """(cells) => {
          const canvas = document.getElementById("map"), { left, top, w, h, width } = attend.geometry();
          const { zoom } = attend.state, layer = attend.shape(), [q0, q1, k0, k1] = zoom ?? [0, layer[0], 0, layer[1]];
          const ratio = canvas.width / width, context = canvas.getContext("2d");
          const off = (px) => (px < 8 ? 0.5 : 0.25), right = off(w / (k1 - k0)), down = off(h / (q1 - q0));
          return cells.map(([i, j]) => {
            const x = left + ((j + right - k0) / (k1 - k0)) * w, y = top + ((i + down - q0) / (q1 - q0)) * h;
            return [...context.getImageData(Math.floor(x * ratio), Math.floor(y * ratio), 1, 1).data].slice(0, 3);
          });
        }""",
            cells,
        )

    def colours(self, cells):
        """Of cells of the map their colours, off their outlines, the most frequent one first."""
        return self.evaluate(
            """(cells) => {
          const canvas = document.getElementById("map"), { left, top, w, h, width } = attend.geometry();
          const [q0, q1, k0, k1] = attend.state.zoom ?? [0, attend.shape()[0], 0, attend.shape()[1]];
          const ratio = canvas.width / width, context = canvas.getContext("2d");
          const across = (w / (k1 - k0)) * ratio, down = (h / (q1 - q0)) * ratio, off = Math.min(across, down) < 8 ? 0 : 1;
          const ends = (from, size) => [Math.ceil(from - 0.5) + off, Math.ceil(from + size - 0.5) - off];
          return cells.map(([i, j]) => {
            const [x0, x1] = ends(left * ratio + (j - k0) * across, across), [y0, y1] = ends(top * ratio + (i - q0) * down, down);
            const { data } = context.getImageData(x0, y0, x1 - x0, y1 - y0), counts = new Map();
            for (let n = 0; n < data.length; n += 4) {
              const colour = data.slice(n, n + 3).join();
              counts.set(colour, (counts.get(colour) ?? 0) + 1);
            }
            return [...counts].sort((a, b) => b[1] - a[1]).map(([colour]) => colour.split(",").map(Number));
          });
        }""",
            cells,
        )

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


class Tabs:
    """Tabs that are used again, one page after the other: a new one takes three times as long as a page in it."""

    def __init__(self, browser):
        self.browser, self.free = browser, []

    def take(self, width, scheme):
        tab = self.free.pop() if self.free else self.open()
        tab.set_viewport_size({"width": width, "height": 900})
        tab.emulate_media(color_scheme=scheme)
        return tab

    def open(self):
        context = self.browser.new_context(accept_downloads=True)
        context.set_default_timeout(600_000)   # for what hangs; the machine may be busy
        return context.new_page()

    def give_back(self, tab):
        tab.mouse.move(0, 0)   # where nothing of a page is
        tab.goto("about:blank")
        self.free.append(tab)


@pytest.fixture(scope="session")
def tabs(browser):
    return Tabs(browser)


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """files(html) -> the file of a page, which is written once."""
    folder, written = tmp_path_factory.mktemp("pages"), {}

    def file(html):
        if html not in written:
            written[html] = folder / f"page{len(written)}.html"
            written[html].write_text(html, encoding="utf-8")
        return written[html]

    return file


@pytest.fixture
def show(tabs, files, request):
    """show(html, address, width=..., scheme=...) -> Tab, with the page loaded anew"""
    shown, failed = [], request.session.testsfailed

    def show(html, address="", width=1440, scheme="light"):
        shown.append(Tab(tabs.take(width, scheme), files(html)))
        return shown[-1].go(address)

    yield show
    for tab in shown:
        if request.session.testsfailed > failed:
            tab.tab.context.close()   # nobody knows in which state
        else:
            tabs.give_back(tab.tab)
        tab.leave()
    for tab in shown:
        assert tab.complaints == []
        assert {url for url in tab.requests if not url.startswith(("blob:", "data:", "about:"))} <= {
            url for url in tab.requests if url.split("#")[0] == tab.file.as_uri()
        }

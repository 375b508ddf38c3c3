"""The whole way: `attend view` writes a page of q, k, v, and the browser shows the weights that `attend apply`
computes of them. ATTEND_COMMAND is the command."""
import html
import os
import subprocess

import numpy as np
import pytest

from test_map import ALL_WEIGHTS, colour

RANDOM = np.random.default_rng(11)
ATTEND = os.environ.get("ATTEND_COMMAND")
pytestmark = pytest.mark.skipif(not ATTEND, reason="ATTEND_COMMAND is not set")


class Problem:
    """q, k, v in files, and the flags of both commands."""

    def __init__(self, folder, queries=9, keys=14, d=8, flags=()):
        self.folder, self.flags = folder, list(flags)
        for name, heads, length in (("q", 4, queries), ("k", 2, keys), ("v", 2, keys)):
            np.save(folder / f"{name}.npy", RANDOM.normal(size=(1, heads, length, d)).astype(np.float32))
            self.flags += [f"--{name}", f"{name}.npy"]

    def run(self, *words):
        subprocess.run([ATTEND, *map(str, words), *self.flags], cwd=self.folder, check=True, capture_output=True)

    def weights(self):
        self.run("apply", "--save-weights", "weights.npy")
        return np.load(self.folder / "weights.npy")[0]

    def page(self, *flags):
        self.run("view", "--output", "page.html", *flags)
        return (self.folder / "page.html").read_text()


def everything(folder):
    np.save(folder / "bias.npy", RANDOM.normal(size=(1, 1, 9, 14)).astype(np.float32))
    np.save(folder / "mask.npy", RANDOM.random(size=(1, 4, 9, 14)) > 0.2)
    return ["--bias", "bias.npy", "--mask", "mask.npy", "--causal", "--window-left", "7", "--softcap", "3",
            "--scale", "0.7", "--key-lengths", "12", "--query-offset", "4", "--alibi", "0.5,0.25,0.125,0.0625",
            "--sinks=0.5,-1,2,0"]


@pytest.mark.parametrize("flags", [lambda folder: [], lambda folder: ["--causal"], everything],
                         ids=["plain", "causal", "everything"])
def test_every_cell_is_the_weight_of_attention(show, tmp_path, flags):
    problem = Problem(tmp_path, flags=flags(tmp_path))
    weights = problem.weights()
    cells = show(problem.page()).evaluate(ALL_WEIGHTS, list(weights.shape))
    assert [cell["kind"] for cell in cells] == ["exact" if p > 0 else "hidden" for p in weights.ravel()]
    np.testing.assert_allclose([cell["weight"] for cell in cells], weights.ravel(), rtol=3e-6, atol=1e-9)


def test_the_pixels_have_the_colours_of_the_weights(show, tmp_path):
    problem = Problem(tmp_path, queries=8, keys=8, flags=["--causal"])
    weights = problem.weights()[2]
    tab = show(problem.page("--text", "the cat sat on the mat and slept"), "#head=2&bend=linear")
    for i, j in [(0, 0), (3, 1), (5, 5), (7, 2), (7, 6)]:
        assert np.abs(tab.pixel(i, j) - colour(weights[i, j])).max() <= 3, (i, j)
    assert "slept" in tab.text("body")


def test_a_reduced_page_is_exact_in_its_windows_and_rows_and_says_so(show, tmp_path):
    problem = Problem(tmp_path, queries=600, keys=600, d=64)
    weights = problem.weights()
    tab = show(problem.page("--page-size", 1.2, "--window", "0,1,10,5,20,7"))
    ask = "([h, i, j]) => attend.weight(0, h, i, j)"
    cell = tab.evaluate(ask, [1, 12, 22])
    assert cell["kind"] == "exact" and abs(cell["weight"] - weights[1, 12, 22]) < 1e-6
    for h, i in [(3, 599), (0, 90), (2, 4)]:
        order = np.argsort(-weights[h, i])
        largest = tab.evaluate(ask, [h, i, int(order[0])])
        assert abs(largest["weight"] / weights[h, i, order[0]] - 1) < 2e-4
        about = tab.evaluate(ask, [h, i, int(order[-1])])
        assert about["weight"] is None and about["tile"] is not None
    assert "The page is reduced" in tab.text(".page-notes")
    ends = "(name) => document.querySelector(name).getBoundingClientRect().bottom + scrollY"
    for part in (".exports", "#map", ".legend"):
        assert tab.evaluate(ends, part) <= 900, part  # one screen of 1440 x 900 has them, below the note


def test_two_runs_differ_as_their_weights_do(show, tmp_path):
    problem = Problem(tmp_path, queries=6, keys=6)
    exact = problem.weights()
    tab = show(problem.page("--compare-type", "bf16", "--language", "zh"))
    both = [tab.evaluate("(run) => attend.weight(0, 3, 4, 2, run)", run)["weight"] for run in (0, 1)]
    assert abs(both[0] - exact[3, 4, 2]) < 1e-6
    assert 0 < abs(both[1] - both[0]) < 0.02


def test_hostile_tokens_go_through_the_writer(show, tmp_path):
    tokens = ["</script>", "<!--", "\u2028", "\u202e", "\x1b[31m", "\"'&<b>", "{{data}}", "\\u003c", "\U0001f600"]
    (tmp_path / "tokens.txt").write_text("\n".join(tokens) + "\n")
    problem = Problem(tmp_path, queries=9, keys=9)
    tab = show(problem.page("--tokens", "tokens.txt", "--title", "</title><script>alert(1)</script>"))
    assert tab.evaluate("() => document.title") == "</title><script>alert(1)</script>"
    assert tab.evaluate("() => document.querySelectorAll('script[type=module]').length") == 1


def test_a_notebook_shows_the_same_page_in_a_frame(browser, tmp_path):
    """As attend.View does it: a sandbox without an origin of its own."""
    page = Problem(tmp_path, queries=6, keys=6).page()
    file = tmp_path / "notebook.html"
    file.write_text(f'<!doctype html><iframe srcdoc="{html.escape(page)}" sandbox="allow-scripts allow-downloads" '
                    'style="width: 100%; height: 720px; border: 0"></iframe>')
    tab, complaints = browser.new_page(), []
    tab.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.goto(file.as_uri())
    frame = tab.frames[1]
    frame.wait_for_selector("#map[data-whole=true]", state="attached", timeout=600_000)
    frame.evaluate("() => attend.choose({ head: 2 })")
    assert frame.evaluate("() => attend.weight(0, 2, 1, 1)")["kind"] == "exact"
    tab.close()
    assert complaints == []

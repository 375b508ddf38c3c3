#!/usr/bin/env python3
"""How large pages are, what they hold, and how long they take to write and to open: the figures of docs/view.md.

    tools/view_figures.py PATH_OF_ATTEND [--case 512x144 ...] [--folder FOLDER] [--threads N] [--closed | --docs]

For each case (tokens x heads) q, k, v are drawn, with heads of size 64, and `attend view --causal` writes the page: its size, the keys
that every row has, the layers that have q and k, the time that the command took, that of its processors, and its largest memory. A headless Chromium opens it five
times, but for --closed. Medians: from the start of the navigation to the first map that is drawn, as the page itself marks it; from the first choice of a
cell to the answers of all heads; and from later choices, of cells, of queries and of keys, of which the slowest is told.
--docs writes the lines of these cases into the table of docs/view.md.
Needs NumPy and, to open, Debian's chromium and the package playwright.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import tempfile
import time

import numpy as np

import screenshots

# tokens, layers, heads of a layer
CASES = {"16x144": (16, 12, 12), "512x144": (512, 12, 12), "4096x144": (4096, 12, 12), "512x270": (512, 30, 9),
         "131072x8": (131072, 1, 8)}
DRAWN = "() => performance.getEntriesByName('drawn')[0].startTime"
# ms from a choice to the answers of all heads, those in sight drawn: of the first cell, and of later choices by what is chosen.
ANSWERED = """async (length) => {
  const cell = (i, j) => ({ cell: [i, j], chosen: [i], reverse: false }), query = (i) => ({ cell: null, chosen: [i], reverse: false }),
    key = (j) => ({ cell: null, chosen: [j], reverse: true });
  const choices = [["first", cell(length - 2, 3)], ["query", query(length >> 1)], ["key", key(length >> 2)], ["cell", cell(length >> 1, 1)],
    ["query", query(length - 1)], ["key", key(2)], ["cell", cell(length - 1, length >> 1)]];
  const times = {};
  const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  await attend.settled();
  for (const [kind, choice] of choices) {
    await frame();
    const begin = performance.now();
    attend.choose(choice);
    await attend.settled();
    (times[kind] ??= []).push(performance.getEntriesByName("answered")[0].startTime - begin);
  }
  return times;
}"""

def draw(folder, length, layers, heads):
    """q, k, v [layers, 1, heads, length, 64]: noise, and a walk by which near tokens are alike."""
    random = np.random.default_rng(length)
    for name in "qkv":
        file = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.float32, (layers, 1, heads, length, 64))
        for layer in range(layers):
            for head in range(heads):
                walk = np.cumsum(random.standard_normal((length, 64), np.float32), 0)
                walk *= 0.1 / np.sqrt(1 + np.arange(length, dtype=np.float32))[:, None]
                file[layer, 0, head] = walk + random.standard_normal((length, 64), np.float32)
        del file


def write(attend, folder, threads):
    """The page, the seconds that it took, those of processors, and MiB of memory."""
    page = folder / "page.html"
    begin = time.monotonic()
    command = subprocess.Popen([attend, "view", "--q", folder / "q.npy", "--k", folder / "k.npy", "--v", folder / "v.npy",
                                "--causal", "--output", page, "--threads", str(threads)], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(command.pid, 0)
    command.returncode = os.waitstatus_to_exitcode(status)
    if command.returncode != 0:
        raise SystemExit(f"attend view failed with {command.returncode}")
    return page, time.monotonic() - begin, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def held(page):
    """What the rows have, and how many layers have q and k, in words."""
    text = page.read_text()
    layers = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1])["runs"][0]["layers"]
    rows, exact = layers[0]["rows"], sum(layer["q"] is not None for layer in layers)
    which = "every row" if rows["count"] == layers[0]["queries"] else f"the last {rows['count']} rows"
    return f"{rows['k']} of {which}", f"{exact} of {len(layers)}"


def opened(page, length, times=5):
    """Until the first map is drawn, the first answers are there, and later ones of the slowest kind: in words."""
    from playwright.sync_api import sync_playwright
    drawn, answered = [], {}
    with sync_playwright() as playwright:
        browser = screenshots.launch(playwright)
        for _ in range(times):
            tab = browser.new_page()
            tab.goto(page.resolve().as_uri())
            tab.wait_for_selector("#map[data-whole=true]", state="attached")
            drawn.append(tab.evaluate(DRAWN))
            for kind, took in tab.evaluate(ANSWERED, length).items():
                answered.setdefault(kind, []).extend(took)
            tab.close()
        browser.close()
    first, *later = (statistics.median(answered[kind]) for kind in ("first", "cell", "query", "key"))
    return [f"{statistics.median(drawn) / 1000:.2f} s", f"{first:.0f} ms", f"{max(later):.0f} ms"]


HEADER = ("| tokens | heads | page | keys | q and k | written in | processors | memory | opens in | first answers | later |\n"
          "|---|---|---|---|---|---|---|---|---|---|---|\n")


def document(lines):
    """Puts lines into the table of docs/view.md in place of those of the same tokens and heads."""
    file = pathlib.Path(__file__).resolve().parents[1] / "docs" / "view.md"
    before, rest = file.read_text(encoding="utf-8").split(HEADER)
    table, after = rest.split("\n\n", 1)
    rows = {tuple(line.split("|")[1:3]): line for line in (*table.splitlines(), *lines)}
    file.write_text(before + HEADER + "\n".join(rows.values()) + "\n\n" + after, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("attend", type=pathlib.Path)
    parser.add_argument("--case", nargs="*", default=list(CASES), choices=CASES)
    parser.add_argument("--folder", type=pathlib.Path, help="keeps the files there")
    parser.add_argument("--threads", type=int, default=0)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--closed", action="store_true", help="does not open the pages")
    which.add_argument("--docs", action="store_true", help="writes the table of docs/view.md")
    options, lines = parser.parse_args(), []
    print(HEADER, end="")
    for case in options.case:
        length, layers, heads = CASES[case]
        with tempfile.TemporaryDirectory() as temporary:
            folder = (options.folder or pathlib.Path(temporary)) / case
            folder.mkdir(parents=True, exist_ok=True)
            draw(folder, length, layers, heads)
            page, seconds, processors, memory = write(options.attend, folder, options.threads)
            rows, exact = held(page)
            lines.append(
                f"| {length} | {layers * heads} | {page.stat().st_size / 2**20:.1f} MiB | {rows} | {exact} | {seconds:.1f} s | "
                f"{processors:.1f} s | {memory:.0f} MiB | {' | '.join(['', '', ''] if options.closed else opened(page, length))} |")
            print(lines[-1], flush=True)
    if options.docs:
        document(lines)


if __name__ == "__main__":
    main()

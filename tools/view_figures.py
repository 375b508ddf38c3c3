#!/usr/bin/env python3
"""How large pages are, what they hold, and how long they take to write and to open: the figures of docs/view.md.

    tools/view_figures.py PATH_OF_ATTEND [--case 512x144 ...] [--folder FOLDER] [--threads N] [--closed | --docs]

For each case (tokens x heads) q, k, v are drawn, with heads of size 64, and `attend view --causal` writes the page: its size, the keys
that every row has, the layers that have q and k, the time that the command took, that of its processors, and its largest memory. A headless Chromium opens it five
times for each kind of choice (a query, a key, a cell), chosen at once or after a second, but for --closed. Medians: from the start of the navigation to the first map
that is drawn, as the page itself marks it; and of each kind from the first choice, at once and after a second, and from later ones, to the answers of all heads.
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
# ms from choices of one kind to the answers of all heads, those in sight drawn: of the first, and of later ones.
ANSWERED = """async ([length, kind]) => {
  const make = { cell: (i, j) => ({ cell: [i, j], chosen: [i], reverse: false }),
    query: (i) => ({ cell: null, chosen: [i], reverse: false }), key: (i, j) => ({ cell: null, chosen: [j], reverse: true }) }[kind];
  const times = [], frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  await attend.settled();
  for (const [i, j] of [[length - 2, 3], [length >> 1, 1], [length - 1, length >> 1], [length >> 2, length >> 3]]) {
    await frame();
    const begin = performance.now();
    attend.choose(make(i, j));
    await attend.settled();
    times.push(performance.getEntriesByName("answered")[0].startTime - begin);
  }
  return times;
}"""
KINDS = ("query", "key", "cell")
WAITS = (0, 1000)  # ms before the first choice: a program is there at once, a person reads first


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
    """Until the first map is drawn; and of each kind until the answers are there: of a choice at once, of one after a second, of later ones: in words."""
    from playwright.sync_api import sync_playwright
    drawn, first, later = [], {(kind, wait): [] for kind in KINDS for wait in WAITS}, {kind: [] for kind in KINDS}
    with sync_playwright() as playwright:
        browser = screenshots.launch(playwright)
        for kind, wait in list(first) * times:
            tab = browser.new_page()
            tab.goto(page.resolve().as_uri())
            tab.wait_for_selector("#map[data-whole=true]", state="attached")
            drawn.append(tab.evaluate(DRAWN))
            tab.wait_for_timeout(wait)
            one, *others = tab.evaluate(ANSWERED, [length, kind])
            first[kind, wait].append(one)
            later[kind].extend(others)
            tab.close()
        browser.close()
    median = statistics.median
    answers = [f"{', '.join(f'{median(first[kind, wait]):.0f}' for wait in WAITS)}, {median(later[kind]):.0f} ms" for kind in KINDS]
    return [f"{median(drawn) / 1000:.2f} s", *answers]


HEADER = ("| tokens | heads | page | keys | q and k | written in | processors | memory | opens in | query | key | cell |\n"
          "|---|---|---|---|---|---|---|---|---|---|---|---|\n")


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
                f"{processors:.1f} s | {memory:.0f} MiB | {' | '.join([''] * (1 + len(KINDS)) if options.closed else opened(page, length))} |")
            print(lines[-1], flush=True)
    if options.docs:
        document(lines)


if __name__ == "__main__":
    main()

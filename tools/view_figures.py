#!/usr/bin/env python3
"""How large pages are and how long they take to open: the figures of docs/view.md.

    tools/view_figures.py PATH_OF_ATTEND [--length 16 512 4096 131072] [--folder FOLDER] [--threads N]

For each length q, k, v are drawn and `attend view --causal` writes the page: 12 layers of 12 heads of size 64, from
65536 on one layer of 8 heads. A headless Chromium opens it five times; the time is the median from the start
of the navigation to the first map that is drawn, as the page itself marks it. Needs NumPy, Debian's chromium and the package playwright.
"""
import argparse
import pathlib
import statistics
import subprocess
import tempfile
import time

import numpy as np

import screenshots

DRAWN = "() => performance.getEntriesByName('drawn')[0].startTime"


def draw(folder, length):
    """q, k, v [layers, 1, heads, length, 64]: noise, and a walk by which near tokens are alike."""
    layers, heads = (12, 12) if length < 65536 else (1, 8)
    random = np.random.default_rng(length)
    for name in "qkv":
        file = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.float32, (layers, 1, heads, length, 64))
        for layer in range(layers):
            for head in range(heads):
                walk = np.cumsum(random.standard_normal((length, 64), np.float32), 0)
                walk *= 0.1 / np.sqrt(1 + np.arange(length, dtype=np.float32))[:, None]
                file[layer, 0, head] = walk + random.standard_normal((length, 64), np.float32)
        del file
    return layers * heads


def write(attend, folder, threads):
    """The page and the seconds that it took."""
    page = folder / "page.html"
    begin = time.monotonic()
    subprocess.run([attend, "view", "--q", folder / "q.npy", "--k", folder / "k.npy", "--v", folder / "v.npy",
                    "--causal", "--output", page, "--threads", str(threads)], check=True, capture_output=True)
    return page, time.monotonic() - begin


def opened(page, times=5):
    """Seconds until the first map is drawn."""
    from playwright.sync_api import sync_playwright
    seconds = []
    with sync_playwright() as playwright:
        browser = screenshots.launch(playwright)
        for _ in range(times):
            tab = browser.new_page()
            tab.goto(page.resolve().as_uri())
            tab.wait_for_selector("#map[data-whole=true]", state="attached")
            seconds.append(tab.evaluate(DRAWN) / 1000)
            tab.close()
        browser.close()
    return statistics.median(seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("attend", type=pathlib.Path)
    parser.add_argument("--length", type=int, nargs="*", default=[16, 512, 4096, 131072])
    parser.add_argument("--folder", type=pathlib.Path, help="keeps the files there")
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    print("| tokens | heads | page | written in | opens in |\n|---|---|---|---|---|")
    for length in options.length:
        with tempfile.TemporaryDirectory() as temporary:
            folder = (options.folder or pathlib.Path(temporary)) / str(length)
            folder.mkdir(parents=True, exist_ok=True)
            heads = draw(folder, length)
            page, seconds = write(options.attend, folder, options.threads)
            size = page.stat().st_size / 2**20
            print(f"| {length} | {heads} | {size:.1f} MiB | {seconds:.1f} s | {opened(page):.2f} s |", flush=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Takes pictures of a page that `attend view` wrote, in a headless Chromium: at three widths, light and dark.

    tools/screenshots.py PAGE.html FOLDER [--address '#layer=0&head=3'] [--width 1440] [--height 900]
                         [--scheme dark] [--whole]

Needs Debian's chromium and the package playwright. --whole takes the page down to its end, not one screen.
"""
import argparse
import pathlib
import shutil
import sys


def browser_path():
    """Where Chromium is installed, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def launch(playwright):
    return playwright.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])


def take(browser, page, file, size, scheme, whole, address=""):
    context = browser.new_context(viewport=dict(zip(("width", "height"), size)), color_scheme=scheme)
    tab = context.new_page()
    tab.goto(page.resolve().as_uri() + address)
    tab.wait_for_selector("#map[data-whole=true], .problem, #one.empty", state="attached")
    tab.wait_for_timeout(300)   # thumbnails come into sight one by one
    tab.screenshot(path=file, full_page=whole)
    drawn = tab.evaluate("() => performance.getEntriesByName('drawn')[0]?.startTime ?? NaN")
    context.close()
    return drawn


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("page", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--address", default="")
    parser.add_argument("--width", type=int, nargs="*", default=[360, 768, 1440])
    parser.add_argument("--height", type=int, default=900)
    parser.add_argument("--scheme", nargs="*", default=["light", "dark"])
    parser.add_argument("--whole", action="store_true")
    options = parser.parse_args()
    if not browser_path():
        sys.exit("screenshots.py: no Chromium is installed (Debian's package chromium)")
    from playwright.sync_api import sync_playwright
    options.folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = launch(playwright)
        for width in options.width:
            for scheme in options.scheme:
                file = options.folder / f"{options.page.stem}-{width}-{scheme}.png"
                drawn = take(browser, options.page, file, (width, options.height), scheme, options.whole,
                             options.address)
                print(f"{file}: {file.stat().st_size / 1e3:.0f} kB, the map was drawn after {drawn:.0f} ms")
        browser.close()


if __name__ == "__main__":
    main()

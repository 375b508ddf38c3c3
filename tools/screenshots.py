#!/usr/bin/env python3
"""Takes pictures of a page that `attend view` wrote, in a headless Chromium: at three sizes, light and dark.

    tools/screenshots.py PAGE.html FOLDER [--address '#layer=0&head=3'] [--size 1440x900] [--scheme dark] [--whole]
    tools/screenshots.py --docs

Needs Debian's chromium and the package playwright. --whole takes the page down to its end, not one screen.
--docs makes the pictures of docs/images anew, of pages that tests/web/fixtures.py writes (minutes; needs NumPy).
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
    tab.evaluate("() => window.attend?.settled()")
    tab.wait_for_timeout(300)   # thumbnails come into sight one by one
    tab.screenshot(path=file, full_page=whole)
    drawn = tab.evaluate("() => performance.getEntriesByName('drawn')[0]?.startTime ?? NaN")
    context.close()
    return drawn


def document(browser):
    """The pictures of the documents: a small page, all heads asked for one cell, that on a phone too, tiles and cells, and a figure."""
    root = pathlib.Path(__file__).resolve().parents[1]
    sys.path.insert(0, str(root / "tests" / "web"))
    import fixtures
    import tempfile
    images, place = root / "docs" / "images", "#layer=7&head=8&cell=300,294&chosen=300"
    with tempfile.TemporaryDirectory() as folder:
        small, large = pathlib.Path(folder) / "small.html", pathlib.Path(folder) / "large.html"
        small.write_text(fixtures.six_tokens(), encoding="utf-8")
        large.write_text(fixtures.text_model(), encoding="utf-8")
        take(browser, small, images / "page.png", (1440, 900), "light", False, "#head=7&cell=4,1&chosen=4")
        take(browser, large, images / "page_heads.png", (1440, 900), "light", False, f"{place}&sort=selection")
        take(browser, large, images / "page_tiles.png", (1440, 900), "dark", False,
             "#layer=7&head=7&cell=300,294&chosen=300&zoom=286,306,280,304")
        take(browser, large, images / "page_phone.png", (390, 844), "light", False, f"{place}&sort=selection")
        tab = browser.new_page(viewport={"width": 1440, "height": 900})
        tab.goto(large.as_uri() + "#layer=7&head=7&zoom=290,306,284,300&bend=sqrt")
        tab.wait_for_selector("#map[data-whole=true]", state="attached")
        with tab.expect_download() as download:
            tab.click('[data-export="png"]')
        download.value.save_as(images / "page_figure.png")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("page", type=pathlib.Path, nargs="?")
    parser.add_argument("folder", type=pathlib.Path, nargs="?")
    parser.add_argument("--docs", action="store_true", help="the pictures of docs/images")
    parser.add_argument("--address", default="")
    parser.add_argument("--size", nargs="*", default=["1440x900", "800x600", "390x844"])
    parser.add_argument("--scheme", nargs="*", default=["light", "dark"])
    parser.add_argument("--whole", action="store_true")
    options = parser.parse_args()
    if not browser_path():
        sys.exit("screenshots.py: no Chromium is installed (Debian's package chromium)")
    if not options.docs and not options.folder:
        parser.error("a page and a folder, or --docs")
    from playwright.sync_api import sync_playwright
    with sync_playwright() as playwright:
        browser = launch(playwright)
        if options.docs:
            return document(browser)
        options.folder.mkdir(parents=True, exist_ok=True)
        for size in options.size:
            for scheme in options.scheme:
                file = options.folder / f"{options.page.stem}-{size}-{scheme}.png"
                drawn = take(browser, options.page, file, map(int, size.split("x")), scheme, options.whole, options.address)
                print(f"{file}: {file.stat().st_size / 1e3:.0f} kB, the map was drawn after {drawn:.0f} ms")
        browser.close()


if __name__ == "__main__":
    main()

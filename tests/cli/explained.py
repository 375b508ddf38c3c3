"""What the tests of `attend explain` and `attend demo` share. Both are run with the letters and without
the colours of a terminal."""
import json
import os
import re
import unicodedata

from command import CommandTest

os.environ["LC_ALL"] = "C.UTF-8"
os.environ["NO_COLOR"] = ""


def width(line):
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line)


def matrices(explained):
    return {m["name"]: m for step in explained["steps"] for m in step["matrices"]}


class ExplainTest(CommandTest):
    def close_rows(self, found, wanted, allowed=5.1e-8):
        self.assertEqual([len(row) for row in found], [len(row) for row in wanted])
        for a, b in zip(found, wanted):
            for x, y in zip(a, b):
                self.assertAlmostEqual(x, y, delta=allowed)

    def page_data(self, name="page.html"):
        page = (self.folder / name).read_text()
        return page, json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])

#!/usr/bin/env python3
"""What `attend demo` computes and shows, in both languages.
usage: demo_test.py PATH_OF_ATTEND"""
import re

import command
from explained import ExplainTest, width


class Demo(ExplainTest):
    def test_all_of_it(self):
        self.assertEqual(list(self.folder.iterdir()), [])
        found = self.run_json("demo")
        self.assertEqual([path.name for path in self.folder.iterdir()], ["attend-demo.html"])
        self.assertTrue(found["passed"])
        self.assertGreater(found["seconds"], 0)
        self.close_rows([found["single_head"]["output"]], [[0.9223615, 2.1552770, 0.7428167, 2.5143666]])
        heads = {head["name"]: head for head in found["sentence"]["heads"]}
        self.assertEqual(len(heads), 8)
        built = [head for head in heads.values() if head["least"] is not None]
        self.assertEqual(len(built), 6)
        for head in built:
            self.assertGreaterEqual(head["least"], 0.95, head["name"])
        self.assertGreaterEqual(heads["noun to the next verb"]["weights"][1][2], 0.95)      # cat -> sat
        self.assertGreaterEqual(heads["determiner to its noun"]["weights"][4][5], 0.95)     # the -> mat
        self.assertGreaterEqual(heads["preposition to its object"]["weights"][3][5], 0.95)  # on -> mat
        self.assertGreaterEqual(heads["preposition to its object"]["weights"][1][0], 0.95)  # rests
        self.close_rows(heads["uniform"]["weights"], [[1 / 6] * 6] * 6, 1e-6)
        for row in heads["random, a control"]["weights"]:
            self.assertAlmostEqual(sum(row), 1, delta=1e-5)
        training = found["training"]
        self.assertGreater(training["losses"][0], 3)
        self.assertLess(training["losses"][-1], 0.3)
        page = (self.folder / "attend-demo.html").read_text()
        self.assertIn("before training", page)
        self.assertIn("after training", page)
        self.assertIn('"open":1', page)                       # the page opens on what was learned
        self.assertLess(max(training["before"][1]), 0.3)
        self.assertGreater(max(training["after"][1]), 0.8)

    def test_text(self):
        self.fails(2, "cannot be written", "demo", "--html", "no_folder/p.html")
        text = self.run_ok("demo", "--html", "p.html")
        self.assertTrue((self.folder / "p.html").exists())
        first = text.split("2  ")[0].split("every number)")[1].strip("\n")
        self.assertEqual(len(first.splitlines()), 7)
        self.assertIn("CONSTRUCTED", text)
        self.assertRegex(text, r"step +25   loss \d\.\d{4}")
        self.assertIn("all checks hold", text)
        self.assertIn("right after the last occurrence of the", text)
        for line in text.splitlines():
            self.assertLessEqual(width(line), 80, line)

    def test_chinese(self):
        """All of it: of English there are names of tokens, flags and files, and letters of formulas."""
        text = self.run_ok("demo", "--language", "zh", "--html", "p.html")
        for part in ("1  一个头，两个词元", "人工构造", "归纳头", "所有检查都通过", "训练前", "损失"):
            self.assertIn(part, text)
        for line in text.splitlines():
            self.assertLessEqual(width(line), 80, line)
        words = set(re.findall(r"[a-zA-Z]{4,}", re.sub(r"attend explain single-head --language", "", text)))
        self.assertEqual(words - {"softmax", "sqrt", "html"}, set())
        page = (self.folder / "p.html").read_text()
        self.assertIn('"language":"zh"', page)
        self.assertIn("归纳头：训练前与训练后", page)


if __name__ == "__main__":
    command.main()

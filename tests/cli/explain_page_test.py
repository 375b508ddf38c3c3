#!/usr/bin/env python3
"""The page of `attend explain`: it asks for nothing from outside, and each of its numbers leads to where it
came from.
usage: explain_page_test.py PATH_OF_ATTEND"""
import base64
import hashlib
import html
import json
import math
import re
import shutil
import subprocess
import unittest

import command
from command import numbers
from explained import ExplainTest, matrices


class Page(ExplainTest):
    def test_nothing_is_asked_from_outside(self):
        """The policy allows the one script and the one style by their hashes, and nothing else."""
        self.run_ok("explain", "two-heads", "--html", "page.html")
        page, _ = self.page_data()
        policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
        self.assertTrue(policy.startswith("default-src 'none';"))
        for tag, source in (("style", "style-src"), ("script", "script-src")):
            inside = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S)
            self.assertEqual(len(inside), 1)
            digest = base64.b64encode(hashlib.sha256(inside[0].encode()).digest()).decode()
            self.assertIn(f"{source} 'sha256-{digest}'", policy)
        self.assertNotRegex(page, r"https?://|src=|href=|url\(|@import")

    def test_each_number_leads_to_where_it_came_from(self):
        self.run_ok("explain", "two-heads", "--html", "page.html")
        _, data = self.page_data()
        all_of_them = matrices(data)
        text, sources = all_of_them["S_0"]["how"][0][1]
        self.assertEqual(text, "0 x (-0.27) + 1.45 x 0.94 = 1.363")
        self.assertEqual(sources, [["Q_0", 0, 0], ["K_0", 1, 0], ["Q_0", 0, 1], ["K_0", 1, 1]])
        self.assertEqual(all_of_them["concat"]["how"][1][2][1], [["O_1", 1, 0]])
        self.assertEqual(all_of_them["X"]["how"][0][0], ["", []])
        # Every source exists, and every cell that is not given has one.
        for name, matrix in all_of_them.items():
            for row in matrix["how"]:
                for text, sources in row:
                    self.assertEqual(matrix["rule"] == "given", not sources, name)
                    for source, r, c in sources:
                        self.assertIsNotNone(all_of_them[source]["values"][r][c])

    def test_derivations_add_up(self):
        """What stands before the last `=` gives what stands behind it."""
        self.run_ok("explain", "two-heads", "--html", "page.html")
        _, data = self.page_data()
        checked = 0
        for matrix in matrices(data).values():
            for row in matrix["how"]:
                for text, _ in row:
                    if " = " not in text:
                        continue
                    left, right = text.rsplit(" = ", 1)
                    python = re.sub(r"exp (\(?-?[\d.e-]+\)?)", r"exp(\1)", left.replace(" x ", " * "))
                    value = eval(python, {"exp": math.exp, "log": math.log})
                    self.assertAlmostEqual(value, float(right), delta=2e-6, msg=text)
                    checked += 1
        self.assertGreater(checked, 60)

    def test_hostile_tokens(self):
        hostile = ["</script><script>alert(1)</script>", "<!--", "\u2028", "\x1b[31mred", "\u202eabc", "&amp;"]
        (self.folder / "t.json").write_text(json.dumps(hostile))
        for name in "qkv":
            self.save(f"{name}.npy", numbers((6, 3), ord(name)))
        out = self.run_ok("explain", "q.npy", "k.npy", "v.npy", "--tokens", "t.json", "--html", "page.html")
        self.assertNotIn("\x1b", out)
        self.assertNotIn("\u202e", out)
        self.assertIn("\\x1b[31m", out)
        page, data = self.page_data()
        self.assertEqual(data["tokens"], hostile)
        self.assertEqual(page.count("</script>"), 2)
        self.assertNotIn("<!--", page)
        self.assertNotIn("\u2028", page)

    def in_browser(self, script):
        """What a script finds that runs behind the page's own, in a browser."""
        page = (self.folder / "page.html").read_text()
        page = re.sub(r"<meta http-equiv[^>]*>", "", page)   # or it would not let the script in
        page = page.replace("</html>", f"<script>document.body.dataset.found = JSON.stringify((() => {{{script}}})());"
                                       "</script></html>")
        (self.folder / "driven.html").write_text(page)
        done = subprocess.run(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={self.folder}/c",
             "--virtual-time-budget=5000", "--dump-dom", f"file://{self.folder}/driven.html"],
            text=True, capture_output=True)
        found = re.search(r'data-found="([^"]*)"', done.stdout)
        self.assertTrue(found, done.stderr)
        return json.loads(html.unescape(found[1]))

    @unittest.skipUnless(shutil.which("chromium"), "no chromium")
    def test_in_a_browser(self):
        """Pointing, walking with keys, keeping and letting go, going to a source, the other language."""
        self.run_ok("explain", "single-head", "--html", "page.html")
        found = self.in_browser("""
            const cell = (name, r, c) => cells.get(keyOf(name, r, c)), text = () => panel.innerText;
            const marked = () => [...document.querySelectorAll("td.source")].map((td) => td.dataset.at);
            const press = (td, key) => td.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
            const steps = [cell("A", 0, 0).textContent];
            cell("S", 0, 1).dispatchEvent(new MouseEvent("mouseover", { bubbles: true }));
            steps.push(text(), marked());
            cell("S", 0, 1).focus();
            press(cell("S", 0, 1), "ArrowDown");
            steps.push(document.activeElement.dataset.at, text());
            cell("O", 0, 0).click();
            cell("A", 0, 0).dispatchEvent(new MouseEvent("mouseover", { bubbles: true }));
            steps.push(text());
            press(cell("O", 0, 0), "Escape");
            steps.push(text());
            cell("A", 0, 0).focus();
            panel.querySelector("button").click();
            steps.push(document.activeElement.dataset.at);
            document.getElementById("language").click();
            steps.push(document.documentElement.lang, document.querySelector("h1").textContent);
            return steps;""")
        self.assertEqual(found[0], "0.0776385")
        self.assertIn("S[0, 1] = 10", found[1])
        self.assertIn("1 x 1 + 3 x 3 = 10", found[1])
        self.assertEqual([json.loads(at) for at in found[2]],
                         [["Q", 0, 0], ["Q", 0, 1], ["K", 1, 0], ["K", 1, 1]])
        self.assertEqual(json.loads(found[3]), ["S", 1, 1])
        self.assertIn("2 x 1 + 0.5 x 3 = 3.5", found[4])
        self.assertIn("O[0, 0]", found[5])   # it was kept
        self.assertIn("Point at a number", found[6])
        self.assertEqual(json.loads(found[7]), ["Z", 0, 0])
        self.assertEqual(found[8:], ["zh-CN", "单头注意力：两个词元，逐步计算"])

    @unittest.skipUnless(shutil.which("chromium"), "no chromium")
    def test_the_policy_lets_the_page_draw_itself(self):
        self.run_ok("explain", "sentence", "--language", "zh", "--html", "page.html")
        done = subprocess.run(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={self.folder}/c",
             "--virtual-time-budget=5000", "--dump-dom", f"file://{self.folder}/page.html"],
            text=True, capture_output=True)
        self.assertTrue('<td tabindex="0"' in done.stdout)
        self.assertTrue('lang="zh-CN"' in done.stdout)


if __name__ == "__main__":
    command.main()

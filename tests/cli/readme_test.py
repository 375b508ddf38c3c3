#!/usr/bin/env python3
"""Do the README's command lines run in order, with no other file than the README?

usage: readme_test.py PATH_OF_ATTEND. Left out are demo, check and train: they take long and have tests of their own.
"""
import pathlib
import re
import shlex
import shutil
import unittest

import command
from command import CommandTest

README = pathlib.Path(__file__).parents[2] / "README.md"
LONG = ("demo", "check", "train")


class Readme(CommandTest):
    def test_the_command_lines_run_in_order(self):
        shutil.copy(README, self.folder)
        blocks = re.findall(r"^```\n(attend .*?)^```$", README.read_text(), re.M | re.S)
        lines = [shlex.split(line, comments=True)[1:] for block in blocks for line in block.splitlines()]
        self.assertGreater(len(lines), 8)
        for words in lines:
            if words[0] not in LONG:
                with self.subTest(" ".join(words)):
                    self.run_ok(*words)
        written = {path.name for path in self.folder.iterdir()}
        self.assertLessEqual({"two-heads.html", "y.npy", "t.safetensors", "heads.npy", "page.html"}, written)


if __name__ == "__main__":
    command.main()

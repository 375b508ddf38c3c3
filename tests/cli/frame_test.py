#!/usr/bin/env python3
"""Help, version, completion, manual page, info, check. usage: frame_test.py PATH_OF_ATTEND"""
import json
import os
import pathlib
import pty
import re
import select
import shlex
import shutil
import subprocess
import unittest

import command
from command import CommandTest, attend

COMMANDS = ["apply", "bench", "check", "demo", "explain", "info", "inspect", "train", "view", "completion",
            "man"]


class Help(CommandTest):
    def test_lists_all_commands(self):
        text = self.run_ok("--help")
        found = re.findall(r"^  (\w+) ", text[text.index("Commands:"):], re.M)
        self.assertEqual(sorted(found), sorted(COMMANDS))

    def test_each_command_has_an_example(self):
        for name in COMMANDS:
            text = self.run_ok(name, "--help")
            self.assertRegex(text, rf"Example:\n  attend {name}", name)
            if name not in ("completion", "man"):
                for flag in ("--json", "--threads", "--seed"):
                    self.assertIn(flag, text, name)

    def test_usage_says_how_arguments_come(self):
        for name, usage in (("view", "[FILES...]"), ("inspect", "[FILES...]"), ("explain", "subject..."),
                            ("completion", "[shell]")):
            self.assertIn(f"Usage: attend {name} [OPTIONS] {usage}\n", self.run_ok(name, "--help"))

    def test_schemas_have_the_name_of_their_command(self):
        for name, words in (("info", []), ("check", ["--reduced", "--type", "f32"]), ("bench", ["--quick", "--peak"]),
                            ("apply", ["--length", 2, "--d-k", 2]), ("explain", ["single-head"]),
                            ("train", ["--steps", 1, "--model-dim", 4, "--heads", 1, "--batch", 1])):
            self.assertEqual(self.run_json(name, *words)["schema"], f"attend.{name}/1")
        self.run_ok("apply", "--model-dim", 8, "--heads", 2, "--length", 3, "--trace", "t.safetensors")
        for name in ("inspect", "view"):
            self.assertEqual(self.run_json(name, "t.safetensors")["schema"], f"attend.{name}/1")

    def test_version(self):
        self.assertRegex(self.run_ok("--version"), r"^attend \d+\.\d+\.\d+\n$")


class Completion(CommandTest):
    def complete(self, *words):
        """What bash would offer for the last word."""
        script = self.run_ok("completion", "bash")
        words = " ".join(f"'{word}'" for word in ("attend", *words))
        program = (f"{script}\nCOMP_WORDS=({words})\nCOMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n"
                   "_attend\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n")
        done = subprocess.run(["bash", "-c", program], text=True, capture_output=True, cwd=self.folder)
        self.assertEqual(done.stderr, "")
        return done.stdout.split()

    @unittest.skipUnless(shutil.which("bash"), "no bash")
    def test_bash(self):
        script = self.folder / "attend.bash"
        script.write_text(self.run_ok("completion", "bash"))
        subprocess.run(["bash", "-n", script], check=True)
        self.assertEqual(sorted(self.complete("")), sorted(COMMANDS + ["--help", "--version"]))
        self.assertEqual(self.complete("inf"), ["info"])
        self.assertEqual(self.complete("apply", "--caus"), ["--causal"])
        self.assertEqual(self.complete("apply", "--type", ""), ["f64", "f32", "bf16", "f16"])
        self.assertEqual(self.complete("completion", "z"), ["zsh"])
        (self.folder / "single.npy").touch()
        for words, wanted in ((["s"], ["single-head", "sentence", "shapes", "single.npy"]),
                              (["--language", "zh", "t"], ["two-heads"]), (["sin"], ["single-head", "single.npy"])):
            self.assertEqual(self.complete("explain", *words), wanted)
        self.assertEqual(self.complete("view", "si"), ["single.npy"])
        flags = re.findall(r"^\s+(?:-\w,)?(--[a-z-]+)", self.run_ok("apply", "--help"), re.M)
        self.assertEqual(sorted(self.complete("apply", "--")), sorted(set(flags)))

    def test_zsh(self):
        script = self.run_ok("completion", "zsh")
        self.assertTrue(script.startswith("#compdef attend\n"))
        for name in COMMANDS:
            self.assertIn(f"'{name}:", script)
        self.assertIn("'--type[", script)
        self.assertIn("(f64 f32 bf16 f16)", script)
        self.assertIn("'*:subject:{ compadd single-head two-heads sentence shapes; _files }'", script)
        self.assertIn("'*:FILES:_files'", script)
        if shutil.which("zsh"):
            path = self.folder / "_attend"
            path.write_text(script)
            subprocess.run(["zsh", "-n", path], check=True)


class Manual(CommandTest):
    def test_page(self):
        page = self.run_ok("man")
        for name in COMMANDS:
            self.assertIn(f'.SS "attend {name}"', page)
        self.assertNotIn("ATTEND a", page)
        self.assertIn("\\-\\-save\\-lse", page)
        self.assertEqual(re.findall(r"^\.B (\d+)$", page, re.M), ["0", "1", "2", "3", "4", "130"])
        if not shutil.which("groff"):
            return
        done = subprocess.run(["groff", "-man", "-Tutf8", "-ww"], input=page, text=True,
                              capture_output=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("EXIT STATUS", re.sub(r"\x1b\[\d*m|.\x08", "", done.stdout))


class Info(CommandTest):
    def test_machine(self):
        found = self.run_json("info")
        self.assertEqual(list(found), ["schema", "version", "machine", "kernels"])
        self.assertEqual(found["schema"], "attend.info/1")
        self.assertIn("reference.forward", [kernel["name"] for kernel in found["kernels"]])
        self.assertEqual(self.run_json("info", "--threads", 3)["machine"]["threads"], 3)
        self.assertIn("reference.forward", self.run_ok("info"))

    def test_costs(self):
        """The parameters of one head of 64, of one of full width, and of eight heads; and where
        attention costs as much as its projections."""
        words = ("info", "--model-dim", 512, "--heads", 8, "--batch", 32, "--length", 20)
        costs = self.run_json(*words)["costs"]
        self.assertEqual(costs["single_head"]["weights"], 98_304)
        self.assertEqual(costs["single_head_full_width"]["weights"], 786_432)
        many = costs["multi_head"]
        self.assertEqual((many["weights"], many["biases"]), (1_048_576, 2_048))
        self.assertEqual(many["projection_flops"], 32 * 8 * 20 * 512**2)
        self.assertEqual(many["attention_flops"], 32 * 4 * 20**2 * 512)
        self.assertEqual(many["equal_length"], 1024)
        self.assertEqual(many["matrix_bytes"], 32 * 8 * 20 * 20 * 4)
        self.assertEqual(many["cache_bytes"], 32 * 20 * 2 * 512 * 4)
        text = self.run_ok(*words)
        for number in ("98,304", "786,432", "1,048,576", "2,048", "1,024"):
            self.assertIn(number, text)
        equal = self.run_json("info", "--model-dim", 512, "--heads", 8, "--length", 1024)["costs"]
        self.assertEqual(equal["multi_head"]["projection_flops"], equal["multi_head"]["attention_flops"])

    def test_every_size(self):
        found = self.run_json("info", "--model-dim", 10, "--heads", 6, "--key-heads", 2, "--d-k", 3,
                              "--d-v", 5, "--key-dim", 7, "--value-dim", 4, "--layers", 3, "--batch", 2,
                              "--length", 4, "--key-length", 6, "--causal", "--no-projection-bias",
                              "--type", "bf16")["costs"]["multi_head"]
        weights = 10 * 18 + 7 * 6 + 4 * 10 + 30 * 10
        self.assertEqual((found["weights"], found["biases"]), (3 * weights, 0))
        pairs = 3 + 4 + 5 + 6
        self.assertEqual(found["attention_flops"], 3 * 2 * 6 * pairs * 2 * (3 + 5))
        self.assertEqual(found["projection_flops"], 3 * 2 * 2 * (4 * (180 + 300) + 6 * (42 + 40)))
        self.assertEqual(found["cache_bytes"], 3 * 2 * 6 * (6 + 10) * 2)
        less = self.run_json("info", "--model-dim", 8, "--heads", 2, "--no-output-projection")
        self.assertEqual(less["costs"]["multi_head"]["weights"], 3 * 64)


class Check(CommandTest):
    CASE = "type=bf16 heads=4 kv_heads=2 q=33 k=65 causal=1"

    def test_passes(self):
        found = self.run_json("check", "--reduced", "--type", "f32")
        self.assertEqual(found["schema"], "attend.check/1")
        self.assertTrue(found["passed"])
        self.assertEqual(found["cases"], len(self.run_json("check", "--reduced", "--type", "f32",
                                                           "--list")["cases"]))
        self.assertGreater(found["runs"], 2 * found["cases"])
        text = self.run_ok("check", "--case", self.CASE, "--kernel", "reference.forward")
        self.assertRegex(text, r"reference\.forward +bf16 +1 +0 +0")
        self.assertEqual(self.run_ok("check", "--case", self.CASE, "--list").count("\n"), 1)

    def test_fails_where_too_little_is_allowed(self):
        """A thousandth of the allowed error is less than what rounding to bf16 costs. The last line
        of a failure repeats it."""
        done = attend("check", "--case", self.CASE, "--tolerance", 1e-3, "--json")
        self.assertEqual(done.status, 1, done.err)
        found = json.loads(done.out)
        self.assertFalse(found["passed"])
        self.assertGreaterEqual(found["failed"], 2)
        message = found["failures"][0]["message"]
        self.assertIn("allowed error", message)
        again = re.fullmatch(r"reproduce: attend check --case='([^']+)'", message.splitlines()[-1])[1]
        done = attend("check", "--case", again, "--tolerance", 1e-3)
        self.assertEqual(done.status, 1)
        self.assertIn(message, done.out)


class Documents(CommandTest):
    def test_examples_print_what_the_page_says(self):
        """A block of docs/command.md is a command and its output; `...` stands for anything in a line, and
        alone for any lines."""
        page = (pathlib.Path(__file__).parents[2] / "docs/command.md").read_text()
        blocks = re.findall(r"^```console\n\$ attend (.*)\n((?:.*\n)*?)^```$", page, re.M)
        blocks = [block for block in blocks if not block[0].startswith("train")]   # train_test.py
        self.assertEqual(len(blocks), 11)
        for words, wanted in blocks:
            pattern = "".join(r"(?:.*\n)*?" if line == "..." else
                              re.escape(line).replace(re.escape("..."), ".*") + r"\n"
                              for line in wanted.splitlines())
            self.assertRegex(self.run_ok(*shlex.split(words)), rf"\A{pattern}\Z", words)


class Terminal(CommandTest):
    def on_terminal(self, *arguments, env=None):
        """stderr of a command whose stderr is a terminal."""
        main, end = pty.openpty()
        process = subprocess.Popen([command.ATTEND, *arguments], stdout=subprocess.DEVNULL, stderr=end,
                                   env={**os.environ, "TERM": "xterm", **(env or {})})
        os.close(end)
        shown = b""
        while process.poll() is None or select.select([main], [], [], 0)[0]:
            if select.select([main], [], [], 0.1)[0]:
                try:
                    shown += os.read(main, 4096)
                except OSError:   # the other end is closed
                    break
        os.close(main)
        self.assertEqual(process.wait(), 0)
        return shown.decode()

    def test_progress_on_a_terminal_only(self):
        words = ("check", "--reduced", "--type", "f64", "--threads", "1")   # what takes a moment shows some
        os.environ.pop("NO_COLOR", None)
        shown = self.on_terminal(*words)
        self.assertIn("checking [", shown)
        self.assertIn("\x1b[36m", shown)
        self.assertTrue(shown.endswith("\r\x1b[K"), shown[-40:])   # nothing stays
        self.assertNotIn("\x1b[36m", self.on_terminal(*words, env={"NO_COLOR": "1"}))
        self.assertEqual(attend(*words).err, "")


if __name__ == "__main__":
    command.main()

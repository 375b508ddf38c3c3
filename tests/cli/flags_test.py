#!/usr/bin/env python3
"""Every flag of every command, read off its help, with values that it cannot take: empty, not a number,
infinite, negative, past 2^64, a folder, a missing file, junk. Each must end with status 2, one line that
names the flag or the value, and no file more. usage: flags_test.py PATH_OF_ATTEND"""
import concurrent.futures
import os
import re
import subprocess

import command
from command import CommandTest, attend, numbers, save_safetensors

BIG = str(2**64)
JUNK = ["nan", "inf", "-inf", "-1", BIG, "1e400", "junk", "[]", "-", "1,,2"]

# What a flag of a type refuses, as its help names the type. An entry by the flag's own name comes first.
REFUSED = {
    "N": [*JUNK, "1.5", "0x", "1,2", "+-1", " 1", "folder"],
    "X": ["nan", "inf", "-inf", "1e400", "junk", "[]", "-", "1,,2", "0x10", "1,2", "folder"],
    "FILE": ["folder", "folder.npy", "missing", "missing.npy", "broken.npy", "broken.safetensors",
             "missing.safetensors:x", "layer.safetensors:", *JUNK],
    "FILE|N,N": ["folder", "folder.npy", "missing.npy", "broken.npy", "1e400", BIG + ",1e400", "nan", "inf",
                 "1,,2", ",", "junk", "1;2", "layer.safetensors:"],
    "N,N,N,N,N": [*JUNK, "1,2,3,4", "1,2,3,4,5,6", "1,2,3,4,-5", "folder"],
    "N,N,N,N,N,N": [*JUNK, "1,2,3", "0,0,0,1,0,1,1", "0,0,0,1,0,nan", "folder"],
    "NAME": [*JUNK, "folder"],
    "NAME,...": [*JUNK, ",", "folder"],
    "WORDS": [*JUNK, "folder", "heads=x"],
    "REGEX": ["(", "["],
    "TEXT": [],       # any text is one, but for the empty one
    "WORD": [*JUNK, "folder"],
    # Files that are written: any name is one, unless something else is there.
    "OUTPUT": ["folder", "folder.npy", "folder.html", "missing/x.npy", "missing/x.html", "file/x.npy",
               "loop.npy", "loop.html", "missing/x.safetensors"],
    # Text files: of tokens, or to train on.
    "--tokens": ["folder", "missing", "broken.json", "empty"],
    "--key-tokens": ["folder", "missing", "broken.json", "empty"],
    "train --text": ["folder", "missing", "empty", "bytes"],
}
OUTPUTS = {"--output", "--save", "--save-weights", "--save-lse", "--save-scores", "--save-layer",
           "--save-input", "--trace", "--html", "--plot", "--checkpoint"}

# Numbers that are allowed after all, and why.
ALLOWED = {"--query-offset": ["-1"],       # a query may stand before the first key
           "--key-offset": ["-1"],         # and a key before the first of the whole
           "--scale": ["-1", BIG]}

# A call of each command that is in order as it stands, short, and writes nothing.
BASES = {"apply": ["--length", "2", "--d-k", "2"],
         "bench": ["--list"],
         "check": ["--reduced", "--list"],
         "demo": [],
         "explain": ["q.npy", "k.npy", "v.npy"],
         "info": ["--model-dim", "8"],
         "inspect": ["--q", "q.npy", "--k", "k.npy"],
         "train": ["--steps", "1", "--model-dim", "4", "--heads", "1", "--batch", "1"],
         "view": ["--q", "q.npy", "--k", "k.npy"],
         "completion": [],
         "man": []}
# What a flag needs beside it to be looked at.
WITH = {"explain --batch": ["shapes"], "explain --length": ["shapes"], "explain --model-dim": ["shapes"],
        "explain --save-layer": ["sentence"], "explain --save-input": ["sentence"],
        "apply --input": ["--heads", "1"], "apply --query": ["--heads", "1"],
        "apply --memory": ["--query", "x.npy"], "apply --key": ["--query", "x.npy"],
        "apply --value": ["--query", "x.npy", "--key", "x.npy"],
        "apply --weights": ["--input", "x.npy"],
        "apply --k": ["--q", "q.npy", "--v", "v.npy"], "apply --q": ["--k", "k.npy", "--v", "v.npy"],
        "apply --v": ["--q", "q.npy", "--k", "k.npy"],
        "apply --cross-mask": ["--block", "--cross", "--model-dim", "8", "--length", "2"],
        "apply --cross-key-lengths": ["--block", "--cross", "--model-dim", "8", "--length", "2"],
        "apply --save-layer": ["--model-dim", "8", "--length", "2"],
        "apply --block-table": ["--length", "2", "--d-k", "2", "--key-lengths", "2"],
        "apply --cu-seqlens-k": ["--length", "2", "--d-k", "2", "--cu-seqlens-q", "0,2"],
        "inspect --q": ["--k", "k.npy"], "inspect --k": ["--q", "q.npy"],
        "view --q": ["--k", "k.npy"], "view --k": ["--q", "q.npy"],
        **{f"{name} {flag}": more for name in ("inspect", "view") for flag, more in (
            ("--weights", ["--input", "x.npy"]), ("--input", ["--weights", "layer.safetensors"]),
            ("--query", ["--weights", "layer.safetensors", "--memory", "x.npy"]),
            ("--memory", ["--weights", "layer.safetensors", "--query", "x.npy"]))},
        "bench --save": ["--peak", "--quick", "--filter", "T10"],
        "check --tolerance": ["--reduced", "--list"]}


class Flag:
    def __init__(self, command_name, name, type):
        self.command, self.name = command_name, name
        if name in OUTPUTS:
            type = "OUTPUT"
        elif "|" in type and type != "FILE|N,N":
            type = "WORD"
        self.type = type
        self.key = f"{command_name} {name}"

    def words(self, value):
        """The command line that gives this value."""
        more = WITH.get(self.key, BASES[self.command])
        given = [value] if not self.name.startswith("-") else [self.name, value]
        return [self.command, *more, *given] if given[0] != value else [self.command, *given]

    def refused(self):
        for key in (self.key, self.name, self.type):
            if key in REFUSED:
                values = REFUSED[key]
                break
        return ["", *(v for v in values if v not in ALLOWED.get(self.name, []))]


def flags_of(name):
    """[Flag] of a command, from its help: every line that begins with a flag that takes a value."""
    found = []
    text = attend(name, "--help").out
    for line in text.split("Example:")[0].splitlines():
        match = re.match(r"  (?:-\w,)?(--[a-z-]+) ?(\S*)", line)
        if match and re.fullmatch(r"[A-Z][A-Z,|.]*(=\S+)?|[a-z_0-9]+(\|[a-z_0-9]+)+", match[2]):
            found.append(Flag(name, match[1], match[2].split("=")[0]))
    return found


class FlagsTest(CommandTest):
    def setUp(self):
        super().setUp()
        for name, seed in (("q", 1), ("k", 2), ("v", 3)):
            self.save(f"{name}.npy", numbers((1, 2, 3, 4), seed))
        self.save("x.npy", numbers((1, 3, 8), 4))
        save_safetensors(self.folder / "layer.safetensors",
                         {f"{name}.weight": numbers((8, 8), n) for n, name in enumerate("qkvo")},
                         {"heads": "2"})
        for name in ("folder", "folder.npy", "folder.html"):
            (self.folder / name).mkdir()
        for name, data in (("broken.npy", b"\x93NUMPY\x01\x00"), ("broken.safetensors", b"\xff" * 9),
                           ("broken.json", b'["\\ud800"]'), ("empty", b""), ("file", b"x"),
                           ("bytes", b"\xff" * 9)):
            (self.folder / name).write_bytes(data)
        for name in ("loop.npy", "loop.html"):
            (self.folder / name).symlink_to(name)


class Sweep(FlagsTest):
    def listing(self):
        return sorted((str(path), os.lstat(path).st_mtime_ns) for path in self.folder.rglob("*"))

    def complaint(self, flag, value):
        """What is wrong with the answer to a value; nothing, if all is right."""
        words = flag.words(value)
        done = subprocess.run([command.ATTEND, *words], cwd=self.folder, capture_output=True, text=True,
                              errors="replace", stdin=subprocess.DEVNULL)
        told = value != "" and value.split(":")[0] in done.stderr or flag.name in done.stderr
        if (done.returncode == 2 and done.stderr.count("\n") == 1 and done.stdout == "" and told):
            return None
        return f"{words}: {done.returncode} {done.stderr[:300]!r} {done.stdout[:100]!r}"

    def sweep(self, flags):
        before = self.listing()
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            jobs = [pool.submit(self.complaint, flag, value) for flag in flags for value in flag.refused()]
            wrong = [job.result() for job in jobs if job.result()]
        self.assertEqual(wrong, [], "\n".join(wrong))
        self.assertEqual(self.listing(), before)

    def test_the_calls_are_in_order(self):
        """Else the sweep would show nothing."""
        for name in ("apply", "explain", "info", "inspect", "check", "bench", "completion", "man"):
            self.run_ok(name, *BASES[name])
        self.assertGreater(len(flags_of("apply")), 50)
        for words in WITH.values():
            self.assertTrue(words)

    def test_values_of_apply(self):
        self.sweep(flags_of("apply"))

    def test_values_of_explain(self):
        self.sweep(flags_of("explain"))

    def test_values_of_inspect(self):
        self.sweep(flags_of("inspect"))

    def test_values_of_view(self):
        self.sweep(flags_of("view"))

    def test_values_of_the_others(self):
        for name in BASES.keys() - {"apply", "explain", "inspect", "view"}:
            self.sweep(flags_of(name))

    def test_positional_arguments(self):
        for name in ("explain", "inspect", "view", "completion"):
            for value in ("", "folder", "missing", "missing.npy", "broken.npy", "broken.safetensors", *JUNK):
                if value.startswith("-") and name != "completion":
                    continue
                self.fails(2, "", name, value)

    def test_an_assignment_of_nothing(self):
        """--mask= would take the next word for its value."""
        self.fails(2, "--mask= has no value", "apply", "--mask=", "--causal", "--length", 2, "--d-k", 2)
        self.fails(2, "--seed= has no value", "info", "--seed=")

    def test_numbers_are_those_that_were_written(self):
        """Not in octal digits, and not the largest number that there is."""
        self.assertEqual(self.run_json("info", "--model-dim", "010")["configuration"]["model_dim"], 10)
        seeds = [self.run_json("apply", "--length", 2, "--d-k", 2, "--seed", seed)["output"]["checksum"]
                 for seed in (2**64 - 1, "0xffffffffffffffff", "0")]
        self.assertEqual(seeds[0], seeds[1])
        self.assertNotEqual(seeds[0], seeds[2])
        self.fails(2, "is not a whole number from 0 to 18446744073709551615", "info", "--seed", 2**64)
        self.fails(2, "--tolerance: 'nan' is not a finite number from 0 to 1", "check", "--tolerance", "nan")
        self.fails(2, "--mask: the value is empty; it takes FILE", "apply", "--mask", "")


class Sizes(FlagsTest):
    """Sizes that nobody has the memory for are judged beforehand: no call goes on for hours."""
    # As many as were asked for, however long it takes.
    PATIENT = {"train --steps", "train --generate", "train --checkpoint-every"}
    # What a large machine has the memory for, it would compute; and beside others it may run out.
    LIMITED = ("sh", "-c", 'ulimit -v 4000000; exec "$@"', "sh")

    def test_no_size_is_too_large_to_be_judged(self):
        for name in ("apply", "explain", "info", "inspect", "train", "view"):
            for flag in flags_of(name):
                if flag.type != "N" or flag.key in self.PATIENT or flag.name in ("--seed", "--threads"):
                    continue
                for value in (2**30, 10**12, 2**62, 2**63 - 1):
                    words = [*map(str, flag.words(str(value)))]
                    if name == "view":
                        words += ["--output", "page.html"]
                    done = attend(*words, cwd=self.folder, prefix=self.LIMITED)
                    self.assertIn(done.status, (0, 2, 3), (words, done.err))
                    self.assertEqual(done.err.count("\n"), int(done.status != 0), (words, done.err))

    def test_a_model_of_many_layers(self):
        err = self.fails(3, "training of 100000000 layers of width 64", "train", "--layers", 10**8)
        self.assertRegex(err, r"takes at least [\d.]+ TiB; there are [\d.]+ [KMGT]iB\n$")
        self.fails(3, "no memory", "train", "--model-dim", 2**20)
        self.fails(3, "no memory", "train", "--batch", 2**30)
        self.fails(3, "q [1, 1, 1000000000000, 64] takes at least", "apply", "--length", 10**12, "--d-k", 64)
        self.fails(3, "a layer of width 10000000", "apply", "--model-dim", 10**7, "--length", 2)
        self.fails(3, "there are 3.81 GiB", "apply", "--model-dim", 20000, "--length", 2, prefix=self.LIMITED)


class Messages(CommandTest):
    def test_quote_a_piece_of_what_was_given(self):
        long = "x" * 100_000
        names = {f"{'y' * 50}{n}": numbers((1,)) for n in range(2000)}
        save_safetensors(self.folder / "many.safetensors", names)
        for words in (("apply", "--q", long), ("apply", f"--{long}"), (long,), ("apply", "--kernel", long),
                      ("check", "--case", long), ("check", "--kernel", long), ("apply", "--heads", long),
                      ("apply", "--type", long), ("explain", long), ("explain", long, long),
                      ("bench", "--suite", long), ("bench", "--filter", long), ("view", long), ("info", long),
                      ("train", "--text", long), ("apply", "--length", 2, "--d-k", 2, "--output", long + ".npy"),
                      ("apply", "--q", "many.safetensors", "--k", "k", "--v", "v"),
                      ("apply", "--weights", "many.safetensors", "--length", 2),
                      ("explain", "many.safetensors", "many.safetensors")):
            err = self.fails(2, "", *words)
            self.assertLess(len(err), 2200, words)

    def test_nothing_reaches_the_terminal_as_it_is(self):
        for word in ("a\x1b[31mb", "a\u202eb", b"a\xffb", b"a\xed\xa0\x80b", "a\rb"):
            for words in (["apply", "--length", "2", "--d-k", "2", "--mask", word], ["explain", word],
                          ["bench", "--filter", b"(" + os.fsencode(word)], ["view", word]):
                done = subprocess.run([command.ATTEND, *words], cwd=self.folder, capture_output=True)
                self.assertEqual(done.returncode, 2, words)
                self.assertRegex(done.stderr.decode(), r"\A[^\x00-\x1f\u202e]+\n\Z")
                self.assertRegex(done.stderr.decode(), r"a(\\x\w\w|\\u202e)")


if __name__ == "__main__":
    command.main()

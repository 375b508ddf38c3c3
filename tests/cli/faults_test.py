#!/usr/bin/env python3
"""Commands under faults: files that may not grow, too little memory, full and closed outputs, folders that
may not be written, too few descriptors, signals at any time, input that was cut or changed. Whatever comes,
the exit status is a documented one, an error is one line, nothing stays beside the outputs, and each output
is whole or as it was before.

    faults_test.py PATH_OF_ATTEND [--seconds N] [--seed N] [--first N] [--count N]

The kinds of fault take turns. Case n of a seed is always the same; a failure prints the line that repeats it.
With neither --count nor --seconds it goes on for the environment's ATTEND_SOAK_SECONDS, or ten minutes."""
import argparse
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import command
from command import numbers, save_npy, save_safetensors

STATUSES = {0, 1, 2, 3, 4}   # docs/command.md; 130 and a signal's own end besides, where a signal came
MEMORY = 8 << 30             # for changed input, which may ask for anything

CASE = "type=f32 heads=2 kv_heads=1 q=5 k=7 causal=1"
# Words, the files that they write, and which of these may be there though the call failed later.
CALLS = [
    (["apply", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--output", "y.npy", "--save-lse", "lse.npy",
      "--save-weights", "w.npy"], ["y.npy", "lse.npy", "w.npy"], []),
    (["apply", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--output", "r.safetensors:y", "--save-lse",
      "r.safetensors:lse", "--bias", "b.npy", "--key-lengths", "30"], ["r.safetensors"], []),
    (["apply", "--weights", "layer.safetensors", "--input", "x.npy", "--trace", "t.safetensors",
      "--save-layer", "copy.safetensors", "--output", "y.npy"],
     ["t.safetensors", "copy.safetensors", "y.npy"], []),
    (["explain", "two-heads", "--html", "page.html"], ["page.html"], []),
    (["explain", "layer.safetensors", "x.npy", "--tokens", "tokens.json", "--html", "page.html"],
     ["page.html"], []),
    (["explain", "trace.safetensors", "--json"], [], []),
    (["inspect", "--q", "q.npy", "--k", "k.npy", "--rows", "--output", "s.safetensors"],
     ["s.safetensors"], []),
    (["view", "trace.safetensors", "--tokens", "tokens.json", "--output", "view.html"], ["view.html"], []),
    (["train", "--steps", "3", "--model-dim", "8", "--heads", "2", "--batch", "2", "--checkpoint", "c", "--save",
      "m", "--plot", "p.svg"], ["c", "m", "p.svg"], ["c"]),
    (["train", "--resume", "checkpoint", "--save", "m"], ["m"], []),
    (["train", "--text", "text.txt", "--steps", "2", "--model-dim", "8", "--heads", "2", "--batch", "2",
      "--generate", "5", "--save", "m"], ["m"], []),
    (["check", "--case", CASE], [], []),
    (["info", "--json"], [], []), (["man"], [], []), (["completion", "zsh"], [], []), (["--help"], [], []),
    (["--version"], [], []), (["apply", "--help"], [], []),
]


def make_inputs(folder):
    for name, seed in (("q", 1), ("k", 2), ("v", 3)):
        save_npy(folder / f"{name}.npy", numbers((1, 2, 30, 8), seed))
    save_npy(folder / "b.npy", numbers((30, 30), 5))
    save_npy(folder / "x.npy", numbers((1, 9, 8), 4))
    weights = {f"{name}.weight": numbers((8, 8), n) for n, name in enumerate("qkvo")}
    save_safetensors(folder / "layer.safetensors", weights, {"heads": "2"})
    (folder / "tokens.json").write_text('["one", "two", 3, "four", "five", "six", "seven", "eight", "\\u4e5d"]')
    (folder / "text.txt").write_text("some text of ten words that is repeated often enough. " * 12)
    for words in (["apply", "--weights", "layer.safetensors", "--input", "x.npy", "--trace", "trace.safetensors"],
                  ["train", "--steps", "2", "--model-dim", "8", "--heads", "2", "--batch", "2", "--checkpoint",
                   "checkpoint"]):
        subprocess.run([command.ATTEND, *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)


class Fault:
    """How a call is run, and what may come of it."""
    printing = False   # what was printed may be lost, though the files were written
    signal = None

    def __init__(self, random, folder, reference):
        """`reference`: the files of a call without faults, by name."""

    def run(self, words, folder):
        return finish(start(words, folder, self.before))

    def before(self):
        """In the new process."""


def start(words, folder, before=None, stdout=subprocess.PIPE, stderr=subprocess.PIPE):
    return subprocess.Popen([command.ATTEND, *words], cwd=folder, stdin=subprocess.DEVNULL, stdout=stdout,
                            stderr=stderr, preexec_fn=before)


def finish(process):
    out, err = process.communicate()
    return process.returncode, out, err


def limit(kind, value):
    resource.setrlimit(kind, (value, resource.getrlimit(kind)[1]))


class SizeLimit(Fault):
    """RLIMIT_FSIZE at any size up to that of the largest file."""
    def __init__(self, random, folder, reference):
        self.bytes = random.choice([0, 1, random.randrange(max(map(len, reference.values()), default=1) + 64)])

    def before(self):
        limit(resource.RLIMIT_FSIZE, self.bytes)


class SizeLimitOfStdout(SizeLimit):
    printing = True

    def run(self, words, folder):
        with tempfile.TemporaryFile() as out:
            return finish(start(words, folder, self.before, stdout=out))


class MemoryLimit(Fault):
    least = None   # with which the program starts at all

    def __init__(self, random, folder, reference):
        if MemoryLimit.least is None:
            low, high = 0, 1 << 30
            while high - low > 1 << 18:
                middle = (low + high) // 2
                done = finish(start(["--version"], folder, lambda: limit(resource.RLIMIT_AS, middle)))
                low, high = (low, middle) if done[0] == 0 else (middle, high)
            MemoryLimit.least = high
        self.bytes = self.least + int(2 ** random.uniform(0, 29))

    def before(self):
        limit(resource.RLIMIT_AS, self.bytes)


class Descriptors(Fault):
    def __init__(self, random, folder, reference):
        self.count = random.randrange(4, 10)   # with three the program does not start

    def before(self):
        limit(resource.RLIMIT_NOFILE, self.count)


class FullStdout(Fault):
    printing = True

    def run(self, words, folder):
        with open("/dev/full", "w") as full:
            return finish(start(words, folder, stdout=full))


class Closed(Fault):
    """Standard input, output or error are closed; then no file may take their number."""
    printing = True

    def __init__(self, random, folder, reference):
        self.which = random.choice([(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])

    def run(self, words, folder):
        status, out, err = finish(start(words, folder, self.before))
        return status, out, None if 2 in self.which else err

    def before(self):
        for descriptor in self.which:
            os.close(descriptor)


class Locked(Fault):
    """A folder in which nothing can be made. Root may do everything, and so becomes nobody."""
    def before(self):
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)

    def run(self, words, folder):
        os.chmod(folder, 0o555)
        try:
            return finish(start(words, folder, self.before))
        finally:
            os.chmod(folder, 0o755)

    @staticmethod
    def possible(folder):
        try:
            return finish(start(["--version"], folder, Locked().before))[0] == 0
        except (PermissionError, subprocess.SubprocessError):
            return False

    def __init__(self, *_):
        pass


class Signal(Fault):
    """At any time, and often when something is being written."""
    printing = True

    def __init__(self, random, folder, reference):
        self.signal = random.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE,
                                     signal.SIGXCPU])
        self.delay = random.choice([0, random.uniform(0, 0.02), random.uniform(0, 0.2)])
        self.wait_for_file = random.random() < 0.5

    def before(self):
        limit(resource.RLIMIT_CORE, 0)
        for each in (signal.SIGPIPE, signal.SIGINT, signal.SIGQUIT):   # ignored by Python, or by who started it
            signal.signal(each, signal.SIG_DFL)

    def run(self, words, folder):
        process = start(words, folder, self.before)
        if self.wait_for_file:
            while process.poll() is None and not beside(folder):
                time.sleep(0.0002)
        time.sleep(self.delay)
        process.send_signal(self.signal)
        return finish(process)


class ClosedPipe(Fault):
    """Whoever reads stdout goes away."""
    printing, signal = True, signal.SIGPIPE

    def run(self, words, folder):
        read, write = os.pipe()
        process = start(words, folder, self.before, stdout=write)
        os.close(write)
        os.close(read)
        return finish(process)

    def before(self):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)

    def __init__(self, *_):
        pass


class ChangedInput(Fault):
    """Some input is cut short, grows, or has bytes changed."""
    def __init__(self, random, folder, reference):
        self.random = random

    def before(self):
        limit(resource.RLIMIT_AS, MEMORY)

    def run(self, words, folder):
        inputs = [word for word in words if (folder / word).is_file()]
        if inputs:
            path = folder / self.random.choice(inputs)
            path.write_bytes(self.changed(path.read_bytes()))
        return super().run(words, folder)

    def changed(self, data):
        random, data = self.random, bytearray(data)
        for _ in range(random.choice([1, 1, 2, 5])):
            # Most of what can go wrong is in the header.
            at = random.randrange(min(len(data), random.choice([16, 200, len(data)])) or 1) if data else 0
            kind = random.randrange(6)
            if kind == 0:
                del data[at:]
            elif kind == 1:
                del data[at:at + random.randrange(1, 9)]
            elif kind == 2:
                data[at:at] = bytes(random.randrange(256) for _ in range(random.randrange(1, 9)))
            elif kind == 3:
                data[at:at + 1] = bytes([random.choice(b'0123456789{}[],:"\\-.\x00\xff')])
            elif kind == 4 and data:
                data[min(at, len(data) - 1)] ^= 1 << random.randrange(8)
            else:
                data += bytes(random.randrange(256) for _ in range(random.randrange(1, 9)))
        return bytes(data)


def beside(folder):
    return [name for name in os.listdir(folder) if name.startswith(".attend-")]


def whole(data):
    """Whether a picture or a safetensors file ends where it should."""
    if data.startswith(b"<svg"):
        return data.endswith(b"</svg>\n")
    size = int.from_bytes(data[:8], "little")
    tensors = json.loads(data[8:8 + size]).items()
    return 8 + size + max(t["data_offsets"][1] for name, t in tensors if name != "__metadata__") == len(data)


KINDS = [SizeLimit, Signal, ChangedInput, SizeLimitOfStdout, MemoryLimit, ChangedInput, Descriptors, FullStdout,
         SizeLimit, Closed, Signal, ClosedPipe, ChangedInput, Locked]


class Trial:
    """One call under one fault, in a folder of its own."""
    def __init__(self, kind, random, made, references):
        self.call = random.choice(CALLS)
        self.words, self.outputs, self.early = self.call
        self.reference = references[CALLS.index(self.call)]
        self.kind = kind
        self.old = random.random() < 0.5      # the outputs are there before
        self.link = random.random() < 0.3     # and they are links, to nowhere or to a file
        self.random, self.made = random, made

    def run(self):
        with tempfile.TemporaryDirectory(prefix="attend-faults-") as name:
            top = pathlib.Path(name)
            os.chmod(top, 0o755)
            folder = top / "folder"
            shutil.copytree(self.made, folder)
            for output in self.outputs:
                if self.link:
                    (folder / output).symlink_to(f"of-{output}")
                if self.old:
                    (folder / output).write_bytes(b"old")
            fault = self.kind(self.random, folder, self.reference)
            return self.complaint(fault, folder, *fault.run(self.words, folder))

    def complaint(self, fault, folder, status, out, err):
        """What is wrong; nothing, if all is right."""
        ended = {fault.signal and -fault.signal, 130 if fault.signal == signal.SIGINT else None}
        told = f"status {status}, {(err or b'')[:500]!r}"
        if status not in STATUSES | ended:
            return "the status is none of the documented: " + told
        if err is not None and status in STATUSES:
            lines = err.count(b"\n")
            if lines != (status > 1) or (status > 1 and not err.startswith(b"attend")) or len(err) > 2200:
                return "an error is one line: " + told
        if beside(folder):
            return f"{beside(folder)} was left; " + told
        # Ctrl-C ends a training with its checkpoint and plot, of fewer steps.
        early = [*self.early, "p.svg"] if status == 130 else self.early
        new = 0
        for output in self.outputs:
            path = folder / output
            if self.link and not path.is_symlink():
                return f"the link {output} was replaced; " + told
            found = path.read_bytes() if path.exists() else None
            if found == (b"old" if self.old else None):
                continue
            new += output not in early
            if self.kind is not ChangedInput and found != self.reference[output] and not (
                    output in early and whole(found)):
                return f"{output} is neither whole nor as it was: {found and found[:80]}; " + told
        all_new = new == len(set(self.outputs) - set(early))
        if new and not all_new:
            return "some outputs are new, and some are not; " + told
        if status == 0 and not all_new:
            return "the status is 0, and the outputs are not there"
        if status != 0 and new and not fault.printing:
            return "it failed, and the outputs are new; " + told
        return None


def reference_of(call, made):
    words, outputs, _ = call
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "folder"
        shutil.copytree(made, folder)
        status, _, err = finish(start(words, folder))
        assert status == 0 and err == b"", (words, status, err)
        return {output: (folder / output).read_bytes() for output in outputs}


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("attend")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int)
    given = parser.parse_args()
    if given.count is None and given.seconds is None:
        given.seconds = float(os.environ.get("ATTEND_SOAK_SECONDS", 600))
    command.ATTEND = os.path.abspath(given.attend)
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="attend-faults-") as name:
        made = pathlib.Path(name) / "made"
        made.mkdir()
        os.chmod(name, 0o755)
        make_inputs(made)
        references = [reference_of(call, made) for call in CALLS]
        begin, n, failures, kinds = time.monotonic(), given.first, 0, {}
        locks = Locked.possible(made)
        while (given.count is None or n < given.first + given.count) and (
                given.seconds is None or time.monotonic() - begin < given.seconds):
            kind, case, n = KINDS[n % len(KINDS)], n, n + 1
            if kind is Locked and not locks:
                continue
            trial = Trial(kind, random.Random(f"{given.seed}.{case}"), made, references)
            kinds[kind.__name__] = kinds.get(kind.__name__, 0) + 1
            if wrong := trial.run():
                failures += 1
                print(f"{kind.__name__}: attend {' '.join(trial.words)}\n  {wrong}\n  repeat: faults_test.py "
                      f"{given.attend} --seed {given.seed} --first {case} --count 1", flush=True)
    print(f"{sum(kinds.values())} cases, {failures} failed:", *(f"{k} {v}" for k, v in sorted(kinds.items())))
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()

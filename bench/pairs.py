#!/usr/bin/env python3
"""Is attend as fast as it was? Two builds of cli/bench/turns.cpp, in turns, in pairs.

    bench/pairs.py BEFORE AFTER [OPTIONS]
    bench/pairs.py --self-test       proves its arithmetic on made-up numbers

A pair is a new process of each; for every case one has its turn, some 30 ms long, and then the other, which is the first
in every second pair. They share the cores: a machine that becomes slower is slower for both. A suite's figure is
before / after: above 1 it is faster now. Each pair gives one ratio, the geometric mean over the suite's cases; shown is
the median of the pairs with its 95 % interval, that of order statistics: nothing is assumed about how times are spread.
Two types or two rows of the kernel table are compared likewise, BEFORE and AFTER the same build: --type f32,bf16 and
--kernels forward:cpu.avx512.forward forward:cpu.amx.forward, each first what BEFORE takes. With --suites decode --instead
decode cache AFTER's are the cases of the same name in the suite cache: keys and values of 8 bits.
Exit: 1 if the interval of a suite lies below 1 (of three digits), or that of a case above the nanoseconds that --most allows.
"""
import argparse
import json
import math
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys

INTERVAL = 0.95
SUITES = ("call", "norm", "feed_forward", "block", "notes", "bert", "gpt", "long", "decode", "backward", "layer")


def ranks(count):
    """Numbers, from 0, of the sorted values between which the median lies with the probability INTERVAL or more."""
    low, outside = 0, 0.0
    while low < count // 2:
        outside += 2 * math.comb(count, low) / 2**count
        if outside > 1 - INTERVAL:
            break
        low += 1
    low = max(low - 1, 0)
    return low, count - 1 - low


def middle(values):
    """Median, and the low and high end of its interval."""
    ordered = sorted(values)
    low, high = ranks(len(ordered))
    return statistics.median(ordered), ordered[low], ordered[high]


def reaches_1(ratio):
    return round(ratio, 3) >= 1    # a difference of less than 0.05 % is none


def geometric(values):
    return math.exp(statistics.fmean(map(math.log, values)))


def suites_of(pairs):
    """{suite: (median, low, high) of before / after}; a pair is {name: (suite, before, after)}."""
    return {suite: middle([geometric([before / after for of, before, after in pair.values() if of == suite])
                           for pair in pairs])
            for suite in dict.fromkeys(of for of, _, _ in pairs[0].values())}


def cases_of(pairs):
    """{name: (seconds before, seconds after, (median, low, high) of after - before, those of before / after)}."""
    return {name: (statistics.median(pair[name][1] for pair in pairs), statistics.median(pair[name][2] for pair in pairs),
                   middle([pair[name][2] - pair[name][1] for pair in pairs]),
                   middle([pair[name][1] / pair[name][2] for pair in pairs]))
            for name in pairs[0]}


class Program:
    """One of the two, stopped while it is not its turn."""

    def __init__(self, path, type, kernels, cores):
        words = [str(path.resolve()), *[type] * (type != "f32")]
        chosen = {**os.environ, "ATTEND_KERNEL": kernels} if kernels else None
        self.process = subprocess.Popen(words, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=chosen)
        os.sched_setaffinity(self.process.pid, cores)
        self.cases = self.answer().split()
        self.process.send_signal(signal.SIGSTOP)

    def answer(self):
        line = self.process.stdout.readline()
        return line or sys.exit(f"{self.process.args[0]} ended with status {self.process.wait()}")

    def seconds(self, case):
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write(case + "\n")
        self.process.stdin.flush()
        found = float(self.answer())
        self.process.send_signal(signal.SIGSTOP)
        return found

    def end(self):
        self.process.kill()
        self.process.wait()


def names_of(made, cores):
    program = Program(*made, cores)
    program.end()
    return program.cases


def one_pair(number, both, cores, cases, instead):
    """Times of a new process of each of the two, for where a program's memory lies is a matter of luck, too."""
    programs = [Program(*made, cores) for made in both]
    pair = {}
    try:
        for case in cases:
            names = dict(zip(programs, (case, case.replace(*instead))))
            found = {program: program.seconds(names[program]) for program in (programs if number % 2 == 0 else programs[::-1])}
            pair[case] = (case.partition("/")[0], *(found[program] for program in programs))
    finally:
        for program in programs:
            program.end()
    return pair


def nanoseconds(seconds):
    return f"{seconds * 1e9:,.0f}"


def shown(pairs):
    lines = [f"{len(pairs)} pairs, {INTERVAL:.0%} intervals of medians", "",
             f"{'suite':<12} {'before / after':>14}   {'interval':<16}"]
    for suite, (median, low, high) in suites_of(pairs).items():
        lines.append(f"{suite:<12} {median:>14.3f}   {low:.3f} to {high:.3f}{'' if reaches_1(high) else '   slower'}")
    lines += ["", f"{'case':<36} {'before, ns':>14} {'after, ns':>14}  {'before / after':<25} {'difference':>12}   interval"]
    for name, (before, after, (median, low, high), (ratio, least, most)) in cases_of(pairs).items():
        ratios = f"{ratio:.3f} ({least:.3f} to {most:.3f})"
        lines.append(f"{name:<36} {nanoseconds(before):>14} {nanoseconds(after):>14}  {ratios:<25} {nanoseconds(median):>12}   "
                     f"{nanoseconds(low)} to {nanoseconds(high)}")
    return "\n".join(lines)


def too_slow(pairs, most):
    """Sentences about what is slower than allowed; `most` is {case: nanoseconds}."""
    found = [f"{suite}: {high:.3f} at most, not 1.0" for suite, (_, _, high) in suites_of(pairs).items()
             if not reaches_1(high)]
    cases = cases_of(pairs)
    for name, allowed in most.items():
        if name not in cases:
            found.append(f"{name} was not measured")
        elif cases[name][2][1] > allowed * 1e-9:
            found.append(f"{name}: {nanoseconds(cases[name][2][1])} ns slower at least, {allowed:g} allowed")
    return found


def self_test():
    assert ranks(20) == (5, 14), ranks(20)      # 95.9 %
    assert ranks(6) == (0, 5), ranks(6)         # 96.9 %
    assert ranks(1) == (0, 0)
    assert middle([3, 1, 2])[0] == 2
    same = [{"a": ("s", 1e-6, 1e-6 * (1 + noise)), "b": ("t", 1.0, 0.5)} for noise in (-0.1, 0.1, -0.2, 0.2, -0.05, 0.05) * 4]
    assert not too_slow(same, {}), too_slow(same, {})
    assert abs(suites_of(same)["t"][0] - 2) < 1e-12
    slower = [{"a": ("s", 1e-6, 1.1e-6), "b": ("s", 1e-6, 1.05e-6)} for _ in range(20)]
    assert len(too_slow(slower, {})) == 1 and too_slow(slower, {"a": 90}) != too_slow(slower, {"a": 110})
    assert "c was not measured" in too_slow(slower, {"c": 1})
    assert abs(suites_of(slower)["s"][0] - 1 / math.sqrt(1.1 * 1.05)) < 1e-12
    assert abs(cases_of(slower)["a"][3][0] - 1 / 1.1) < 1e-12
    assert "slower" in shown(slower) and "slower" not in shown(same)
    print("the arithmetic holds")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", nargs="?", type=pathlib.Path)
    parser.add_argument("after", nargs="?", type=pathlib.Path)
    parser.add_argument("--suites", default=",".join(SUITES), help="separated by commas; not given: " + ", ".join(SUITES))
    parser.add_argument("--type", default="f32", help="of the numbers: f64, f32, bf16 or f16, or two of them; f32 if not given")
    parser.add_argument("--kernels", nargs=2, default=("", ""), metavar=("BEFORE'S", "AFTER'S"),
                        help='for ATTEND_KERNEL; "": those of the planner')
    parser.add_argument("--instead", nargs=2, default=("", ""), metavar=("THIS", "THAT"),
                        help="in the names of the cases that AFTER computes")
    parser.add_argument("--filter", default="", help="only cases whose name has this regular expression")
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--cores", help="numbers of the cores to use, separated by commas; 0 if not given")
    parser.add_argument("--most", action="append", default=[], metavar="CASE=NS",
                        help="nanoseconds that a case may be slower than before")
    parser.add_argument("--save", type=pathlib.Path, help="a file for the times of every pair, as JSON")
    parser.add_argument("--self-test", action="store_true", help="check the arithmetic and end")
    options = parser.parse_args()
    if options.self_test:
        self_test()
        return 0
    if options.after is None or options.pairs < 1:
        parser.error("needs BEFORE, AFTER and at least one pair")
    most = {name: float(allowed) for name, _, allowed in (word.partition("=") for word in options.most)}
    cores = [int(core) for core in (options.cores or "0").split(",")]
    os.environ["ATTEND_THREADS"] = str(len(cores))
    types = options.type.split(",") * 2     # one is that of both
    if not set(types) <= {"f64", "f32", "bf16", "f16"} or len(types) > 4:
        parser.error(f"--type takes f64, f32, bf16, f16 or two of them, not {options.type}")
    both = list(zip((options.before, options.after), types, options.kernels))
    known = [names_of(made, cores) for made in both]
    cases = [case for case in known[0] if case.replace(*options.instead) in known[1] and re.search(options.filter, case)
             and case.partition("/")[0] in options.suites.split(",")]
    if not cases:
        parser.error("both have no such case")
    pairs = []
    for number in range(options.pairs):
        pairs.append(one_pair(number, both, cores, cases, options.instead))
        print(f"\r{number + 1} of {options.pairs} pairs", end="", file=sys.stderr, flush=True)
        if options.save:
            options.save.write_text(json.dumps(pairs, indent=1) + "\n", encoding="utf-8")
    print(file=sys.stderr)
    print(shown(pairs))
    slower = too_slow(pairs, most)
    print(*slower, sep="\n")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())

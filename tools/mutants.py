#!/usr/bin/env python3
"""Breaks the library in named ways, one at a time, and shows which tests notice.

    tools/mutants.py                    every mutant
    tools/mutants.py --only NAME ...    these
    tools/mutants.py --list             their names, and what each of them does
    tools/mutants.py --dry-run          only checks that every text to replace is there, once, and that
                                        the copy of the tree can be configured
    tools/mutants.py --write FILE       also writes the table as a page

The lists, and how a change is written, are in tools/mutant_lists. All of them are built at once, into a
copy of the tree in --build-dir (build/mutants): each changed place asks, at run time, whether it is its
mutant that the environment variable ATTEND_MUTANT names. So there is one build, and trying a mutant costs
what the first test program costs that fails. The copy has the kernels for any machine alone: what they are
made of is the same for every instruction set, and the others take most of the time to compile.

A program that fails must pass without any mutant. Exit: 0 every mutant was caught, 1 one survived, 2
something else is wrong: a text to replace that is not in the sources exactly once, a mutant that does not
compile, a test that fails without any mutant.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

sys.dont_write_bytecode = True
from mutant_lists import cpu, layer, plan, reference  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPIED = ("CMakeLists.txt", "CMakePresets.json", "cmake", "include", "src", "tests", "tools", "web")
LISTS = {"reference, core and api": reference.MUTANTS, "cpu": cpu.MUTANTS, "layer": layer.MUTANTS,
         "plan": plan.MUTANTS}
MUTANTS = tuple(one for mutants in LISTS.values() for one in mutants)

# Test programs to begin with, behind those that a mutant names: the quick ones and those that catch most.
# After the first that fails no more are begun. All others follow, but for those that have nothing to do
# with what is computed, and those that want the machine's own instruction set.
FIRST = ("worked_examples", "traps_meaning", "traps_hidden", "dtype", "planner", "softmax_state",
         "conformance", "properties_algebra", "properties_hidden", "properties_merge", "properties_parts",
         "gradient", "errors")
LEFT_OUT = re.compile("parallel|io_|view|vec|rows|command|c_api|amx|avx512_bf16|neon_bf16")
# What of a program is run at its turn, the rest of it last: the truth of f64 takes most of the time.
FIRST_PART = {"conformance": "*/f32_*"}
SECONDS = 1200                                # after which one of them hangs

# At the head of every changed file. Warnings are of no use there.
SWITCH = """#pragma once
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wparentheses"
#pragma GCC diagnostic ignored "-Wunused-value"
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-but-set-variable"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <cstdlib>
inline const int attend_mutant = [] {
  const char* number = std::getenv("ATTEND_MUTANT");
  return number == nullptr ? 0 : std::atoi(number);
}();
"""


class Broken(Exception):
    """Something that makes the whole check worthless."""


# ---- The copy of the tree --------------------------------------------------------------------------

def texts_of_tree():
    """{path: bytes} of the sources."""
    texts = {}
    for name in COPIED:
        files = [ROOT / name] if (ROOT / name).is_file() else sorted((ROOT / name).rglob("*"))
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                texts[str(file.relative_to(ROOT))] = file.read_bytes()
    return texts


def write_tree(to, texts):
    """The files under `to`, touching only what differs, so that builds stay incremental."""
    for name, text in texts.items():
        target = to / name
        if target.is_file() and target.read_bytes() == text:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text)
        if (ROOT / name).is_file():
            shutil.copymode(ROOT / name, target)
    for name in {name.split("/")[0] for name in texts}:
        for file in list((to / name).rglob("*")):
            if file.is_file() and str(file.relative_to(to)) not in texts:
                file.unlink()


def span_of(one, change, text):
    """(begin, end, new) of a change in its file's text."""
    name, *around, old, new = change
    begin = 0
    for part in (*around, old):
        if (count := text.count(part)) != 1:
            raise Broken(f"{one.name}: {name} holds {count} times, not once: {part!r}")
        begin, text = begin + text.index(part), part
    return begin, begin + len(old), new


def switched(text, begin, end, spans):
    """text[begin:end], with a switch in each of the spans (begin, end, number, new) in it."""
    inside = sorted((s for s in spans if begin <= s[0] and s[1] <= end), key=lambda s: (s[0], -s[1]))
    result, at = "", begin
    while inside:
        first, last = inside[0][:2]
        same = [s for s in inside if s[:2] == (first, last)]
        within = [s for s in inside if s not in same and s[0] < last]
        if crossing := [s for s in within if s[1] > last]:
            raise Broken(f"changes overlap: {text[first:last]!r} and {text[slice(*crossing[0][:2])]!r}")
        old = switched(text, first, last, within)
        for _, _, number, new in same:
            old = (f"{{ if (attend_mutant == {number}) {{ {new} }} else {{ {old} }} }}"
                   if text[last - 1] == ";" else f"(attend_mutant == {number} ? ({new}) : ({old}))")
        result += text[at:first] + old
        at, inside = last, [s for s in inside if s not in same and s not in within]
    return result + text[at:end]


def mutated(texts):
    """The texts with all mutants in them."""
    spans = {}
    for number, one in enumerate(MUTANTS, 1):
        for change in one.changes:
            if change[0] not in texts:
                raise Broken(f"{one.name}: there is no {change[0]}")
            begin, end, new = span_of(one, change, texts[change[0]].decode())
            spans.setdefault(change[0], []).append((begin, end, number, new))
    changed = {}
    for name, of_file in spans.items():
        text = texts[name].decode()
        changed[name] = f'#include "mutant.h"\n{switched(text, 0, len(text), of_file)}'.encode()
    return texts | changed


def for_any_machine(texts):
    """Without the kernels of instruction sets, nor the rows that name them."""
    changes = (("src/CMakeLists.txt", r'CMAKE_SYSTEM_PROCESSOR MATCHES "[^"]*"', "FALSE"),
               ("src/plan/table.cpp", r"defined\(__(x86_64|aarch64)__\)", "0"),
               ("src/core/machine.h", r"defined\(__(x86_64|aarch64)__\)", "0"))
    for name, pattern, new in changes:
        text, count = re.subn(pattern, new, texts[name].decode())
        if count == 0:
            raise Broken(f"{name} holds nothing like {pattern}")
        texts = texts | {name: text.encode()}
    return texts


# ---- Building and running --------------------------------------------------------------------------

class Build:
    def __init__(self, folder, jobs):
        self.tree, self.folder, self.jobs = folder, folder / "build/release", jobs
        self.tests = []
        self.used = set()                     # (program, part) that noticed something

    def command(self, *words):
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              cwd=self.tree)
        if done.returncode != 0:
            raise Broken(f"{' '.join(map(str, words[:4]))} ... failed:\n{done.stdout[-4000:]}")
        return done.stdout

    def configure(self, only):
        # As the tree itself is compiled: what no mutant touches a cache of the compiler may know.
        self.command("cmake", "--preset", "release", "-DATTEND_KERNEL_OPTIONS=-O1", "-DATTEND_CUDA=OFF",
                     "-DATTEND_BUILD_COMMAND=OFF", "-DATTEND_BUILD_EXAMPLES=OFF", "-DATTEND_INSTALL=OFF")
        targets = self.command("cmake", "--build", self.folder, "--target", "help")
        known = set(re.findall(r"^(\w+)_test: phony", targets, re.MULTILINE))
        known -= set(filter(LEFT_OUT.match, known))
        named = {name for one in MUTANTS for name in one.tests}
        if missing := sorted({*FIRST, *only, *named} - known):
            raise Broken(f"there is no test program {', '.join(missing)}")
        self.tests = only or [*FIRST, *sorted(known - set(FIRST))]

    def build(self):
        self.command("cmake", "--build", self.folder, "-j", str(self.jobs), "--target",
                     *(f"{name}_test" for name in self.tests))

    def failures(self, number, one, every):
        """[(test program, what failed)]: of the first that fails, or of every one."""
        found = []
        order = [name for name in one.tests if name in self.tests]
        order += [name for name in self.tests if name not in order]
        for name, part in [*((name, FIRST_PART.get(name, "*")) for name in order),
                           *((name, f"-{FIRST_PART[name]}") for name in order if name in FIRST_PART)]:
            if failure := self.failure_of(name, part, number):
                self.used.add((name, part))
                found.append((name, failure))
                if not every:
                    break
        return found

    def check_clean(self):
        """What noticed a mutant must pass without one."""
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            for unit, failure in zip(self.used, pool.map(lambda unit: self.failure_of(*unit, 0), self.used)):
                if failure:
                    raise Broken(f"{unit[0]} fails without any mutant: {failure}")

    def failure_of(self, name, part, number):
        """What failed first in a test program, or None."""
        program = self.folder / "tests" / f"{name}_test"
        environment = {key: value for key, value in os.environ.items() if key != "ATTEND_KERNEL"}
        environment["ATTEND_MUTANT"] = str(number)
        try:
            done = subprocess.run(
                [program, "--gtest_brief=1", "--gtest_fail_fast", f"--gtest_filter={part}"],
                timeout=SECONDS, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, errors="replace")
        except subprocess.TimeoutExpired:
            return f"no end after {SECONDS} s"
        if done.returncode == 0:
            return None
        failed = re.search(r"^\[  FAILED  \] ([^\s,(]+)", done.stdout, re.MULTILINE)
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit {done.returncode}"
        return failed[1] if failed else how


def check(build, mutants, every):
    """[(mutant, failures, seconds)]"""
    print(f"one build of {len(MUTANTS)} mutants and {len(build.tests)} test programs", flush=True)
    begin = time.monotonic()
    build.build()
    print(f"built in {time.monotonic() - begin:.0f} s", flush=True)

    def run(number):
        one, start = MUTANTS[number - 1], time.monotonic()
        failures = build.failures(number, one, every)
        row = (one, failures, time.monotonic() - start)
        print(f"{one.name}: {one.does}\n    {caught_by(row)} ({row[2]:.0f} s)", flush=True)
        return row

    numbers = [number for number, one in enumerate(MUTANTS, 1) if one in mutants and not one.equivalent]
    with concurrent.futures.ThreadPoolExecutor(build.jobs) as pool:
        ran = {row[0].name: row for row in pool.map(run, numbers)}
    build.check_clean()
    return [ran.get(one.name, (one, [], 0)) for one in mutants]


# ---- The table -------------------------------------------------------------------------------------

def survived(row):
    return not row[1] and not row[0].equivalent


def caught_by(row):
    one, failures, _ = row
    if one.equivalent:
        return f"equivalent: {one.equivalent}"
    return "; ".join(f"{name}: {test}" for name, test in failures) or "NOTHING caught it"


def table(rows):
    width = max(len(row[0].name) for row in rows)
    lines = [f"{'mutant':{width}}  seconds  caught by"]
    lines += [f"{row[0].name:{width}}  {row[2]:7.0f}  {caught_by(row)}" for row in rows]
    return "\n".join(lines + [summary(rows)])


def summary(rows):
    equivalent = sum(bool(row[0].equivalent) for row in rows)
    caught = sum(bool(row[1]) for row in rows)
    return f"{caught} of {len(rows) - equivalent} mutants caught, {equivalent} equivalent"


def page(rows):
    lines = ["# Mutants", "",
             "Mistakes that are made on purpose, one at a time, and the first test that notices each: what",
             "`tools/mutants.py --write docs/mutants.md` found. `./run test --soak=mutants` tries them again. How",
             "they are written: [tools/mutant_lists](../tools/mutant_lists/__init__.py).", "",
             f"{summary(rows)}.", ""]
    for part, mutants in LISTS.items():
        lines += [f"## {part}", "", "| mutant | what is wrong then | caught by |", "|---|---|---|"]
        lines += [f"| `{row[0].name}` | {row[0].does} | {caught_by(row)} |" for row in rows
                  if row[0] in mutants]
        lines.append("")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build-dir", type=pathlib.Path, default=ROOT / "build/mutants")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[])
    parser.add_argument("--tests", nargs="+", metavar="NAME", default=[],
                        help="run these test programs only")
    parser.add_argument("--all-tests", action="store_true",
                        help="go on after the first test program that notices")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--write", type=pathlib.Path, metavar="FILE")
    arguments = parser.parse_args()
    by_name = {one.name: one for one in MUTANTS}
    if unknown := [name for name in arguments.only if name not in by_name]:
        parser.error(f"there is no mutant {', '.join(unknown)}; --list names them")
    mutants = [by_name[name] for name in arguments.only] or list(MUTANTS)
    if arguments.list:
        width = max(map(len, by_name))
        print("\n".join(f"{one.name:{width}}  {one.does}" for one in mutants))
        return 0
    try:
        build = Build(arguments.build_dir.resolve(), arguments.jobs)
        texts = for_any_machine(mutated(texts_of_tree()))
        write_tree(build.tree, texts | {"include/mutant.h": SWITCH.encode()})
        build.configure(arguments.tests)
        if arguments.dry_run:
            return 0
        rows = check(build, mutants, arguments.all_tests)
    except Broken as error:
        print(f"mutants.py: {error}", file=sys.stderr)
        return 2
    print(table(rows))
    if arguments.write:
        arguments.write.write_text(page(rows))
    return 1 if any(map(survived, rows)) else 0


if __name__ == "__main__":
    sys.exit(main())

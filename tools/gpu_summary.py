#!/usr/bin/env python3
"""Puts what the steps of tools/test_gpu.sh said into one file, OUT/gpu.json:

    gpu_summary.py OUT [BENCH]

OUT holds steps.txt, a line "name status seconds" of each step so far, and what each wrote, name.log. BENCH is the file
of bench/gpu.py: all of it is in gpu.json, too, so that bench/results/NAME.json is a copy of that one file."""
import json
import os
import pathlib
import re
import subprocess
import sys

TABLE = re.compile(r"^  (cuda\.\S+) (\S+)\s+(\d+) runs, (\d+) declined, largest error ([\d.]+)", re.M)
GTEST = re.compile(r"^\[  (PASSED|SKIPPED|FAILED) +\] (\d+) tests?[.,]", re.M)
PYTEST = re.compile(r"(\d+) (passed|skipped|failed|errors?|xfailed|xpassed|deselected)\b")
PAIRS = re.compile(r"^(\w+), part \d+: (\d+) runs, (\d+) declined", re.M)
TOOK = re.compile(r"^  (cuda\.\S+) took (\d+) cases", re.M)


def gtest(text):
    """How many tests passed, were skipped and failed; of all shards."""
    found = {"passed": 0, "skipped": 0, "failed": 0}
    for word, number in GTEST.findall(text):
        found[word.lower()] += int(number)
    return found


def table(text):
    kernels = {}
    for kernel, type_, runs, declined, error in TABLE.findall(text):
        row = kernels.setdefault(f"{kernel} {type_}", {"runs": 0, "declined": 0, "largest_error": 0.0})
        row["runs"] += int(runs)
        row["declined"] += int(declined)
        row["largest_error"] = max(row["largest_error"], float(error))
    return {"wrong": text.count("reproduce:"), "kernels": kernels}


def pairs(text):
    types = {}
    for type_, runs, declined in PAIRS.findall(text):
        row = types.setdefault(type_, {"runs": 0, "declined": 0})
        row["runs"] += int(runs)
        row["declined"] += int(declined)
    return {**gtest(text), "types": types}


def properties(text):
    """Of each program, for each group of kernels: what its parts said together."""
    programs = {}
    for part in text.split("-- ")[1:]:
        name = re.match(r"(\S+?)\d*\n", part)[1]    # properties_rows.cuda.sm90.
        one = programs.setdefault(name.rstrip("."), {"passed": 0, "skipped": 0, "failed": 0, "cases": {}})
        for word, number in gtest(part).items():
            one[word] += number
        for kernel, number in TOOK.findall(part):
            one["cases"][kernel] = one["cases"].get(kernel, 0) + int(number)
    return programs


def pytest(text):
    last = [line for line in text.splitlines() if PYTEST.search(line)][-1:]
    return {word: int(number) for line in last for number, word in PYTEST.findall(line)}


def numbers(name, text):
    if name.startswith("table_"):
        return table(text)
    of = {"option_pairs": pairs, "properties": properties, "python": pytest}
    return of.get(name, gtest)(text)


def said_by(*command):
    try:
        return subprocess.run(command, text=True, capture_output=True).stdout.strip()
    except OSError:
        return ""


def summary(out, bench):
    results = {}
    if bench is not None and bench.exists():
        results = json.loads(bench.read_text())
    machine = said_by("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").split("\n")[0]
    steps = {}
    for line in (out / "steps.txt").read_text().splitlines():
        name, status, seconds = line.split()
        log = out / f"{name}.log"
        steps[name] = {"passed": status == "0", "seconds": int(seconds)}
        if name not in ("build", "bench") and log.exists():
            steps[name] |= {"said": numbers(name, log.read_text(errors="replace"))}
    commit = os.environ.get("ATTEND_COMMIT") or said_by("git", "rev-parse", "--short=12", "HEAD")
    return results | {"asked": {"gpu": machine, "commit": commit, "steps": steps}}


def main(arguments):
    if len(arguments) not in (1, 2):
        print(__doc__, file=sys.stderr)
        return 2
    out = pathlib.Path(arguments[0])
    found = summary(out, pathlib.Path(arguments[1]) if len(arguments) == 2 else None)
    (out / "gpu.json").write_text(json.dumps(found, indent=1) + "\n")
    for name, step in found["asked"]["steps"].items():
        if name.startswith("table_"):
            said = step["said"]
            print(f"{name}: {sum(row['runs'] for row in said['kernels'].values())} runs, {said['wrong']} wrong")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

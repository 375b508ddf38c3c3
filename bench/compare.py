#!/usr/bin/env python3
"""attend beside PyTorch, ONNX Runtime, ggml and NumPy on the cases of `attend bench`, all called from Python.

    ./run bench [OPTIONS]            builds what is needed and runs this file
    bench/compare.py --fill --kept FOLDER [OPTIONS]     makes the cases' numbers and truths ahead, on all cores
    bench/compare.py --self-test     proves its arithmetic on made-up numbers

Each library has a process of its own, pinned to the same cores. They take turns: one computes while the others sleep,
in another order each round, so that a machine that becomes slower is slower for all of them. A figure is the median
over the rounds of the median of a turn; low and high are the extremes of the rounds. From six rounds on the ratio to the
best library has its 95 % interval, of the ratios within a round. A turn in which the host of a virtual machine took the
cores away is taken again; whoever is far behind has one turn. Every result is first held against the formulas in f64. With
--type bf16 or f16 all libraries compute on the same numbers rounded to it; with i8, one query of f32 over a KV cache of 8
bits, each library rounds the same keys and values in its own way. Into the folder --out go results.json, table.txt and,
where matplotlib is there, the plots; also where it is ended early.
"""
import argparse
import concurrent.futures
import datetime
import functools
import itertools
import json
import math
import os
import pathlib
import platform
import select
import signal
import statistics
import subprocess
import sys
import time

from bars import bars, of_one_session
from figures import LIBRARIES, best_peer, duration, interval, means, ratio, share, spread, table

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
SUITES = ("notes", "bert", "gpt", "long", "decode", "backward", "layer", "length", "growth")
# Of the largest value; results in f32 lie between 1e-8 and 5e-6, those of 16 bits around one rounding of their own, those
# of 8 bits around 1e-2, as their keys and values are rounded and the truth's are not.
ALLOWED_ERROR = {"f32": 5e-5, "f16": 4e-3, "bf16": 3e-2, "i8": 3e-2}
SUMS_IN_F16 = {("ggml", "f16"): 5e-2}       # of the values, where queries are few: 3e-2 over 8192 keys
PATIENCE = 300           # seconds until a process that does not answer is given up
SLOW = 0.5               # seconds of a call from which on a library has one turn only
BEHIND = 5               # so many times slower than the fastest: one turn too, if its calls are not short
SHORT = 0.02             # seconds
STOLEN = 0.01            # part of a turn's time that the host may have taken
TRIES = 4                # of one turn; the one from which least was taken counts
CUT_OFF = "the last cases"   # as what a run that was ended early leaves out


def allowed_error(library, type):
    return SUMS_IN_F16.get((library, type), ALLOWED_ERROR[type])


def yardstick(type):
    """A product of matrices, as every library has it."""
    return {"name": "matmul 2048 x 2048" + ("" if type == "f32" else "_" + type), "suite": "yardstick",
            "operation": "matmul", "type": type, "size": 2048, "causal": False, "flops": 2.0 * 2048**3, "bytes": None,
            "quick": True}


def over_eight_bits(cases):
    """The cases of f32 that decode, with keys and values of 8 bits and a scale of f32 for each of both; what is read is
    what attend's cache holds."""
    for case in cases:
        if case["bytes"]:
            rows = case["batch"] * case["key_heads"] * case["keys"]
            yield {**case, "name": case["name"] + "_i8", "type": "i8", "bytes": case["bytes"] / 4 + 2 * 4.0 * rows}


class Worker:
    """A library in its own process, pinned to `cores`; what it says besides goes into the log.

    Between its turns the process is stopped: threads that wait for more work by spinning, some for a fifth of a second,
    would take the cores from whoever comes next.
    """

    def __init__(self, name, cores, log=None, folder=None):
        self.process = subprocess.Popen(
            [sys.executable, "-u", str(HERE / "worker.py"), name, ",".join(map(str, cores)), *[folder] * bool(folder)], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)

    @functools.cached_property
    def first(self):
        """What it says when it has loaded its library."""
        answer = self.answer()
        self.process.send_signal(signal.SIGSTOP)
        return answer

    def answer(self):
        if not select.select([self.process.stdout], [], [], PATIENCE)[0]:
            self.process.kill()
            return {"left": f"no answer within {PATIENCE} seconds"}
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"left": f"the process ended with status {self.process.wait()}"}

    def ask(self, **request):
        self.process.send_signal(signal.SIGCONT)
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        try:
            return self.answer()
        finally:
            self.process.send_signal(signal.SIGSTOP)

    def close(self):
        self.process.send_signal(signal.SIGCONT)
        try:
            self.process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


# ---- measuring ------------------------------------------------------------------------------------------------------


def one_turn(worker, seconds):
    """The answer to the turn of which the host took least, if it is not at once one that was left alone."""
    best = None
    for _ in range(TRIES):
        answer = worker.ask(do="time", seconds=seconds)
        if "left" in answer:
            return answer
        if best is None or answer["stolen"] < best["stolen"]:
            best = answer
        if best["stolen"] <= STOLEN:
            break
    return best


def in_turns(case, workers, rounds, seconds):
    """{library: figures} of one case, and {library: reason} of those left out."""
    figures, left, medians = {}, {}, {}
    for name, worker in workers.items():
        answer = worker.ask(do="prepare", case=case)
        if "left" in answer:
            left[name] = answer["left"]
        else:
            figures[name], medians[name] = answer, []
    fastest = min((found["seconds"] for found in figures.values()), default=0)
    once = lambda seconds: seconds > SLOW or seconds > max(SHORT, BEHIND * fastest)
    for n in range(rounds):
        names = list(figures)
        for name in names[n % len(names):] + names[:n % len(names)] if names else []:
            if n > 0 and once(figures[name]["seconds"]):
                continue
            time.sleep(0.01)                        # threads that wait by spinning fall asleep
            answer = one_turn(workers[name], seconds)
            if "left" in answer:
                left[name] = answer["left"]
                del figures[name]
                continue
            medians[name].append(statistics.median(answer["seconds"]))
            figures[name]["stolen"] = max(figures[name].get("stolen", 0.0), answer["stolen"])
    for name, found in figures.items():
        found.update(seconds=statistics.median(medians[name]), low=min(medians[name]), high=max(medians[name]),
                     rounds=medians[name], wrong=not found["error"] <= allowed_error(name, case["type"]))     # NaN is wrong too
    return figures, left


def refusals(runs):
    """{library: its last reason} of those that were left out of every case, such as one without the type."""
    reasons = {name: reason for run in runs for name, reason in run["left"].items()}
    return {name: reason for name, reason in reasons.items() if not any(name in run["figures"] for run in runs)}


def expanded(cases):
    """The cases as they are measured: a backward pass alone, and with its forward pass."""
    for case in cases:
        yield case
        if case["operation"] == "backward":
            yield {**case, "name": case["name"] + "_both", "operation": "forward_backward",
                   "flops": case["flops"] * 7 / 5}


def all_but_growth(cases, type):
    found = [*expanded(case for case in cases if case["suite"] != "growth")]
    return found if type == "i8" else [yardstick(type), *found]     # no library multiplies whole matrices of 8 bits


def fill(args, cases):
    import worker
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"                  # NumPy is loaded in the processes
    cases = sorted(all_but_growth(cases, args.type), key=lambda case: case["flops"], reverse=True)
    with concurrent.futures.ProcessPoolExecutor(len(args.core_sets[-1])) as pool:
        for _ in pool.map(worker.keep, cases, itertools.repeat(args.kept)):
            pass


def growth(case, cores, limit, before):
    """One length in a fresh process; None where it would take longer than the limit. Four times the time of half the
    length is expected."""
    if before and before["seconds"] * 4.5 > limit:
        return None
    worker = Worker("attend", cores)
    found = worker.first if "left" in worker.first else worker.ask(do="growth", case=case)
    worker.close()
    return {"keys": case["keys"], "cores": len(cores), **found}


def measure_all(results, cases, core_sets, args, say, log):
    """Fills in the runs, versions, growth and what was left out of the results."""
    runs, left_out, versions = results["runs"], results["left_out"], results["machine"]["versions"]
    sweep = [case for case in cases if case["suite"] == "growth"]
    side_by_side = all_but_growth(cases, args.type)
    total, done = len(side_by_side) * len(core_sets), 0
    there = {(run["case"]["name"], run["cores"]) for run in runs}      # of a run that this one goes on with
    end = time.monotonic() + 60 * args.minutes
    out_of_time = lambda: time.monotonic() > end
    left_out[CUT_OFF] = "the run was ended before"
    for cores in core_sets:
        workers = {}
        names = args.libraries.split(",")
        if args.no_compile and "PyTorch compiled" in names:
            left_out["PyTorch compiled"] = "compiling takes a minute"
            names.remove("PyTorch compiled")
        for name, worker in {name: Worker(name, cores, log, args.kept) for name in names}.items():     # they load at once
            if "left" in worker.first:
                left_out[name] = worker.first["left"]
                worker.close()
            else:
                workers[name] = worker
                versions[name] = worker.first["version"]
        if "attend" not in workers:
            raise SystemExit(f"compare: attend cannot be imported: {left_out['attend']}")
        for case in side_by_side:
            done += 1
            if (case["name"], len(cores)) in there:
                continue
            if out_of_time():
                left_out[f"{case['name']} on {len(cores)}"] = "time was up"
                continue
            say(f"{done} of {total}, {len(cores)} core{'s'[:len(cores) != 1]}, {case['name']}")
            figures, left = in_turns(case, workers, args.rounds, args.seconds)
            runs.append({"case": case, "cores": len(cores), "figures": figures, "left": left})
        for worker in workers.values():
            worker.close()
    left_out.update(refusals(runs))
    before = None
    for case in [] if results["growth"] else sweep:
        say(f"growth, {case['keys']} keys")
        before = None if out_of_time() else growth(case, core_sets[-1], args.limit, before)
        if before is None or "left" in before:
            left_out[f"growth from {case['keys']} keys on"] = before["left"] if before else "it takes too long"
            break
        results["growth"].append(before)
    del left_out[CUT_OFF]


# ---- the machine ----------------------------------------------------------------------------------------------------


def pinned(cores, *command):
    """What a command prints as JSON, run on these cores."""
    done = subprocess.run(command, text=True, capture_output=True, preexec_fn=lambda: os.sched_setaffinity(0, cores))
    if done.returncode != 0:
        raise SystemExit(f"compare: {' '.join(map(str, command))}: {done.stderr.strip() or done.returncode}")
    return json.loads(done.stdout)


def describe_machine(command, cores):
    info = pinned(cores, command, "info", "--json")
    commit = os.environ.get("ATTEND_COMMIT")
    if not commit:
        done = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=12"], text=True,
                              capture_output=True)
        commit = done.stdout.strip() if done.returncode == 0 else "unknown"
    return {"processor": info["machine"]["processor"] or platform.machine(),
            "architecture": info["machine"]["architecture"], "processors": info["machine"]["processors"],
            "cores_used": len(cores), "memory_bytes": info["machine"]["memory_bytes"], "simd": info["machine"]["simd"],
            "system": f"{platform.system()} {platform.release()}", "python": platform.python_version(),
            "versions": {}, "commit": commit, "kernels": [kernel["name"] for kernel in info["kernels"]],
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")}


def begun(args, results):
    """What an earlier run found that ended before its time, if it was of the same machine, attend and type."""
    file = args.out / "results.json"
    if not file.exists():
        return results
    found = json.loads(file.read_text())
    if not of_one_session(found, results) or any(found[name] != results[name] for name in ("type", "settings")):
        raise SystemExit(f"compare: {file} is of another machine, commit, type or other rounds")
    return found


def self_test():
    """A wrong or missing result must not count, and the arithmetic must be that of the formulas."""
    case = {"name": "x", "suite": "notes", "operation": "forward", "type": "f32", "flops": 4e9, "bytes": None,
            "causal": False}
    good = lambda seconds: {"seconds": seconds, "low": seconds, "high": 1.5 * seconds, "wrong": False}
    run = {"case": case, "cores": 1, "left": {}, "figures": {
        "attend": good(1.0), "PyTorch": good(3.0), "NumPy": good(2.0), "attend.torch": good(0.5),
        "ONNX Runtime": {**good(0.1), "wrong": True}}}
    alone = {**run, "figures": {"attend": good(1.0)}}
    wrong = {**run, "figures": {**run["figures"], "attend": {**good(1.0), "wrong": True}}}
    quarter = {**run, "figures": {"attend": good(1.0), "PyTorch": good(8.0)}}
    reads = {**run, "case": {**case, "bytes": 15e9}}
    peaks = {"1": {"flops": 8e9, "read_bytes": 1e10, "reading": [{"array_bytes": 15e9, "bytes_per_second": 2e10}]}}
    assert best_peer(run) == ("NumPy", 2.0) and ratio(run) == 2.0
    turned = lambda seconds, rounds: {**good(seconds), "rounds": rounds}
    paired = {**run, "figures": {"attend": turned(1.0, [1.0, 2.0] * 4), "PyTorch": turned(3.0, [3.0, 4.0] * 4)}}
    assert interval(paired) == (2.0, 3.0) and interval(run) is None    # within a round 3 and 2 times
    assert "3.00x  (2.000 to 3.000)" in table({"runs": [paired], "peaks": {}, "growth": [], "left_out": {}})
    assert best_peer(alone) is None and ratio(alone) is None and ratio(wrong) is None
    assert math.isclose(means([run, quarter, alone, wrong])["notes", 1], 4.0)
    assert share(run, peaks) == 0.5 and share(reads, peaks) == 0.75 and share(run, {}) is None
    half = {**reads, "case": {**case, "bytes": 7.5e9}}              # read as fast as the size nearest to it
    assert share(half, {"1": {**peaks["1"], "reading": [{"array_bytes": 1e6, "bytes_per_second": 1e12},
                                                        *peaks["1"]["reading"]]}}) == 0.5
    assert [c["name"] for c in expanded([case, {**case, "operation": "backward"}])] == ["x", "x", "x_both"]
    assert spread(good(2.0)) == 0.5
    assert [duration(s) for s in (1.234e-5, 0.1234, 12.34)] == ["12.3 us", "123 ms", "12.3 s"]

    class Fake:                                     # the second calls are slower, and the library is wrong or right
        def __init__(self, first, error):
            self.first, self.error, self.times = first, error, iter((first, 3 * first, 2 * first))

        def ask(self, do, **_):
            return ({"seconds": self.first, "error": self.error, "note": ""} if do == "prepare"
                    else {"seconds": [next(self.times)], "stolen": 0.0})

    class Robbed:                                   # by the host: of most turns something, of one the least
        def __init__(self, *stolen):
            self.turns = [{"seconds": [n], "stolen": part} for n, part in enumerate(stolen)]

        def ask(self, **_):
            return self.turns.pop(0)

    assert [one_turn(Robbed(*stolen), 0.1)["seconds"][0] for stolen in
            ((0.0, 0.0), (0.3, 0.001, 0.0), (0.3, 0.1, 0.2, 0.4, 0.0))] == [0, 1, 1]
    figures, _ = in_turns(case, {"attend": Fake(0.1, 1e-7), "NumPy": Fake(0.2, 1e-2), "PyTorch": Fake(2.0, math.nan)},
                          3, 0.1)
    assert math.isclose(figures["attend"]["seconds"], 0.2) and math.isclose(figures["attend"]["high"], 0.3)
    assert figures["PyTorch"]["seconds"] == 2.0                     # slow: one turn
    assert [figures[name]["wrong"] for name in ("attend", "NumPy", "PyTorch")] == [False, True, True]
    figures, _ = in_turns(case, {"attend": Fake(0.01, 1e-7), "NumPy": Fake(0.06, 1e-7)}, 3, 0.1)
    assert [len(figures[name]["rounds"]) for name in ("attend", "NumPy")] == [3, 1]     # far behind: one turn
    text = table({"runs": [run, wrong], "peaks": {}, "growth": [], "left_out": {"Other": "it is missing"}})
    assert "2.00x" in text and "100 ms!" in text and "left out: Other: it is missing" in text
    assert "1 core, f32\n" in text
    self_test_types(case, good, Fake)
    print("compare: the arithmetic is right")


def self_test_types(case, good, fake):
    """What is near enough in 16 bits is not in f32, and results say their type."""
    for type, error, wrong in (("f32", 1e-3, True), ("f16", 1e-3, False), ("f16", 1e-2, True), ("bf16", 1e-2, False),
                               ("bf16", 1e-1, True), ("i8", 1e-2, False), ("i8", 1e-1, True)):
        figures, _ = in_turns({**case, "type": type}, {"attend": fake(0.1, error)}, 1, 0.1)
        assert figures["attend"]["wrong"] == wrong, (type, error)
    figures, _ = in_turns({**case, "type": "f16"}, {name: fake(0.1, 2e-2) for name in ("attend", "ggml")}, 1, 0.1)
    assert figures["attend"]["wrong"] and not figures["ggml"]["wrong"]
    left = [{"figures": {"attend": good(1.0)}, "left": {"NumPy": "no", "PyTorch": "no"}},
            {"figures": {"PyTorch": good(1.0)}, "left": {"NumPy": "never"}}]
    assert refusals(left) == {"NumPy": "never"}
    decode = {**case, "batch": 2, "key_heads": 3, "keys": 5, "d": 8, "bytes": 2.0 * 2 * 3 * 5 * 8 * 4}
    eight, = over_eight_bits([case, decode])
    assert eight["name"] == "x_i8" and eight["type"] == "i8" and eight["bytes"] == 2 * 2 * 3 * 5 * (8 + 4)
    assert parse(["--type", "i8"]).suites == "decode" and "decode" in parse([]).suites.split(",")
    assert yardstick("f32")["name"] == "matmul 2048 x 2048" and yardstick("bf16")["type"] == "bf16"
    sizes = {"batch": 1, "heads": 1, "keys": 2048, "d": 64}
    run = lambda suite, peer: {"case": {**case, **sizes, "name": suite, "suite": suite, "type": "bf16"}, "cores": 1, "left": {},
                               "figures": {"attend": good(1.0), "PyTorch": good(peer)}}
    peaks = {"1": {"instructions": "AMX", "type": "bf16", "flops": 8e9, "read_bytes": 1e10, "reading": []}}
    results = lambda *runs: {"type": "bf16", "runs": runs, "peaks": peaks, "growth": [], "left_out": {}}
    assert "1 core, bf16: 8 GFLOP/s (AMX in bf16)" in table(results(run("long", 1.2)))
    reached = lambda *runs: [yes for _, _, yes in bars(results(*runs), 1)]
    assert reached(run("notes", 1.0), run("long", 1.2)) == [True, True]
    assert reached(run("notes", 0.9), run("long", 1.1)) == [False, False]
    assert reached(run("notes", 1.1)) == [True]


# ---- the command ----------------------------------------------------------------------------------------------------


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", help="separated by commas; all if not given: " + ", ".join(SUITES))
    parser.add_argument("--type", default="f32", choices=ALLOWED_ERROR,
                        help="of the numbers; f32 if not given; i8 has the suite decode alone")
    parser.add_argument("--filter", default="", help="only cases whose name has this regular expression")
    parser.add_argument("--libraries", default=",".join(LIBRARIES), help="attend and those beside it; all if not given: " +
                        ", ".join(LIBRARIES[1:]))
    parser.add_argument("--rounds", type=int, help="turns of each library; 3, or 2 with --quick")
    parser.add_argument("--seconds", type=float, help="of a turn; 0.08, or 0.03 with --quick")
    parser.add_argument("--cores", help="numbers of cores, separated by commas; 1 and all of them if not given")
    parser.add_argument("--minutes", type=float, default=60, help="after these no further case is begun")
    parser.add_argument("--limit", type=float, default=60, help="seconds that one length of `growth` may take")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/bench", help="folder for the results")
    parser.add_argument("--attend", type=pathlib.Path, default=ROOT / "build/release/cli/attend",
                        help="the command attend, which knows the cases and the machine")
    parser.add_argument("--quick", action="store_true", help="a few small cases, briefly; --no-compile as well")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out, which takes a minute")
    parser.add_argument("--kept", help="folder of the cases' numbers and truths: those that are not there are made and kept, for all "
                        "libraries and later runs; of all suites and types some gigabytes")
    parser.add_argument("--fill", action="store_true", help="do nothing but make them, on all cores")
    parser.add_argument("--goes-on", action="store_true", help="what --out has of this machine and commit stays; the rest is measured")
    parser.add_argument("--self-test", action="store_true", help="check the arithmetic and end")
    args = parser.parse_args(arguments)
    args.no_compile = args.no_compile or args.quick
    args.rounds = args.rounds or (2 if args.quick else 3)
    args.seconds = args.seconds or (0.03 if args.quick else 0.08)
    suites = ("decode",) if args.type == "i8" else SUITES
    args.suites = args.suites or ",".join(suites)
    if args.fill and not args.kept:
        parser.error("--fill takes --kept FOLDER")
    unknown = set(args.suites.split(",")) - set(suites)
    if unknown:
        parser.error(f"there is no suite {', '.join(sorted(unknown))}" + (" in i8" if args.type == "i8" else ""))
    if "attend" not in args.libraries.split(",") or not set(args.libraries.split(",")) <= set(LIBRARIES):
        parser.error(f"--libraries takes attend and some of {', '.join(LIBRARIES[1:])}, not {args.libraries}")
    available = sorted(os.sched_getaffinity(0))
    try:
        counts = sorted({int(n) for n in args.cores.split(",")} if args.cores else {1, len(available)})
    except ValueError:
        parser.error(f"--cores takes numbers, not {args.cores}")
    if counts[0] < 1 or counts[-1] > len(available):
        parser.error(f"--cores takes 1 to {len(available)}, not {args.cores}")
    args.core_sets = [available[-n:] for n in counts]       # the first core has most of the system's own work
    return args


def main(arguments):
    args = parse(arguments)
    if args.self_test:
        return self_test()
    begin = time.monotonic()

    def say(text):
        print(f"[{time.monotonic() - begin:4.0f} s] {text}", file=sys.stderr, flush=True)

    args.out.mkdir(parents=True, exist_ok=True)
    made_in = "f32" if args.type == "i8" else args.type
    chosen = ["--suite", args.suites, "--type", made_in, *["--quick"] * args.quick]
    if args.filter:                                         # the command refuses an empty one
        chosen += ["--filter", args.filter]
    cases = pinned(args.core_sets[-1], args.attend, "bench", "--list", "--json", *chosen)["cases"]
    if args.type == "i8":
        cases = list(over_eight_bits(cases))
    if args.kept:
        os.makedirs(args.kept, exist_ok=True)
    if args.fill:
        return fill(args, cases)
    results = {"schema": "attend.compare/1", "type": args.type, "machine": describe_machine(args.attend, args.core_sets[-1]),
               "settings": {"rounds": args.rounds, "seconds": args.seconds, "quick": args.quick},
               "peaks": {}, "left_out": {}, "runs": [], "growth": []}
    if args.goes_on:
        results = begun(args, results)
    say("the machine's peak")
    for cores in args.core_sets:
        if str(len(cores)) not in results["peaks"]:
            results["peaks"][str(len(cores))] = pinned(cores, args.attend, "bench", "--peak", "--json", *chosen)["peak"]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("compare: ended from outside; what was measured is kept"))
    try:
        with open(args.out / "workers.log", "w") as log:    # what the libraries say
            measure_all(results, cases, args.core_sets, args, say, log)
    finally:
        (args.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
        (args.out / "table.txt").write_text(table(results))
    print(table(results))
    try:
        import plots
        plots.draw(results, args.out)
    except ImportError as error:
        say(f"no plots: {error}; bench/plots.py draws them later from results.json")
    say(f"done: {args.out}")
    wrong = [f"{run['case']['name']} on {run['cores']}" for run in results["runs"]
             if run["figures"].get("attend", {"wrong": True})["wrong"] and run["case"]["suite"] != "yardstick"]
    if wrong:
        print(f"compare: attend's results are wrong or missing: {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

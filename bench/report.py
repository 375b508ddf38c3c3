#!/usr/bin/env python3
"""Makes docs/performance.md and its chart from bench/results/*/results.json, which compare.py wrote, and bench/results/*.json,
which gpu.py wrote.

    bench/report.py             writes both
    bench/report.py --check     says whether they are what would be written; exit 1 if not
    bench/report.py --print     prints the page
"""
import json
import pathlib
import sys

sys.dont_write_bytecode = True
from bars import bars
from figures import LIBRARIES, duration, means, peak_words, ratio, share, spread, type_of
import gpu_report
import summary

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE, CHART = ROOT / "docs/performance.md", ROOT / "docs/images/performance.svg"
PEERS = ("PyTorch", "ONNX Runtime", "ggml", "NumPy")
OPENING = """# Performance

<!-- Made by bench/report.py from bench/results; change those, not this page. -->

How fast attend is beside {peers}, whichever of them is fastest in each case: geometric means over the
cases, all called from Python in one run, on CPUs.
"""
AFTER_SUMMARY = """
Below are [every case on every machine](#machines), on one core too; [how it is measured](#how-it-is-measured); and
[the goals](#goals-that-attend-sets-itself) that attend sets itself, reached or not. `./run bench` measures it on your machine, with `--type bf16`
or `--type f16` in those types, with `--type i8` over a KV cache of 8 bits; `attend bench` times the kernels alone, from C++. [NVIDIA GPUs](#nvidia-gpus) come behind the CPUs.

## Machines
"""
GOALS = """## Goals that attend sets itself
What is wanted (`bench/bars.py`), what a run found, and whether that is enough.
"""
CLOSING = """## How it is measured
- Each library has its own process, pinned to the same cores, and they take turns: one computes, the others sleep. In one
  process ONNX Runtime's threads, which wait by spinning, would slow the others down; and pinning alone keeps PyTorch on Arm to
  one core.
- A figure is the median over rounds of the median of a turn; `settings` in `results.json` says how many and how long. The order
  changes every round. Spread is the range of attend's rounds divided by their median; `results.json` has it for
  all libraries. A turn during which the host of a virtual machine gave its cores to others (`steal` in
  `/proc/stat`) is repeated. A library whose calls take over 0.02 s and five times as long as the fastest's, or over 0.5 s, has one
  turn. Means are geometric means of ratios.
- PyTorch's forward passes run in `inference_mode` (`scaled_dot_product_attention`, `nn.MultiheadAttention`); attend.torch is
  attend as its drop-in. ONNX Runtime runs whichever is fastest of `Attention`, `MultiHeadAttention` and `GroupQueryAttention`,
  on tensors in the layout it wants. A backward pass is measured alone, and with its forward pass (`_both`); NumPy's computes the
  weights again in both.
- ggml, the library under llama.cpp, takes part where the package `llama-cpp-python` is installed (`python/requirements-bench.txt`),
  compiled for the machine: its operator `flash_attn_ext` in a graph that is made once. Its queries and results are always f32,
  its keys and values of the type. With few queries it adds up values of f16 in f16, with errors of 0.01 to 0.03 over
  thousands of keys, ten times those of the other libraries; that is not called wrong.
- Each result is compared with the formulas in f64 before it counts; an exclamation mark is a result that was wrong. In bf16 and
  f16 all libraries get the same numbers rounded to that type, and so do the formulas. ONNX Runtime has no bf16 on CPUs, and widens
  f16 where it has no kernel for it; NumPy is left out there, which multiplies 16 bits without a library.
- In i8 (`--type i8`, decode alone) each library stores the same keys and values of f32 in its own 8 bits before the clock starts:
  attend with a scale for each token and key head, ggml (q8_0) for 32 numbers, ONNX Runtime (`GroupQueryAttention`) one for all or for
  each channel, whichever is faster. Results are compared with the formulas on the numbers before that rounding. PyTorch's
  function takes no such keys.
- Peak is what a loop of multiply-adds on registers reaches on these cores in the same run, in bf16 and f16 a loop of
  multiplications of tiles where AMX has them, else still that of f32; for decode, what a sum over as much
  memory reaches (`peaks` in `results.json`: what fits into the caches is read faster). Where neighbours share the processor, it
  may be measured at a worse moment than a case: then a share is above 100 %. Operations: `4 B H Tq Tk d` forward, half of
  it when causal, 2.5 times as many backward.
- Suites: `notes` has the short sequences (10 and 20 tokens) of the [notes](notes/README.md) that this project started from, `bert`
  and `gpt` (causal) the sizes of those models, `long` 2048 and 4096 tokens, `decode` one query over a KV cache, `layer` a layer of
  width 512, `length` 2048 tokens in every case.
- A name says batch B, heads H, key heads K where they are fewer, queries Q where there is one, keys T, head size d.
"""


def row(*cells):
    return "| " + " | ".join(cells) + " |"


def cores_name(cores):
    return f"{cores} core{'s'[:cores != 1]}"


def case_table(results, runs, suite):
    """One suite: attend's speed, and the times of all libraries."""
    names = [name for name in LIBRARIES if any(name in run["figures"] for run in runs)]
    yield f"**{suite}**"
    yield ""
    yield row("case", "cores", "speed of attend", "of peak", "spread", *names, "best other / attend")
    yield "|---|" + "--:|" * (len(names) + 5)
    order = list(dict.fromkeys(run["case"]["name"] for run in runs))
    for run in sorted(runs, key=lambda run: (order.index(run["case"]["name"]), run["cores"])):
        case, ours = run["case"], run["figures"].get("attend")
        work, unit = (case["bytes"], "GB/s") if case.get("bytes") else (case["flops"], "GFLOP/s")
        part, times = share(run, results["peaks"]), ratio(run)
        cells = [f"{duration(found['seconds'])}{'!' if found['wrong'] else ''}" if found else ""
                 for found in map(run["figures"].get, names)]
        yield row(case["name"].split("/")[-1], str(run["cores"]),
                  f"{work / ours['seconds'] / 1e9:.1f} {unit}" if ours else "",
                  f"{100 * part:.0f} %" if part else "", f"{100 * spread(ours):.0f} %" if ours else "", *cells, f"{times:.2f}x" if times else "")
    yield ""


def machine_section(name, results):
    machine, counts = results["machine"], sorted({run["cores"] for run in results["runs"]})
    versions = ", ".join(f"{library} {version}" for library, version in machine["versions"].items() if library in PEERS)
    in_type = "" if type_of(results) == "f32" else f", {type_of(results)}"
    yield f"### {name}: {machine['processor']}, {machine['architecture']}{in_type}"
    yield ""
    kernels = {run["figures"]["attend"]["note"] for run in results["runs"] if "attend" in run["figures"]}
    yield (f"{machine['date']}, attend at {machine['commit']}; {cores_name(machine['cores_used'])} of "
           f"{machine['processors']}, {machine['memory_bytes'] / 2**30:.0f} GiB; {versions}, Python {machine['python']}. "
           f"Instructions: {' '.join(machine['simd'])}. Kernels that ran: {', '.join(sorted(kernels))}.")
    if results["settings"]["quick"]:
        yield "This was a short run (`--quick`): fewer cases, and rougher figures."
    yield ""
    yield row("", *map(cores_name, counts))
    yield "|---|" + "--:|" * len(counts)
    peaks = [results["peaks"][str(cores)] for cores in counts]
    of = f" ({peak_words(peaks[0])})" if in_type else ""
    yield row(f"peak, GFLOP/s{of}", *(f"{peak['flops'] / 1e9:.0f}" for peak in peaks))
    yield row("reading memory, GB/s", *(f"{peak['read_bytes'] / 1e9:.1f}" for peak in peaks))
    for library in LIBRARIES:
        found = {run["cores"]: run["case"]["flops"] / run["figures"][library]["seconds"] / 1e9
                 for run in results["runs"] if run["case"]["suite"] == "yardstick" and library in run["figures"]}
        if found:
            yield row(f"a 2048 x 2048 product, {library}, GFLOP/s", *(f"{found[cores]:.0f}" for cores in counts))
    average = means(results["runs"])
    for group in dict.fromkeys(group for group, _ in average):
        yield row(f"**{group}**: times as fast as the best other library, mean",
                  *(f"**{average[group, cores]:.2f}x**" if (group, cores) in average else "" for cores in counts))
    yield ""
    folder = f"../bench/results/{name}"
    for plot, words in (("speed", "Speed over length"), ("growth", "Time and memory as the length grows")):
        if (ROOT / "bench/results" / name / f"{plot}.svg").exists():
            yield f"![{words}]({folder}/{plot}.svg)"
            yield ""
    suites = dict.fromkeys(run["case"]["suite"] for run in results["runs"])
    for suite in suites:
        if suite != "yardstick":
            yield from case_table(results, [run for run in results["runs"] if run["case"]["suite"] == suite], suite)
    if results["growth"]:
        yield row("keys", "cores", "time", "memory, inputs included")
        yield "|--:|--:|--:|--:|"
        for point in results["growth"]:
            yield row(str(point["keys"]), str(point["cores"]), duration(point["seconds"]),
                      f"{point['memory_bytes'] / 2**20:.1f} MiB")
        yield ""
    for library, reason in results["left_out"].items():
        yield f"Left out: {library}, because {reason}."
        yield ""


def goals(name, results, others):
    yield f"### {name}"
    yield ""
    yield row("cores", "wanted", "found", "")
    yield "|--:|---|---|---|"
    for cores in sorted({run["cores"] for run in results["runs"]}):
        for wanted, found, reached in bars(results, cores, others):
            yield row(str(cores), wanted, found, "yes" if reached else "**no**")
    yield ""


def page(kept, series, gpus):
    if not kept:
        return OPENING.format(peers="other libraries") + "\nNo results are kept yet.\n\n" + CLOSING
    *peers, last = [name for name in PEERS if any(name in results["machine"]["versions"] for results in kept.values())]
    lines = [OPENING.format(peers=f"{', '.join(peers)} and {last}" if peers else last), *summary.table(series), "",
             "![How many times as fast as the best other library](images/performance.svg)", AFTER_SUMMARY]
    for name, results in kept.items():
        lines += machine_section(name, results)
    lines += gpu_report.section(gpus)
    lines += [CLOSING, GOALS]
    for name, results in kept.items():
        lines += goals(name, results, kept.values())
    return "\n".join(lines)


def main(arguments):
    if arguments not in ([], ["--check"], ["--print"]):
        print(__doc__, file=sys.stderr)
        return 2
    kept = {file.parent.name: json.loads(file.read_text()) for file in sorted((ROOT / "bench/results").glob("*/results.json"))}
    gpus = {file.stem: json.loads(file.read_text()) for file in sorted((ROOT / "bench/results").glob("*.json"))}
    series = summary.series_of(kept.values())
    written = {PAGE: page(kept, series, gpus), CHART: "\n".join(summary.chart(series)) + "\n"}
    if arguments == ["--print"]:
        print(written[PAGE], end="")
        return 0
    for file, text in written.items():
        if not arguments:
            file.write_text(text)
        elif not file.exists() or file.read_text() != text:
            print(f"{file.relative_to(ROOT)} is not what bench/report.py makes of bench/results: run it", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

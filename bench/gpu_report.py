"""The section of docs/performance.md on GPUs, from bench/results/*.json, which tools/test_gpu.sh wrote (or bench/gpu.py
alone: what else was asked is not in them then)."""
import math

PEERS = ("cuDNN", "flash")
INTRODUCTION = """## NVIDIA GPUs

`attend.attention()` and `attend.attention_backward()` from Python in bf16 beside PyTorch's `scaled_dot_product_attention` with its cuDNN and flash backends,
{tokens} tokens in all, heads times d = {width}. TFLOP/s of attend, and in brackets how many times as fast as cuDNN; flash is behind both everywhere but in decode. Times
are the device's (events around many launches; for decode the replay of a graph of them), the libraries take turns, each figure is a median of {rounds} rounds, and each
result is compared with the formulas in f64 first. `tools/test_gpu.sh bench` measures it. How the kernels work, and what was tried: [src/cuda](../src/cuda/README.md).
"""


def rate(case, name):
    return case.get("bytes", case.get("flops")) / case["seconds"][name] / 1e12


def times(case, name="cuDNN"):
    return case["seconds"][name] / case["seconds"]["attend"] if name in case["seconds"] else None


def mean(numbers):
    return math.exp(sum(map(math.log, numbers)) / len(numbers))


def bounds(numbers):
    return f"{min(numbers):.2f} to {max(numbers):.2f}"


def row(*cells):
    return "| " + " | ".join(cells) + " |"


def grid(cases, suite):
    """Of forward or backward: a row for each d and mask, a column for each length."""
    found = {(c["d"], c["causal"], c["length"]): c for c in cases if c["suite"] == suite}
    lengths = sorted({length for _, _, length in found})
    yield row(suite, *(f"T {length}" for length in lengths))
    yield "|---|" + "--:|" * len(lengths)
    for d, causal in sorted({key[:2] for key in found}):
        cells = [found.get((d, causal, length)) for length in lengths]
        yield row(f"d {d} {'causal' if causal else 'full'}", *(
            "" if c is None else f"{rate(c, 'attend'):.0f}{'!' if 'attend' in c['wrong'] else ''} ({times(c):.2f})" for c in cells))
    yield ""


def decode(cases, copy):
    yield row("decode: one query", "keys and values", "attend", "of copying", "cuDNN", "flash", "times cuDNN")
    yield "|---|--:|--:|--:|--:|--:|--:|"
    for c in cases:
        if c["suite"] == "decode":
            rates = [f"{rate(c, name):.2f} TB/s" if name in c["seconds"] else "" for name in ("attend", *PEERS)]
            yield row(f"d {c['d']}, B {c['batch']}, {c['heads']} heads, {c['kv_heads']} of keys, T {c['length']}",
                      f"{c['bytes'] / 1e6:.0f} MB", rates[0], f"{100e12 * rate(c, 'attend') / copy:.0f} %", *rates[1:], f"{times(c):.2f}x")
    yield ""


def cache(cases, copy):
    """Over pages and keys of 8 bits, of what is read."""
    found = [c for c in cases if "bytes_of" in c]
    if not found:
        return
    names = list(dict.fromkeys(name for c in found for name in c["bytes_of"]))
    yield row("decode: one query", "dense", *names)
    yield "|---|" + "--:|" * (1 + len(names))
    for c in found:
        def rate(name, c=c):
            if name not in c["seconds"]:    # it declined, or had no memory
                return ""
            rate = c["bytes_of"].get(name, c["bytes"]) / c["seconds"][name]
            return f"{rate / 1e12:.2f} TB/s ({100 * rate / copy:.0f} %)"
        yield row(f"d {c['d']}, B {c['batch']}, {c['heads']} heads, {c['kv_heads']} of keys, T {c['length']}",
                  *(rate(name) for name in ("attend", *names)))
    yield ""
    yield "TB/s of all that is read, and how much of copying that is. 8 bits are half the bytes of bf16, and a scale for each row."
    yield ""


def options(cases):
    """Of gpu_options.py: a row for each shape and option."""
    if not cases:
        return
    yield row("options", "attend", "time / time without", "portable / attend", "PyTorch's fastest", "attend, times as fast")
    yield "|---|--:|--:|--:|--:|--:|"
    for c in cases:
        unit = "TB/s" if c["queries"] == 1 else "TFLOP/s"
        shape = f"d {c['d']}, B {c['batch']}, {c['heads']} heads, " + (
            f"{c['kv_heads']} of keys, one query, T {c['length']}" if c["queries"] == 1 else f"T {c['length']}{', causal' * c['causal']}")
        bare = c["seconds"]["nothing attend"]
        for name in c["error"]:
            seconds = {who: c["seconds"].get(f"{name} {who}") for who in ("attend", "portable", "cuDNN", "efficient", "flash")}
            shown = {who: f"{c['work'] / t / 1e12:.3g} {unit}" for who, t in seconds.items() if t}
            found = [(t, who) for who, t in seconds.items() if t and who not in ("attend", "portable")]
            fastest, who = min(found, default=(None, None))
            yield row(f"{shape}: {name}{'!' if name in c['wrong'] else ''}", shown["attend"], f"{seconds['attend'] / bare:.2f}",
                      f"{seconds['portable'] / seconds['attend']:.0f}x", f"{shown[who]} ({who})" if who else "",
                      f"{fastest / seconds['attend']:.2f}x" if who else "")
    yield ""
    yield ("Rates count all pairs of queries and keys, hidden ones too, or for one query all keys and values. PyTorch is given masks, blocks, bias "
           "and ALiBi as one tensor of masks or bias.")
    yield ""


def goals(cases, copy):
    """(wanted, found, reached)"""
    def of(suite, chosen=lambda c: True):
        return [c for c in cases if c["suite"] == suite and times(c) and chosen(c)]

    ratios = [times(c) for c in of("forward")]
    yield "forward at least 0.95 times cuDNN in every case", f"{bounds(ratios)}, mean {mean(ratios):.2f}", min(ratios) >= 0.95
    ratios = [times(c) for c in of("backward", lambda c: c["d"] <= 128 and c["length"] >= 2048)]
    yield "backward, deterministic, d up to 128, T from 2048: at least 0.85 times cuDNN", bounds(ratios), min(ratios) >= 0.85
    ratios = [times(c) for c in of("backward", lambda c: c["d"] == 256 and c["length"] >= 2048)]
    yield "backward at d 256, T from 2048: at least 1.25 times cuDNN", bounds(ratios), min(ratios) >= 1.25
    for least, words, low, high in ((0.70, "134 MB", 1.3e8, 1.4e8), (0.85, "1 GB and more", 1e9, math.inf)):
        shares = [1e12 * rate(c, "attend") / copy for c in of("decode", lambda c: low <= c["bytes"] < high)]
        yield (f"decode of {words}: at least {100 * least:.0f} % of copying", " to ".join(f"{100 * x:.0f} %" for x in
               sorted({min(shares), max(shares)})), min(shares) >= least)


def asked(steps):
    """What tools/test_gpu.sh asked besides, in one sentence."""
    tables = [s["said"] for name, s in steps.items() if name.startswith("table_")]
    said = [s.get("said", {}) for s in steps.values()]
    said += steps.get("properties", {}).get("said", {}).values()
    tests = {word: sum(x[word] for x in said if isinstance(x.get(word), int)) for word in ("passed", "skipped", "failed")}
    failed = [name for name, s in steps.items() if not s["passed"]]
    runs = sum(row["runs"] for table in tables for row in table["kernels"].values())
    return (f"Asked of the same build: {runs} runs of kernels from the table of cases, {sum(t['wrong'] for t in tables)} wrong; {tests['passed']} tests "
            f"passed, {tests['skipped']} were skipped, {tests['failed']} failed. Steps that failed: {', '.join(failed) or 'none'}.")


def section(kept):
    """kept: {name: results}"""
    for name, results in kept.items():
        machine, yard, cases = results["machine"], results["yardsticks"], results["cases"]
        usual = [c for c in cases if c["suite"] != "decode" and c["length"] <= 16384]
        yield INTRODUCTION.format(tokens=max(c["batch"] * c["length"] for c in usual), width=usual[0]["heads"] * usual[0]["d"],
                                  rounds=results["settings"]["rounds"])
        yield f"### {name}: {machine['gpu']}"
        yield ""
        kernels = sorted({c["kernel"] for c in cases})
        yield (f"{machine['date']}, attend at {machine['commit']}; driver {machine['driver']}, CUDA {machine['cuda']}, cuDNN {machine['cudnn']}, "
               f"PyTorch {machine['pytorch']}. A product of 8192 x 8192 matrices in bf16: {yard['product'] / 1e12:.0f} TFLOP/s; copying: "
               f"{yard['copy'] / 1e12:.2f} TB/s read and written. Kernels that ran: {', '.join(kernels)}.")
        yield ""
        if "asked" in results:
            yield asked(results["asked"]["steps"])
            yield ""
        for suite in ("forward", "backward"):
            yield from grid(cases, suite)
        yield from decode(cases, yard["copy"])
        yield from cache(cases, yard["copy"])
        yield from options(results.get("options", []))
        yield row("wanted", "found", "")
        yield "|---|---|---|"
        for wanted, found, reached in goals(cases, yard["copy"]):
            yield row(wanted, found, "yes" if reached else "**no**")
        yield ""

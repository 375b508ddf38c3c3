"""The arithmetic of compare.py's results: ratios, means, shares of the peak, and all of it as a table of text."""
import math
import statistics

from pairs import middle

LIBRARIES = ("attend", "attend.torch", "PyTorch", "PyTorch compiled", "ONNX Runtime", "ggml", "NumPy")
OURS = ("attend", "attend.torch")


def best_peer(run):
    """(name, seconds) of the fastest other library whose result is right, or None."""
    others = [(found["seconds"], name) for name, found in run["figures"].items()
              if name not in OURS and not found["wrong"]]
    return min(others)[::-1] if others else None


def ratio(run):
    """How many times faster attend is than the best other library; None where there is nothing to compare."""
    peer, ours = best_peer(run), run["figures"].get("attend")
    return peer[1] / ours["seconds"] if peer and ours and not ours["wrong"] else None


def interval(run):
    """(low, high) of that ratio, 95 %, from the ratios of the rounds; None of fewer than six."""
    peer, ours = best_peer(run), run["figures"].get("attend")
    if ratio(run) is None or "rounds" not in ours or len(ours["rounds"]) < 6:
        return None
    theirs = run["figures"][peer[0]]["rounds"]
    return middle([other / own for own, other in zip(ours["rounds"], theirs)])[1:] if len(theirs) == len(ours["rounds"]) else None


def geometric_mean(values):
    return math.exp(statistics.fmean(map(math.log, values)))


def means(runs):
    """{(suite, cores): geometric mean of the ratios}; a backward pass alone and with its forward pass apart."""
    groups = {}
    for run in runs:
        if (found := ratio(run)) and run["case"]["suite"] not in ("yardstick", "growth"):
            groups.setdefault((group_of(run["case"]), run["cores"]), []).append(found)
    return {key: geometric_mean(found) for key, found in groups.items()}


def group_of(case):
    kind = {"forward_backward": " with forward", "layer_train": " training"}.get(case["operation"], "")
    return case["suite"] + kind


def share(run, peaks):
    """The least time that the machine's peak allows, arithmetic and for decode reading, as a part of attend's time."""
    case, ours, peak = run["case"], run["figures"].get("attend"), peaks.get(str(run["cores"]))
    if not ours or not peak:
        return None
    least = case["flops"] / peak["flops"]
    if case.get("bytes"):       # read over about as much memory as the case reads: what fits into a cache is read faster
        rates = {found["array_bytes"]: found["bytes_per_second"] for found in peak["reading"]}
        nearest = min(rates, key=lambda size: abs(math.log(size / case["bytes"])), default=None)
        least = max(least, case["bytes"] / rates.get(nearest, peak["read_bytes"]))
    return least / ours["seconds"]


def type_of(results):
    return results.get("type", "f32")       # results that are older than other types do not say it


def peak_words(peak):
    """With which instructions the peak was found, and of which type."""
    return f"{peak['instructions']} in {peak.get('type', 'f32')}"


def spread(figures):
    """How far the rounds lie apart, as a part of their median."""
    return (figures["high"] - figures["low"]) / figures["seconds"]


def duration(seconds):
    for unit, factor in (("us", 1e6), ("ms", 1e3)):
        if seconds * factor < 1000:
            return f"{seconds * factor:.3g} {unit}" if seconds * factor < 100 else f"{seconds * factor:.0f} {unit}"
    return f"{seconds:.3g} s"


def table(results):
    """The results as text."""
    lines, runs = [], results["runs"]
    names = [name for name in LIBRARIES if any(name in run["figures"] for run in runs)]
    for cores in sorted({run["cores"] for run in runs}):
        peak = results["peaks"].get(str(cores))
        lines.append(f"{cores} core{'s'[:cores != 1]}, {type_of(results)}" + (
            f": {peak['flops'] / 1e9:.0f} GFLOP/s ({peak_words(peak)}), reads {peak['read_bytes'] / 1e9:.1f} GB/s"
            if peak else ""))
        lines.append(f"{'case':36}{'speed':>14}{'of peak':>9}{'spread':>8}" + "".join(f"{name:>17}" for name in names) +
                     f"{'best / attend':>15}")
        for run in (run for run in runs if run["cores"] == cores):
            case, ours = run["case"], run["figures"].get("attend")
            unit = "GB/s" if case.get("bytes") else "GFLOP/s"
            work = case.get("bytes") or case["flops"]
            part = share(run, results["peaks"])
            row = f"{case['name']:36}"
            row += f"{work / ours['seconds'] / 1e9:6.1f} {unit:>7}" if ours else " " * 14
            row += f"{100 * part:7.0f} %" if part else " " * 9
            row += f"{100 * spread(ours):6.0f} %" if ours else " " * 8
            for name in names:
                found = run["figures"].get(name)
                row += f"{'-' if not found else duration(found['seconds']) + ('!' if found['wrong'] else ''):>17}"
            row += f"{ratio(run):14.2f}x" if ratio(run) else ""
            lines.append(row + ("  ({:.3f} to {:.3f})".format(*interval(run)) if interval(run) else ""))
        for (group, at), mean in means(runs).items():
            if at == cores:
                lines.append(f"{'mean of ' + group:36}{mean:.2f}x the best other library")
        lines.append("")
    for point in results["growth"]:
        lines.append(f"{point['keys']:7} keys, {point['cores']} cores: {duration(point['seconds'])}, "
                     f"{point['memory_bytes'] / 2**20:.1f} MiB, error {point['error']:.1e}")
    lines += [f"left out: {name}: {reason}" for name, reason in results["left_out"].items()]
    return "\n".join(lines) + "\n"

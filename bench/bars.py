"""What attend wants to reach, and whether a run of compare.py did: each bar with what was found."""
import math
import statistics

from figures import geometric_mean, group_of, means, ratio, share, type_of

NOTES_SHAPES = ("B2_H8_T10", "B32_H8_T10", "B32_H8_T20")


def of_suites(results, cores, *suites):
    return [run for run in results["runs"] if run["cores"] == cores and run["case"]["suite"] in suites
            and "attend" in run["figures"]]


def every_case(results, cores):
    """Against the best other library, in every case."""
    suites = ("notes", "bert", "gpt", "long", "decode", "backward", "layer", "length")
    found = [(ratio(run), run["case"]["name"]) for run in of_suites(results, cores, *suites) if ratio(run)]
    if found:
        worst, name = min(found)
        below = sum(1 for value, _ in found if value < 1)
        yield ("every case at least as fast as the best other library",
               f"{len(found) - below} of {len(found)}; least {worst:.2f}x, {name}", below == 0)


def long_mean(results, cores):
    """In 16 bits, where the peers too have instructions of their own."""
    mean = means(results["runs"]).get(("long", cores))
    if mean:
        yield "long: mean of 1.15x the best other library", f"{mean:.2f}x", mean >= 1.15


def wanted_share(case):
    """Of the peak, at long lengths; a layer's products are large ones."""
    if case["operation"] in ("backward", "forward_backward"):
        return 0.68
    return 0.85 if case["operation"].startswith("layer") else 0.80 if case["d"] >= 128 else 0.75


def share_at(times, runs, peaks):
    """What part of the peak so many times the speed of the best other library would be, as a mean."""
    return geometric_mean(times * share(run, peaks) / ratio(run) for run in runs if ratio(run))


def suite_means(results, cores):
    """1.5 times the best other library; or, where that is more than the machine can do, the share of its peak."""
    for (group, at), mean in means(results["runs"]).items():
        if at != cores or group == "length":
            continue
        runs = [run for run in results["runs"] if run["cores"] == cores and group_of(run["case"]) == group
                and "attend" in run["figures"]]
        near = all(share(run, results["peaks"]) >= wanted_share(run["case"]) for run in runs)
        reached, found = mean >= 1.5 or near, f"{mean:.2f}x"
        if not reached:
            found += f"; 1.5x would be {100 * share_at(1.5, runs, results['peaks']):.0f} % of the peak"
        yield f"{group}: mean of 1.5x the best other library" + (", or near the peak" if near else ""), found, reached


def shares(results, cores):
    """Long lengths without a mask, in parts of the arithmetic that the cores can do."""
    groups = {}
    for run in of_suites(results, cores, "long", "backward"):
        case = run["case"]
        if case["keys"] >= 2048 and not case["causal"] and case["operation"] != "forward_backward":
            groups.setdefault((case["operation"], case["d"]), []).append(run)
    for (operation, d), runs in groups.items():
        wanted, found = wanted_share(runs[0]["case"]), [share(run, results["peaks"]) for run in runs]
        yield (f"{operation} from 2048 keys, d {d}: {100 * wanted:.0f} % of peak",
               f"{100 * min(found):.1f} % to {100 * max(found):.1f} %", min(found) >= wanted)


def causal(results, cores):
    """The time with a causal mask, as a part of the time without."""
    shape = lambda case: tuple(case[name] for name in ("batch", "heads", "keys", "d"))
    full = {shape(run["case"]): run["figures"]["attend"]["seconds"]
            for run in of_suites(results, cores, "bert", "long") if not run["case"]["causal"]}
    for run in of_suites(results, cores, "gpt", "long"):
        case = run["case"]
        if case["causal"] and shape(case) in full:
            part = run["figures"]["attend"]["seconds"] / full[shape(case)]
            wanted = 0.60 if case["keys"] < 2048 else 0.55
            yield (f"causal at {case['keys']} keys, d {case['d']}: {100 * wanted:.0f} % of the full time",
                   f"{100 * part:.1f} %", part <= wanted)


def decode(results, cores):
    found = [share(run, results["peaks"]) for run in of_suites(results, cores, "decode")]
    if found:
        yield ("decode: 85 % of reading speed", f"{100 * min(found):.1f} % to {100 * max(found):.1f} %",
               min(found) >= 0.85)


def layer(results, cores):
    """Against nn.MultiheadAttention, eager or compiled, or 85 % of peak."""
    for run in of_suites(results, cores, "layer"):
        figures, part = run["figures"], share(run, results["peaks"])
        peers = [figures[name]["seconds"] for name in ("PyTorch", "PyTorch compiled") if name in figures]
        if peers and run["case"]["operation"] == "layer":
            value = min(peers) / figures["attend"]["seconds"]
            wanted = 1.5 if any(name + "_" in run["case"]["name"] for name in NOTES_SHAPES) else 1.1
            yield (f"{run['case']['name']}: {wanted}x nn.MultiheadAttention, or 85 % of peak",
                   f"{value:.2f}x, {100 * part:.1f} %", value >= wanted or part >= 0.85)


def growth(results, cores):
    """Exponents, by least squares on the logarithms of the longer half of the lengths."""
    points = [point for point in results["growth"] if point["cores"] == cores]
    points = points[-max(3, len(points) // 2):]
    if len(points) < 3:
        return
    x = [math.log(point["keys"]) for point in points]
    for name, words, wanted in (("seconds", "time", 2), ("memory_bytes", "memory", 1)):
        slope = statistics.linear_regression(x, [math.log(point[name]) for point in points]).slope
        yield (f"{words} grows with the power {wanted} of the length, to {points[-1]['keys']}", f"{slope:.2f}",
               slope <= wanted + 0.1)


def gradients_beside_forward(results, cores):
    """In 16 bits: operations a second of a long backward pass, as a part of the forward pass's."""
    rate = lambda run: run["case"]["flops"] / run["figures"]["attend"]["seconds"]
    shape = lambda case: tuple(case[name] for name in ("batch", "heads", "keys", "d", "causal"))
    forward = {shape(run["case"]): rate(run) for run in of_suites(results, cores, "bert", "gpt", "long")}
    for run in of_suites(results, cores, "backward"):
        case = run["case"]
        if case["operation"] == "backward" and case["keys"] >= 2048 and shape(case) in forward:
            part = rate(run) / forward[shape(case)]
            yield (f"{case['name']}: 0.6 of the forward pass's rate", f"{part:.2f}", part >= 0.6)


def of_one_session(results, other):
    """Whether both are of one machine, or of machines that cannot be told apart, and of one attend."""
    return all(results["machine"].get(name) == other["machine"].get(name)
               for name in ("processor", "simd", "processors", "cores_used", "commit"))


def times_as_fast(results, other, cores, *suites):
    """[(how many times as fast as in the other's type, case)] of the cases that both have."""
    plain = lambda case, type: case["name"].removesuffix("_" + type)
    found = {plain(run["case"], type_of(other)): run["figures"]["attend"]["seconds"] for run in of_suites(other, cores, *suites)}
    return [(found[plain(run["case"], type_of(results))] / run["figures"]["attend"]["seconds"], run["case"])
            for run in of_suites(results, cores, *suites) if plain(run["case"], type_of(results)) in found]


def multiplies_16_bits(results):
    """Whether a kernel ran that multiplies tiles or pairs of 16 bits."""
    return any(part in run["figures"]["attend"]["note"] for run in results["runs"] if "attend" in run["figures"]
               for part in ("amx", "bf16", "fp16"))


def beside_f32(results, other, cores):
    """In 16 bits beside f32: with instructions for the type, and without."""
    for value, case in times_as_fast(results, other, cores, "decode"):
        yield f"{case['name']}: 1.7x f32", f"{value:.2f}x", value >= 1.7
    if multiplies_16_bits(results):
        for value, case in times_as_fast(results, other, cores, "layer"):
            if case["operation"] == "layer":
                yield f"{case['name']}: 2x f32", f"{value:.2f}x", value >= 2
        return
    for words, suites, most in (("10 and 20 tokens", ("notes",), 1.25),
                                ("longer ones and layers", ("bert", "gpt", "long", "backward", "layer"), 1.15)):
        found = [(value, case["name"]) for value, case in times_as_fast(results, other, cores, *suites)]
        if found:
            worst, name = min(found)
            yield (f"without instructions for the type, {words}: at most {most} times f32's time",
                   f"most {1 / worst:.2f}, {name}", 1 / worst <= most)


def beside_bf16(results, other, cores):
    """A cache of 8 bits."""
    for value, case in times_as_fast(results, other, cores, "decode"):
        yield f"{case['name']}: 1.6x bf16", f"{value:.2f}x", value >= 1.6


IN_F32 = (every_case, suite_means, shares, causal, decode, layer, growth)
IN_OTHERS = {"bf16": (every_case, long_mean, gradients_beside_forward), "f16": (every_case, long_mean, gradients_beside_forward),
             "i8": (every_case,)}
BESIDE = {("bf16", "f32"): beside_f32, ("f16", "f32"): beside_f32, ("i8", "bf16"): beside_bf16}


def bars(results, cores, others=()):
    """(what is wanted, what was found, whether it was reached) for one number of cores; `others` are results of other types."""
    for bar in IN_OTHERS.get(type_of(results), IN_F32):
        yield from bar(results, cores)
    for other in others:
        bar = BESIDE.get((type_of(results), type_of(other)))
        if bar and of_one_session(results, other):
            yield from bar(results, other, cores)

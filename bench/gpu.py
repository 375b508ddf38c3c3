#!/usr/bin/env python3
"""Times attention on an NVIDIA GPU beside PyTorch's cuDNN and flash backends and a plain matrix product, all in one run.

    bench/gpu.py --json FILE [--suites forward backward decode options] [--rounds 7]

Needs PyTorch and attend with kernels for GPUs (docs/cuda.md). Times are the device's: events around many launches, or around
the replay of a graph of them where a launch takes the host longer than the device. The libraries take turns; a figure is the
median over the rounds. Decode is measured over dense keys, over pages in a random order, and over keys and values of 8 bits; options of scores and weights by gpu_options.py. Each result is compared with the formulas in f64, over one head, before it counts.
"""
import argparse
import datetime
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import attend
import attend.cuda
import gpu_options
from gpu_times import TURN, graph_of, turns

PEERS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
SUITES = ("forward", "backward", "decode", "options")
TOKENS, WIDTH = 16384, 2048  # in all; heads * d
SIZES, LENGTHS = (64, 128, 256), (512, 1024, 2048, 4096, 8192, 16384)
LONGER = (32768, 65536, 131072)  # d 128, one sequence
DECODE = (  # d, batch, heads, key heads, keys
    (64, 16, 32, 8, 8192), (64, 64, 32, 8, 4096), (128, 1, 32, 32, 8192), (128, 1, 32, 8, 8192), (128, 8, 32, 8, 2048),
    (128, 16, 32, 8, 8192), (128, 64, 32, 8, 4096), (128, 1, 32, 8, 131072), (128, 1, 32, 32, 131072),
    (256, 16, 32, 8, 8192), (256, 64, 32, 8, 4096),
)
PAGES = (16, 64)  # keys of a page
ALLOWED = 1e-2  # error of a result in bf16, in units of its norm
CACHE = 512 << 20  # bytes of keys and values that no cache holds


def cases(suites):
    for suite in suites:
        if suite == "options":
            continue
        if suite == "decode":
            for d, batch, heads, kv_heads, length in DECODE:
                yield {"suite": suite, "d": d, "batch": batch, "heads": heads, "kv_heads": kv_heads, "queries": 1,
                       "length": length, "causal": False, "bytes": 4 * batch * kv_heads * length * d}
            continue
        for d in SIZES:
            for causal in (False, True):
                for length in LENGTHS + (LONGER if d == 128 and causal else ()):
                    batch, heads = max(1, TOKENS // length), WIDTH // d
                    flops = 4 * batch * heads * length**2 * d // (2 if causal else 1)
                    yield {"suite": suite, "d": d, "batch": batch, "heads": heads, "kv_heads": heads, "queries": length,
                           "length": length, "causal": causal, "flops": flops * 5 // 2 if suite == "backward" else flops}


# ---- Cases ------------------------------------------------------------------------------------------------------------

def draw(*shape):
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def truth(case, q, k, v, dout):
    """The results of the first head in f64: [out], or [dq, dk, dv]."""
    q, k, v = (x[0, 0].double() for x in (q, k, v))
    scale = case["d"] ** -0.5
    s = (q @ k.T) * scale
    if case["causal"]:
        s.masked_fill_(torch.ones(s.shape, dtype=torch.bool, device="cuda").triu(1), -math.inf)
    p = s.softmax(1)
    if dout is None:
        return [p @ v]
    do = dout[0, 0].double()
    dp = do @ v.T
    ds = p * (dp - (p * dp).sum(1, keepdim=True))
    return [ds @ k * scale, ds.T @ q * scale, p.T @ do]


def first_head(result):
    return [x[0, 0] for x in (result if isinstance(result, (tuple, list)) else [result])]


def error(found, wanted):
    return max(((x.double() - y).norm() / y.norm()).item() for x, y in zip(found, wanted))


def peer(backend, causal, grouped):
    def call(q, k, v):
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)
    return call


def calls_of(case, q, k, v, dout):
    """{name: a function that computes it once and gives the results}"""
    causal, grouped = case["causal"], case["heads"] != case["kv_heads"]
    forward = {name: peer(backend, causal, grouped) for name, backend in PEERS.items()}
    if dout is None:
        ours = lambda: attend.attention(q, k, v, causal=causal)
        return {"attend": ours, **{name: lambda call=call: call(q, k, v) for name, call in forward.items()}}
    out, lse = attend.attention(q, k, v, causal=causal, return_lse=True)
    found = {"attend": lambda: attend.attention_backward(q, k, v, out, lse, dout, causal=causal)}
    for name, call in forward.items():
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        try:
            with torch.enable_grad():
                made = call(*leaves)
        except RuntimeError:
            continue
        found[name] = lambda made=made, leaves=leaves: torch.autograd.grad(made, leaves, dout, retain_graph=True)
    return found


# ---- Decode over a cache -----------------------------------------------------------------------------------------------

def on_pages(size, *tensors):
    """[batch, key heads, keys, ...] as pages in a random order, [pages, key heads, size, ...]; and their table."""
    batch, kv_heads, length = tensors[0].shape[:3]
    order = torch.randperm(batch * length // size, device="cuda")
    made = []
    for x in tensors:
        pages = x.unflatten(2, (length // size, size)).transpose(1, 2).flatten(0, 1)
        made.append(torch.empty_like(pages, memory_format=torch.contiguous_format))
        made[-1][order] = pages
    return made, order.view(batch, -1).to(torch.int32)


def in_8_bits(x):
    """Whole numbers and a scale for each row, as KvCache has them."""
    scales = x.abs().amax(3).float() / 127
    return (x.float() / scales[..., None]).round().to(torch.int8), scales


def cache_calls(case, q, k, v):
    """{name: (the call, its keys and values as numbers, the bytes that it reads)} of attend over pages and 8 bits."""
    lengths = torch.full((case["batch"],), case["length"], dtype=torch.int32, device="cuda")
    found = {}
    for size in PAGES:
        (pk, pv), table = on_pages(size, k, v)
        found[f"pages of {size}"] = (
            lambda pk=pk, pv=pv, table=table: attend.attention(q, pk, pv, block_table=table, key_lengths=lengths), (k, v),
            case["bytes"])
    (k8, ks), (v8, vs) = in_8_bits(k), in_8_bits(v)
    numbers = (k8[:1, :1].float() * ks[:1, :1, :, None], v8[:1, :1].float() * vs[:1, :1, :, None])
    read = case["bytes"] // 2 + 8 * ks.numel()
    found["8 bits"] = lambda: attend.attention(q, k8, v8, k_scales=ks, v_scales=vs), numbers, read
    (pk, pv, pks, pvs), table = on_pages(PAGES[-1], k8, v8, ks, vs)
    found[f"8 bits, pages of {PAGES[-1]}"] = (
        lambda: attend.attention(q, pk, pv, k_scales=pks, v_scales=pvs, block_table=table, key_lengths=lengths), numbers, read)
    return found


# ---- A case ------------------------------------------------------------------------------------------------------------

def measure(case, rounds):
    """The case with "seconds", "spread" (of the rounds) and "error" of each library; a library that declines is left out."""
    q_shape = (case["batch"], case["heads"], case["queries"], case["d"])
    k_shape = (case["batch"], case["kv_heads"], case["length"], case["d"])
    sets = max(1, min(8, CACHE // case["bytes"])) if "bytes" in case else 1
    launches, errors, kept, read = {}, {}, {}, {}
    for n in range(sets):
        q, k, v = draw(*q_shape), draw(*k_shape), draw(*k_shape)
        dout = draw(*q_shape) if case["suite"] == "backward" else None
        calls, wanted = calls_of(case, q, k, v, dout), {}
        if n == 0:
            if case["length"] <= TOKENS or case["queries"] == 1:
                wanted = dict.fromkeys(calls, truth(case, q, k, v, dout))
            kernel = attend.Plan.attention(q, k, v, causal=case["causal"]).kernel
        if case["suite"] == "decode":
            for name, (call, numbers, bytes_) in cache_calls(case, q, k, v).items():
                calls[name], read[name] = call, bytes_
                if n == 0:
                    wanted[name] = truth(case, q, *numbers, None)
        for name, call in calls.items():
            try:
                result = call()
            except RuntimeError as e:
                print(f"  {name} declines: {str(e).splitlines()[0][:100]}")
                continue
            if name in wanted:
                errors[name] = error(first_head(result), wanted[name])
            kept.setdefault(name, []).append(call)
    for name, calls in kept.items():
        together = lambda calls=calls: [call() for call in calls]
        launches[name] = graph_of(together) if case["suite"] == "decode" else calls[0]
    found = turns(launches, rounds)
    wrong = [name for name, e in errors.items() if not e < ALLOWED]
    return case | {
        "kernel": kernel.replace("forward", case["suite"]) if case["suite"] == "backward" else kernel,
        "seconds": {name: statistics.median(times) / sets for name, times in found.items()},
        "spread": {name: (max(times) - min(times)) / statistics.median(times) for name, times in found.items()},
        "error": errors, "wrong": wrong,
    } | ({"bytes_of": read} if read else {})


def yardsticks(rounds):
    """A plain product of two bf16 matrices, FLOP/s, and a copy, bytes read and written a second."""
    n = 8192
    a, b, x = draw(n, n), draw(n, n), draw(1 << 30)
    y, c = torch.empty_like(x), torch.empty_like(a)
    found = turns({"product": lambda: torch.matmul(a, b, out=c), "copy": lambda: y.copy_(x)}, rounds)
    return {"product": 2 * n**3 / statistics.median(found["product"]), "copy": 2 * x.nbytes / statistics.median(found["copy"])}


def machine():
    properties = torch.cuda.get_device_properties(0)
    driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True,
                            text=True).stdout.strip()
    commit = os.environ.get("ATTEND_COMMIT") or subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True, text=True,
        cwd=pathlib.Path(__file__).parent).stdout.strip()
    return {
        "gpu": properties.name, "processors": properties.multi_processor_count, "memory_bytes": properties.total_memory,
        "driver": driver, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(), "pytorch": torch.__version__,
        "commit": commit, "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }


def line(case):
    work, unit = (case["bytes"], "TB/s") if "bytes" in case else (case["flops"], "TFLOP/s")
    read = case.get("bytes_of", {})
    rates = ", ".join(f"{name} {read.get(name, work) / t / 1e12:.4g}" for name, t in case["seconds"].items())
    peers = [t for name, t in case["seconds"].items() if name == "cuDNN"]
    times = f", {peers[0] / case['seconds']['attend']:.2f} of cuDNN" if peers else ""
    return (f"{case['suite']} d {case['d']} B{case['batch']} H{case['heads']}/{case['kv_heads']} T {case['length']}"
            f"{' causal' * case['causal']}: {rates} {unit}{times}{' WRONG: ' + ' '.join(case['wrong']) if case['wrong'] else ''}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path, required=True)
    parser.add_argument("--suites", nargs="+", choices=SUITES, default=SUITES)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    reason = attend.cuda.why_unavailable()
    if reason:
        sys.exit(f"attend in this process {reason}")
    torch.manual_seed(0)
    results = {"machine": machine(), "settings": {"rounds": arguments.rounds, "turn_seconds": TURN}, "yardsticks": {}, "cases": []}
    results["yardsticks"] = yardsticks(arguments.rounds)
    print({name: f"{x / 1e12:.4g}e12" for name, x in results["yardsticks"].items()}, flush=True)
    with torch.no_grad():
        for case in cases(arguments.suites):
            results["cases"].append(measure(case, arguments.rounds))
            print(line(results["cases"][-1]), flush=True)
            arguments.json.write_text(json.dumps(results, indent=1) + "\n")
        if "options" in arguments.suites:
            results["options"] = []
            for case in gpu_options.cases():
                results["options"].append(gpu_options.measured(case, arguments.rounds))
                print(gpu_options.line(results["options"][-1]), flush=True)
                arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    wrong = [name for case in results["cases"] + results.get("options", []) for name in case["wrong"]]
    return 1 if set(wrong) - set(PEERS) else 0


if __name__ == "__main__":
    sys.exit(main())

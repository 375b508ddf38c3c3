#!/usr/bin/env python3
"""How much of one process's speed do ranks reach? P ranks of one thread each beside one process of P threads.

    bench/distributed.py [--ranks 1,2] [--length 16384] [--turns 3] [--json FILE]

Causal attention, d 128, f32, as many heads as ranks (at least 2), under mpirun with mpi4py. Beside it, in the same
processes, PyTorch's ring attention template over its own CPU operator on gloo, and the yardstick: `apart`, where every
rank computes its even share, whole heads or its rows of all heads, with all that it needs at hand and without any exchange.
No even division can do better than its slowest rank on the same cores in the same minute; its mean rank tells what threads,
which take work from each other, would make of them.

The job of the ranks and the single process take turns, and the ranks' calls too, call by call. Of each the shortest call
counts, of the ranks the slowest rank. Fractions are of the single process's time with the same operator: attend's of
attend's, PyTorch's of PyTorch's. A second table tells of attend's calls the exposed communication, which is how long ranks
waited with nothing else to do, and how evenly the rest is divided; a third one, how fast each rank's core is.
"""
import argparse
import json
import os
import pathlib
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

D = 128
CALLS = {   # name: (backward?, scheme, bits)
    "forward heads": (False, "heads", "fast"),
    "forward gather": (False, "gather", "one_process"),
    "backward heads fast": (True, "heads", "fast"),
    "backward gather fast": (True, "gather", "fast"),
    "backward gather one_process": (True, "gather", "one_process"),
}
PEER = ("torch ring forward", "torch ring backward")
APART = {   # yardstick: the calls that are compared with it
    "forward heads apart": ["forward heads"],
    "forward rows apart": ["forward gather"],
    "backward heads apart": ["backward heads fast"],
}
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
}


def seconds_of(call):
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def seconds_of_calls(call, seconds):
    """Of calls that take so long together, at least two of them."""
    end, found = time.monotonic() + seconds, []
    while len(found) < 2 or time.monotonic() < end:
        found.append(seconds_of(call))
    return found


def inputs(length, heads):
    import torch

    torch.manual_seed(1)
    return [torch.randn(1, heads, length, D) for _ in range(4)]   # q, k, v, dout


def one_process(arguments):
    """Of attend and PyTorch with as many threads as there are ranks elsewhere."""
    import attend
    import torch

    torch.set_num_threads(arguments.threads)
    context = attend.Context(threads=arguments.threads)
    q, k, v, dout = inputs(arguments.length, arguments.heads)
    out, lse = attend.attention(q, k, v, causal=True, return_lse=True, context=context)
    forward, backward = torch_operators()
    torch_out, torch_lse = forward(q, k, v, is_causal=True)
    found = {
        "forward": lambda: attend.attention(q, k, v, causal=True, context=context),
        "backward": lambda: attend.attention_backward(q, k, v, out, lse, dout, causal=True, context=context),
        PEER[0]: lambda: forward(q, k, v, is_causal=True),
        PEER[1]: lambda: backward(grad_out=dout, query=q, key=k, value=v, out=torch_out, logsumexp=torch_lse, dropout_p=0.0,
                                  is_causal=True),
    }
    print(json.dumps({name: seconds_of_calls(call, arguments.seconds) for name, call in found.items()
                      if arguments.only in name}))


def torch_operators():
    import torch

    aten = torch.ops.aten
    return aten._scaled_dot_product_flash_attention_for_cpu, aten._scaled_dot_product_flash_attention_for_cpu_backward


def ring(comm, folder, length, q, k, v, dout):
    """{name: call} of PyTorch's template, on this rank's chunks: r and 2P - 1 - r of 2P."""
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor.experimental._context_parallel import _attention as context_parallel

    dist.init_process_group("gloo", init_method=f"file://{folder}/gloo.{comm.size}", rank=comm.rank, world_size=comm.size)
    group = dist.group.WORLD
    forward, backward = torch_operators()
    chunks = [comm.rank, 2 * comm.size - 1 - comm.rank]
    q, k, v, dout = (torch.cat([x.chunk(2 * comm.size, 2)[c] for c in chunks], 2) for x in (q, k, v, dout))

    def run():
        return context_parallel._templated_ring_attention(group, 2, forward, q, k, v, is_causal=True)

    out, lse = run()[:2]
    return {PEER[0]: run, PEER[1]: lambda: context_parallel._templated_ring_attention_backward(
        group, 2, backward, dout, "grad_out", q, k, v, out, lse, True, dropout_p=0.0)}


def rank(arguments):
    """One of the ranks."""
    import torch
    from mpi4py import MPI

    import attend
    from attend import distributed

    comm = MPI.COMM_WORLD
    torch.set_num_threads(1)
    context = attend.Context(threads=1)
    whole = inputs(arguments.length, arguments.heads)
    layout, _ = distributed.balanced_layouts(arguments.length, ranks=comm.size, causal=True)
    q, k, v, dout = (distributed.take_rows(layout, comm.rank, x) for x in whole)
    group = distributed.MpiGroup(comm)
    given = {"group": group, "layouts": layout, "causal": True, "context": context}
    out, lse = distributed.attention(q, k, v, return_lse=True, **given)

    def call_of(is_backward, scheme, bits):
        if is_backward:
            return lambda: distributed.attention_backward(q, k, v, out, lse, dout, scheme=scheme, bits=bits, **given)
        return lambda: distributed.attention(q, k, v, scheme=scheme, bits=bits, **given)

    products = speed(comm, context)
    calls = {name: call_of(*how) for name, how in CALLS.items()} | apart(comm, layout, whole, context)
    calls["forward gather weighted"] = weighted(comm, whole, given, 1 / statistics.median(products["together"]))
    if comm.size > 1:
        calls |= ring(comm, arguments.folder, arguments.length, *whole)
    calls = {name: call for name, call in calls.items() if arguments.only in name}
    found = {name: [] for name in calls}
    core = Core()
    for _ in range(arguments.calls):   # as many on every rank
        for name, call in calls.items():
            comm.Barrier()
            waited, took = group.waited, seconds_of(call)
            found[name].append(comm.allgather((took, group.waited - waited)))
    cores = comm.gather(core.used() | products)
    if comm.rank == 0:
        print(json.dumps({"calls": found, "cores": cores}))


def apart(comm, layout, whole, context):
    """{name: call}: this rank's even share of the work, without the others."""
    import attend

    heads = slice(comm.rank, None, comm.size)
    q, k, v, dout = (x[:, heads].contiguous() for x in whole)
    out, lse = attend.attention(q, k, v, causal=True, return_lse=True, context=context)
    runs = [(begin, end) for _, begin, end, _ in layout.runs(comm.rank)]

    def rows():
        for begin, end in runs:   # the last query is at the last key
            attend.attention(whole[0][:, :, begin:end], whole[1][:, :, :end], whole[2][:, :, :end], causal=True, context=context)

    return dict(zip(APART, (lambda: attend.attention(q, k, v, causal=True, context=context), rows,
                            lambda: attend.attention_backward(q, k, v, out, lse, dout, causal=True, context=context))))


def weighted(comm, whole, given, speed):
    """A call whose ranks own as much as they are fast."""
    from attend import distributed

    length, granule, speeds = whole[0].shape[2], 64, comm.allgather(speed)
    owners, done = [0] * -(-length // granule), [0.0] * comm.size
    for g in reversed(range(len(owners))):   # the last see the most keys
        after = [(done[r] + g + 0.5) / speeds[r] for r in range(comm.size)]
        owners[g] = after.index(min(after))
        done[owners[g]] += g + 0.5
    layout = distributed.Layout([length], [owners], comm.size, granule)
    q, k, v = (distributed.take_rows(layout, comm.rank, x) for x in whole[:3])
    return lambda: distributed.attention(q, k, v, scheme="gather", **(given | {"layouts": layout}))


class Core:
    """A rank's core, if it is bound to one: who used it, and how fast it is."""

    def __init__(self):
        cores = os.sched_getaffinity(0)
        self.number = min(cores) if len(cores) == 1 else None
        self.begin = self.now()

    def now(self):
        """Seconds: since some time, on processors in this thread and in others of the process, all of the core's that were not
        idle, and those that other machines had of it; and how often this thread had to leave its core."""
        busy = stolen = 0
        for words in map(str.split, pathlib.Path("/proc/stat").read_text().splitlines()):
            if words[0] == f"cpu{self.number}":
                ticks = [int(word) / os.sysconf("SC_CLK_TCK") for word in words[1:9]]
                busy, stolen = sum(ticks[:3] + ticks[5:7]), ticks[7]
        thread, process = time.thread_time(), time.process_time()
        switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
        return {"seconds": time.monotonic(), "thread": thread, "other threads": process - thread, "busy": busy, "stolen": stolen,
                "switches": switches}

    def used(self):
        """Since the beginning."""
        now = self.now()
        return {"core": self.number} | {name: now[name] - begin for name, begin in self.begin.items()}


def speed(comm, context):
    """Seconds of one small product, again and again: while all other ranks sleep, and while they compute it as well."""
    import attend

    q = inputs(2048, 1)[0]

    def products(begin, seconds):
        time.sleep(max(0.0, begin - time.time()))
        return seconds_of_calls(lambda: attend.attention(q, q, q, causal=True, context=context), seconds)

    begin = comm.bcast(time.time()) + 0.1   # of all ranks: they have one clock
    alone = products(begin + 0.15 * comm.rank, 0.1)
    return {"alone": alone, "together": products(begin + 0.15 * comm.size, 3.0)}


def run(command, **more):
    done = subprocess.run([str(word) for word in command], env={**os.environ, **ENVIRONMENT, **more}, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def measure(arguments, ranks, folder):
    heads = arguments.heads or max(2, ranks)
    words = [sys.executable, pathlib.Path(__file__).resolve(), "--length", arguments.length, "--heads", heads, "--seconds",
             arguments.seconds, "--calls", arguments.calls, "--folder", folder, "--only", arguments.only]
    mpirun = [*arguments.mpirun.split(), "-n", str(ranks)]
    alone, together, cores = {}, {}, []
    for _ in range(arguments.turns):
        for name, seconds in run([*words, "--worker", "one", "--threads", ranks], OMP_NUM_THREADS=str(ranks)).items():
            alone.setdefault(name, []).extend(seconds)
        found = run([*mpirun, *words, "--worker", "rank"])
        for name, calls in found["calls"].items():
            together.setdefault(name, []).extend(calls)
        cores.append(found["cores"])
        for old in pathlib.Path(folder).iterdir():
            old.unlink()
    return {"ranks": ranks, "heads": heads, "one process": alone, "calls": together, "cores": cores,
            "ranks of one thread": {name: min(map(summary, calls), key=lambda call: call["seconds"])
                                    for name, calls in together.items()},
            "efficiency": {name: efficiency(alone[base_of(name)], calls) for name, calls in together.items()}}


def summary(every):
    """Of one call: (seconds, seconds of waiting) of every rank."""
    busy = [took - waited for took, waited in every]
    return {"seconds": max(took for took, _ in every), "waited": sum(waited for _, waited in every) / len(every),
            "balance": max(busy) * len(busy) / sum(busy)}


def efficiency(alone, calls):
    """Of the shortest calls, of the medians, and of the shortest if all ranks were as fast as their mean."""
    slowest = [max(took for took, _ in every) for every in calls]
    mean = [statistics.mean(took for took, _ in every) for every in calls]
    return {"shortest": min(alone) / min(slowest), "median": statistics.median(alone) / statistics.median(slowest),
            "mean rank": min(alone) / min(mean)}


def base_of(name):
    return name if name in PEER else name.split()[0]


def percent(part):
    return f"{100 * part:.0f} %"


def table(results):
    names = [*CALLS, "forward gather weighted", *APART, *PEER]
    names = [name for name in names if any(name in row["efficiency"] for row in results)]
    lines = ["| ranks | heads | " + " | ".join(names) + " |", "|---|---|" + "---|" * len(names)]
    for row in results:
        cells = []
        for name in names:
            if name not in row["efficiency"]:
                cells.append("")
                continue
            found = row["efficiency"][name]
            more = f", mean rank {percent(found['mean rank'])}" if name in APART or 'weighted' in name else ""
            cells.append(f"{percent(found['shortest'])} ({row['ranks of one thread'][name]['seconds']:.2f} s; medians "
                         f"{percent(found['median'])}{more})")
        lines.append(f"| {row['ranks']} | {row['heads']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def exposed(results):
    """Of attend's calls: waiting, the mean of the ranks; the busiest rank's work beside the mean's; and the yardstick's time in
    the time of the call after which it ran, the median."""
    lines = ["| ranks: waiting, work max/mean, of apart | " + " | ".join(CALLS) + " |", "|---|" + "---|" * len(CALLS)]
    for row in results:
        cells = []
        for name in CALLS:
            if name not in row["calls"]:
                cells.append("")
                continue
            call = row["ranks of one thread"][name]
            cells.append(f"{100 * call['waited'] / call['seconds']:.1f} %, {call['balance']:.3f}")
            for yardstick in (yardstick for yardstick, calls in APART.items() if name in calls and yardstick in row["calls"]):
                pairs = zip(row["calls"][yardstick], row["calls"][name])
                cells[-1] += ", " + percent(statistics.median(summary(a)["seconds"] / summary(b)["seconds"] for a, b in pairs))
        lines.append(f"| {row['ranks']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def core_table(results):
    """Of the last turn, of each rank: a small product's times in ms, while all compute it the fifths of that time one by one;
    how long each call of the yardstick took; and what of the core's time went where, in percent."""
    lines = []
    for row in results:
        lines += [f"| of {row['ranks']} ranks | core | product alone | while all compute it | its least, most | "
                  "forward heads apart, s | this thread, % | threads beside it | others | other machines | switches |",
                  "|---|" + "---|" * 10]
        for rank, core in enumerate(row["cores"][-1]):
            times = core["together"]
            fifths = [times[len(times) * n // 5:len(times) * (n + 1) // 5] for n in range(5)]
            others = core["busy"] - core["thread"] - core["other threads"] if core["core"] is not None else 0
            used = [100 * part / core["seconds"] for part in (core["thread"], core["other threads"], others, core["stolen"])]
            calls = row["calls"].get("forward heads apart", [])
            lines.append(f"| {rank} | {core['core']} | {1000 * statistics.median(core['alone']):.1f} | "
                         + " ".join(f"{1000 * statistics.median(part or times):.1f}" for part in fifths)
                         + f" | {1000 * min(times):.1f} {1000 * max(times):.1f} | "
                         + " ".join(f"{every[rank][0]:.2f}" for every in calls) + " | "
                         + " | ".join(f"{part:.1f}" for part in used) + f" | {core['switches']} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="1,2", help="how many, with commas")
    parser.add_argument("--length", type=int, default=16384)
    parser.add_argument("--heads", type=int, default=0, help="as many as ranks, at least 2")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--calls", type=int, default=2, help="of the ranks, in each turn")
    parser.add_argument("--seconds", type=float, default=1.0, help="of the single process, for each call")
    parser.add_argument("--only", default="", help="of the calls those whose names have this: forward")
    parser.add_argument("--json", type=pathlib.Path)
    # Each rank on a core of its own: all wait for the slowest.
    parser.add_argument("--mpirun", default=f"{shutil.which('mpirun.openmpi') or 'mpirun'} --oversubscribe "
                                            "--bind-to core:overload-allowed")
    parser.add_argument("--worker", choices=("one", "rank"), help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return one_process(arguments) if arguments.worker == "one" else rank(arguments)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for ranks in map(int, arguments.ranks.split(",")):
            results.append(measure(arguments, ranks, folder))
            print(*(part(results[-1:]) for part in (table, exposed, core_table)), sep="\n", flush=True)
            if arguments.json:   # whatever becomes of the next
                arguments.json.write_text(json.dumps({"length": arguments.length, "results": results}, indent=1) + "\n")
    print(f"\n{platform.machine()}, {os.cpu_count()} cores; T = {arguments.length}, causal, d {D}, f32\n{table(results)}\n"
          f"{exposed(results)}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""How much of one process's speed do ranks reach? P ranks of one thread each beside one process of P threads.

    bench/distributed.py [--ranks 1,2] [--length 16384] [--turns 3] [--json FILE]

Causal attention, d 128, f32, as many heads as ranks (at least 2), under mpirun with mpi4py. Beside it, in the same
processes, PyTorch's ring attention template over its own CPU operator on gloo. The job of the ranks and the single process
take turns; of each the shortest call counts, of the ranks the slowest rank. Both fractions are of the single process's time
with the same operator: attend's of attend's, PyTorch's of PyTorch's. Of that call a second table tells the exposed
communication, which is how long ranks waited with nothing else to do, and how evenly the rest is divided.
"""
import argparse
import json
import os
import pathlib
import platform
import shutil
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
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
}


def shortest(call, seconds, before=lambda: None):
    """The shortest of calls that take so long together, at least two of them."""
    best, end, count = float("inf"), time.monotonic() + seconds, 0
    while count < 2 or time.monotonic() < end:
        before()
        begin = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begin)
        count += 1
    return best


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
    print(json.dumps({name: shortest(call, arguments.seconds) for name, call in found.items()}))


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

    calls = {name: call_of(*how) for name, how in CALLS.items()}
    if comm.size > 1:
        calls |= ring(comm, arguments.folder, arguments.length, *whole)
    found = {}
    for name, call in calls.items():
        found[name] = {"seconds": float("inf")}
        for _ in range(arguments.calls):   # as many on every rank
            comm.Barrier()
            waited, begin = group.waited, time.perf_counter()
            call()
            took = time.perf_counter() - begin
            every = comm.allgather((took, group.waited - waited))
            if max(times[0] for times in every) < found[name]["seconds"]:
                found[name] = summary(every)
    if comm.rank == 0:
        print(json.dumps(found))


def summary(every):
    """Of one call: (seconds, seconds of waiting) of every rank."""
    busy = [took - waited for took, waited in every]
    return {"seconds": max(took for took, _ in every), "waited": sum(waited for _, waited in every) / len(every),
            "balance": max(busy) * len(busy) / sum(busy)}


def run(command, **more):
    done = subprocess.run([str(word) for word in command], env={**os.environ, **ENVIRONMENT, **more}, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def measure(arguments, ranks, folder):
    heads = arguments.heads or max(2, ranks)
    words = [sys.executable, pathlib.Path(__file__).resolve(), "--length", arguments.length, "--heads", heads, "--seconds",
             arguments.seconds, "--calls", arguments.calls, "--folder", folder]
    mpirun = [*arguments.mpirun.split(), "-n", str(ranks)]
    alone, together = {}, {}
    for _ in range(arguments.turns):
        for name, seconds in run([*words, "--worker", "one", "--threads", ranks], OMP_NUM_THREADS=str(ranks)).items():
            alone[name] = min(alone.get(name, float("inf")), seconds)
        for name, found in run([*mpirun, *words, "--worker", "rank"]).items():
            together[name] = min(together.get(name, found), found, key=lambda one: one["seconds"])
        for old in pathlib.Path(folder).iterdir():
            old.unlink()
    return {"ranks": ranks, "heads": heads, "one process": alone, "ranks of one thread": together,
            "efficiency": {name: alone[base_of(name)] / found["seconds"] for name, found in together.items()}}


def base_of(name):
    return name if name in PEER else name.split()[0]


def table(results):
    names = [*CALLS, *PEER]
    lines = ["| ranks | heads | " + " | ".join(names) + " |", "|---|---|" + "---|" * len(names)]
    for row in results:
        cells = []
        for name in names:
            if name not in row["efficiency"]:
                cells.append("")
                continue
            cells.append(f"{100 * row['efficiency'][name]:.0f} % ({row['ranks of one thread'][name]['seconds']:.2f} s)")
        lines.append(f"| {row['ranks']} | {row['heads']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def exposed(results):
    """Of attend's calls: waiting, the mean of the ranks, and the busiest rank's work beside the mean's."""
    lines = ["| ranks: waiting, work max/mean | " + " | ".join(CALLS) + " |", "|---|" + "---|" * len(CALLS)]
    for row in results:
        calls = [row["ranks of one thread"][name] for name in CALLS]
        cells = [f"{100 * call['waited'] / call['seconds']:.1f} %, {call['balance']:.3f}" for call in calls]
        lines.append(f"| {row['ranks']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="1,2", help="how many, with commas")
    parser.add_argument("--length", type=int, default=16384)
    parser.add_argument("--heads", type=int, default=0, help="as many as ranks, at least 2")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--calls", type=int, default=2, help="of the ranks, in each turn")
    parser.add_argument("--seconds", type=float, default=1.0, help="of the single process, for each call")
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
            print(table(results[-1:]), exposed(results[-1:]), sep="\n", flush=True)
            if arguments.json:   # whatever becomes of the next
                arguments.json.write_text(json.dumps({"length": arguments.length, "results": results}, indent=1) + "\n")
    print(f"\n{platform.machine()}, {os.cpu_count()} cores; T = {arguments.length}, causal, d {D}, f32\n{table(results)}\n"
          f"{exposed(results)}")


if __name__ == "__main__":
    main()

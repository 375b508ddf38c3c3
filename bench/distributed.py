#!/usr/bin/env python3
"""How much of one process's speed do ranks reach? P ranks of one thread each beside one process of P threads.

    bench/distributed.py [--ranks 1,2] [--length 16384] [--calls 5] [--json FILE]

Causal attention, d 128, f32, as many heads as ranks (at least 2), under mpirun with mpi4py. Beside it, in the same
processes, PyTorch's ring attention template over its own CPU operator on gloo, and the yardstick: `apart`, where every
rank computes its even share, whole heads or its rows of all heads, with all that it needs at hand and without any exchange.
No division into fixed even shares does better than its slowest rank on the same cores in the same seconds; its mean rank
tells what threads, which take work from each other, make of them.

Round by round, call by call, the single process and the ranks take turns, and whoever has no turn sleeps. Of the ranks the
slowest counts. Fractions are of the single process's time with the same operator, in the same round: attend's of attend's,
PyTorch's of PyTorch's. A second table tells of attend's calls the exposed communication, which is how long ranks waited with
nothing else to do; what a call took beyond the work of its busiest rank; how evenly work was divided; and how it compares
with the yardstick. A third one tells how fast each rank's core is, and who else used it.
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
    "forward heads apart": ("forward heads",),
    "forward rows apart": ("forward gather",),
    "backward heads apart": ("backward heads fast",),
}
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "GLOO_SOCKET_IFNAME": "lo",
}
ANSWER, END = "answer: ", "end"


def seconds_of(call):
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def answer(found):
    print(ANSWER + json.dumps(found), flush=True)


def inputs(length, heads):
    import torch

    torch.manual_seed(1)
    return [torch.randn(1, heads, length, D) for _ in range(4)]   # q, k, v, dout


def base_of(name):
    return name if name in PEER else name.split()[0]


def one_process(arguments):
    """Of attend and PyTorch with as many threads as there are elsewhere."""
    import attend
    import torch

    torch.set_num_threads(arguments.threads)
    context = attend.Context(threads=arguments.threads)
    q, k, v, dout = inputs(arguments.length, arguments.heads)
    out, lse = attend.attention(q, k, v, causal=True, return_lse=True, context=context)
    forward, backward = torch_operators()
    torch_out, torch_lse = forward(q, k, v, is_causal=True)
    calls = {
        "forward": lambda: attend.attention(q, k, v, causal=True, context=context),
        "backward": lambda: attend.attention_backward(q, k, v, out, lse, dout, causal=True, context=context),
        PEER[0]: lambda: forward(q, k, v, is_causal=True),
        PEER[1]: lambda: backward(grad_out=dout, query=q, key=k, value=v, out=torch_out, logsumexp=torch_lse, dropout_p=0.0,
                                  is_causal=True),
    }
    answer(list(calls))
    for line in sys.stdin:
        answer(seconds_of(calls[line.strip()]))


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


def apart(comm, layout, whole, context):
    """{name: call}: this rank's even share of the work, without the others."""
    import attend

    heads = slice(comm.rank, None, comm.size)
    q, k, v, dout = (x[:, heads].contiguous() for x in whole)
    out, lse = attend.attention(q, k, v, causal=True, return_lse=True, context=context)

    def rows():
        for _, begin, end, _ in layout.runs(comm.rank):   # the last query is at the last key
            attend.attention(whole[0][:, :, begin:end], whole[1][:, :, :end], whole[2][:, :, :end], causal=True, context=context)

    return dict(zip(APART, (lambda: attend.attention(q, k, v, causal=True, context=context), rows,
                            lambda: attend.attention_backward(q, k, v, out, lse, dout, causal=True, context=context))))


def rank(arguments):
    """One of the ranks."""
    import torch
    from mpi4py import MPI

    import attend
    from attend import distributed

    comm = MPI.COMM_WORLD
    torch.set_num_threads(arguments.threads)
    context = attend.Context(threads=arguments.threads)
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

    calls = {name: call_of(*how) for name, how in CALLS.items()} | apart(comm, layout, whole, context)
    if comm.size > 1 and arguments.length % (2 * comm.size) == 0:   # which it needs
        calls |= ring(comm, arguments.folder, arguments.length, *whole)
    core = Core()
    products = speed(comm, context)
    if comm.rank == 0:
        answer(list(calls))
    while (name := told(comm)) != END:
        comm.Barrier()
        waited = group.waited
        with core:
            took = seconds_of(calls[name])
        every = comm.gather((took, group.waited - waited))
        if comm.rank == 0:
            answer(every)
    found = comm.gather(core.found | products)
    if comm.rank == 0:
        answer(found)


def told(comm):
    """What rank 0 is told next, by all; until then their cores are free."""
    from mpi4py import MPI

    words = bytearray(64)
    if comm.rank == 0:
        line = sys.stdin.readline().strip().encode()
        words[:len(line)] = line
    request = comm.Ibcast([words, MPI.BYTE], 0)
    while not request.Test():
        time.sleep(0.002)
    return bytes(words).rstrip(b"\0").decode()


class Core:
    """The core of a rank, if it is bound to one: who used it during the calls, in seconds."""

    def __init__(self):
        cores = os.sched_getaffinity(0)
        self.number = min(cores) if len(cores) == 1 else None
        self.found = {"core": self.number} | dict.fromkeys(self.now(), 0)

    def now(self):
        """Since some time: this thread, others of the process, all on this core that was not idle, what the host took of it for
        others, as far as it says so; and how often this thread had to leave its core."""
        busy = stolen = 0
        for words in map(str.split, pathlib.Path("/proc/stat").read_text().splitlines()):
            if words[0] == f"cpu{self.number}":
                ticks = [int(word) / os.sysconf("SC_CLK_TCK") for word in words[1:9]]
                busy, stolen = sum(ticks[:3] + ticks[5:7]), ticks[7]
        thread, process = time.thread_time(), time.process_time()
        return {"seconds": time.monotonic(), "thread": thread, "other threads": process - thread, "busy": busy, "stolen": stolen,
                "switches": resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw}

    def __enter__(self):
        self.begin = self.now()

    def __exit__(self, *_):
        now = self.now()
        for name, begin in self.begin.items():
            self.found[name] += now[name] - begin


def speed(comm, context):
    """Seconds of one small product, again and again: while all other ranks sleep, and while they compute it as well."""
    import attend

    q = inputs(2048, 1)[0]

    def products(begin, seconds):
        time.sleep(max(0.0, begin - time.time()))
        found = []
        while time.time() < begin + seconds or not found:
            found.append(seconds_of(lambda: attend.attention(q, q, q, causal=True, context=context)))
        return found

    begin = comm.bcast(time.time()) + 0.1   # of all ranks: they have one clock
    alone = products(begin + 0.15 * comm.rank, 0.1)
    return {"alone": alone, "together": products(begin + 0.15 * comm.size, 3.0)}


class Job:
    """Processes that are told what to do, line by line, and answer."""

    def __init__(self, command, errors, **more):
        self.command, self.errors = [str(word) for word in command], pathlib.Path(errors)
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(self.command, env={**os.environ, **ENVIRONMENT, **more}, text=True,
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)

    def tell(self, words):
        print(words, file=self.process.stdin, flush=True)
        return self.answer()

    def answer(self):
        for line in self.process.stdout:
            if line.startswith(ANSWER):
                return json.loads(line.removeprefix(ANSWER))
        self.process.wait()
        return sys.exit(f"{' '.join(self.command)}\n{self.errors.read_text()}")

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def measure(arguments, ranks, folder):
    heads = arguments.heads or max(2, ranks)
    words = [sys.executable, pathlib.Path(__file__).resolve(), "--length", arguments.length, "--heads", heads, "--folder", folder]
    threads = ranks * arguments.threads
    one = Job([*words, "--worker", "one", "--threads", threads], f"{folder}/one", OMP_NUM_THREADS=str(threads))
    one.answer()
    together = Job([*arguments.mpirun.split(), "-n", str(ranks), *words, "--worker", "rank", "--threads", arguments.threads],
                   f"{folder}/ranks", OMP_NUM_THREADS=str(arguments.threads))
    names = [name for name in together.answer() if arguments.only in name]
    alone = {base_of(name): [] for name in names}
    # Beside what they are compared with.
    calls = {name: [] for name in sorted(names, key=lambda name: list(alone).index(base_of(name)))}
    for _ in range(arguments.calls):
        fresh = {}   # the single process's, of this round
        for name in calls:
            if base_of(name) not in fresh:
                fresh[base_of(name)] = one.tell(base_of(name))
            calls[name].append(together.tell(name))
        for base, seconds in fresh.items():
            alone[base].append(seconds)
    found = together.tell(END)
    one.end()
    together.end()
    for old in pathlib.Path(folder).iterdir():
        old.unlink()
    return {"ranks": ranks, "heads": heads, "threads": arguments.threads, "one process": alone, "calls": calls, "cores": found,
            "efficiency": {name: efficiency(alone[base_of(name)], every) for name, every in calls.items()}}


def efficiency(alone, calls):
    """Of the rounds the median, the least and the most; of the shortest calls; and what the mean rank would make of it."""
    slowest = [max(took for took, _ in every) for every in calls]
    mean = [statistics.mean(took for took, _ in every) for every in calls]
    rounds = [a / b for a, b in zip(alone, slowest)]
    return {"median": statistics.median(rounds), "least": min(rounds), "most": max(rounds), "shortest": min(alone) / min(slowest),
            "mean rank": statistics.median(a / b for a, b in zip(alone, mean)), "seconds": statistics.median(slowest)}


def percent(part):
    return f"{100 * part:.0f} %"


def table(row):
    lines = [f"| {row['ranks']} ranks, {row['heads']} heads | median | least, most | shortest calls | seconds | mean rank |",
             "|---|---|---|---|---|---|"]
    for name, found in row["efficiency"].items():
        lines.append(f"| {name} | {percent(found['median'])} | {percent(found['least'])}, {percent(found['most'])} | "
                     f"{percent(found['shortest'])} | {found['seconds']:.2f} | "
                     f"{percent(found['mean rank']) if name in APART else ''} |")
    return "\n".join(lines)


def exposed(row):
    """Of attend's calls, medians of the rounds: waiting of the mean rank, and what the call took beyond the work of its busiest
    rank, both of the call's time; the busiest rank's work beside the mean's; and the yardstick's time in that of the call."""
    lines = [f"| {row['ranks']} ranks | waiting | beyond the busiest rank's work | work max/mean | apart / call |",
             "|---|---|---|---|---|"]
    for name in (name for name in row["calls"] if name in CALLS):
        waiting, beyond, balance = [], [], []
        for every in row["calls"][name]:
            seconds, busy = max(took for took, _ in every), [took - waited for took, waited in every]
            waiting.append(statistics.mean(waited for _, waited in every) / seconds)
            beyond.append(1 - max(busy) / seconds)
            balance.append(max(busy) / statistics.mean(busy))
        compared = [
            percent(statistics.median(max(took for took, _ in a) / max(took for took, _ in b)
                                      for a, b in zip(row["calls"][yardstick], row["calls"][name])))
            for yardstick, names in APART.items() if name in names and yardstick in row["calls"]]
        lines.append(f"| {name} | {100 * statistics.median(waiting):.1f} % | {100 * statistics.median(beyond):.1f} % | "
                     f"{statistics.median(balance):.3f} | {''.join(compared)} |")
    return "\n".join(lines)


def cores(row):
    """Of each rank: a small product's times in ms, while all compute it the fifths of that time one by one; how long its share
    took in the rounds; and what of the core's time during the calls went where, in percent."""
    share = next((name for name in APART if name in row["calls"]), None)
    lines = [f"| of {row['ranks']} ranks | core | product alone | while all compute it | its least, most | {share}, s | "
             "this thread | threads beside it | others | the host's others | switches |", "|---|" + "---|" * 10]
    for r, core in enumerate(row["cores"]):
        times = core["together"]
        fifths = [times[len(times) * n // 5:len(times) * (n + 1) // 5] for n in range(5)]
        others = core["busy"] - core["thread"] - core["other threads"] if core["core"] is not None else 0
        used = [100 * part / max(core["seconds"], 1e-9)
                for part in (core["thread"], core["other threads"], others, core["stolen"])]
        lines.append(f"| {r} | {core['core']} | {1000 * statistics.median(core['alone']):.1f} | "
                     + " ".join(f"{1000 * statistics.median(part or times):.1f}" for part in fifths)
                     + f" | {1000 * min(times):.1f} {1000 * max(times):.1f} | "
                     + " ".join(f"{every[r][0]:.2f}" for every in row["calls"].get(share, [])) + " | "
                     + " | ".join(f"{part:.1f}" for part in used) + f" | {core['switches']} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="1,2", help="how many, with commas")
    parser.add_argument("--length", type=int, default=16384)
    parser.add_argument("--heads", type=int, default=0, help="as many as ranks, at least 2")
    parser.add_argument("--threads", type=int, default=1, help="of each rank; with --mpirun that gives it as many cores")
    parser.add_argument("--calls", type=int, default=5, help="rounds")
    parser.add_argument("--only", default="", help="of the calls those whose names have this: forward")
    parser.add_argument("--json", type=pathlib.Path)
    # Each rank on a core of its own: all wait for the slowest.
    parser.add_argument("--mpirun", default=f"{shutil.which('mpirun.openmpi') or 'mpirun'} --oversubscribe "
                                            "--bind-to core:overload-allowed")
    parser.add_argument("--worker", choices=("one", "rank"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return one_process(arguments) if arguments.worker == "one" else rank(arguments)
    results = []
    print(f"{platform.machine()}, {os.cpu_count()} cores; T = {arguments.length}, causal, d {D}, f32")
    with tempfile.TemporaryDirectory() as folder:
        for ranks in map(int, arguments.ranks.split(",")):
            results.append(measure(arguments, ranks, folder))
            print(*(part(results[-1]) for part in (table, exposed, cores)), sep="\n\n", flush=True)
            if arguments.json:   # whatever becomes of the next
                arguments.json.write_text(json.dumps({"length": arguments.length, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()

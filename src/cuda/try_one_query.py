#!/usr/bin/env python3
"""Asks whether one_query_sm90.cu has the bits of forward_sm90.cu, and times it, on a machine with a Hopper GPU and PyTorch.

    try_one_query.py --build FOLDER          compiles both into FOLDER, a module for each type and d
    try_one_query.py FOLDER                  the checks, then the times beside a copy
    try_one_query.py --time A B,narrow=0     times only, of several builds side by side

narrow=N: blocks of threads sum 32 features instead of 64 where these are at most N.
"""
import argparse
import ctypes
import itertools
import math
import pathlib
import statistics
import struct
import subprocess
import sys

import trial
from trial import NO_LIMIT, fresh, lengths_of, ok, report, rows_of, torch

TILES = {64: (192, 128), 128: (128, 128), 256: (128, 80)}
MODULES = [(operation, type_, d) for operation in ("one_query", "forward")
           for type_ in ("bf16", "f16", "i8") for d in TILES]
CACHE = 512 << 20  # bytes that no cache holds


def compile_all(folder):
    here = pathlib.Path(__file__).resolve().parent
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    started = [subprocess.Popen([
        "nvcc", "-std=c++20", "-O3", "-cubin", "--expt-relaxed-constexpr", f"-I{here.parent}",
        f"-I{here.parents[1]}/include", "-gencode=arch=compute_90a,code=sm_90a",
        f"-DATTEND_TYPE={'bf16' if type_ == 'i8' else type_}", f"-DATTEND_D={d}",
        f"-DATTEND_BYTES={'true' if type_ == 'i8' else 'false'}", "-o",
        f"{folder}/{operation}_{type_}_{d}.cubin", f"{here}/{operation}_sm90.cu"])
        for operation, type_, d in MODULES]
    sys.exit(max(process.wait() for process in started))


def tensor_map(t, rows, heads=1, features=64, at_once=128):
    """Of [batch, heads, length, d]."""
    dims = [t.shape[n] for n in (3, 2, 1, 0)]
    strides = [t.stride(n) * 2 if t.shape[n] > 1 else 16 for n in (2, 1, 0)]
    made = trial.Aligned(128)
    u64, u32 = ctypes.c_uint64, ctypes.c_uint32
    ok(trial.cuda.cuTensorMapEncodeTiled(
        ctypes.c_void_p(made.address), {torch.float16: 6, torch.bfloat16: 9}[t.dtype], 4,
        ctypes.c_void_p(t.data_ptr()), (u64 * 4)(*dims), (u64 * 3)(*strides),
        (u32 * 4)(features, rows, heads, 1), (u32 * 4)(1, 1, 1, 1), 0, 3 if features == 64 else 2,
        2 if at_once == 128 else 3, 0))
    return made.bytes()


class Keys:
    """K and V, dense or on pages; of 8 bits with scales."""

    def __init__(self, k, v, scales=(None, None), table=None, length=None):
        self.k, self.v, self.scales, self.table = k, v, scales, table
        self.bytes = k.dtype == torch.int8
        self.length = length or k.shape[2]
        self.heads, self.d, self.dv = k.shape[1], k.shape[3], v.shape[3]
        self.size = min(size for size in TILES if size >= max(self.d, self.dv))
        tile = TILES[self.size][1]
        self.piece = math.gcd(tile, k.shape[2]) if table is not None else tile

    def pages(self):
        if self.table is None:
            return struct.pack("Q3i4x", 0, 0, 0, self.piece)
        return struct.pack("Q3i4x", self.table.data_ptr(), self.table.shape[1], self.k.shape[2],
                           self.piece)

    def byte_keys(self):
        if not self.bytes:
            return bytes(2 * 72)
        return b"".join(struct.pack("Q3qQ3qi4x", x.data_ptr(), *x.stride()[:3], s.data_ptr(),
                                    *s.stride(), x.shape[3])
                        for x, s in zip((self.k, self.v), self.scales))


class Build:
    def __init__(self, text):
        torch.zeros(1, device="cuda")
        self.name, self.found = text, {}
        self.folder, *rest = text.split(",narrow=")
        self.processors = torch.cuda.get_device_properties(0).multi_processor_count
        self.narrow_most = int(rest[0]) if rest else self.processors
        self.counter = torch.zeros(1, dtype=torch.int32, device="cuda")

    def function(self, operation, keys, dtype, name):
        type_ = "i8" if keys.bytes else trial.NAMES[dtype]
        path = f"{self.folder}/{operation}_{type_}_{keys.size}.cubin"
        if (path, name) not in self.found:
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            ok(trial.cuda.cuModuleLoad(ctypes.byref(module), path.encode()))
            ok(trial.cuda.cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
            ok(trial.cuda.cuFuncSetAttribute(function, 8, trial.SHARED_BYTES))
            self.found[path, name] = function
        return self.found[path, name]

    def launches(self, steps, data, keep):
        """steps: (function, blocks, threads, shared bytes); all get the same arguments."""
        block, arguments = trial.parameters(data)

        def launch(keep=(keep, block)):
            for function, blocks, threads, shared in steps:
                trial.start(function, blocks, threads, shared, arguments)
        return launch

    def prompt(self, q, keys, out, lse, left, offset, lengths, scale):
        """As one block of queries of a prompt."""
        batch, heads = q.shape[:2]
        rows, tile = TILES[keys.size]
        maps = [tensor_map(q, rows, at_once=256)]
        maps += [bytes(128)] * 2 if keys.bytes else [
            tensor_map(x, keys.piece, at_once=256) for x in (keys.k, keys.v)]
        data = b"".join([*maps, tensor_map(out, 64, at_once=256), rows_of(out), rows_of(lse),
                         trial.pointers(self.counter, lengths, None, None, None), keys.pages(),
                         keys.byte_keys()])
        data += struct.pack("13if", heads, heads // keys.heads, 1, keys.length, left, NO_LIMIT,
                            offset or 0, int(offset is not None), 1, batch * heads, batch * heads,
                            0, keys.dv, scale)
        function = self.function("forward", keys, q.dtype, "attend_forward")
        step = (function, min(batch * heads, self.processors), 128 * (1 + rows // 64),
                trial.SHARED_BYTES)
        return self.launches([step], data, (q, keys, out, lse, lengths))

    def one_query(self, q, keys, out, lse=None, left=NO_LIMIT, offset=None, lengths=None,
                  scale=None, only=None):
        batch, heads = q.shape[:2]
        d, tile, group = keys.size, TILES[keys.size][1], heads // keys.heads
        tiles, kv = -(-keys.length // tile), batch * keys.heads
        blocks = kv * -(-group // 8)
        narrow = blocks * -(-keys.dv // 32) <= self.narrow_most
        slice_ = 32 if narrow else 64
        scores = torch.empty(batch * heads * tiles * (tile + 8), device="cuda")
        value_scales = torch.empty(kv * tiles * tile if keys.bytes else 1, device="cuda")
        maps = [tensor_map(q, 1, heads=group)]
        maps += [bytes(128)] * 2 if keys.bytes else [
            tensor_map(keys.k, keys.piece), tensor_map(keys.v, keys.piece, features=slice_)]
        data = b"".join([*maps, trial.pointers(scores), rows_of(out), rows_of(lse),
                         trial.pointers(lengths, None), keys.pages(), keys.byte_keys(),
                         trial.pointers(value_scales)])
        data += struct.pack("10if", batch, heads, group, keys.length, tiles, left, NO_LIMIT,
                            offset or 0, int(offset is not None), keys.dv,
                            scale or 1 / math.sqrt(keys.d))
        each = 1 if d == 256 else 2
        stages = (4 if d == 128 else 8) if keys.bytes else (2 if d == 128 else 4)
        of_scores = ((1 if d == 256 else 2) * 64 * d * 2 +
                     stages * tile * (d + 8 if keys.bytes else 2 * d) + 2048)
        size = 1 if keys.bytes else 2
        of_values = ((96 if narrow else 64) * 1024 // (tile * slice_ * size) * tile *
                     (slice_ + 4 if keys.bytes else slice_ * 2) +
                     8 * (8 * (tile + 8) * 4 + 4 * tile * 2) + 3072)
        name = "attend_one_query_values" + ("_narrow" if narrow else "")
        find = lambda name: self.function("one_query", keys, q.dtype, name)
        steps = [(find("attend_one_query_scores"), min(kv * tiles, self.processors * each), 256,
                  of_scores),
                 (find(name), blocks * -(-keys.dv // slice_), 384 if keys.bytes else 320,
                  of_values)]
        return self.launches(steps if only is None else [steps[only]], data,
                             (q, keys, out, lse, lengths, scores, value_scales))


# ---- Checks ------------------------------------------------------------------------------------

def make_keys(dtype, batch, heads, length, d, dv, spread=1.0):
    """dtype: int8 for keys of 8 bits."""
    if dtype != torch.int8:
        return Keys(fresh((batch, heads, length, d), dtype, spread),
                    fresh((batch, heads, length, dv), dtype))
    draw = lambda width: torch.randint(-128, 128, (batch, heads, length, width),
                                       dtype=torch.int8, device="cuda")
    scales = tuple(fresh((batch, heads, length), torch.float32, 0.02 * s) for s in (spread, 1))
    return Keys(draw(d), draw(dv), scales)


def on_pages(keys, size):
    """The same keys on pages in another order."""
    batch, width = keys.k.shape[0], -(-keys.length // size)
    order = torch.randperm(batch * width, device="cuda", dtype=torch.int32)

    def pool(x):
        pages = torch.nn.functional.pad(
            x, (0, 0) * (x.dim() - 3) + (0, width * size - keys.length))
        pages = pages.unflatten(2, (width, size)).transpose(1, 2).flatten(0, 1)
        made = torch.empty_like(pages)
        made[order.long()] = pages
        return made
    scales = tuple(pool(s) for s in keys.scales) if keys.bytes else (None, None)
    return Keys(pool(keys.k), pool(keys.v), scales, order.view(batch, width), width * size)


def check_bits(build, dtype, batch, heads, kv_heads, length, d, dv=None, pages=None, spread=1.0,
               poison=None, left=NO_LIMIT, lengths=None, offset=None, scale=None):
    if trial.too_large(batch, heads, length):
        return
    keys = make_keys(dtype, batch, kv_heads, length, d, dv or d, spread)
    q = fresh((batch, heads, 1, d), torch.bfloat16 if dtype == torch.int8 else dtype)
    if poison is not None:
        poison(keys)
    if pages is not None:
        lengths = lengths_of(*[length] * batch) if lengths is None else lengths
        keys = on_pages(keys, pages)
    found = []
    for call in (build.prompt, build.one_query):
        out = torch.full((batch, heads, 1, keys.dv), math.nan, dtype=q.dtype, device="cuda")
        lse = torch.full((batch, heads, 1), math.nan, device="cuda")
        call(q, keys, out, lse, left, offset, lengths, scale or 1 / math.sqrt(d))()
        torch.cuda.synchronize()
        found.append((out.view(torch.int16), lse.view(torch.int32), out))
    same = [torch.equal(found[0][n], found[1][n]) for n in range(2)]
    differ = (found[0][0] != found[1][0]).float().mean().item()
    finite = bool(torch.isfinite(found[1][2]).all())
    report(all(same), f"{dtype} B{batch} {heads}/{kv_heads} {length} d {d} {keys.dv} pages {pages} "
           f"spread {spread} left {left} scale {scale} lengths "
           f"{None if lengths is None else lengths.tolist()[:4]}: out {same[0]} ({differ:.4f} "
           f"differ) lse {same[1]} finite {finite}")


def check(build, types, sizes):
    for dtype, d in itertools.product(types, sizes):
        case = lambda *sizes, **options: check_bits(build, dtype, *sizes, **options)
        case(1, 8, 8, 640, d)
        case(2, 12, 2, 2600, d)
        case(1, 32, 8, 8192, d)
        case(20, 32, 8, 1111, d)
        case(3, 5, 1, 777, d, spread=30.0)
        case(2, 32, 2, 900, d)  # 16 heads a group
        case(1, 64, 1, 700, d)
        case(1, 9, 1, 700, d, dv=d // 2)
        case(2, 6, 2, 1500, d - 8, dv=d - 24)
        case(2, 6, 2, 1500, d - 16)
        case(3, 4, 2, 1500, d, lengths=lengths_of(1500, 753, 1))
        case(3, 4, 2, 1500, d, lengths=lengths_of(0, 129, 128), scale=40.0)
        case(3, 4, 2, 1500, d, lengths=lengths_of(1500, 300, 1499), left=500)
        case(1, 4, 2, 1500, d, left=400, offset=1100, scale=1e6)
        case(2, 12, 2, 2600, d, scale=1e3, spread=3.0)
        for size in (16, 64, 256, *((1, 24) if dtype == torch.int8 else ())):
            case(3, 8, 2, 1500, d, pages=size, lengths=lengths_of(1500, 753, 1))

        def behind(keys):
            for x in keys.scales if keys.bytes else (keys.k, keys.v):
                x[0, :, 700:] = math.nan
                x[1, :, :300] = math.inf
        case(2, 4, 2, 1000, d, lengths=lengths_of(700, 1000), left=600, poison=behind)
        if dtype == torch.int8:
            def powers(keys):
                for x in keys.scales:
                    x.copy_(torch.exp2(torch.randint(-7, -5, x.shape, device="cuda").float()))
            case(2, 6, 2, 1000, d, poison=powers)

            def far(keys):
                keys.scales[1][:, :, ::7] *= 2.0**-110
                keys.scales[1][:, :, 5::70] *= 2.0**120
            case(2, 6, 2, 1000, d, poison=far)
    print(f"{trial.failures} failures", flush=True)


# ---- Times -------------------------------------------------------------------------------------

CASES = ((128, 1, 32, 8, 8192), (128, 1, 32, 32, 8192), (128, 8, 32, 8, 2048),
         (128, 16, 32, 8, 8192), (128, 64, 32, 8, 4096), (128, 1, 32, 8, 131072),
         (128, 1, 32, 32, 131072), (64, 16, 32, 8, 8192), (256, 16, 32, 8, 8192))


def graph_of(launches):
    """Of one after the other, over several sets of keys."""
    for launch in launches:
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()

    def replay(keep=launches):
        graph.replay()
    return replay


def time_all(builds, rounds, pages):
    print("TB/s of keys and values (of a copy: read and written), in brackets us: all, scores, values")
    for d, batch, heads, kv_heads, length in CASES:
        for dtype in (torch.bfloat16, torch.int8):
            size = 2 * batch * kv_heads * length * d * torch.empty(0, dtype=dtype).element_size()
            sets = max(1, min(8, CACHE // size))
            keys = [make_keys(dtype, batch, kv_heads, length, d, d) for _ in range(sets)]
            if pages is not None:
                keys = [on_pages(x, pages) for x in keys]
            q = fresh((batch, heads, 1, d), torch.bfloat16)
            out = torch.empty_like(q)
            half = torch.empty(size // 2, dtype=torch.int8, device="cuda")
            other = [torch.empty_like(half) for _ in range(sets)]
            launches = {"copy": graph_of([lambda x=x: half.copy_(x) for x in other])}
            for build in builds:
                for name, only in (("all", None), ("scores", 0), ("values", 1)):
                    launches[build.name, name] = graph_of(
                        [build.one_query(q, x, out, only=only) for x in keys])
            times = trial.gpu_times.turns(launches, rounds)
            median = {name: statistics.median(x) / sets for name, x in times.items()}
            copied = size / median["copy"] / 1e12
            text = f"d {d:3} B{batch:2} {heads}/{kv_heads:2} {length:6} {size / 1e6:5.0f} MB "
            text += f"{'i8  ' if dtype == torch.int8 else 'bf16'} copy {copied:.2f}"
            for build in builds:
                us = [median[build.name, name] * 1e6 for name in ("all", "scores", "values")]
                rate = size / us[0] / 1e6
                text += f" | {build.name}: {rate:.2f} {rate / copied:.2f} of copying"
                text += f" ({us[0]:.1f}, {us[1]:.1f}, {us[2]:.1f})"
            print(text, flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("builds", nargs="+")
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pages", type=int)
    parser.add_argument("--types", nargs="*", default=["bfloat16", "int8", "float16"])
    parser.add_argument("--sizes", type=int, nargs="*", default=list(TILES))
    parser.add_argument("--scores", type=float, default=math.inf,
                        help="leave checks of more scores out, as for compute-sanitizer")
    arguments = parser.parse_args()
    if arguments.build:
        compile_all(arguments.builds[0])
    trial.most_scores = arguments.scores
    builds = [Build(folder) for folder in arguments.builds]
    if not arguments.time:
        for build in builds:
            check(build, [getattr(torch, name) for name in arguments.types], arguments.sizes)
    if not arguments.check:
        time_all(builds, arguments.rounds, arguments.pages)
    sys.exit(trial.failures != 0)


if __name__ == "__main__":
    main()

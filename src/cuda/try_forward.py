#!/usr/bin/env python3
"""Checks and times forward_sm90.cu on a machine with a Hopper GPU, PyTorch and nothing of attend.

    try_forward.py --build FOLDER [-- FLAGS]    compiles into FOLDER, a module for each type and d
    try_forward.py FOLDER                       all checks, then times beside cuDNN's and flash's
    try_forward.py --time A B,128=128x160       times only, of several builds side by side

A build whose tiles are not those of forward_sm90.h says so: d=QUERIESxKEYS; turns=0 and turns=1
force what depends on the problem otherwise, section=MB how much of K and V is taken together.
"""
import argparse
import ctypes
import itertools
import json
import math
import pathlib
import statistics
import struct
import subprocess
import sys

try:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention as sdpa
    NAMES = {torch.bfloat16: "bf16", torch.float16: "f16"}
    cuda = ctypes.CDLL("libcuda.so.1")
except ImportError:  # enough to compile
    torch = cuda = None

SIZES = (64, 128, 256)
TILES = {64: (192, 128), 128: (128, 128), 256: (128, 80)}
NO_LIMIT = 1 << 29
SHARED_BYTES = 232448


def compile_all(folder, flags, source, sizes):
    """Each module in a compiler of its own, all at once."""
    here = pathlib.Path(__file__).parent
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    started = [subprocess.Popen([
        "nvcc", "-std=c++20", "-O3", "-cubin", "-gencode=arch=compute_90a,code=sm_90a", "-Xptxas",
        "-v", f"-DATTEND_TYPE={type_}", f"-DATTEND_D={d}", *flags, "-o",
        f"{folder}/{type_}_{d}.cubin", f"{here}/{source}"]) for type_ in ("bf16", "f16")
        for d in sizes]
    sys.exit(max(process.wait() for process in started))


def ok(code):
    if code != 0:
        text = ctypes.c_char_p()
        cuda.cuGetErrorString(code, ctypes.byref(text))
        raise RuntimeError(f"{code}: {text.value}")


class Aligned:
    """Bytes at an address that is a multiple of 128, and so is their number, as of a TensorMap."""

    def __init__(self, size):
        self.size = -(-size // 128) * 128
        self.raw = ctypes.create_string_buffer(self.size + 128)
        self.address = (ctypes.addressof(self.raw) + 127) // 128 * 128

    def bytes(self):
        return ctypes.string_at(self.address, self.size)


def tensor_map(t, rows, heads=1):
    """Of [batch, heads, length, d], in boxes of `heads` by `rows` by 64."""
    size = t.element_size()
    dims = [t.shape[3], t.shape[2], t.shape[1], t.shape[0]]
    strides = [t.stride(n) * size if t.shape[n] > 1 else 16 for n in (2, 1, 0)]
    assert t.stride(3) == 1 and all(s % 16 == 0 for s in strides), strides
    kind = {torch.float16: 6, torch.bfloat16: 9}[t.dtype]
    made = Aligned(128)
    u64, u32 = ctypes.c_uint64, ctypes.c_uint32
    ok(cuda.cuTensorMapEncodeTiled(
        ctypes.c_void_p(made.address), kind, 4, ctypes.c_void_p(t.data_ptr()), (u64 * 4)(*dims),
        (u64 * 3)(*strides), (u32 * 4)(64, rows, heads, 1), (u32 * 4)(1, 1, 1, 1), 0, 3, 3, 0))
    return made.bytes()


class Build:
    default_tiles = TILES

    def __init__(self, text):
        torch.zeros(1, device="cuda")
        self.folder, *rest = text.split(",")
        self.tiles, self.functions = dict(self.default_tiles), {}
        self.counter = torch.zeros(1, dtype=torch.int32, device="cuda")
        self.forced_turns, self.forced_section = None, None
        for item in rest:
            name, value = item.split("=")
            if name == "turns":
                self.forced_turns = int(value)
            elif name == "section":
                self.forced_section = int(value) << 20
            else:
                self.tiles[int(name)] = tuple(map(int, value.split("x")))
        self.processors = torch.cuda.get_device_properties(0).multi_processor_count

    def function(self, dtype, d):
        name = f"{self.folder}/{NAMES[dtype]}_{d}.cubin"
        if name not in self.functions:
            module, found = ctypes.c_void_p(), ctypes.c_void_p()
            ok(cuda.cuModuleLoad(ctypes.byref(module), name.encode()))
            ok(cuda.cuModuleGetFunction(ctypes.byref(found), module, b"attend_forward"))
            ok(cuda.cuFuncSetAttribute(found, 8, SHARED_BYTES))
            self.functions[name] = found
        return self.functions[name]

    def section_bytes(self, longest_first, k_length):
        if self.forced_section is not None:
            return self.forced_section
        return (16 << 20 if k_length < 1024 else 32 << 20) if longest_first else 0

    def turns(self, d, longest_first):
        if self.forced_turns is not None:
            return self.forced_turns
        return int(d == 256 or (d == 64 and not longest_first))

    def call(self, q, k, v, out, lse=None, causal=False, left=None, right=None, lengths=None,
             offset=None, scale=None):
        """A function that launches."""
        batch, heads, q_length, d = q.shape
        k_length, group = k.shape[2], heads // k.shape[1]
        queries, keys = self.tiles[d]
        left = NO_LIMIT if left is None else left
        right = NO_LIMIT if right is None else right
        right = min(right, 0) if causal else right
        blocks = -(-q_length // queries)
        items = blocks * heads * batch
        longest_first = right < NO_LIMIT
        section = self.section_bytes(longest_first, k_length) // (k_length * d * 4)
        section = min(max(1, section) * group, heads * batch)
        data = b"".join([tensor_map(q, queries), tensor_map(k, keys), tensor_map(v, keys),
                         tensor_map(out, 64)])
        data += struct.pack("QQQQ", lse.data_ptr() if lse is not None else 0,
                            self.counter.data_ptr(),
                            lengths.data_ptr() if lengths is not None else 0, 0)
        data += struct.pack("qqq", *(lse.stride() if lse is not None else (0, 0, 0)))
        data += struct.pack("12if", heads, group, q_length, k_length, left, right, offset or 0,
                            int(offset is not None), blocks, items, section,
                            self.turns(d, longest_first),
                            scale or 1 / math.sqrt(d))
        block = Aligned(len(data))
        ctypes.memmove(block.address, data, len(data))
        function = self.function(q.dtype, d)
        threads = 128 * (1 + queries // 64)
        arguments = (ctypes.c_void_p * 1)(block.address)
        grid = min(items, self.processors)
        keep = (q, k, v, out, lse, lengths, block)

        def launch(keep=keep):
            ok(cuda.cuLaunchKernel(function, grid, 1, 1, threads, 1, 1, SHARED_BYTES,
                                   ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
                                   arguments, None))
        return launch


# ---- Checks ------------------------------------------------------------------------------------

def visible(q_length, k_length, length, causal, left, right, offset):
    i = torch.arange(q_length, device="cuda")[:, None]
    j = torch.arange(k_length, device="cuda")[None, :]
    i = i + (length - q_length if offset is None else offset)
    seen = j < length
    if causal:
        seen = seen & (j <= i)
    if left is not None:
        seen = seen & (j >= i - left)
    if right is not None:
        seen = seen & (j <= i + right)
    return seen


def truth(q, k, v, causal=False, left=None, right=None, lengths=None, offset=None, scale=None,
          textbook=None):
    """out and lse in f64; with textbook = a type, S, P and O are rounded to it."""
    cast = (lambda x: x.to(textbook).double()) if textbook else (lambda x: x)
    out = torch.zeros(q.shape, dtype=torch.float64, device="cuda")
    lse = torch.zeros(q.shape[:3], dtype=torch.float64, device="cuda")
    group = q.shape[1] // k.shape[1]
    for b, h in itertools.product(range(q.shape[0]), range(q.shape[1])):
        length = k.shape[2] if lengths is None else int(lengths[b])
        seen = visible(q.shape[2], k.shape[2], length, causal, left, right, offset)
        kept = seen.any(0)
        kk, vv = k[b, h // group].double(), v[b, h // group].double()
        kk, vv = kk * 1, vv * 1
        kk[~kept], vv[~kept] = 0, 0
        s = cast((q[b, h].double() @ kk.T) * (scale or 1 / math.sqrt(q.shape[3])))
        s = s.masked_fill(~seen, -math.inf)
        lse[b, h] = torch.logsumexp(s, 1)
        p = cast(torch.nan_to_num(torch.softmax(s, 1)) if not seen.any(1).all()
                 else torch.softmax(s, 1))
        out[b, h] = cast(p @ vv)
    return out, lse


def fresh(shape, dtype, spread=1.0):
    return (torch.randn(shape, device="cuda") * spread).to(dtype)


failures = 0


def report(right, text):
    global failures
    failures += not right
    print(("ok    " if right else "WRONG ") + text, flush=True)


def run(build, q, k, v, lse=True, **options):
    out = torch.full(q.shape, math.nan, dtype=q.dtype, device="cuda")
    rows = torch.full(q.shape[:3], math.nan, device="cuda") if lse else None
    build.call(q, k, v, out, rows, **options)()
    torch.cuda.synchronize()
    return out, rows


def check_case(build, dtype, d, b, h, hk, tq, tk, spread=1.0, **options):
    q, k, v = fresh((b, h, tq, d), dtype, spread), fresh((b, hk, tk, d), dtype), fresh(
        (b, hk, tk, d), dtype)
    out, lse = run(build, q, k, v, **options)
    again, lse_again = run(build, q, k, v, **options)
    want, want_lse = truth(q, k, v, **options)
    book, _ = truth(q, k, v, textbook=dtype, **options)
    error, allowed = (out.double() - want).norm(), (book - want).norm()
    most, most_allowed = (out.double() - want).abs().max(), (book - want).abs().max()
    finite = torch.isfinite(want_lse)
    lse_error = (lse.double() - want_lse)[finite].abs().max() if finite.any() else 0
    same = torch.equal(out.view(torch.int16), again.view(torch.int16)) and torch.equal(
        lse, lse_again)
    empty = bool((lse[~finite] == want_lse[~finite]).all()) and bool((out[~finite] == 0).all())
    few = out.numel() < 10000  # too few to compare the largest errors of
    right = error <= allowed and (few or most <= most_allowed * 1.05) and same and empty and (
        lse_error < 1e-3 * max(1, spread))
    report(right, f"{NAMES[dtype]} d {d} B{b} H{h}/{hk} {tq}x{tk} {describe(options)}: rms "
           f"{float(error / allowed):.2f}, largest {float(most / most_allowed):.2f} of textbook's,"
           f" lse {float(lse_error):.1e}, same {same}, empty {empty}")


def describe(options):
    return " ".join(f"{k}={v.tolist() if torch.is_tensor(v) else v}" for k, v in options.items())


def lengths_of(*numbers):
    return torch.tensor(numbers, dtype=torch.int32, device="cuda")


def check_numbers(build):
    for dtype, d in itertools.product((torch.bfloat16, torch.float16), SIZES):
        case = lambda *sizes, **options: check_case(build, dtype, d, *sizes, **options)
        case(2, 4, 4, 512, 512)
        case(2, 4, 2, 512, 512, causal=True)
        case(1, 6, 2, 1000, 777)
        case(1, 3, 1, 300, 1111, causal=True)
        case(2, 2, 2, 700, 200, causal=True)
        case(1, 2, 2, 900, 900, left=100, right=37)
        case(1, 2, 2, 1500, 1500, causal=True, left=255)
        case(3, 2, 1, 257, 640, lengths=lengths_of(640, 1, 333))
        case(3, 2, 1, 257, 640, lengths=lengths_of(0, 130, 333), causal=True)
        case(1, 2, 2, 1, 5000)
        case(1, 1, 1, 129, 4097, spread=10.0)
        case(1, 1, 1, 129, 700, offset=100, causal=True, scale=0.7)
        case(40, 16, 4, 64, 100, causal=True)
        case(4, 40, 8, 512, 512, causal=True)  # several items a block of threads
        case(4, 40, 8, 700, 700, left=150, right=40)


def same_bits(a, b):
    return torch.equal(a.contiguous().view(torch.int16), b.contiguous().view(torch.int16))


def check_bits(build):
    for dtype, d in itertools.product((torch.bfloat16, torch.float16), SIZES):
        name = f"{NAMES[dtype]} d {d}"
        q, k, v = (fresh((3, 4, 900, d), dtype) for _ in range(3))
        out, lse = run(build, q, k, v, causal=True)
        alone, lse_alone = run(build, q[1:2, 2:3], k[1:2, 2:3], v[1:2, 2:3], causal=True)
        report(same_bits(out[1:2, 2:3], alone) and torch.equal(lse[1:2, 2:3], lse_alone),
               f"{name} a head alone has the bits it has in a batch")
        part, _ = run(build, q[:, :, 333:350], k, v, causal=True, offset=333)
        report(same_bits(out[:, :, 333:350], part), f"{name} some queries alone have their bits")
        short, _ = run(build, q[:, :, :500], k[:, :, :500], v[:, :, :500], causal=True)
        report(same_bits(out[:, :, :500], short), f"{name} keys that come later change no bit")
        grouped, _ = run(build, q, k[:, :2], v[:, :2], causal=True)
        twice, _ = run(build, q, k[:, :2].repeat_interleave(2, 1), v[:, :2].repeat_interleave(2, 1),
                       causal=True)
        report(same_bits(grouped, twice), f"{name} grouped heads equal repeated ones")
        layout = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
        other, _ = run(build, *layout, causal=True)
        report(same_bits(out, other), f"{name} [batch, length, heads, d] has the same bits")
        padded = [torch.nn.functional.pad(x, (0, 8))[..., :d] for x in (q, k, v)]
        other, _ = run(build, *padded, causal=True)
        report(same_bits(out, other), f"{name} padded rows have the same bits")
        hidden(build, name, q, k, v)
        extremes(build, name, dtype, d)


def hidden(build, name, q, k, v):
    """NaN and infinities reach the rows that see them, and no others."""
    out, lse = run(build, q, k, v, causal=True)
    for value in (math.nan, math.inf):
        for at in (0, 5, 127, 128, 500, 899):
            k2, v2 = k.clone(), v.clone()
            v2[1, 2, at, 7] = value
            got, got_lse = run(build, q, k, v2, causal=True)
            right = same_bits(got[1, 2, :at], out[1, 2, :at]) and same_bits(got[0], out[0])
            right = right and not torch.isfinite(got[1, 2, at:, 7]).any()
            others = [c for c in range(q.shape[3]) if c != 7]
            right = right and same_bits(got[..., others], out[..., others])
            right = right and torch.equal(lse, got_lse)
            k2[1, 2, at, 7] = value
            got, _ = run(build, q, k2, v, causal=True)
            right = right and same_bits(got[1, 2, :at], out[1, 2, :at])
            right = right and (value != value) <= bool(torch.isnan(got[1, 2, at:]).all())
            if not right:
                report(False, f"{name} {value} in key {at} reaches what it must and no more")
    report(True, f"{name} NaN and infinity in one key, causal: checked")
    window, _ = run(build, q, k, v, left=60, right=70)
    v2 = v.clone()
    v2[:, :, 450] = math.nan
    got, _ = run(build, q, k, v2, left=60, right=70)
    first, last = 450 - 70, 450 + 60
    right = same_bits(got[:, :, :first], window[:, :, :first]) and same_bits(
        got[:, :, last + 1:], window[:, :, last + 1:])
    report(right and bool(torch.isnan(got[:, :, first:last + 1]).all()),
           f"{name} NaN in a window")
    lengths = lengths_of(900, 130, 1)
    some, _ = run(build, q, k, v, lengths=lengths)
    k2, v2 = k.clone(), v.clone()
    for b, n in enumerate(lengths.tolist()):
        k2[b, :, n:], v2[b, :, n:] = math.nan, math.nan
    got, _ = run(build, q, k2, v2, lengths=lengths)
    report(same_bits(some, got), f"{name} NaN behind key_lengths")


def extremes(build, name, dtype, d):
    q, k, v = (fresh((1, 2, 200, d), dtype) for _ in range(3))
    big = 60000.0 if dtype == torch.float16 else 1e17
    for sign in (1, -1):
        q2 = torch.full_like(q, big)
        k2 = torch.full_like(k, sign)
        out, lse = run(build, q2, k2, v)
        mean = v.double().mean(2, keepdim=True).expand_as(v)
        error = (out.double() - mean).abs().max()
        want = sign * float(q2[0, 0, 0, 0]) * math.sqrt(d) + math.log(200)
        right = error < 0.01 and bool(((lse - want).abs() <= abs(want) * 1e-6 + 1e-4).all())
        report(right, f"{name} equal scores of {want:.2g}: off by {float(error):.1e}, lse "
               f"{float(lse[0, 0, 0]):.6g}")


# ---- Times -------------------------------------------------------------------------------------

def seconds(launches, rounds=7):
    """Medians, taking turns; each turn lasts some milliseconds."""
    counts, times = [], [[] for _ in launches]
    for launch in launches:
        launch()
        counts.append(max(2, min(50, int(4e-3 / max(1e-6, timed(launch, 2))))))
    for _ in range(rounds):
        for n, launch in enumerate(launches):
            times[n].append(timed(launch, counts[n]))
    return [statistics.median(t) for t in times]


def timed(launch, count):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(count):
        launch()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / count


def peer(backend, q, k, v, causal):
    def launch():
        with sdpa_kernel(backend):
            sdpa(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])
    return launch


def time_all(builds, dtype, full_table, lengths):
    x = fresh((8192, 8192), dtype)
    product = seconds([lambda: x @ x])[0]
    print(f"matrix product {2 * 8192**3 / product / 1e12:.0f} TFLOP/s", flush=True)
    rows = []
    if full_table:
        lengths = (512, 1024, 2048, 4096, 8192, 16384)
    for d, causal, length in itertools.product(SIZES, (False, True), lengths):
        b, h = 16384 // length, 2048 // d
        q, k, v = (fresh((b, h, length, d), dtype) for _ in range(3))
        launches = [build.call(q, k, v, torch.empty_like(q), torch.empty(
            q.shape[:3], device="cuda"), causal=causal) for build in builds]
        peers = [SDPBackend.CUDNN_ATTENTION] + [SDPBackend.FLASH_ATTENTION] * full_table
        launches += [peer(backend, q, k, v, causal) for backend in peers]
        work = 4 * b * h * length * length * d / (2 if causal else 1) / 1e12
        rates = [work / t for t in seconds(launches)]
        rows.append({"d": d, "causal": causal, "length": length, "rates": rates})
        print(f"d {d} {'causal' if causal else 'full  '} T {length:5}: "
              + " ".join(f"{r:6.0f}" for r in rates)
              + f"   of cuDNN: " + " ".join(f"{r / rates[len(builds)]:.3f}"
                                            for r in rates[:len(builds)]), flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("builds", nargs="+")
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--lengths", type=int, nargs="*", default=[512, 2048, 8192])
    parser.add_argument("--full-table", action="store_true")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    if arguments.build:
        compile_all(arguments.builds[0], arguments.builds[1:], "forward_sm90.cu", SIZES)
    torch.manual_seed(torch.seed() % 2**31)
    builds = [Build(text) for text in arguments.builds]
    if not arguments.time:
        for build in builds:
            check_numbers(build)
            check_bits(build)
        print(f"{failures} failures")
    if not arguments.check:
        with torch.inference_mode():
            rows = time_all(builds, torch.bfloat16, arguments.full_table,
                            arguments.lengths)
        if arguments.json:
            with open(arguments.json, "w") as file:
                json.dump({"builds": arguments.builds, "rows": rows}, file, indent=1)
    sys.exit(failures != 0)


if __name__ == "__main__":
    main()

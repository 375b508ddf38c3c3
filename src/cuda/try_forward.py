#!/usr/bin/env python3
"""Checks and times forward_sm90.cu on a machine with a Hopper GPU, PyTorch and nothing of attend.

    try_forward.py --build FOLDER [-- FLAGS]    compiles into FOLDER, a module for each type and d
    try_forward.py FOLDER                       all checks, then times beside cuDNN's and flash's
    try_forward.py --time A B,128=128x160       times only, of several builds side by side

A build whose tiles are not those of forward_sm90.h says so: d=QUERIESxKEYS; turns=0 and turns=1
force what depends on the problem otherwise, section=MB how much of K and V is taken together.
"""
import itertools
import math
import struct

import trial
from trial import (NAMES, PEERS, SHARED_BYTES, check_case, describe, fresh, lengths_of, pointers,
                   report, rows_of, run, same_bits, starts_of, tensor_map, torch)

NO_LIMIT = trial.NO_LIMIT


class Build(trial.Kernels):
    names, sizes = ("attend_forward",), (64, 128, 256)

    def __init__(self, text):
        folder, *rest = text.split(",")
        super().__init__(folder)
        self.tiles = {64: (192, 128), 128: (128, 128), 256: (128, 80)}
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

    def shared_bytes(self, name, size):
        return SHARED_BYTES

    def section_bytes(self, longest_first, k_length):
        if self.forced_section is not None:
            return self.forced_section
        return (16 << 20 if k_length < 1024 else 32 << 20) if longest_first else 0

    def turns(self, d, longest_first):
        if self.forced_turns is not None:
            return self.forced_turns
        return int(d == 256 or (d == 64 and not longest_first))

    def call(self, q, k, v, out, lse=None, causal=False, left=None, right=None, lengths=None,
             offset=None, scale=None, starts=None):
        """A function that launches. starts: of packed queries and keys, in tensors of batch 1."""
        batch, heads, q_length, d = q.shape
        k_length, group = k.shape[2], heads // k.shape[1]
        if starts is not None:
            batch = len(starts[0]) - 1
            q_length, k_length = (int(s.diff().max()) for s in starts)
        size = self.size_for(d, v.shape[3])
        queries, keys = self.tiles[size]
        left, right = trial.limits(causal, left, right)
        blocks = -(-q_length // queries)
        items = blocks * heads * batch
        longest_first = right < NO_LIMIT
        section = self.section_bytes(longest_first, k_length) // (k_length * size * 4)
        section = min(max(1, section) * group, heads * batch)
        data = b"".join([tensor_map(q, queries), tensor_map(k, keys), tensor_map(v, keys),
                         tensor_map(out, 64), rows_of(out), rows_of(lse),
                         pointers(self.counter, lengths, None, *(starts or (None, None))),
                         bytes(24 + 2 * 72)])  # no pages, no keys of 8 bits
        data += struct.pack("13if", heads, group, q_length, k_length, left, right, offset or 0,
                            int(offset is not None), blocks, items, section,
                            self.turns(size, longest_first), v.shape[3],
                            scale or 1 / math.sqrt(d))
        block, arguments = trial.parameters(data)
        function, = self.functions(q.dtype, size)
        keep = (q, k, v, out, lse, lengths, starts, block)

        def launch(keep=keep):
            trial.start(function, min(items, self.processors), 128 * (1 + queries // 64),
                        SHARED_BYTES, arguments)
        return launch


# ---- Checks ------------------------------------------------------------------------------------

def check(build, sizes):
    check_numbers(build, sizes)
    check_bits(build, sizes)


def check_numbers(build, sizes):
    for dtype, d in itertools.product(NAMES, sizes):
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
        for width, dv in ((d - 8, None), (d // 2 + 16, None), (d, d // 2), (d // 2, d - 24)):
            check_case(build, dtype, width, 2, 4, 2, 300, 400, dv=dv, causal=True)


def check_bits(build, sizes):
    for dtype, d in itertools.product(NAMES, sizes):
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
        packed(build, name, dtype, d)
        hidden(build, name, q, k, v)
        extremes(build, name, dtype, d)


def packed(build, name, dtype, d):
    """Sequences packed one after the other have the bits they have alone."""
    sizes = ((100, 100), (1, 300), (333, 333), (0, 9), (7, 0), (64, 64), (200, 129))
    q_starts, k_starts = (starts_of(*lengths) for lengths in zip(*sizes))
    q, k, v = (fresh((int(starts[-1]), heads, d), dtype).transpose(0, 1)[None]
               for starts, heads in ((q_starts, 4), (k_starts, 2), (k_starts, 2)))
    for options in ({}, {"causal": True}, {"left": 50, "right": 20}):
        out, lse = run(build, q, k, v, starts=(q_starts, k_starts), **options)
        right = True
        for b, (tq, tk) in enumerate(sizes):
            rows, keys = (slice(int(s[b]), int(s[b + 1])) for s in (q_starts, k_starts))
            if tq > 0 and tk > 0:
                alone, lse_alone = run(build, q[:, :, rows], k[:, :, keys], v[:, :, keys], **options)
                right = right and same_bits(out[:, :, rows], alone)
                right = right and torch.equal(lse[:, :, rows], lse_alone)
            elif tq > 0:
                right = right and not out[:, :, rows].any()
        report(right, f"{name} packed {describe(options)}")
        nan = [x.clone() for x in (q, k, v)]  # of the third sequence reaches no other
        nan[0][:, :, 101:434] = nan[1][:, :, 400:733] = nan[2][:, :, 400:733] = math.nan
        got, _ = run(build, *nan, starts=(q_starts, k_starts), **options)
        report(all(same_bits(got[:, :, part], out[:, :, part]) for part in
                   (slice(0, 101), slice(434, None))), f"{name} packed, NaN in a neighbour")


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

def time_all(builds, dtype, sizes, lengths):
    x = fresh((8192, 8192), dtype)
    product = trial.seconds([lambda: x @ x])[0]
    print(f"matrix product {2 * 8192**3 / product / 1e12:.0f} TFLOP/s", flush=True)
    for d, causal, length in itertools.product(sizes, (False, True), lengths):
        b, h = 16384 // length, 2048 // d
        q, k, v = (fresh((b, h, length, d), dtype) for _ in range(3))
        launches = [build.call(q, k, v, torch.empty_like(q), torch.empty(
            q.shape[:3], device="cuda"), causal=causal) for build in builds]
        launches += [trial.peer(backend, q, k, v, causal) for backend in PEERS]
        work = 4 * b * h * length * length * d / (2 if causal else 1) / 1e12
        with torch.inference_mode():
            rates = [work / t for t in trial.seconds(launches)]
        print(f"forward d {d} {'causal' if causal else 'full  '} T {length:5}: "
              + " ".join(f"{r:6.0f}" for r in rates)
              + "   of cuDNN: " + " ".join(f"{r / rates[len(builds)]:.3f}"
                                           for r in rates[:len(builds)]), flush=True)


if __name__ == "__main__":
    trial.main(Build, "forward_sm90.cu", check, time_all)

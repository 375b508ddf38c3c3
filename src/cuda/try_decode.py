#!/usr/bin/env python3
"""Checks and times decode_sm90.cu as try_forward.py does forward_sm90.cu.

    try_decode.py --build FOLDER [-- FLAGS]
    try_decode.py [--time] FOLDER

FOLDER,each=1 and each=4 force how many chunks a block of threads takes at a time, early=0 starts
the second kernel after the end of the first.
"""
import itertools
import math
import struct

import trial
from trial import (NAMES, PEERS, check_case, describe, fresh, lengths_of, pointers, report, rows_of,
                   run, same_bits, tensor_map, torch)

CHUNK, RUN = 256, 4
TILE = {64: 64, 128: 64, 256: 32}
STAGES, QUERY_STAGES = {64: 4, 128: 2, 256: 2}, {64: 2, 128: 2, 256: 1}


class Build(trial.Kernels):
    names = ("attend_decode_parts", "attend_decode_paged", "attend_decode_join")
    sizes = (64, 128, 256)

    def __init__(self, text):
        folder, *rest = text.split(",")
        super().__init__(folder)
        self.forced = dict(item.split("=") for item in rest)

    def shared_bytes(self, name, size):
        if name == "attend_decode_join":
            return 0
        return (QUERY_STAGES[size] * 64 + 2 * STAGES[size] * TILE[size]) * size * 2 + 3 * 1024

    def call(self, q, k, v, out, lse=None, causal=False, left=None, right=None, lengths=None,
             offset=None, scale=None, table=None):
        """table: of pages [batch, width]; then k and v are [pages, heads, page size, d]."""
        batch, heads, q_length, d = q.shape
        kv_heads, k_length = k.shape[1:3]
        page_size, width = k_length, 0
        if table is not None:
            width, k_length = table.shape[1], table.shape[1] * page_size
        group, size = heads // kv_heads, self.size_for(d, v.shape[3])
        assert group * q_length <= 64
        left, right = trial.limits(causal, left, right)
        runs = batch * kv_heads * -(-k_length // (CHUNK * RUN))
        each = int(self.forced.get("each", RUN if runs >= 2 * self.processors * 9 // 10 else 1))
        each = 1 if size == 256 else each
        piece = TILE[size] if table is None else math.gcd(TILE[size], page_size)
        assert piece >= 8
        parts, rows = -(-k_length // (CHUNK * each)), batch * heads * q_length
        partial_out = torch.full((rows, parts, size), math.nan, device="cuda")
        partial = torch.full((rows, parts, 2), math.nan, device="cuda")
        data = tensor_map(q, q_length, group) + tensor_map(k, piece, 1, 2) + tensor_map(
            v, piece, 1, 2)
        data += pointers(partial_out, partial) + rows_of(out) + rows_of(lse)
        data += pointers(lengths, table)
        data += struct.pack("15if", width, page_size, piece, batch, heads, group, q_length,
                            k_length, each, parts, left, right, offset or 0,
                            int(offset is not None), v.shape[3], scale or 1 / math.sqrt(d))
        block, arguments = trial.parameters(data)
        functions = self.functions(q.dtype, size)
        shared = self.shared_bytes(self.names[0], size)
        grid = min(batch * kv_heads * parts, 2 * self.processors)
        early = self.forced.get("early", "1") == "1"
        keep = (q, k, v, out, lse, lengths, table, partial, partial_out, block)

        def launch(keep=keep):
            trial.start(functions[table is not None], grid, 256, shared, arguments)
            trial.start(functions[2], rows, 512, 0, arguments, early)
        return launch


def check(build, sizes):
    other = Build(f"{build.folder},each=4")
    build = Build(f"{build.folder},each=1")
    for dtype, d in itertools.product(NAMES, sizes):
        name = f"{NAMES[dtype]} d {d}"
        for made in (build, other):
            case = lambda *sizes, **options: check_case(made, dtype, d, *sizes, **options)
            case(3, 32, 8, 1, 1000)
            case(2, 16, 16, 1, 4096)
            case(4, 8, 1, 1, 257, lengths=lengths_of(257, 0, 1, 256))
            case(2, 8, 2, 3, 700, causal=True)
            case(2, 8, 4, 16, 1500, causal=True, left=300)
            case(1, 64, 1, 1, 70000)
            check_case(made, dtype, d - 8, 2, 8, 2, 3, 700, causal=True)
            check_case(made, dtype, d, 2, 8, 2, 3, 700, dv=d // 2, causal=True)
        q, k, v = (fresh(s, dtype) for s in ((3, 8, 1, d), (3, 2, 9000, d), (3, 2, 9000, d)))
        out, lse = run(build, q, k, v)
        again, lse_again = run(other, q, k, v)
        report(same_bits(out, again) and torch.equal(lse, lse_again),
               f"{name} runs of chunks have the bits of chunks")
        alone, _ = run(build, q[1:2, 4:8], k[1:2, 1:2], v[1:2, 1:2])
        report(same_bits(out[1:2, 4:8], alone), f"{name} a head alone has the bits of a batch")
        lengths = lengths_of(9000, 5130, 1)
        some, _ = run(build, q, k, v, lengths=lengths)
        short, _ = run(build, q[1:2], k[1:2, :, :5130], v[1:2, :, :5130])
        report(same_bits(some[1:2], short), f"{name} keys behind key_lengths change no bit")
        for b, n in enumerate(lengths.tolist()):
            k[b, :, n:], v[b, :, n:] = math.nan, math.nan
        again, _ = run(build, q, k, v, lengths=lengths)
        report(same_bits(some, again), f"{name} NaN behind key_lengths")
        for made in (build, other) if d < 256 else (build,):
            hidden(made, name, dtype, d)
            paged(made, name, dtype, d)


def on_pages(x, page_size, order, fill):
    """[batch, heads, length, d] as [pages, heads, page size, d]: page n of the first element, then
    of the next, is at order[n]; what no key is in holds `fill`."""
    batch, heads, length, d = x.shape
    width = -(-length // page_size)
    padded = torch.full((batch, heads, width * page_size, d), fill, dtype=x.dtype, device="cuda")
    padded[:, :, :length] = x
    parts = padded.view(batch, heads, width, page_size, d).transpose(1, 2).flatten(0, 1)
    pages = torch.full((len(order) + 3, *parts.shape[1:]), fill, dtype=x.dtype, device="cuda")
    pages[order] = parts
    return pages


def paged(build, name, dtype, d):
    """Keys on pages have the bits of dense ones, whatever is on the rest of the pages."""
    batch, length = 3, 1700
    lengths = lengths_of(1700, 0, 777)
    for q_length, options in ((1, {}), (5, {"causal": True, "left": 600})):
        q, k, v = (fresh((batch, heads, n, d), dtype)
                   for heads, n in ((8, q_length), (2, length), (2, length)))
        for b, n in enumerate(lengths.tolist()):
            k[b, :, n:], v[b, :, n:] = math.nan, math.nan
        want, want_lse = run(build, q, k, v, lengths=lengths, **options)
        right = True
        for page_size in (8, 16, 24, 32, 48, 64, 80, 128, 256, 1024):
            width = -(-length // page_size)
            order = torch.randperm(batch * width, device="cuda")
            pages = [on_pages(x, page_size, order, math.nan) for x in (k, v)]
            table = order.view(batch, width).to(torch.int32)
            for b, n in enumerate(lengths.tolist()):
                table[b, -(-n // page_size):] = -1 if b == 0 else 1 << 30  # are not looked at
            got, got_lse = run(build, q, *pages, lengths=lengths, table=table, **options)
            fine = same_bits(got, want) and torch.equal(got_lse, want_lse)
            right = right and fine
            if not fine:
                report(False, f"{name} pages of {page_size}, {q_length} queries {describe(options)}")
        report(right, f"{name} keys on pages, {q_length} queries {describe(options)}")


def hidden(build, name, dtype, d):
    """NaN and infinities reach the queries that see them, and no others."""
    length, count = 900, 8
    q, k, v = (fresh((2, heads, t, d), dtype) for heads, t in ((8, count), (2, length), (2, length)))
    right = True
    for options in ({"causal": True}, {"left": 300, "right": 0}):
        plain, _ = run(build, q, k, v, **options)
        seen = trial.visible(count, length, length, options.get("causal"), options.get("left"),
                             options.get("right"), None)
        for at, value, which in itertools.product((594, 597, 639, 640, 892, 895, 899),
                                                  (math.nan, math.inf), (0, 1)):
            tensors = [k.clone(), v.clone()]
            tensors[which][1, 1, at, 7] = value
            got, _ = run(build, q, *tensors, **options)
            reached = torch.zeros(q.shape, dtype=torch.bool, device="cuda")
            if which == 0:
                reached[1, 4:, seen[:, at]] = True
            else:
                reached[1, 4:, seen[:, at], 7] = True
            fine = torch.equal(got[~reached].view(torch.int16), plain[~reached].view(torch.int16))
            fine = fine and (value == math.inf or bool(torch.isnan(got[reached]).all()))
            right = right and fine
            if not fine:
                report(False, f"{name} {describe(options)} {value} in key {at} of {'kv'[which]}")
    q[0, 3, 2] = math.nan
    got, lse = run(build, q, k, v, causal=True)
    right = right and bool(torch.isnan(got[0, 3, 2]).all() and torch.isnan(lse[0, 3, 2]))
    report(right, f"{name} NaN and infinity in one key or query")


PAGES = (16, 64, 256)


def on_random_pages(build, page_size, q, k, v):
    width = k.shape[2] // page_size
    order = torch.randperm(k.shape[0] * width, device="cuda")
    pages = [on_pages(x, page_size, order, 0) for x in (k, v)]
    return build.call(q, *pages, torch.empty_like(q), lengths=lengths_of(*[k.shape[2]] * len(q)),
                      table=order.view(-1, width).to(torch.int32))


def time_all(builds, dtype, sizes, lengths):
    x = fresh((1 << 30,), dtype)
    y = torch.empty_like(x)
    copy = trial.seconds([lambda: y.copy_(x)])[0]
    print(f"copy {2 * x.nbytes / copy / 1e12:.2f} TB/s", flush=True)
    del x, y
    cases = ((1, 32, 32, 8192), (1, 32, 8, 8192), (16, 32, 8, 8192), (64, 32, 8, 4096),
             (1, 32, 8, 131072), (1, 32, 32, 131072), (8, 32, 8, 2048))
    cases = [(d, *case) for d in sizes for case in (cases if d == 128 else cases[2:4])]
    for d, b, h, hk, length in cases:
        shapes = ((b, h, 1, d), (b, hk, length, d), (b, hk, length, d))
        sets = [tuple(fresh(s, dtype) for s in shapes)
                for _ in range(max(1, min(8, (512 << 20) // (b * hk * length * d * 4))))]
        bytes_ = 2 * b * hk * length * d * 2
        launches = []
        with torch.inference_mode():
            for build in builds:
                calls = [build.call(q, k, v, torch.empty_like(q)) for q, k, v in sets]
                launches.append(trial.graph_of(lambda calls=calls: [call() for call in calls]))
            for page_size in PAGES:
                calls = [on_random_pages(builds[0], page_size, *tensors) for tensors in sets]
                launches.append(trial.graph_of(lambda calls=calls: [call() for call in calls]))
            for backend in PEERS:
                try:
                    peers = [trial.peer(backend, q, k, v, False) for q, k, v in sets]
                    launches.append(trial.graph_of(lambda peers=peers: [call() for call in peers]))
                except RuntimeError as error:
                    print("none:", str(error)[:80])
            rates = [bytes_ * len(sets) / t / 1e12 for t in trial.seconds(launches)]
        print(f"decode d {d} B{b} H{h}/{hk} keys {length} ({bytes_ >> 20} MB), dense, pages of "
              f"{PAGES}, cuDNN, flash: "
              + " ".join(f"{r:.2f}" for r in rates) + " TB/s", flush=True)


if __name__ == "__main__":
    trial.main(Build, "decode_sm90.cu", check, time_all)

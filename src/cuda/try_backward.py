#!/usr/bin/env python3
"""Checks and times backward_sm90.cu as try_forward.py does forward_sm90.cu.

    try_backward.py --build FOLDER [-- FLAGS]
    try_backward.py [--time] [--sizes 256 --] FOLDER
"""
import itertools
import math
import struct

import trial
from trial import (NAMES, PEERS, SHARED_BYTES, describe, fresh, lengths_of, pointers, report,
                   rows_of, same_bits, starts_of, tensor_map, torch)

TILES = {64: (96, 96), 128: (64, 96), 256: (64, 64)}  # queries, keys
QUERY_BLOCK, KEY_BLOCK = 128, {64: 128, 128: 128, 256: 64}


class Build(trial.Kernels):
    names = ("attend_backward_rows", "attend_backward_queries", "attend_backward_keys")
    sizes = (64, 128, 256)

    def shared_bytes(self, name, size):
        return 0 if name == "attend_backward_rows" else SHARED_BYTES

    def call(self, q, k, v, out, lse, dout, dq, dk, dv, causal=False, left=None, right=None,
             lengths=None, offset=None, scale=None, starts=None):
        batch, heads, q_length, d = q.shape
        kv_heads, k_length = k.shape[1:3]
        padded = -(-q_length // 384) * 384
        rows = padded
        if starts is not None:
            batch, padded = len(starts[0]) - 1, -(-q_length // 4) * 4 + 4 * len(starts[0]) + 384
            q_length, k_length = (int(s.diff().max()) for s in starts)
            rows = q_length
        size = self.size_for(d, v.shape[3])
        left, right = trial.limits(causal, left, right)
        numbers = torch.full((4, q.shape[0], heads, padded), math.nan, device="cuda")
        (queries, keys), key_block = TILES[size], KEY_BLOCK[size]
        data = b"".join(tensor_map(t, tile) for t, tile in (
            (q, queries), (k, keys), (v, keys), (dout, queries), (q, QUERY_BLOCK), (k, key_block),
            (v, key_block), (dout, QUERY_BLOCK), (dq, 64), (dk, 64), (dv, 64)))
        data += pointers(*numbers) + b"".join(rows_of(t) for t in (out, dout, lse, dq, dk, dv))
        data += pointers(lengths, *(starts or (None, None)))
        data += struct.pack("12if", batch, heads, heads // kv_heads, q_length, k_length, padded,
                            left, right, offset or 0, int(offset is not None), d, v.shape[3],
                            scale or 1 / math.sqrt(d))
        block, arguments = trial.parameters(data)
        grids = (-(-batch * heads * rows * (size // 8) // 256),
                 batch * heads * -(-q_length // QUERY_BLOCK),
                 batch * kv_heads * -(-k_length // key_block))
        functions = self.functions(q.dtype, size)
        keep = (q, k, v, out, lse, dout, dq, dk, dv, lengths, starts, numbers, block)

        def launch(parts=(0, 1, 2), keep=keep):
            for n in parts:
                trial.start(functions[n], grids[n], 384 if n > 0 else 256,
                            SHARED_BYTES if n > 0 else 0, arguments)
        return launch


# ---- Checks ------------------------------------------------------------------------------------

def truth(q, k, v, dout, scale=None, lengths=None, textbook=None, **options):
    """dq, dk, dv in f64; with textbook = a type, P, dP and dS are rounded to it."""
    cast = (lambda x: x.to(textbook).double()) if textbook else (lambda x: x)
    dq, dk, dv = (torch.zeros(t.shape, dtype=torch.float64, device="cuda") for t in (q, k, v))
    group, scale = q.shape[1] // k.shape[1], scale or 1 / math.sqrt(q.shape[3])
    for b, h in itertools.product(range(q.shape[0]), range(q.shape[1])):
        length = k.shape[2] if lengths is None else int(lengths[b])
        seen = trial.visible(q.shape[2], k.shape[2], length, options.get("causal", False),
                             options.get("left"), options.get("right"), options.get("offset"))
        g = h // group
        s = cast(q[b, h].double() @ k[b, g].double().T * scale).masked_fill(~seen, -math.inf)
        p = cast(torch.nan_to_num(torch.softmax(s, 1)))
        do = dout[b, h].double()
        dp = cast(do @ v[b, g].double().T)
        ds = cast(p * (dp - (p * dp).sum(1, keepdim=True)))
        dv[b, g] += p.T @ do
        dk[b, g] += ds.T @ q[b, h].double() * scale
        dq[b, h] = ds @ k[b, g].double() * scale
    return dq, dk, dv


def forward_of(q, k, v, **options):
    out, lse = trial.truth(q, k, v, **options)
    return out.to(q.dtype), lse.float()


def run(build, q, k, v, dout, forward=None, **options):
    out, lse = forward or forward_of(q, k, v, **options)
    results = [torch.full_like(t, math.nan) for t in (q, k, v)]
    build.call(q, k, v, out, lse, dout, *results, **options)()
    torch.cuda.synchronize()
    return results


def check_case(build, dtype, d, b, h, hk, tq, tk, dv=None, **options):
    if trial.too_large(b, h, tq, tk):
        return
    q, k, v, dout = (fresh(s, dtype) for s in (
        (b, h, tq, d), (b, hk, tk, d), (b, hk, tk, dv or d), (b, h, tq, dv or d)))
    got, again = run(build, q, k, v, dout, **options), run(build, q, k, v, dout, **options)
    want = truth(q, k, v, dout, **options)
    book = truth(q, k, v, dout, textbook=dtype, **options)
    ratios = [float((g.double() - w).norm() / (t.to(dtype).double() - w).norm())
              for g, w, t in zip(got, want, book)]
    same = all(same_bits(a, b) for a, b in zip(got, again))
    report(max(ratios) <= 1 and same,
           f"{NAMES[dtype]} d {d}{f', {dv}' if dv else ''} B{b} H{h}/{hk} {tq}x{tk} "
           + describe(options) + ": rms of dq, dk, dv " + ", ".join(f"{r:.2f}" for r in ratios)
           + f" of textbook's, same {same}")


def check(build, sizes):
    for dtype, d in itertools.product(NAMES, sizes):
        case = lambda *sizes, **options: check_case(build, dtype, d, *sizes, **options)
        case(2, 4, 4, 512, 512)
        case(2, 4, 2, 512, 512, causal=True)
        case(1, 6, 2, 1000, 777)
        case(1, 3, 1, 300, 1111, causal=True)
        case(2, 2, 2, 700, 200, causal=True)
        case(1, 2, 2, 900, 900, left=100, right=37)
        case(3, 2, 1, 257, 640, lengths=lengths_of(640, 1, 333))
        case(3, 2, 1, 257, 640, lengths=lengths_of(0, 130, 333), causal=True)
        case(1, 1, 1, 129, 700, offset=100, causal=True, scale=0.7)
        for width, dv in ((d - 8, None), (d // 2 + 16, None), (d, d // 2), (d // 2, d - 24)):
            check_case(build, dtype, width, 2, 4, 2, 300, 400, dv=dv, causal=True)
        name = f"{NAMES[dtype]} d {d}"
        q, k, v, dout = (fresh((3, 4, 600, d), dtype) for _ in range(4))
        all_, alone = (run(build, *(t[part] for t in (q, k, v, dout)), causal=True)
                       for part in (slice(None), (slice(1, 2), slice(2, 3))))
        report(all(same_bits(a[1:2, 2:3], b) for a, b in zip(all_, alone)),
               f"{name} a head alone has the bits it has in a batch")
        packed(build, name, dtype, d)
        hidden(build, name, dtype, d)
        behind(build, name, dtype, d)
        far(build, name, dtype, d)


def packed(build, name, dtype, d):
    """Sequences packed one after the other have the bits they have alone."""
    sizes = ((100, 100), (1, 300), (333, 333), (0, 9), (7, 0), (64, 64), (200, 129))
    starts = [starts_of(*lengths) for lengths in zip(*sizes)]
    q, k, v, dout = (fresh((int(s[-1]), heads, d), dtype).transpose(0, 1)[None]
                     for s, heads in zip((*starts, starts[1], starts[0]), (4, 2, 2, 4)))
    for options in ({}, {"causal": True}, {"left": 50, "right": 20}):
        out, lse = torch.zeros_like(q), torch.full(q.shape[:3], -math.inf, device="cuda")
        wanted = [torch.zeros_like(t) for t in (q, k, v)]
        for b, (tq, tk) in enumerate(sizes):
            if tq == 0 or tk == 0:
                continue
            rows, keys = (slice(int(s[b]), int(s[b + 1])) for s in starts)
            parts = [t[:, :, at].contiguous() for t, at in (
                (q, rows), (k, keys), (v, keys), (dout, rows))]
            forward = forward_of(*parts[:3], **options)
            out[:, :, rows], lse[:, :, rows] = forward
            for to, at, x in zip(wanted, (rows, keys, keys),
                                 run(build, *parts, forward=forward, **options)):
                to[:, :, at] = x
        got = run(build, q, k, v, dout, forward=(out, lse), starts=starts, **options)
        report(all(same_bits(a, b) for a, b in zip(got, wanted)),
               f"{name} packed {describe(options)}")


def hidden(build, name, dtype, d):
    """NaN and infinities reach what they must, and change no other bit."""
    length, right, count = 500, True, 0
    q, dout = (fresh((1, 4, length, d), dtype) for _ in range(2))
    k, v = (fresh((1, 2, length, d), dtype) for _ in range(2))
    for options in ({"causal": True}, {"left": 60, "right": 70}):
        seen = trial.visible(length, length, length, options.get("causal"), options.get("left"),
                             options.get("right"), None)
        out, lse = forward_of(q, k, v, **options)
        plain = run(build, q, k, v, dout, forward=(out, lse), **options)
        for at, value, which in itertools.product((0, 63, 130, 333, length - 1),
                                                  (math.nan, math.inf), range(4)):
            tensors = [t.clone() for t in (q, k, v, dout)]
            head = 1 if which in (1, 2) else 3  # its key head is 1 in both cases
            tensors[which][0, head, at, 7] = value
            by_key = which in (1, 2)
            rows = seen[:, at] if by_key else torch.arange(length, device="cuda") == at
            heads = (2, 3) if by_key else (3,)
            out2, lse2 = out.clone(), lse.clone()
            for h in heads:  # as forward leaves them
                if which < 2:
                    lse2[0, h, rows], out2[0, h, rows] = math.nan, math.nan
                elif which == 2:
                    out2[0, h, rows, 7] = value
            got = run(build, *tensors, forward=(out2, lse2), **options)
            keys = seen[rows].any(0)
            reached = [torch.zeros(t.shape, dtype=torch.bool, device="cuda") for t in (q, k, v)]
            for h in heads:
                reached[0][0, h, rows] = True
            reached[1][0, 1, keys] = True
            if which < 2:
                reached[2][0, 1, keys] = True
            elif which == 3:
                reached[2][0, 1, keys, 7] = True
            for name_, x, y, r in zip(("dq", "dk", "dv"), got, plain, reached):
                fine = torch.equal(x[~r].view(torch.int16), y[~r].view(torch.int16)) and (
                    value == math.inf or bool(torch.isnan(x[r]).all()))
                count += 1
                right = right and fine
                if not fine:
                    kept = x[~r].view(torch.int16) != y[~r].view(torch.int16)
                    report(False, f"{name} {describe(options)} {value} in row {at} of "
                           f"{('q', 'k', 'v', 'dout')[which]}: {name_}, {int(kept.sum())} changed, "
                           f"{int((~torch.isnan(x[r])).sum())} of {int(r.sum())} not NaN")
    report(right, f"{name} NaN and infinity in one row, {count} gradients")


def behind(build, name, dtype, d):
    """Keys behind key_lengths and queries without keys, whatever they hold."""
    q, k, v, dout = (fresh((2, 2, 300, d), dtype) for _ in range(4))
    options = {"lengths": lengths_of(300, 130), "causal": True}
    forward = forward_of(q, k, v, **options)
    plain = run(build, q, k, v, dout, forward=forward, **options)
    k2, v2, q2, dout2 = (t.clone() for t in (k, v, q, dout))
    k2[1, :, 130:] = v2[1, :, 130:] = math.nan
    q2[1, :, :170] = dout2[1, :, :170] = math.nan  # the last 130 queries see the keys
    got = run(build, q2, k2, v2, dout2, forward=forward, **options)
    right = all(same_bits(x, y) for x, y in zip(plain, got))
    right = right and not got[0][1, :, :170].any() and not got[1][1, :, 130:].any()
    report(right, f"{name} NaN behind key_lengths and in queries without keys")


def far(build, name, dtype, d):
    """Scores of 2^23 and some units: lse, in f32, does not tell them apart."""
    q, k = (torch.zeros((1, 2, 300, d), dtype=dtype, device="cuda") for _ in range(2))
    q[:, :, ::2, 0], q[..., 1], k[..., 0] = 2048, 1, 4096  # every other row is far
    k[..., 1] = torch.randint(0, 4, (1, 2, 300), device="cuda").to(dtype)
    v, dout = fresh(q.shape, dtype), fresh(q.shape, dtype, 1 / 16)  # dk fits into f16
    options = {"causal": True, "scale": 1.0}
    got, want = run(build, q, k, v, dout, **options), truth(q, k, v, dout, **options)
    got[0], want = got[0][..., 1:], (want[0][..., 1:], *want[1:])  # the first: a sum of almost 0
    errors = [float((g.double() - w).norm() / w.norm()) for g, w in zip(got, want)]
    report(max(errors) < 0.02, f"{name} far scores: dq, dk, dv off by "
           + ", ".join(f"{e:.1e}" for e in errors))


# ---- Times -------------------------------------------------------------------------------------

def peer(backend, q, k, v, dout, causal):
    q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
    with trial.sdpa_kernel(backend):
        out = trial.sdpa(q, k, v, is_causal=causal)
    return lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)


def time_all(builds, dtype, sizes, lengths):
    for d, causal, length in itertools.product(sizes, (False, True), lengths):
        b, h = 16384 // length, 2048 // d
        q, k, v, dout, out = (fresh((b, h, length, d), dtype) for _ in range(5))
        lse = torch.full(q.shape[:3], math.log(length), device="cuda")
        gradients = [torch.empty_like(q) for _ in range(3)]
        launches = [build.call(q, k, v, out, lse, dout, *gradients, causal=causal)
                    for build in builds]
        launches += [peer(backend, q, k, v, dout, causal) for backend in PEERS[:1]]
        work = 10 * b * h * length * length * d / (2 if causal else 1) / 1e12
        rates = [work / t for t in trial.seconds(launches)]
        parts = "; ".join(", ".join(
            f"{trial.seconds([lambda: launch((n,))], 3)[0] * 1e6:.0f}" for n in range(3))
            for launch in launches[:len(builds)])
        print(f"backward d {d} {'causal' if causal else 'full  '} T {length:5}: "
              + " ".join(f"{r:6.0f}" for r in rates) + "   of cuDNN: "
              + " ".join(f"{r / rates[len(builds)]:.3f}" for r in rates[:len(builds)])
              + "   rows, queries, keys in us: " + parts, flush=True)


if __name__ == "__main__":
    trial.main(Build, "backward_sm90.cu", check, time_all)

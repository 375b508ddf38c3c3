#!/usr/bin/env python3
"""Checks and times backward_sm90.cu as try_forward.py does forward_sm90.cu.

    try_backward.py --build FOLDER [-- FLAGS]
    try_backward.py [--time] FOLDER
"""
import argparse
import ctypes
import itertools
import math
import sys

import try_forward as forward
from try_forward import NO_LIMIT, SHARED_BYTES, Aligned, cuda, fresh, ok, same_bits, tensor_map

torch = forward.torch
SIZES = (64, 128)
BLOCK = 128
TILES = {64: (96, 96), 128: (64, 96)}  # queries, keys


class Build(forward.Build):
    default_tiles = TILES
    names = ("attend_backward_rows", "attend_backward_keys", "attend_backward_queries")

    def functions_of(self, dtype, d):
        path = f"{self.folder}/{forward.NAMES[dtype]}_{d}.cubin"
        if path not in self.functions:
            module, found = ctypes.c_void_p(), [ctypes.c_void_p() for _ in self.names]
            ok(cuda.cuModuleLoad(ctypes.byref(module), path.encode()))
            for function, name in zip(found, self.names):
                ok(cuda.cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
            for function in found[1:]:
                ok(cuda.cuFuncSetAttribute(function, 8, SHARED_BYTES))
            self.functions[path] = found
        return self.functions[path]

    def call(self, q, k, v, out, lse, dout, dq, dk, dv, causal=False, left=None, right=None,
             lengths=None, offset=None, scale=None):
        batch, heads, q_length, d = q.shape
        kv_heads, k_length = k.shape[1:3]
        left = NO_LIMIT if left is None else left
        right = NO_LIMIT if right is None else right
        right = min(right, 0) if causal else right
        padded = -(-q_length // 384) * 384
        numbers = torch.full((2, batch, heads, padded), math.nan, device="cuda")
        queries, keys = self.tiles[d]
        data = b"".join(tensor_map(t, rows) for t, rows in (
            (q, queries), (k, keys), (v, keys), (dout, queries)))
        data += b"".join(tensor_map(t, BLOCK) for t in (q, k, v, dout))
        data += b"".join(tensor_map(t, 64) for t in (dq, dk, dv))
        data += forward.struct.pack(
            "6Q", numbers[0].data_ptr(), numbers[1].data_ptr(), out.data_ptr(), dout.data_ptr(),
            lse.data_ptr(), lengths.data_ptr() if lengths is not None else 0)
        data += forward.struct.pack("9q", *out.stride()[:3], *dout.stride()[:3], *lse.stride())
        data += forward.struct.pack("10if", batch, heads, heads // kv_heads, q_length, k_length,
                                    padded, left, right, offset or 0, int(offset is not None),
                                    scale or 1 / math.sqrt(d))
        block = Aligned(len(data))
        ctypes.memmove(block.address, data, len(data))
        arguments = (ctypes.c_void_p * 1)(block.address)
        grids = (-(-batch * heads * padded * (d // 8) // 256),
                 batch * kv_heads * -(-k_length // BLOCK),
                 batch * heads * -(-q_length // BLOCK))
        functions = self.functions_of(q.dtype, d)
        keep = (q, k, v, out, lse, dout, dq, dk, dv, lengths, numbers, block)

        def launch(parts=(0, 1, 2), keep=keep):
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            for n, (function, grid) in enumerate(zip(functions, grids)):
                if n in parts:
                    ok(cuda.cuLaunchKernel(function, grid, 1, 1, 256 if n == 0 else 384, 1, 1,
                                           0 if n == 0 else SHARED_BYTES, stream, arguments, None))
        return launch


def truth(q, k, v, dout, scale=None, lengths=None, textbook=None, **options):
    """dq, dk, dv in f64; with textbook = a type, P, dP and dS are rounded to it."""
    cast = (lambda x: x.to(textbook).double()) if textbook else (lambda x: x)
    dq, dk, dv = (torch.zeros(t.shape, dtype=torch.float64, device="cuda") for t in (q, k, v))
    group, scale = q.shape[1] // k.shape[1], scale or 1 / math.sqrt(q.shape[3])
    for b, h in itertools.product(range(q.shape[0]), range(q.shape[1])):
        length = k.shape[2] if lengths is None else int(lengths[b])
        seen = forward.visible(q.shape[2], k.shape[2], length, options.get("causal", False),
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


def run(build, q, k, v, dout, **options):
    out, lse = torch.zeros_like(q), torch.zeros(q.shape[:3], device="cuda")
    want, want_lse = forward.truth(q, k, v, **options)
    out.copy_(want)
    lse.copy_(want_lse)
    results = [torch.full_like(t, math.nan) for t in (q, k, v)]
    build.call(q, k, v, out, lse, dout, *results, **options)()
    torch.cuda.synchronize()
    return results


def check_case(build, dtype, d, b, h, hk, tq, tk, **options):
    q, k, v = (fresh(s, dtype) for s in ((b, h, tq, d), (b, hk, tk, d), (b, hk, tk, d)))
    dout = fresh(q.shape, dtype)
    got, again = run(build, q, k, v, dout, **options), run(build, q, k, v, dout, **options)
    want = truth(q, k, v, dout, **options)
    book = truth(q, k, v, dout, textbook=dtype, **options)
    ratios = [float((g.double() - w).norm() / (t.to(dtype).double() - w).norm())
              for g, w, t in zip(got, want, book)]
    same = all(same_bits(a, b) for a, b in zip(got, again))
    forward.report(max(ratios) <= 1 and same,
                   f"{forward.NAMES[dtype]} d {d} B{b} H{h}/{hk} {tq}x{tk} "
                   + forward.describe(options) + ": rms of dq, dk, dv "
                   + ", ".join(f"{r:.2f}" for r in ratios) + f" of textbook's, same {same}")


def check(build):
    for dtype, d in itertools.product((torch.bfloat16, torch.float16), SIZES):
        case = lambda *sizes, **options: check_case(build, dtype, d, *sizes, **options)
        case(2, 4, 4, 512, 512)
        case(2, 4, 2, 512, 512, causal=True)
        case(1, 6, 2, 1000, 777)
        case(1, 3, 1, 300, 1111, causal=True)
        case(2, 2, 2, 700, 200, causal=True)
        case(1, 2, 2, 900, 900, left=100, right=37)
        case(3, 2, 1, 257, 640, lengths=forward.lengths_of(640, 1, 333))
        case(3, 2, 1, 257, 640, lengths=forward.lengths_of(0, 130, 333), causal=True)
        case(1, 1, 1, 129, 700, offset=100, causal=True, scale=0.7)
        q, k, v, dout = (fresh((3, 4, 600, d), dtype) for _ in range(4))
        all_, alone = (run(build, *(t[part] for t in (q, k, v, dout)), causal=True)
                       for part in (slice(None), (slice(1, 2), slice(2, 3))))
        forward.report(all(same_bits(a[1:2, 2:3], b) for a, b in zip(all_, alone)),
                       f"{forward.NAMES[dtype]} d {d} a head alone has the bits it has in a batch")


def peer(backend, q, k, v, dout, causal):
    q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
    with forward.sdpa_kernel(backend):
        out = forward.sdpa(q, k, v, is_causal=causal)
    return lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)


def time_all(builds, dtype, lengths):
    for d, causal, length in itertools.product(SIZES, (False, True), lengths):
        b, h = 16384 // length, 2048 // d
        q, k, v, dout, out = (fresh((b, h, length, d), dtype) for _ in range(5))
        lse = torch.full(q.shape[:3], math.log(length), device="cuda")
        gradients = [torch.empty_like(q) for _ in range(3)]
        launches = [build.call(q, k, v, out, lse, dout, *gradients, causal=causal)
                    for build in builds]
        launches += [peer(backend, q, k, v, dout, causal)
                     for backend in (forward.SDPBackend.CUDNN_ATTENTION,
                                     forward.SDPBackend.FLASH_ATTENTION)]
        work = 10 * b * h * length * length * d / (2 if causal else 1) / 1e12
        rates = [work / t for t in forward.seconds(launches)]
        print(f"backward d {d} {'causal' if causal else 'full  '} T {length:5}: "
              + " ".join(f"{r:6.0f}" for r in rates) + "   of cuDNN: "
              + " ".join(f"{r / rates[len(builds)]:.3f}" for r in rates[:len(builds)])
              + "   rows, keys, queries in us: " + "; ".join(", ".join(
                  f"{forward.seconds([lambda: launch((n,))], 3)[0] * 1e6:.0f}" for n in range(3))
                  for launch in launches[:len(builds)]), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("builds", nargs="+")
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--lengths", type=int, nargs="*", default=[512, 2048, 8192])
    arguments = parser.parse_args()
    if arguments.build:
        forward.compile_all(arguments.builds[0], arguments.builds[1:], "backward_sm90.cu", SIZES)
    builds = [Build(text) for text in arguments.builds]
    if not arguments.time:
        for build in builds:
            check(build)
        print(f"{forward.failures} failures")
    if not arguments.check:
        time_all(builds, torch.bfloat16, arguments.lengths)
    sys.exit(forward.failures != 0)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Checks and times decode_sm90.cu as try_forward.py does forward_sm90.cu.

    try_decode.py --build FOLDER [-- FLAGS]
    try_decode.py [--time] FOLDER
"""
import argparse
import ctypes
import itertools
import math
import sys

import try_forward as forward
from try_forward import NO_LIMIT, cuda, fresh, lengths_of, ok, same_bits

torch = forward.torch
SIZES = (64, 128)
CHUNK, TILE = 256, 64
STAGES = {64: 4, 128: 2}


class Build(forward.Build):
    names = ("attend_decode_parts", "attend_decode_join")

    def functions_of(self, dtype, d):
        path = f"{self.folder}/{forward.NAMES[dtype]}_{d}.cubin"
        if path not in self.functions:
            module, found = ctypes.c_void_p(), [ctypes.c_void_p() for _ in self.names]
            ok(cuda.cuModuleLoad(ctypes.byref(module), path.encode()))
            for function, name in zip(found, self.names):
                ok(cuda.cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
            ok(cuda.cuFuncSetAttribute(found[0], 8, self.shared_bytes(d)))
            self.functions[path] = found
        return self.functions[path]

    def shared_bytes(self, d):
        return (2 * 64 + 2 * STAGES[d] * TILE) * d * 2 + 3 * 1024

    def call(self, q, k, v, out, lse=None, causal=False, left=None, right=None, lengths=None,
             offset=None, scale=None):
        batch, heads, q_length, d = q.shape
        kv_heads, k_length = k.shape[1:3]
        group, chunks = heads // kv_heads, -(-k_length // CHUNK)
        assert group * q_length <= 64
        left = NO_LIMIT if left is None else left
        right = NO_LIMIT if right is None else right
        right = min(right, 0) if causal else right
        rows = batch * heads * q_length
        partial_out = torch.full((rows, chunks, d), math.nan, device="cuda")
        partial = torch.full((rows, chunks, 2), math.nan, device="cuda")
        data = forward.tensor_map(q, q_length, group) + forward.tensor_map(
            k, TILE) + forward.tensor_map(v, TILE)
        data += forward.struct.pack(
            "5Q", partial_out.data_ptr(), partial.data_ptr(), out.data_ptr(),
            lse.data_ptr() if lse is not None else 0,
            lengths.data_ptr() if lengths is not None else 0)
        data += forward.struct.pack("6q", *out.stride()[:3],
                                    *(lse.stride() if lse is not None else (0, 0, 0)))
        data += forward.struct.pack("10if", batch, heads, group, q_length, k_length, chunks, left,
                                    right, offset or 0, int(offset is not None),
                                    scale or 1 / math.sqrt(d))
        block = forward.Aligned(len(data))
        ctypes.memmove(block.address, data, len(data))
        arguments = (ctypes.c_void_p * 1)(block.address)
        parts, join = self.functions_of(q.dtype, d)
        grid = min(batch * kv_heads * chunks, 2 * self.processors)
        keep = (q, k, v, out, lse, lengths, partial, partial_out, block)

        def launch(keep=keep):
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            ok(cuda.cuLaunchKernel(parts, grid, 1, 1, 160, 1, 1, self.shared_bytes(d), stream,
                                   arguments, None))
            ok(cuda.cuLaunchKernel(join, rows, 1, 1, 512, 1, 1, 0, stream, arguments, None))
        return launch


def check(build):
    for dtype, d in itertools.product((torch.bfloat16, torch.float16), SIZES):
        case = lambda *sizes, **options: forward.check_case(build, dtype, d, *sizes, **options)
        case(3, 32, 8, 1, 1000)
        case(2, 16, 16, 1, 4096)
        case(4, 8, 1, 1, 257, lengths=lengths_of(257, 0, 1, 256))
        case(2, 8, 2, 3, 700, causal=True)
        case(2, 8, 4, 16, 1500, causal=True, left=300)
        case(1, 64, 1, 1, 70000)
        q, k, v = (fresh(s, dtype) for s in ((3, 8, 1, d), (3, 2, 900, d), (3, 2, 900, d)))
        out, lse = forward.run(build, q, k, v)
        alone, _ = forward.run(build, q[1:2, 4:8], k[1:2, 1:2], v[1:2, 1:2])
        forward.report(same_bits(out[1:2, 4:8], alone),
                       "a head alone has the bits it has in a batch")
        lengths = lengths_of(900, 130, 1)
        some, _ = forward.run(build, q, k, v, lengths=lengths)
        short, _ = forward.run(build, q[1:2], k[1:2, :, :130], v[1:2, :, :130])
        forward.report(same_bits(some[1:2], short), "keys behind key_lengths change no bit")
        for b, n in enumerate(lengths.tolist()):
            k[b, :, n:], v[b, :, n:] = math.nan, math.nan
        again, _ = forward.run(build, q, k, v, lengths=lengths)
        forward.report(same_bits(some, again), "NaN behind key_lengths")


def graph_of(launch, count):
    launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            launch()
    return graph.replay


def time_all(builds, dtype, d=128):
    x = fresh((1 << 30,), dtype)
    y = torch.empty_like(x)
    copy = forward.seconds([lambda: y.copy_(x)])[0]
    print(f"copy {2 * x.nbytes / copy / 1e12:.2f} TB/s", flush=True)
    del x, y
    for b, h, hk, length in ((1, 32, 32, 8192), (1, 32, 8, 8192), (16, 32, 8, 8192),
                             (64, 32, 8, 4096), (1, 32, 8, 131072), (1, 32, 32, 131072),
                             (8, 32, 8, 2048)):
        shapes = ((b, h, 1, d), (b, hk, length, d), (b, hk, length, d))
        sets = [tuple(fresh(s, dtype) for s in shapes)
                for _ in range(max(1, min(8, (512 << 20) // (b * hk * length * d * 4))))]
        bytes_ = 2 * b * hk * length * d * 2
        launches = []
        for build in builds:
            calls = [build.call(q, k, v, torch.empty_like(q)) for q, k, v in sets]
            launches.append(graph_of(lambda: [call() for call in calls], 1))
        for backend in (forward.SDPBackend.CUDNN_ATTENTION, forward.SDPBackend.FLASH_ATTENTION):
            try:
                peers = [forward.peer(backend, q, k, v, False) for q, k, v in sets]
                launches.append(graph_of(lambda: [call() for call in peers], 1))
            except RuntimeError as error:
                print("none:", str(error)[:80])
        rates = [bytes_ * len(sets) / t / 1e12 for t in forward.seconds(launches)]
        print(f"decode d {d} B{b} H{h}/{hk} keys {length} ({bytes_ >> 20} MB): "
              + " ".join(f"{r:.2f}" for r in rates) + " TB/s", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("builds", nargs="+")
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if arguments.build:
        forward.compile_all(arguments.builds[0], arguments.builds[1:], "decode_sm90.cu", SIZES)
    builds = [Build(text) for text in arguments.builds]
    if not arguments.time:
        for build in builds:
            check(build)
        print(f"{forward.failures} failures")
    if not arguments.check:
        with torch.inference_mode():
            time_all(builds, torch.bfloat16)
    sys.exit(forward.failures != 0)


if __name__ == "__main__":
    main()

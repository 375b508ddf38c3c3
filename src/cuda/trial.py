"""What the scripts that try the kernels share: compiling, launching, checking, timing."""
import argparse
import ctypes
import itertools
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
    PEERS = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION)
    cuda = ctypes.CDLL("libcuda.so.1")
    sys.path.append(str(pathlib.Path(__file__).parents[2] / "bench"))
    import gpu_times
except ImportError:  # enough to compile
    torch = cuda = None

NO_LIMIT = 1 << 29
SHARED_BYTES = 232448


# ---- Modules and launches ----------------------------------------------------------------------

def compile_all(folder, flags, source, sizes):
    """Each module in a compiler of its own, all at once."""
    here = pathlib.Path(__file__).resolve().parent
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    started = [subprocess.Popen([
        "nvcc", "-std=c++20", "-O3", "-cubin", "--expt-relaxed-constexpr", f"-I{here.parent}",
        f"-I{here.parents[1]}/include", "-gencode=arch=compute_90a,code=sm_90a", "-Xptxas", "-v",
        f"-DATTEND_TYPE={type_}", f"-DATTEND_D={d}", "-DATTEND_BYTES=false", *flags, "-o",
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


def tensor_map(t, rows):
    """Of [batch, heads, length, d], in boxes of `rows` by 64; the L2 reads 256 bytes at a time."""
    size = t.element_size()
    dims = [t.shape[3], t.shape[2], t.shape[1], t.shape[0]]
    strides = [t.stride(n) * size if t.shape[n] > 1 else 16 for n in (2, 1, 0)]
    assert t.stride(3) == 1 and all(s % 16 == 0 for s in strides), strides
    kind = {torch.float16: 6, torch.bfloat16: 9}[t.dtype]
    made = Aligned(128)
    u64, u32 = ctypes.c_uint64, ctypes.c_uint32
    ok(cuda.cuTensorMapEncodeTiled(
        ctypes.c_void_p(made.address), kind, 4, ctypes.c_void_p(t.data_ptr()), (u64 * 4)(*dims),
        (u64 * 3)(*strides), (u32 * 4)(64, rows, 1, 1), (u32 * 4)(1, 1, 1, 1), 0, 3, 3, 0))
    return made.bytes()


def rows_of(t):
    """The struct Rows of [batch, heads, length, ...], or of None."""
    return struct.pack("Qqqq", t.data_ptr(), *t.stride()[:3]) if t is not None else bytes(32)


def pointers(*tensors):
    return struct.pack(f"{len(tensors)}Q", *(t.data_ptr() if t is not None else 0
                                             for t in tensors))


def limits(causal, left, right):
    left = NO_LIMIT if left is None else left
    right = NO_LIMIT if right is None else right
    return left, min(right, 0) if causal else right


class Config(ctypes.Structure):  # CUlaunchConfig
    _fields_ = [("sizes", ctypes.c_uint * 6), ("shared", ctypes.c_uint), ("stream", ctypes.c_void_p),
                ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint)]


class Kernels:
    """The kernels of a folder of modules, by type and d."""
    names, sizes = (), ()

    def __init__(self, folder):
        torch.zeros(1, device="cuda")
        self.folder, self.found = folder, {}
        self.processors = torch.cuda.get_device_properties(0).multi_processor_count

    def size_for(self, *widths):
        """The kernels' d: what is less is padded."""
        return min(size for size in self.sizes if size >= max(widths))

    def functions(self, dtype, size):
        path = f"{self.folder}/{NAMES[dtype]}_{size}.cubin"
        if path not in self.found:
            module, found = ctypes.c_void_p(), [ctypes.c_void_p() for _ in self.names]
            ok(cuda.cuModuleLoad(ctypes.byref(module), path.encode()))
            for function, name in zip(found, self.names):
                ok(cuda.cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
                bytes_ = self.shared_bytes(name, size)
                if bytes_ > 0:
                    ok(cuda.cuFuncSetAttribute(function, 8, bytes_))
            self.found[path] = found
        return self.found[path]


def parameters(data):
    """A kernel's one argument: what to keep, and what to hand over."""
    block = Aligned(len(data))
    ctypes.memmove(block.address, data, len(data))
    return block, (ctypes.c_void_p * 1)(block.address)


def start(function, grid, threads, shared, arguments):
    config = Config((ctypes.c_uint * 6)(grid, 1, 1, threads, 1, 1), shared,
                    torch.cuda.current_stream().cuda_stream, None, 0)
    ok(cuda.cuLaunchKernelEx(ctypes.byref(config), function, arguments, None))


# ---- Checks ------------------------------------------------------------------------------------

failures = 0
most_scores = math.inf


def too_large(*sizes):
    """Whether a check is left out: under a tool that follows every access each takes long."""
    return math.prod(sizes) > most_scores


def report(right, text):
    global failures
    failures += not right
    print(("ok    " if right else "WRONG ") + text, flush=True)


def fresh(shape, dtype, spread=1.0):
    return (torch.randn(shape, device="cuda") * spread).to(dtype)


def same_bits(a, b):
    return torch.equal(a.contiguous().view(torch.int16), b.contiguous().view(torch.int16))


def describe(options):
    return " ".join(f"{k}={v.tolist() if torch.is_tensor(v) else v}" for k, v in options.items())


def lengths_of(*numbers):
    return torch.tensor(numbers, dtype=torch.int32, device="cuda")


def starts_of(*lengths):
    return lengths_of(0, *itertools.accumulate(lengths))


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
    out = torch.zeros(*q.shape[:3], v.shape[3], dtype=torch.float64, device="cuda")
    lse = torch.zeros(q.shape[:3], dtype=torch.float64, device="cuda")
    group = q.shape[1] // k.shape[1]
    for b, h in itertools.product(range(q.shape[0]), range(q.shape[1])):
        length = k.shape[2] if lengths is None else int(lengths[b])
        seen = visible(q.shape[2], k.shape[2], length, causal, left, right, offset)
        kept = seen.any(0)
        kk, vv = k[b, h // group].double() * 1, v[b, h // group].double() * 1
        kk[~kept], vv[~kept] = 0, 0
        s = cast((q[b, h].double() @ kk.T) * (scale or 1 / math.sqrt(q.shape[3])))
        s = s.masked_fill(~seen, -math.inf)
        lse[b, h] = torch.logsumexp(s, 1)
        p = cast(torch.nan_to_num(torch.softmax(s, 1)) if not seen.any(1).all()
                 else torch.softmax(s, 1))
        out[b, h] = cast(p @ vv)
    return out, lse


def run(build, q, k, v, lse=True, **options):
    out = torch.full((*q.shape[:3], v.shape[3]), math.nan, dtype=q.dtype, device="cuda")
    rows = torch.full(q.shape[:3], math.nan, device="cuda") if lse else None
    build.call(q, k, v, out, rows, **options)()
    torch.cuda.synchronize()
    return out, rows


def check_case(build, dtype, d, b, h, hk, tq, tk, spread=1.0, dv=None, **options):
    if too_large(b, h, tq, tk):
        return
    q, k, v = fresh((b, h, tq, d), dtype, spread), fresh((b, hk, tk, d), dtype), fresh(
        (b, hk, tk, dv or d), dtype)
    out, lse = run(build, q, k, v, **options)
    again, lse_again = run(build, q, k, v, **options)
    want, want_lse = truth(q, k, v, **options)
    book, _ = truth(q, k, v, textbook=dtype, **options)
    error, allowed = (out.double() - want).norm(), (book - want).norm()
    most, most_allowed = (out.double() - want).abs().max(), (book - want).abs().max()
    finite = torch.isfinite(want_lse)
    lse_error = (lse.double() - want_lse)[finite].abs().max() if finite.any() else 0
    same = same_bits(out, again) and torch.equal(lse, lse_again)
    empty = bool((lse[~finite] == want_lse[~finite]).all()) and bool((out[~finite] == 0).all())
    few = out.numel() < 10000  # too few to compare the largest errors of
    right = error <= allowed and (few or most <= most_allowed * 1.05) and same and empty and (
        lse_error < 1e-3 * max(1, spread))
    report(right, f"{NAMES[dtype]} d {d}{f', {dv}' if dv else ''} B{b} H{h}/{hk} {tq}x{tk} "
           f"{describe(options)}: rms {float(error / allowed):.2f}, largest "
           f"{float(most / most_allowed):.2f} of textbook's, lse {float(lse_error):.1e}, same "
           f"{same}, empty {empty}")


# ---- Times -------------------------------------------------------------------------------------

def seconds(launches, rounds=7):
    """Medians, taking turns; each turn lasts some milliseconds."""
    times = gpu_times.turns(dict(enumerate(launches)), rounds)
    return [statistics.median(times[n]) for n in range(len(launches))]


def peer(backend, q, k, v, causal):
    def launch():
        with sdpa_kernel(backend):
            sdpa(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])
    return launch


def main(build_class, source, check, time_all):
    parser = argparse.ArgumentParser()
    parser.add_argument("builds", nargs="+")
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--sizes", type=int, nargs="*", default=build_class.sizes)
    parser.add_argument("--lengths", type=int, nargs="*", default=[512, 2048, 8192])
    parser.add_argument("--scores", type=float, default=math.inf,
                        help="leave checks of more scores out, as for compute-sanitizer")
    arguments = parser.parse_args()
    global most_scores
    most_scores = arguments.scores
    if arguments.build:
        compile_all(arguments.builds[0], arguments.builds[1:], source, arguments.sizes)
    builds = [build_class(text) for text in arguments.builds]
    torch.manual_seed(torch.seed() % 2**31)
    if not arguments.time:
        for build in builds:
            check(build, arguments.sizes)
        print(f"{failures} failures", flush=True)
    if not arguments.check:
        time_all(builds, torch.bfloat16, arguments.sizes, arguments.lengths)
    sys.exit(failures != 0)

import ctypes, math, pathlib, struct, subprocess, sys, time, itertools
import torch
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "src/cuda"))
import trial
from trial import Aligned, cuda, ok, NO_LIMIT, start, parameters
T0 = time.time()
BUILDS = {"base": "try/base", "new": "src/cuda"}
SIZES = (64, 128, 256)

def compile_all(builds, kinds=("true", "false")):
    jobs = []
    for b in builds:
        for src, d, by in itertools.product(("forward_sm90", "one_query_sm90"), SIZES, kinds):
            if b != "new" and by == "false": continue
            out = f"/tmp/m/{b}_{src}_{d}_{by}.cubin"
            pathlib.Path("/tmp/m").mkdir(exist_ok=True)
            jobs.append((out, subprocess.Popen(["nvcc", "-std=c++20", "-O3", "-cubin", "-Isrc", "-gencode=arch=compute_90a,code=sm_90a",
                "-Xptxas", "-v", "-DATTEND_TYPE=bf16", f"-DATTEND_D={d}", f"-DATTEND_BYTES={by}", "-o", out,
                f"{BUILDS[b]}/{src}.cu"], stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True)))
    for out, j in jobs:
        text = j.communicate()[0]
        if j.returncode: print(text); sys.exit(1)
        if "new_" in out :
            for line in text.splitlines():
                if "spill" in line and not "0 bytes spill st" in line.replace(", ", "") : print(out.split("/")[-1], line.strip())
                if "C75" in line: print(out, line)
    print(f"compiled {time.time()-T0:.0f} s", flush=True)

FOUND = {}
def function(b, src, d, by, name, shared):
    key = (b, src, d, by, name)
    if key not in FOUND:
        m, f = ctypes.c_void_p(), ctypes.c_void_p()
        ok(cuda.cuModuleLoad(ctypes.byref(m), f"/tmp/m/{b}_{src}_{d}_{'true' if by else 'false'}.cubin".encode()))
        ok(cuda.cuModuleGetFunction(ctypes.byref(f), m, name.encode()))
        FOUND[key] = (m, f)
    f = FOUND[key][1]
    if shared: ok(cuda.cuFuncSetAttribute(f, 8, shared))
    return f

def tmap(t, rows, heads=1, features=64, at_once=256, permuted=True):
    size = t.element_size()
    dims = [t.shape[3], t.shape[2], t.shape[1], t.shape[0]]
    strides = [t.stride(n) * size if t.shape[n] > 1 else 16 for n in (2, 1, 0)]
    made = Aligned(128)
    u64, u32 = ctypes.c_uint64, ctypes.c_uint32
    ok(cuda.cuTensorMapEncodeTiled(ctypes.c_void_p(made.address), 9 if size == 2 else 0, 4, ctypes.c_void_p(t.data_ptr()), (u64*4)(*dims), (u64*3)(*strides),
        (u32*4)(features, rows, heads, 1), (u32*4)(1,1,1,1), 0, 0 if not permuted else 3 if features * size == 128 else 2, 2 if at_once == 128 else 3, 0))
    return made.bytes()

def rows_of(t): return struct.pack("Qqqq", t.data_ptr(), *t.stride()[:3]) if t is not None else bytes(32)
def ptr(t): return struct.pack("Q", t.data_ptr() if t is not None else 0)
def boxes(c):
    return int(all(x.data_ptr() % 16 == 0 and all(x.stride(n) % 16 == 0 for n in range(3) if x.shape[n] > 1) for x in (c.k, c.v)) and (c.table is None or c.k.shape[2] % 16 == 0))
def bytes_of(t, s, d, bx): return struct.pack("Qqqq", t.data_ptr(), *t.stride()[:3]) + struct.pack("Qqqq", s.data_ptr(), *s.stride()[:3]) + struct.pack("ii", d, bx)

TILES = {64: (192, 128), 128: (128, 128), 256: (128, 80)}
COUNTER = torch.zeros(1, dtype=torch.int32, device="cuda")
SMS = torch.cuda.get_device_properties(0).multi_processor_count

def score_shared(b, d, by):
    keys, qst, st = TILES[d][1], (1 if d == 256 else 2), (2 if d == 128 else 4)
    if by and b != "base": return 2 * 64 * d * (2 + (8 if d == 64 else 4)) + (22 if d == 64 else 14) * 1024
    return (qst * 64 + st * keys) * d * 2 + (4 if by else 2) * 1024

class Cache:
    """k, v: [B or pages, Hk, T or size, d]; scales alike or None"""
    def __init__(s, k, v, ks=None, vs=None, lengths=None, table=None, klen=None):
        s.k, s.v, s.ks, s.vs, s.lengths, s.table = k, v, ks, vs, lengths, table
        s.klen = klen or k.shape[2]

def call(b, q, c, causal=False, left=None, one=None, starts=None):
    B, H, TQ, d0 = q.shape
    by = c.k.dtype == torch.int8
    dv = c.v.shape[3]
    d = min(x for x in SIZES if x >= max(d0, dv))
    out = torch.full((B, H, TQ, dv), math.nan, dtype=q.dtype, device="cuda")
    lse = torch.full((B, H, TQ), math.nan, device="cuda")
    HK = c.k.shape[1]; group = H // HK
    nq, keys = TILES[d]
    lo, ri = trial.limits(causal, left, None)
    klen = c.klen if c.table is None else c.table.shape[1] * c.k.shape[2]
    piece = keys if c.table is None else math.gcd(keys, c.k.shape[2])
    pages = ptr(c.table) + struct.pack("iiii", 0 if c.table is None else c.table.shape[1], c.k.shape[2], piece, 0)
    bx = boxes(c) if by and b != "base" else 0
    kb = bytes_of(c.k, c.ks, d0, bx) + bytes_of(c.v, c.vs, dv, bx) if by else bytes(144)
    scale = 1 / math.sqrt(d0)
    keep = [q, c, out, lse]
    if one is None: one = TQ == 1 and -(-klen // keys) >= 2
    if one:
        tiles, R = -(-klen // keys), B * H
        heads = B * HK
        ring = lambda sl: (6 if sl == 64 else 12) * keys * sl * 2 + 1024
        vsh = lambda sl: ring(sl) + (6 if sl == 64 else 12) * group * (keys // 2 + 8) * 4
        narrow = heads * -(-dv // 64) < SMS and vsh(32) <= 232448
        sl = 32 if narrow else 64
        f32 = lambda n: torch.empty(n, device="cuda")
        sc, lg, wt, rf, vsc = f32(R*tiles*keys), f32(R*tiles), f32(R*tiles*(keys//2+8)), f32(R), f32(heads*tiles*keys)
        keep += [sc, lg, wt, rf, vsc]
        data = tmap(q, 1, group)
        data += tmap(c.k, 16, features=min(d, 128), at_once=128) + tmap(c.v, 8 if sl == 64 else 16, features=sl, at_once=128, permuted=False) if bx else bytes(256) if by else tmap(c.k, piece, at_once=128) + tmap(c.v, piece, features=sl, at_once=128)
        data += b"".join(map(ptr, (sc, lg, wt, rf))) + rows_of(out) + rows_of(lse) + ptr(c.lengths) + ptr(None) + pages + kb + ptr(vsc)
        data += struct.pack("10if", B, H, group, klen, tiles, lo, ri, 0, 0, dv, scale)
        block, args = parameters(data)
        each = 1 if d == 256 else 2
        ss = score_shared(b, d, by)
        f1 = function(b, "one_query_sm90", d, by, "attend_one_query_scores", ss)
        f2 = function(b, "one_query_sm90", d, by, "attend_one_query_weights", 0)
        f3 = function(b, "one_query_sm90", d, by, "attend_one_query_values" + ("_narrow" if narrow else ""), vsh(sl))
        warps = R * -(-tiles // 8)
        steps = [lambda: start(f1, min(heads * tiles, SMS * each), 256, ss, args),
                 lambda: start(f2, -(-warps // 4), 128, 0, args),
                 lambda: start(f3, heads * -(-dv // sl), (256 if b == "base" else 384) if by else 160, vsh(sl), args)]
        def go(keep=keep, block=block):
            for s in steps: s()
        go.steps = steps
        return go, out, lse
    blocks = -(-TQ // nq); items = blocks * H * B
    longest = ri < NO_LIMIT
    sec = ((16 << 20 if klen < 1024 else 32 << 20) if longest else 0) // (klen * d * 4)
    sec = min(max(1, sec) * group, H * B)
    maps = [tmap(q, nq)] + ([tmap(x, 8 if d == 64 else piece, features=min(d, 128), permuted=False) for x in (c.k, c.v)] if bx else [bytes(128)] * 2 if by else [tmap(c.k, piece), tmap(c.v, piece)]) + [tmap(out, 64)]
    data = b"".join(maps) + rows_of(out) + rows_of(lse) + ptr(COUNTER) + ptr(c.lengths) + bytes(24) + pages + kb
    turns = int(d == 256 or (d == 64 and not longest))
    data += struct.pack("13if", H, group, TQ, klen, lo, ri, 0, 0, blocks, items, sec, turns, dv, scale)
    block, args = parameters(data)
    f = function(b, "forward_sm90", d, by, "attend_forward", 232448)
    go = lambda keep=keep, block=block: start(f, min(items, SMS), 128 * (1 + nq // 64 + (by and b != "base" and d == 128)), 232448, args)
    go.steps = [go]
    return go, out, lse

def run(*a, **o):
    go, out, lse = call(*a, **o)
    go(); torch.cuda.synchronize()
    return out, lse

def bits(a, b):
    def one(x, y):
        nx, ny = x.isnan(), y.isnan()
        it = torch.int16 if x.dtype == torch.bfloat16 else torch.int32
        return bool((nx == ny).all()) and torch.equal(x.masked_fill(nx, 0).view(it), y.masked_fill(ny, 0).view(it))
    return one(a[0], b[0]) and one(a[1], b[1])

def i8(*shape): return torch.randint(-128, 128, shape, device="cuda", dtype=torch.int8)
BAD = 0; N = 0
def check(right, text):
    global BAD, N
    N += 1
    if not right: BAD += 1; print("WRONG", text, flush=True)

def dense(B, HK, T, d, dv=None, pow2=False):
    dv = dv or d
    mk = lambda: (torch.where(torch.arange(B*HK*T, device="cuda") % 3 == 0, -2.0**-7, 2.0**-6).reshape(B, HK, T) if pow2
                  else torch.randn(B, HK, T, device="cuda") * 0.02)
    return Cache(i8(B, HK, T, d), i8(B, HK, T, dv), mk(), mk())

def paged(c, size):
    B, HK, T, _ = c.k.shape
    w = -(-T // size); n = B * w + 2
    perm = torch.randperm(n, device="cuda")[:B * w]
    def pool(x):
        p = torch.full((n, HK, size, *x.shape[3:]), 127 if x.dtype == torch.int8 else math.nan, dtype=x.dtype, device="cuda")
        pad = torch.zeros((B, HK, w * size - T, *x.shape[3:]), dtype=x.dtype, device="cuda") if x.dtype == torch.int8 else torch.full((B, HK, w * size - T, *x.shape[3:]), math.nan, device="cuda")
        y = torch.cat([x, pad], 2).reshape(B, HK, w, size, *x.shape[3:]).transpose(1, 2).reshape(B * w, HK, size, *x.shape[3:])
        p[perm] = y
        return p
    return Cache(pool(c.k), pool(c.v), pool(c.ks), pool(c.vs), c.lengths if c.lengths is not None else torch.full((B,), T, dtype=torch.int32, device="cuda"),
                 perm.reshape(B, w).int().contiguous())

def checks():
    for d in (64, 128, 256, 40, 72, 200):
        for T, lens in ((1500, (1500, 753, 1)), (700, (700, 3, 650)), (300, (0, 130, 300)), (4100, (4100, 1, 2))):
            for HK, H in ((2, 8), (2, 2), (1, 24), (1, 9)):
                if (H in (24, 9)) and T == 700: continue
                c = dense(3, HK, T, d, dv=d - 24 if T == 300 and d > 64 else None)
                c.lengths = torch.tensor(lens, dtype=torch.int32, device="cuda")
                for TQ, o in ((1, {}), (1, {"left": T // 3}), (70, {"causal": True}), (200, {"causal": True, "left": 99}), (5, {}), (400, {})):
                    q = torch.randn(3, H, TQ, d, device="cuda").bfloat16()
                    want = run("base", q, c, **o)
                    name = f"d {d} T {T} H {H}/{HK} TQ {TQ} {o}"
                    check(bits(run("new", q, c, **o), want), name + " as before")
                    if T in (700, 1500):
                        for size in (16, 64, 48, 24, 1, 256):
                            if size in (1, 24, 256) and TQ not in (1, 70): continue
                            check(bits(run("new", q, paged(c, size), **o), want), name + f" pages of {size}")
                    if TQ == 1 and not o:  # among many
                        qq = torch.randn(3, H, 3, d, device="cuda").bfloat16(); qq[:, :, 2:] = q
                        many = run("new", qq, c, causal=True)
                        check(bits((many[0][:, :, 2:].contiguous(), many[1][:, :, 2:].contiguous()), want), name + " as a prompt's")
                    if TQ in (1, 70) and HK == 2:
                        e = Cache(c.k, c.v, c.ks.clone(), c.vs.clone(), c.lengths)
                        e.ks[0, 0, T // 2] = math.inf; e.vs[0, 1, T // 3] = math.inf; e.ks[0, 1, 1] = math.nan; e.vs[1, 0, 0] = 1e-35
                        check(bits(run("new", q, e, **o), run("base", q, e, **o)), name + " scales not finite")
        if d in SIZES:
            c = dense(2, 2, 1111, d, pow2=True)
            wide = lambda x, s: (x.float() * s[..., None]).bfloat16()
            w = Cache(wide(c.k, c.ks), wide(c.v, c.vs))
            for TQ in (1, 300):
                q = torch.randn(2, 8, TQ, d, device="cuda").bfloat16()
                check(bits(run("new", q, c, causal=True), run("new", q, w, causal=True)), f"d {d} TQ {TQ} as bf16")
                check(bits(run("new", q, c), run("new", q, w)), f"d {d} TQ {TQ} as bf16 full")
            pad = Cache(torch.nn.functional.pad(c.k, (0, 8))[..., :d], torch.nn.functional.pad(c.v, (0, 8))[..., :d], c.ks, c.vs)
            check(bits(run("new", q, pad), run("new", q, c)), f"d {d} rows of d + 8")
    print(f"{N} checks, {BAD} wrong, {time.time()-T0:.0f} s", flush=True)

def seconds(gos, rounds=5):
    best = [math.inf] * len(gos)
    for g in gos: g()
    torch.cuda.synchronize()
    for _ in range(rounds):
        for n, g in enumerate(gos):
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            reps = 12
            a.record()
            for _ in range(reps): g()
            b.record(); b.synchronize()
            best[n] = min(best[n], a.elapsed_time(b) / reps * 1e-3)
    return best

def times():
    print("decode: us (TB/s of what is read): bf16, base i8, new i8, new i8 pages of 64; speedup over bf16; steps new / bf16")
    for d, B, H, HK, T in ((128, 16, 32, 8, 8192), (128, 1, 32, 32, 8192), (128, 1, 32, 8, 8192), (64, 16, 32, 8, 8192), (256, 16, 32, 8, 8192), (128, 64, 32, 8, 4096), (128, 16, 32, 32, 4096), (128, 1, 32, 8, 131072)):
        q = torch.randn(B, H, 1, d, device="cuda").bfloat16()
        c = dense(B, HK, T, d)
        w = Cache(torch.randn(B, HK, T, d, device="cuda").bfloat16(), torch.randn(B, HK, T, d, device="cuda").bfloat16())
        gos = [call("new", q, w)[0], call("base", q, c)[0], call("new", q, c)[0], call("new", q, paged(c, 64))[0]]
        t = seconds(gos)
        by = B * HK * T * (2 * d + 8)
        rate = [B * HK * T * 4 * d / t[0]] + [by / x for x in t[1:]]
        st = seconds(gos[2].steps, 2) + seconds(gos[0].steps, 2)
        print(f"d {d} B {B} {H}/{HK} {T}: " + "  ".join(f"{x*1e6:.0f} ({r/1e12:.2f})" for x, r in zip(t, rate)) +
              f"   {t[0]/t[2]:.2f} {t[0]/t[3]:.2f}   steps " + " ".join(f"{x*1e6:.0f}" for x in st), flush=True)
    print("prompts, 4096 tokens, B 4: TFLOP/s bf16, base i8, new i8, new i8 pages of 64, of 16")
    for causal, d in itertools.product((True, False), SIZES):
        B, T, H = 4, 4096, 2048 // d
        q = torch.randn(B, H, T, d, device="cuda").bfloat16()
        c = dense(B, H, T, d)
        w = Cache(torch.randn(B, H, T, d, device="cuda").bfloat16(), torch.randn(B, H, T, d, device="cuda").bfloat16())
        gos = [call(b, q, x, causal=causal)[0] for b, x in (("new", w), ("base", c), ("new", c), ("new", paged(c, 64)), ("new", paged(c, 16)))]
        t = seconds(gos, 3)
        work = 4 * B * H * T * T * d / (2 if causal else 1) / 1e12
        print(f"{'causal' if causal else 'full'} d {d}: " + " ".join(f"{work/x:.0f}" for x in t) + f"   new / bf16 {t[0]/t[2]:.2f}", flush=True)
    print(f"{time.time()-T0:.0f} s")

def first():
    for d in SIZES:
        for TQ in (1, 100):
            q, c = torch.randn(1, 8, TQ, d, device="cuda").bfloat16(), dense(1, 2, 300, d)
            want = run("base", q, c)
            print("first", d, TQ, bits(run("new", q, c), want), f"{time.time()-T0:.0f} s", flush=True)
torch.manual_seed(1)
compile_all(BUILDS)
first()
checks()
if BAD < 40 or "always" in sys.argv: times()

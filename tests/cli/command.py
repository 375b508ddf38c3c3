"""What the tests of the command share: running it, small tensors and their files, and attention in
f64 from the formulas. Standard library only.

A test is run as `NAME_test.py PATH_OF_ATTEND [unittest's arguments]`.
"""
import itertools
import json
import math
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

ATTEND = ""
USED = set()   # every flag that any test gave


def main():
    global ATTEND
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    ATTEND = os.path.abspath(sys.argv.pop(1))
    # The test file is __main__; this module is the one it imported.
    unittest.main(module="__main__")


class Done:
    def __init__(self, process):
        self.status, self.out, self.err = process.returncode, process.stdout, process.stderr


def attend(*arguments, cwd=None, env=None, prefix=()):
    words = [str(word) for word in arguments]
    USED.update(word.split("=")[0] for word in words if word.startswith("--"))
    return Done(subprocess.run([*prefix, ATTEND, *words], cwd=cwd, text=True, capture_output=True,
                               env={**os.environ, **(env or {})}))


class CommandTest(unittest.TestCase):
    """A test in a folder of its own."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="attend-test-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def run_ok(self, *arguments):
        done = attend(*arguments, cwd=self.folder)
        self.assertEqual(done.status, 0, done.err)
        self.assertEqual(done.err, "")
        return done.out

    def run_json(self, *arguments):
        return json.loads(self.run_ok(*arguments, "--json"))

    def fails(self, status, expected, *arguments, **more):
        """One line on stderr that holds `expected`, nothing on stdout, and no file more."""
        before = sorted(self.folder.rglob("*"))
        done = attend(*arguments, cwd=self.folder, **more)
        self.assertEqual(done.status, status, done.out + done.err)
        self.assertEqual(done.out, "")
        self.assertEqual(done.err.count("\n"), 1, done.err)
        self.assertTrue(done.err.startswith("attend"), done.err)
        self.assertIn(expected, done.err)
        self.assertEqual(sorted(self.folder.rglob("*")), before)
        return done.err

    def close(self, found, wanted, allowed=1e-12):
        self.assertEqual(list(found.shape), list(wanted.shape))
        for n, (a, b) in enumerate(zip(found.data, wanted.data)):
            if a == b:
                continue
            self.assertLessEqual(abs(a - b), allowed * max(1, abs(b)), f"element {n}: {a}, {b}")

    def load(self, name):
        return load_npy(self.folder / name)

    def save(self, name, tensor):
        save_npy(self.folder / name, tensor)
        return name


# ---- tensors ----------------------------------------------------------------------------------------


class Tensor:
    def __init__(self, shape, data, type="f8"):
        self.shape, self.data, self.type = tuple(shape), list(data), type
        assert len(self.data) == math.prod(self.shape)

    def at(self, *index):
        n = 0
        for i, size in zip(index, self.shape):
            n = n * size + i
        return self.data[n]

    def broadcast(self, *index):
        """The element that stands for this index where sizes of 1 are repeated; None behind a short
        last dimension."""
        index = index[len(index) - len(self.shape):]
        index = [0 if size == 1 else i for i, size in zip(index, self.shape)]
        return None if any(i >= size for i, size in zip(index, self.shape)) else self.at(*index)


def numbers(shape, start=1, type="f8"):
    """Numbers in (-2, 2) that repeat nothing: a linear congruential generator."""
    state, data = start * 7919 + 13, []
    for _ in range(math.prod(shape)):
        state = (state * 1103515245 + 12345) % 2**31
        data.append(round(state / 2**29 - 2, 6))
    return Tensor(shape, data, type)


FORMATS = {"f8": "d", "f4": "f", "f2": "e", "i8": "q", "i4": "i", "u1": "B", "b1": "?"}


def save_npy(path, tensor):
    mark = "|" if tensor.type in ("u1", "b1") else "<"
    shape = "".join(f"{size}, " for size in tensor.shape)
    header = f"{{'descr': '{mark}{tensor.type}', 'fortran_order': False, 'shape': ({shape}), }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    body = struct.pack(f"<{len(tensor.data)}{FORMATS[tensor.type]}", *tensor.data)
    pathlib.Path(path).write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) +
                                   header.encode() + body)


def load_npy(path):
    raw = pathlib.Path(path).read_bytes()
    assert raw[:8] == b"\x93NUMPY\x01\x00", raw[:8]
    size = struct.unpack("<H", raw[8:10])[0]
    header = raw[10:10 + size].decode()
    kind = re.search(r"'descr': '[<|](\w\w)'", header)[1]
    shape = [int(n) for n in re.findall(r"\d+", re.search(r"'shape': \(([^)]*)\)", header)[1])]
    body = raw[10 + size:]
    return Tensor(shape, struct.unpack(f"<{math.prod(shape)}{FORMATS[kind]}", body), kind)


SAFE = {"F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8"}


def load_safetensors(path):
    """{name: Tensor}, and the metadata."""
    raw = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header, body, tensors = json.loads(raw[8:8 + size]), raw[8 + size:], {}
    metadata = header.pop("__metadata__", {})
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        kind = SAFE[entry["dtype"]]
        tensors[name] = Tensor(entry["shape"],
                               struct.unpack(f"<{math.prod(entry['shape'])}{FORMATS[kind]}",
                                             body[begin:end]), kind)
    return tensors, metadata


def save_safetensors(path, tensors, metadata=None):
    header, body = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, tensor in tensors.items():
        data = struct.pack(f"<{len(tensor.data)}{FORMATS[tensor.type]}", *tensor.data)
        kind = next(k for k, v in SAFE.items() if v == tensor.type)
        header[name] = {"dtype": kind, "shape": tensor.shape,
                        "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + body)


# ---- attention --------------------------------------------------------------------------------------


def philox(counter, key):
    counter, key = list(counter), list(key)
    for _ in range(10):
        left, right = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [right >> 32 ^ counter[1] ^ key[0], right & 0xFFFFFFFF,
                   left >> 32 ^ counter[3] ^ key[1], left & 0xFFFFFFFF]
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return counter


def kept(p, seed, offset, origin, heads, b, h, i, j):
    b, h, i, j = b + origin[0], h + origin[1], i + origin[2], j + origin[3]
    heads = origin[4] or heads
    word = philox([j // 8, i, b * heads + h, offset], [seed % 2**32, seed >> 32])[j % 8 // 2]
    threshold = round(p * 65536)
    draw = word >> 16 if j % 2 else word & 0xFFFF
    return 0 if draw < threshold else 65536 / (65536 - threshold)


def attention(q, k, v, scale=None, softcap=0, bias_before_softcap=False, causal=False, left=math.inf,
              right=math.inf, offset=None, mask=None, bias=None, alibi=None, sinks=None, blocks=None,
              block_sizes=(1, 1), lengths=None, dropout=0, seed=0, dropout_offset=0,
              origin=(0, 0, 0, 0, 0)):
    """(out, weights, lse, {stage: scores}) of q, k, v [batch, heads, length, d], by the formulas."""
    batch, heads, queries, d = q.shape
    keys, dv = k.shape[2], v.shape[3]
    group = heads // k.shape[1]
    scale = 1 / math.sqrt(d) if scale is None else scale
    out, weights, lse = [], [], []
    stages = {"raw": [], "softcapped": [], "masked": []}
    for b, h, i in itertools.product(range(batch), range(heads), range(queries)):
        length = lengths[b] if lengths else keys
        at = offset[b] if isinstance(offset, list) else length - queries if offset is None else offset
        z = []
        for j in range(keys):
            s = scale * math.fsum(q.at(b, h, i, e) * k.at(b, h // group, j, e) for e in range(d))
            stages["raw"].append(s)
            hidden = j >= length or causal and j > i + at or not -right <= i + at - j <= left
            more = -(alibi[h] * abs(i + at - j)) if alibi else 0
            if bias:
                x = bias.broadcast(b, h, i, j)
                hidden = hidden or x is None or x == -math.inf
                more += x if x is not None else 0
            if mask:
                hidden = hidden or not mask.broadcast(b, h, i, j)
            if blocks:
                hidden = hidden or not blocks.broadcast(b, h, i // block_sizes[0],
                                                        j // block_sizes[1])
            if bias_before_softcap:
                s += more
            if softcap:
                s = softcap * math.tanh(s / softcap)
            stages["softcapped"].append(s)
            if not bias_before_softcap:
                s += more
            z.append(-math.inf if hidden else s)
        stages["masked"] += z
        top = max(z + ([sinks[h]] if sinks else []))
        if top == -math.inf:
            p, total = [0.0] * keys, -math.inf
        else:
            e = [math.exp(s - top) for s in z]
            all_of_them = math.fsum(e) + (math.exp(sinks[h] - top) if sinks else 0)
            p, total = [x / all_of_them for x in e], top + math.log(all_of_them)
        weights += p
        lse.append(total)
        if dropout:
            p = [x * kept(dropout, seed, dropout_offset, origin, heads, b, h, i, j)
                 for j, x in enumerate(p)]
        out += [math.fsum(p[j] * v.at(b, h // group, j, e) for j in range(keys)) for e in range(dv)]
    square = (batch, heads, queries, keys)
    return (Tensor((batch, heads, queries, dv), out), Tensor(square, weights),
            Tensor(square[:3], lse), {name: Tensor(square, data) for name, data in stages.items()})


def linear(x, weight, bias=None):
    """x W^T + b over the last dimension, W [out, in]."""
    rows, width = len(x.data) // x.shape[-1], x.shape[-1]
    out = [math.fsum(x.data[r * width + e] * weight.at(o, e) for e in range(width)) +
           (bias.data[o] if bias else 0) for r in range(rows) for o in range(weight.shape[0])]
    return Tensor((*x.shape[:-1], weight.shape[0]), out)


def split(x, heads):
    """[batch, length, heads * d] as [batch, heads, length, d]."""
    batch, length, width = x.shape
    d = width // heads
    return Tensor((batch, heads, length, d),
                  [x.at(b, t, h * d + e) for b in range(batch) for h in range(heads)
                   for t in range(length) for e in range(d)])


def concat(x):
    batch, heads, length, d = x.shape
    return Tensor((batch, length, heads * d),
                  [x.at(b, h, t, e) for b in range(batch) for t in range(length)
                   for h in range(heads) for e in range(d)])


def multi_head(query, key, value, w, heads, key_heads=None, **options):
    """Multi-head attention with weights {q.weight, q.bias, ...}."""
    key_heads = key_heads or heads
    q = split(linear(query, w["q.weight"], w.get("q.bias")), heads)
    k = split(linear(key, w["k.weight"], w.get("k.bias")), key_heads)
    v = split(linear(value, w["v.weight"], w.get("v.bias")), key_heads)
    out = concat(attention(q, k, v, **options)[0])
    return linear(out, w["o.weight"], w.get("o.bias")) if "o.weight" in w else out

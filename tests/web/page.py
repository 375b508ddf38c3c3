"""The page's format, written a second time: q, k and options become lse, tiles and metrics by explicit
matrices in NumPy, and these a page of the modules in web/. The browser tests and screenshots read such pages.
docs/view.md describes the format."""

import base64
import hashlib
import html
import json
import pathlib
import re
import zlib

import numpy as np

WEB = pathlib.Path(__file__).resolve().parents[2] / "web"


class Blobs:
    """The blobs of a page: raw deflate, base64."""

    def __init__(self):
        self.texts = []

    def add(self, array, kind="f32"):
        array = np.asarray(array)
        more = {}
        if kind == "scaled" and not np.isfinite(array).all():
            kind = "f16"
        if kind == "log8":
            data = log8(array)
        elif kind == "log16":
            data = log16(array)
        elif kind == "scaled":  # log16, in parts of the largest
            kind, more = "log16", {"scale": float(array.max()) or 1.0}
            data = log16(array / more["scale"])
        elif kind == "bf16":
            data = bf16(array)
        elif kind == "bits":
            data = np.packbits(array.astype(bool).ravel(), bitorder="little")
        else:
            data = array.astype({"f32": "<f4", "f16": "<f2", "i32": "<i4", "u16": "<u2", "u8": "u1"}[kind])
        packer = zlib.compressobj(6, zlib.DEFLATED, -15)
        packed = packer.compress(data.tobytes()) + packer.flush()
        self.texts.append(base64.b64encode(packed).decode())
        return {"blob": len(self.texts) - 1, "type": kind, "shape": list(array.shape), **more}


def log8(weights):
    """Byte 0 is the weight 0, byte n the weight 2^((n - 255) / 8); what is hidden is below 0."""
    with np.errstate(divide="ignore"):
        steps = np.rint(255 + 8 * np.log2(np.maximum(weights, 0)))
    return np.where(weights > 0, np.clip(np.nan_to_num(steps, neginf=0), 1, 255), 0).astype(np.uint8)


def log16(weights):
    """n is the weight 2^(-n / 2048), 65535 is 0 and what is below 2^-32."""
    with np.errstate(divide="ignore"):
        steps = np.rint(-2048 * np.log2(np.maximum(weights, 0)))
    return np.clip(np.nan_to_num(steps, posinf=65535), 0, 65535).astype("<u2")


def bf16(array):
    """The upper half of an f32, rounded to even."""
    bits = array.astype("<f4").view("<u4").astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")


def softmax(layer):
    """Weights [heads, queries, keys] in f64, whether each pair is visible, and lse."""
    q, k = np.float64(layer["q"]), np.float64(layer["k"])
    k = np.repeat(k, q.shape[0] // k.shape[0], axis=0)
    scores = layer.get("scale", q.shape[2] ** -0.5) * q @ k.transpose(0, 2, 1)
    heads, queries, keys = scores.shape
    offset = layer.get("query_offset", keys - queries)
    position, key = np.arange(queries)[:, None] + offset, np.arange(keys)[None, :]
    added = np.zeros_like(scores)
    if layer.get("bias") is not None:
        added = added + layer["bias"]
    if layer.get("alibi") is not None:
        added = added - np.float64(layer["alibi"])[:, None, None] * abs(position - key)
    cap = layer.get("softcap", 0)
    if layer.get("bias_before_softcap"):
        scores = scores + added
    if cap:
        scores = cap * np.tanh(scores / cap)
    if not layer.get("bias_before_softcap"):
        scores = scores + added
    visible = np.broadcast_to(key < layer.get("key_length", keys), (queries, keys)).copy()
    if layer.get("causal"):
        visible &= key <= position
    left, right = layer.get("window") or (-1, -1)
    if left >= 0:
        visible &= key >= position - left
    if right >= 0:
        visible &= key <= position + right
    visible = np.broadcast_to(visible, scores.shape).copy()
    if layer.get("mask") is not None:
        visible &= np.broadcast_to(layer["mask"], scores.shape).astype(bool)
    seen = np.where(visible, scores, -np.inf)
    if layer.get("sinks") is not None:
        sink = np.broadcast_to(np.float64(layer["sinks"])[:, None, None], (heads, queries, 1))
        seen = np.concatenate([seen, sink], axis=2)
    with np.errstate(divide="ignore", invalid="ignore"):
        top = np.nan_to_num(seen.max(axis=2, keepdims=True), neginf=0)
        lse = (top + np.log(np.exp(seen - top).sum(axis=2, keepdims=True)))[..., 0]
        weights = np.where(visible, np.exp(scores - lse[..., None]), 0)
    return weights, visible, lse


def tiles_of(weights, visible, most, blobs):
    """Tiles of each head, and those of the mean and the maximum over the heads."""
    heads, queries, keys = weights.shape
    size = [1 << max(0, int(np.ceil(np.log2(n / most)))) for n in (queries, keys)]
    rows, columns = -(-queries // size[0]), -(-keys // size[1])
    pad = ((0, 0), (0, rows * size[0] - queries), (0, columns * size[1] - keys))
    shape = (heads, rows, size[0], columns, size[1])
    cells = np.pad(np.where(visible, weights, 0), pad).reshape(shape)
    seen = np.pad(visible, pad).reshape(shape).sum(axis=(2, 4))
    inside = np.pad(np.ones_like(visible), pad).reshape(shape).sum(axis=(2, 4))
    sums, maximum = cells.sum(axis=(2, 4)), cells.max(axis=(2, 4))
    kinds = np.where(seen == 0, 0, np.where(seen == inside, 2, 1))
    kinds = kinds[:1] if (visible == visible[:1]).all() else kinds  # one for all heads that see the same
    over_heads = {
        "mean": blobs.add(sums.sum(axis=0) / np.maximum(seen.sum(axis=0), 1), "log8"),
        "maximum": blobs.add(maximum.max(axis=0), "log8"),
    }
    return over_heads, {
        "rows": rows,
        "columns": columns,
        "queries": size[0],
        "keys": size[1],
        "mean": blobs.add(sums / np.maximum(seen, 1), "log8"),
        "maximum": blobs.add(maximum, "log8"),
        "visible": blobs.add(kinds, "u8"),
    }


def rows_of(weights, visible, k, begin, blobs):
    """The k keys of largest weight of the queries from `begin` on."""
    weights, visible, k = weights[:, begin:], visible[:, begin:], min(k, weights.shape[2])
    visible = visible & ~np.isnan(weights).any(axis=2, keepdims=True)  # such a row has none
    order = np.argsort(np.where(visible, -weights, 1), axis=2, kind="stable")[..., :k]
    seen = np.take_along_axis(visible, order, axis=2)
    keys, none = ("u16", 65535) if weights.shape[2] <= 65535 else ("i32", -1)
    return {
        "from": begin,
        "count": weights.shape[1],
        "k": k,
        "keys": blobs.add(np.where(seen, order, none), keys),
        "weights": blobs.add(np.where(seen, np.take_along_axis(weights, order, axis=2), 0), "log16"),
    }


def norms_of(source, reduced, blobs):
    """The norms of the values, and where there is W^O of what a head makes of them."""
    kind = "scaled" if reduced else "f32"
    if source.get("v") is None:
        return {"value_norm": None, "output_norm": None}
    v, w_o = np.float64(source["v"]), source.get("w_o")
    norms = {"value_norm": blobs.add(np.linalg.norm(v, axis=2), kind), "output_norm": None}
    if w_o is not None:  # [model dim, heads * dv]
        heads = source["q"].shape[0]
        parts = np.float64(w_o).reshape(-1, heads, v.shape[2])
        wide = np.repeat(v, heads // v.shape[0], axis=0)
        norms["output_norm"] = blobs.add(np.linalg.norm(np.einsum("hjc,mhc->hjm", wide, parts), axis=2), kind)
    return norms


def metrics_of(weights, visible, offset, ids):
    heads, queries, keys = weights.shape
    rows, position, key = visible.any(axis=2), np.arange(queries) + offset, np.arange(keys)
    count = np.maximum(rows.sum(axis=1), 1)

    def on(selected):
        return (np.where(selected, weights, 0).sum(axis=2) * rows).sum(axis=1) / count

    far = position[:, None] - key[None, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(weights > 0, weights * np.log(weights), 0).sum(axis=2)
    entropy[np.isnan(weights).any(axis=2)] = np.nan
    result = {
        "entropy": (entropy * rows).sum(axis=1) / count,
        "maximum": (weights.max(axis=2) * rows).sum(axis=1) / count,
        "distance": (abs(far) * weights).sum(axis=(1, 2)) / count,
        "previous": on(far == 1),
        "first": on(key[None, :] == 0),
        "diagonal": on(far == 0),
        "local": on(abs(far) <= 8),
    }
    if ids is not None:
        token = np.array(ids)
        same = token[key][None, :] == token[position][:, None]
        after = np.concatenate([[-1], token[:-1]])[None, :] == token[position][:, None]
        result["duplicate"] = on(same & (far > 0))
        result["induction"] = on(after & (far >= 0))
    return {
        name: [None if np.isnan(x) else float(x) for x in value] for name, value in result.items()
    }, entropy


def layer_of(source, blobs, name, ids=None, embed=True, tiles=128, top_k=None, windows=(), begin=0, kind="f32"):
    """A layer of the page from q [heads, queries, d], k, v and options under the names of the format. top_k is the
    k of its rows, which are those from `begin` on; kind the type of q, k and v."""
    top_k = (16 if embed else 0) if top_k is None else top_k
    weights, visible, lse = softmax(source)
    heads, queries, d = source["q"].shape
    key_heads, keys, _ = source["k"].shape
    offset = source.get("query_offset", keys - queries)
    metrics, entropy = metrics_of(weights, visible, offset, ids)
    best = {
        "previous": "previous token",
        "first": "first token",
        "diagonal": "current token",
        "duplicate": "duplicate token",
        "induction": "induction",
    }
    labels = []
    for h in range(heads):
        score, habit = max((metrics[key][h] or 0, words) for key, words in best.items() if key in metrics)
        labels.append(
            {
                "name": habit if score >= 0.5 else "mixed",
                "score": score if score >= 0.5 else metrics["maximum"][h],
            }
        )
    over_heads, own_tiles = tiles_of(weights, visible, tiles, blobs)
    plain = {key: source.get(key) for key in ("window", "sinks", "alibi")}
    return {
        "name": name,
        "heads": heads,
        "key_heads": key_heads,
        "queries": queries,
        "keys": keys,
        "d": d,
        "dv": source["v"].shape[2] if source.get("v") is not None else d,
        "scale": source.get("scale", d**-0.5),
        "softcap": source.get("softcap", 0),
        "causal": bool(source.get("causal")),
        "query_offset": offset,
        **plain,
        "key_length": source.get("key_length", keys),
        "bias_before_softcap": bool(source.get("bias_before_softcap")),
        "q": blobs.add(source["q"], kind) if embed else None,
        "k": blobs.add(source["k"], kind) if embed else None,
        "v": blobs.add(source["v"], kind) if embed and source.get("v") is not None else None,
        "lse": blobs.add(lse[:, begin:]),
        "mask": blobs.add(source["mask"], "bits") if source.get("mask") is not None else None,
        "bias": blobs.add(source["bias"]) if source.get("bias") is not None else None,
        "tiles": own_tiles,
        "over_heads": over_heads,
        "windows": [
            {
                "head": h,
                "query": i,
                "queries": n,
                "key": j,
                "keys": m,
                "weights": blobs.add(weights[h, i : i + n, j : j + m]),
            }
            for h, i, n, j, m in windows
        ],
        "entropy": blobs.add(entropy, "f16"),
        "maximum": blobs.add(weights.max(axis=2)) if embed else None,
        "rows": rows_of(weights, visible, top_k, begin, blobs) if top_k else None,
        "mass": blobs.add(weights.sum(axis=1), "f32" if embed else "scaled"),
        **norms_of(source, not embed, blobs),
        "metrics": metrics,
        "labels": labels,
    }


def page_of(runs, blobs, title="attend", language="en", notes=(), **more):
    """The whole page as a string."""
    return assemble(
        {
            "format": "attend.view/2",
            "made_by": "attend 0.1.0",
            "title": title,
            "language": language,
            "notes": list(notes),
            "runs": runs,
            **more,
        },
        blobs.texts,
    )


def assemble(data, blobs):
    """The shell with style, script, policy and data in it. data may be a string, broken on purpose."""
    style = (WEB / "style.css").read_text()
    script = ""
    for name in (WEB / "modules.txt").read_text().split():
        lines = (WEB / name).read_text().splitlines(keepends=True)
        script += "".join(
            re.sub(r"^export ", "", line)
            for line in lines
            if not re.match(r'^import \{.*\} from "\./.*";$', line)
        )

    def sha(text):
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"

    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, allow_nan=False)
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    elements = [f'<script type="application/json" id="data">{text}</script>']
    elements += [f'<script type="text/plain" id="blob-{n}">{blob}</script>' for n, blob in enumerate(blobs)]
    known = data if isinstance(data, dict) else {}
    parts = {
        "style": style,
        "script": script,
        "data": "\n".join(elements),
        "csp": f"default-src 'none'; script-src {sha(script)}; style-src {sha(style)}; img-src data: blob:",
        "title": html.escape(known.get("title", "attend")),
        "language": known.get("language", "en"),
    }
    shell = (WEB / "index.html").read_text()
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], shell)

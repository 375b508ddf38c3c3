"""Pages that the browser tests and the screenshots look at: small heads that were made by hand, so that it is
known what they do, and long ones of random numbers."""

import functools

import numpy as np

from page import Blobs, layer_of, page_of, softmax

SENTENCE = ["<bos>", "The", " cat", " sat", " on", " the", " mat", ",", " and", " the", " cat", " slept", "."]


def ids_of(tokens):
    known = {}
    return [known.setdefault(token.strip().lower(), len(known)) for token in tokens]


def wanting(rows, strength=9.0, noise=0.0, seed=0):
    """q and k of one head whose query i sees mostly the key rows[i]: one-hot keys, scaled queries."""
    keys = len(rows)
    random = np.random.default_rng(seed)
    k = np.eye(keys)
    q = strength * np.sqrt(keys) * k[list(rows)]
    return q + noise * random.normal(size=q.shape), k + noise * 0.1 * random.normal(size=k.shape)


def habits(tokens, seed=0, noise=0.6):
    """Heads [8, T, T]: previous, first, own, duplicate, induction, two words, uniform, random."""
    n, ids = len(tokens), ids_of(tokens)

    def earlier(i, shift):
        same = [j for j in range(i) if ids[j] == ids[i]]
        return same[-1] + shift if same else 0

    rows = [
        [max(0, i - 1) for i in range(n)],
        [0] * n,
        list(range(n)),
        [earlier(i, 0) for i in range(n)],
        [earlier(i, 1) for i in range(n)],
        [max(0, i - 2) for i in range(n)],
    ]
    heads = [wanting(row, noise=noise, seed=seed + h) for h, row in enumerate(rows)]
    heads.append((np.zeros((n, n)), np.eye(n)))
    random = np.random.default_rng(seed + 99)
    heads.append((4 * random.normal(size=(n, n)), random.normal(size=(n, n))))
    q, k = (np.stack(part).astype(np.float32) for part in zip(*heads))
    v = random.normal(size=(8, n, 6)).astype(np.float32)
    return {"q": q, "k": k, "v": v, "causal": True}


def run_of(tokens, blobs, name="run", layers=2, seed=0, special=(0,), **keywords):
    parts = [
        layer_of(habits(tokens, seed + 7 * n, 0.3 + 0.5 * n), blobs, f"layer {n}", ids_of(tokens), **keywords)
        for n in range(layers)
    ]
    return {
        "name": name,
        "tokens": list(tokens),
        "key_tokens": None,
        "special": list(special),
        "layers": parts,
    }


@functools.cache
def small(**keywords):
    blobs = Blobs()
    return page_of([run_of(SENTENCE, blobs)], blobs, title="The cat sat on the mat", **keywords)


@functools.cache
def two_runs(**keywords):
    blobs = Blobs()
    runs = [run_of(SENTENCE, blobs, "before"), run_of(SENTENCE, blobs, "after", seed=40)]
    return page_of(runs, blobs, title="Before and after training", **keywords)


@functools.cache
def long_page(length=131072, heads=8):
    """A layer too long for q and k: tiles of a band and a first column, a window of exact weights, no matrix."""
    blobs, side, tiles = Blobs(), length // 128, 128
    row, column = np.arange(tiles)[:, None], np.arange(tiles)[None, :]
    mean = np.stack(
        [
            np.where(
                column <= row,
                np.exp(-abs(row - column) / (1 + 3 * h)) / side / (h + 1) + (column == 0) * 0.3 / side,
                0,
            )
            for h in range(heads)
        ]
    )
    window = np.zeros((64, 64))
    for i in range(64):
        window[i, max(0, i - 2) : i + 1] = 1 / min(3, i + 1)
    layer = {
        "name": "long",
        "heads": heads,
        "key_heads": heads,
        "queries": length,
        "keys": length,
        "d": 64,
        "dv": 64,
        "scale": 0.125,
        "softcap": 0,
        "causal": True,
        "window": None,
        "query_offset": 0,
        "key_length": length,
        "sinks": None,
        "alibi": None,
        "bias_before_softcap": False,
        "q": None,
        "k": None,
        "v": None,
        "lse": blobs.add(np.full((heads, length), 3.0)),
        "mask": None,
        "bias": None,
        "tiles": {
            "rows": tiles,
            "columns": tiles,
            "queries": side,
            "keys": side,
            "mean": blobs.add(mean, "log8"),
            "maximum": blobs.add(np.minimum(1, 300 * mean), "log8"),
            "visible": blobs.add(np.where(column > row, 0, np.where(column == row, 1, 2))[None], "u8"),
        },
        "windows": [
            {
                "head": 0,
                "query": length - 64,
                "queries": 64,
                "key": length - 64,
                "keys": 64,
                "weights": blobs.add(window),
            }
        ],
        "entropy": blobs.add(np.full((heads, length), 2.0), "f16"),
        "maximum": None,
        "rows": None,
        "mass": blobs.add(np.ones((heads, length)), "f16"),
        "metrics": {"entropy": [2.0] * heads},
        "labels": [{"name": "mixed", "score": 0.5}] * heads,
    }
    run = {
        "name": "long",
        "tokens": [f"w{n % 977}" for n in range(length)],
        "key_tokens": None,
        "special": [],
        "layers": [layer],
    }
    return page_of(
        [run], blobs, title="A long text", notes=["q, k and v are left out: they would need 201 MB."]
    )


@functools.cache
def many_heads(length, layers=12, heads=12, embed=True):
    """Layers of random heads that lean to their neighbours, with d = 16."""
    blobs, random = Blobs(), np.random.default_rng(1)
    slope = 2.0 ** -np.arange(1, heads + 1)
    parts = []
    for n in range(layers):
        source = {
            name: random.normal(size=(heads, length, 16)).astype(np.float16).astype(np.float32)
            for name in "qkv"
        }
        parts.append(
            layer_of(
                {**source, "alibi": list(slope), "causal": True}, blobs, f"layer {n}", embed=embed, top_k=4
            )
        )
    run = {"name": "many", "tokens": None, "key_tokens": None, "special": [], "layers": parts}
    return page_of([run], blobs, title="All heads of twelve layers")


@functools.cache
def two_runs_of_many(layers, heads, length=512, distinct=2, exact=1, top_k=4):
    """Two runs of many heads of which the rows are stored, the first `exact` layers with q and k; layer n is as
    layer n - distinct. The page, and what tells a weight: weight(run, layer, head, query, key)."""
    blobs, runs, all_weights, random = Blobs(), [], [], np.random.default_rng(11)
    for name in ("before", "after"):
        made, stored, weights = [], [], []
        for n in range(distinct):
            source = {part: random.normal(size=(heads, length, 16)).astype(np.float32) for part in "qkv"}
            source.update(causal=True, alibi=[2.0 ** -(1 + h % 8) for h in range(heads)])
            weights.append(softmax(source)[0].astype(np.float32))
            stored.append(layer_of(source, blobs, "", embed=False, top_k=top_k, tiles=32))
            made.append({**stored[-1], **{part: blobs.add(source[part]) for part in ("q", "k") if n < exact}})
        parts = [{**(made if n < exact else stored)[n % distinct], "name": f"layer {n}"} for n in range(layers)]
        all_weights.append(weights)
        runs.append({"name": name, "tokens": None, "key_tokens": None, "special": [], "layers": parts})
    return (page_of(runs, blobs, title=f"Two runs of {layers * heads} heads"),
            lambda run, layer, head, i, j: all_weights[run][layer % distinct][head, i, j])


WORDS = ("the cat sat on the mat and then a small dog came in to see what all of it was about because nobody had told "
         "him where to sleep that night so he went back home").split()


@functools.cache
def text_model(length=512, layers=12, heads=12, exact=1):
    """Layers of heads that lean to the token before, to the first, to what followed an earlier copy of the token, or
    to nothing in particular; the first `exact` layers with q and k, of all the 16 largest weights of a row."""
    blobs, random = Blobs(), np.random.default_rng(1)
    tokens = ["<bos>"] + [" " + WORDS[(7 * n + n // 13) % len(WORDS)] for n in range(1, length)]
    ids, at, parts = ids_of(tokens), np.arange(1, length), []
    for n in range(layers):
        source = {name: random.normal(size=(heads, length, 16)).astype(np.float32) for name in "qkv"}
        bias = np.zeros((heads, length, length), np.float32)
        for h in range(heads):
            habit, seen = (h + n) % 4, {}
            if habit == 1:
                bias[h, :, 0] += 6
            elif habit == 2:
                bias[h, at, at - 1] += 6
            elif habit == 3:
                for i, token in enumerate(ids):
                    if token in seen and random.random() < 0.7:
                        bias[h, i, seen[token] + 1] += 7
                    seen[token] = i
        source.update(causal=True, bias=bias, alibi=[2.0 ** -(1 + h % 8) for h in range(heads)])
        layer = layer_of(source, blobs, f"layer {n}", ids, embed=n < exact, top_k=16, kind="bf16")
        parts.append(layer if n < exact else {**layer, "bias": None})
    run = {"name": "text", "tokens": tokens, "key_tokens": None, "special": [0], "layers": parts}
    return page_of([run], blobs, title=f"{layers} layers of {heads} heads, {length} tokens")


@functools.cache
def six_tokens():
    """Eight heads over six tokens."""
    blobs = Blobs()
    return page_of([run_of(SENTENCE[:6], blobs, layers=1)], blobs, title="The cat sat on the")

"""Pages that the browser tests and the screenshots look at: small heads that were made by hand, so that it is
known what they do, and long ones of random numbers."""
import numpy as np

from page import Blobs, layer_of, page_of

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
    rows = [[max(0, i - 1) for i in range(n)], [0] * n, list(range(n)), [earlier(i, 0) for i in range(n)],
            [earlier(i, 1) for i in range(n)], [max(0, i - 2) for i in range(n)]]
    heads = [wanting(row, noise=noise, seed=seed + h) for h, row in enumerate(rows)]
    heads.append((np.zeros((n, n)), np.eye(n)))
    random = np.random.default_rng(seed + 99)
    heads.append((4 * random.normal(size=(n, n)), random.normal(size=(n, n))))
    q, k = (np.stack(part).astype(np.float32) for part in zip(*heads))
    v = random.normal(size=(8, n, 6)).astype(np.float32)
    return {"q": q, "k": k, "v": v, "causal": True}


def run_of(tokens, blobs, name="run", layers=2, seed=0, special=(0,), **keywords):
    parts = [layer_of(habits(tokens, seed + 7 * n, 0.3 + 0.5 * n), blobs, f"layer {n}", ids_of(tokens), **keywords)
             for n in range(layers)]
    return {"name": name, "tokens": list(tokens), "key_tokens": None, "special": list(special), "layers": parts}


def small(**keywords):
    blobs = Blobs()
    return page_of([run_of(SENTENCE, blobs)], blobs, title="The cat sat on the mat", **keywords)


def two_runs():
    blobs = Blobs()
    runs = [run_of(SENTENCE, blobs, "before"), run_of(SENTENCE, blobs, "after", seed=40)]
    return page_of(runs, blobs, title="Before and after training")

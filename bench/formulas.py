"""Attention, the layer around it and their gradients in NumPy, from the formulas. In f32 they are one of the
libraries that are compared; in f64 they are the truth that all results are held against.

Shapes: q [batch, heads, queries, d], k and v [batch, key heads, keys, d], x and y [batch, length, width]; weights
[out, in].
"""
import numpy as np


def array_type(name):
    """NumPy's type for "f32", "f16" or "bf16", which is that of the package ml_dtypes; for "i8" that of what is stored so."""
    if name == "bf16":
        import ml_dtypes
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype({"f32": np.float32, "i8": np.float32, "f16": np.float16}[name])


def weights(q, k, causal=False, positions=None):
    """softmax(q k^T / sqrt(d)) [batch, key heads, group * queries, keys]. `positions`: of the queries, where they are
    not the last of the keys."""
    batch, heads, queries, d = q.shape
    keys, group = k.shape[2], heads // k.shape[1]
    p = q.reshape(batch, k.shape[1], group * queries, d) @ k.swapaxes(-1, -2)
    p *= q.dtype.type(d ** -0.5)
    if causal:
        at = np.arange(queries) + keys - queries if positions is None else positions
        p[..., np.tile(at, group)[:, None] < np.arange(keys)] = -np.inf
    p -= p.max(-1, keepdims=True)
    np.exp(p, out=p)
    p /= p.sum(-1, keepdims=True)
    return p


def attention(q, k, v, causal=False, positions=None):
    out = weights(q, k, causal, positions) @ v
    return out.reshape(*q.shape[:3], v.shape[3])


def attention_backward(q, k, v, dout, causal=False):
    """(dq, dk, dv), of heads that are not grouped."""
    p = weights(q, k, causal)
    dv = p.swapaxes(-1, -2) @ dout
    ds = dout @ v.swapaxes(-1, -2)
    ds -= (dout * (p @ v)).sum(-1, keepdims=True)
    ds *= p
    ds *= q.dtype.type(q.shape[3] ** -0.5)
    return ds @ k, ds.swapaxes(-1, -2) @ q, dv


def split(x, heads):
    """[batch, length, width] as [batch, heads, length, d]."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def join(x):
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


def project(x, w, name):
    return x @ w[name + ".weight"].T + w[name + ".bias"]


def layer(x, w, heads):
    q, k, v = (split(project(x, w, name), heads) for name in "qkv")
    return project(join(attention(q, k, v)), w, "o")


def layer_backward(x, w, heads, dy):
    """{dx, and the gradients of all weights and biases}, after a forward pass of its own."""
    q, k, v = (split(project(x, w, name), heads) for name in "qkv")
    concat = join(attention(q, k, v))
    project(concat, w, "o")   # a step of training wants y too, for its loss
    backward = attention_backward(q, k, v, split(dy @ w["o.weight"], heads))
    gradients, dx = {}, 0
    for name, gradient, of in zip("qkvo", (*map(join, backward), dy), (x, x, x, concat)):
        if name != "o":
            dx = dx + gradient @ w[name + ".weight"]
        flat = gradient.reshape(-1, gradient.shape[-1])
        gradients[name + ".weight"] = flat.T @ of.reshape(-1, of.shape[-1])
        gradients[name + ".bias"] = flat.sum(0)
    return {"dx": dx, **gradients}

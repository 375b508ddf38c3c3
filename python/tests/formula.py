"""The textbook formula of attention in NumPy and f64, against which the package is held."""
import numpy as np


def visible_keys(q, k, *, causal=False, window=None, query_offset=None, mask=None, key_lengths=None):
    """What may be seen: bool [batch, heads, queries, keys]."""
    batch, heads, queries, keys = q.shape[0], q.shape[1], q.shape[2], k.shape[2]
    seen = np.ones((batch, heads, queries, keys), bool)
    lengths = np.full(batch, keys) if key_lengths is None else np.asarray(key_lengths)
    offsets = lengths - queries if query_offset is None else np.broadcast_to(query_offset, batch)
    i = np.arange(queries)[:, None]
    j = np.arange(keys)[None, :]
    for b in range(batch):
        position = i + offsets[b]
        seen[b] &= j < lengths[b]
        if causal:
            seen[b] &= j <= position
        if window is not None:
            left, right = window
            seen[b] &= (left is None) | (j >= position - (left or 0))
            seen[b] &= (right is None) | (j <= position + (right or 0))
    if mask is not None:
        seen &= np.broadcast_to(np.asarray(mask) != 0, seen.shape)
    return seen, offsets


def attention(q, k, v, *, scale=None, softcap=0.0, bias_before_softcap=False, bias=None, alibi=None,
              sinks=None, **hiding):
    """(out, lse, weights, scores after bias and mask), each in f64."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    seen, offsets = visible_keys(q, k, **hiding)
    group = q.shape[1] // max(k.shape[1], 1) if k.shape[1] else 1
    k, v = k.repeat(group, 1), v.repeat(group, 1)
    s = np.einsum("bhid,bhjd->bhij", q, k) * (q.shape[3] ** -0.5 if scale is None else scale)
    added = np.zeros_like(s)
    if bias is not None:
        added = added + np.asarray(bias, np.float64)
    if alibi is not None:
        i = np.arange(s.shape[2])[:, None] + offsets[:, None, None, None]
        slopes = np.asarray(alibi, np.float64)[:, None, None]
        added = added - slopes * np.abs(i - np.arange(s.shape[3]))
    if bias_before_softcap:
        s = s + added
    if softcap:
        s = softcap * np.tanh(s / softcap)
    if not bias_before_softcap:
        s = s + added
    s = np.where(seen, s, -np.inf)
    top = s.max(-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        top = np.maximum(top, np.asarray(sinks, np.float64)[:, None, None])
    top = np.where(np.isfinite(top), top, 0)
    e = np.exp(s - top)
    total = e.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(np.asarray(sinks, np.float64)[:, None, None] - top)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = np.where(total > 0, e / total, 0)
        lse = (top + np.log(total))[..., 0]
    return np.einsum("bhij,bhjd->bhid", p, v), lse, p, s

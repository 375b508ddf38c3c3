"""Token by token with a KV cache: of a layer, then of attention on arrays [batch, tokens, heads, size].

Needs NumPy and attend (`./run python examples/kv_cache.py` in a clone). Every comparison is of all bits.
"""
import numpy

import attend

rng = numpy.random.default_rng(0)

# A layer with GQA and RoPE: eight query heads share two key heads.
layer = attend.MultiHeadAttention(model_dim=64, heads=8, key_heads=2, rotary=attend.Rotary())
x = rng.standard_normal((2, 12, 64)).astype("float32")
whole = layer.forward(x, causal=True)
cache = layer.make_cache(batch=2, capacity=12)
prompt = layer.forward(x[:, :5], cache=cache, causal=True)
steps = [layer.forward(x[:, i:i + 1], cache=cache, causal=True) for i in range(5, 12)]
assert (numpy.concatenate([prompt, *steps], axis=1) == whole).all()

# Attention itself, on arrays as most models keep them: a transposed view, not a copy.
q = rng.standard_normal((2, 12, 8, 16)).astype("float32").transpose(0, 2, 1, 3)
k, v = (rng.standard_normal((2, 12, 2, 16)).astype("float32").transpose(0, 2, 1, 3) for _ in "kv")
whole = attend.attention(q, k, v, causal=True, window=(4, 0))
for n in range(1, 13):  # the last query stands at the last key
    y = attend.attention(q[:, :, n - 1:n], k[:, :, :n], v[:, :, :n], causal=True, window=(4, 0))
    assert (y[:, :, 0] == whole[:, :, n - 1]).all()
print("token by token: the same bits as the whole sequence at once")

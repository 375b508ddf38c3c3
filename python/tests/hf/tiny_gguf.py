"""A tiny random Llama in a GGUF file, its tokenizer inside."""
import numpy as np
import pytest

WORDS = ["<s>", "</s>", "a", "b", "c", "Ġ", "Ġa", "Ġb", "ab", "Ġab"]


def write(path, hidden=32, inner=24, layers=2, heads=4, key_heads=2):
    pytest.importorskip("accelerate", reason="Transformers reads GGUF with the package accelerate")
    gguf = pytest.importorskip("gguf", reason="GGUF files are written with the package gguf")
    draw = np.random.default_rng(0).standard_normal
    file = gguf.GGUFWriter(path, "llama")
    for name, value in {
        "context_length": 64, "embedding_length": hidden, "block_count": layers, "feed_forward_length": inner, "head_count": heads,
        "head_count_kv": key_heads, "layer_norm_rms_eps": 1e-5, "rope_dimension_count": hidden // heads, "rope_freq_base": 1e4,
        "vocab_size": len(WORDS), "file_type": 0, "tokenizer_model": "gpt2", "tokenizer_pre": "default", "token_list": WORDS,
        "token_types": [3, 3] + [1] * 8, "token_merges": ["Ġ a", "Ġ b", "a b", "Ġ ab"], "bos_token_id": 0, "eos_token_id": 1,
        "unk_token_id": 0, "add_bos_token": False,
    }.items():
        getattr(file, f"add_{name}")(value)
    shapes = {"token_embd": (len(WORDS), hidden), "output": (len(WORDS), hidden), "output_norm": (hidden,)}
    for n in range(layers):
        keys = (hidden // heads * key_heads, hidden)
        of = {"attn_norm": (hidden,), "ffn_norm": (hidden,), "attn_q": (hidden, hidden), "attn_k": keys, "attn_v": keys,
              "attn_output": (hidden, hidden), "ffn_gate": (inner, hidden), "ffn_up": (inner, hidden), "ffn_down": (hidden, inner)}
        shapes |= {f"blk.{n}.{name}": shape for name, shape in of.items()}
    for name, shape in shapes.items():
        file.add_tensor(f"{name}.weight", np.ones(shape, "f4") if len(shape) == 1 else draw(shape).astype("f4") / 3)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()

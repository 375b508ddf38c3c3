"""Models whose code reads its mask, as the floats of eager attention: with attend they give what they give with eager, or refuse."""
import pytest
import torch
import transformers as t
from tiny import WORDS, error, padding

import attend.hf

_TEXT = {"vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 36}
DEEPSEEK = {
    **_TEXT, "hidden_size": 32, "moe_intermediate_size": 16, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 8, "q_lora_rank": 16,
    "num_experts_per_tok": 1, "n_routed_experts": 2, "partial_rotary_factor": 0.5, "hc_mult": 2, "hc_sinkhorn_iters": 2, "sliding_window": 6,
    "o_groups": 2, "o_lora_rank": 8, "index_n_heads": 2, "index_head_dim": 8, "index_topk": 2, "max_position_embeddings": 64,
    "num_hidden_layers": 3, "layer_types": ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
}
CONFIGS = {  # True: its attention comes to attend; False: it computes by itself what eager does; None: it is refused
    "deepseek_v4": (lambda: t.DeepseekV4Config(**DEEPSEEK, compress_rates={k: 4 for k in DEEPSEEK["layer_types"][1:]}), True),
    "mpt": (lambda: t.MptConfig(**_TEXT, d_model=32, n_heads=4, n_layers=1, max_seq_len=32, expansion_ratio=1), False),
    "longformer": (lambda: t.LongformerConfig(
        **_TEXT, hidden_size=32, num_attention_heads=4, num_hidden_layers=1, intermediate_size=24, attention_window=[4],
        max_position_embeddings=64,
    ), False),
    "canine": (lambda: t.CanineConfig(
        hidden_size=32, num_attention_heads=4, num_hidden_layers=1, intermediate_size=24, max_position_embeddings=64, num_hash_buckets=64,
        downsampling_rate=2, local_transformer_stride=8,
    ), None),
    "bloom": (lambda: t.BloomConfig(**_TEXT, hidden_size=32, n_layer=1, n_head=4), None),
    "codegen": (lambda: t.CodeGenConfig(**_TEXT, n_embd=32, n_layer=1, n_head=4, n_positions=32, rotary_dim=4), None),
    "xglm": (lambda: t.XGLMConfig(**_TEXT, d_model=32, ffn_dim=24, num_layers=1, attention_heads=4, max_position_embeddings=32), None),
}


def pair(name, kind=t.AutoModel):
    models = []
    for implementation in ("eager", "attend"):
        model = kind.from_config(CONFIGS[name][0](), dtype=torch.float32, attn_implementation=implementation).eval()
        models.append(model)
    with torch.no_grad():
        for p in models[0].parameters():
            p.normal_(std=0.3) if p.dim() > 1 else None
            p.zero_() if not p.isfinite().all() else None
    models[1].load_state_dict(models[0].state_dict())
    return models


def texts(pad):
    real = padding(pad, batch=2, length=12)
    return {"input_ids": torch.randint(3, 30, real.shape) * real, "attention_mask": real}


@pytest.mark.parametrize("name", CONFIGS)
def test_as_eager_or_refused(name):
    eager, ours = pair(name)
    comes = CONFIGS[name][1]
    assert bool(attend.hf.check(ours).comes) == bool(comes)
    for pad in ("none", "right", "left"):
        given = texts(pad)
        real = given["attention_mask"].bool()
        with torch.no_grad():
            if comes is None:
                with pytest.raises(NotImplementedError, match="adds its mask to scores"):
                    ours(**given)
                continue
            wanted, found = (model(**given).last_hidden_state[real] for model in (eager, ours))
        assert error(found, wanted) < 2e-5, pad


def test_informers_sparse_attention_is_eagers():
    """It reshapes parts of its mask, and draws at random."""
    config = t.InformerConfig(
        prediction_length=4, context_length=8, lags_sequence=[1, 2], num_time_features=1, input_size=1, d_model=16, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, attention_type="prob", dropout=0.0)
    results, given = [], {"past_values": torch.randn(3, 10), "past_time_features": torch.randn(3, 10, 1), "past_observed_mask": torch.ones(3, 10),
                          "future_values": torch.randn(3, 4), "future_time_features": torch.randn(3, 4, 1)}
    for implementation in ("eager", "attend"):
        torch.manual_seed(0)
        model = t.InformerModel._from_config(config, attn_implementation=implementation).eval()
        with torch.no_grad():
            results.append(model(**given).last_hidden_state)
    assert error(results[1], results[0]) < 2e-5


def test_deepseek_generates_as_eager_does():
    """Its compressed keys are joined to the others, and their mask to the mask."""
    eager, ours = pair("deepseek_v4", t.AutoModelForCausalLM)
    given = texts("left")
    new = dict(max_new_tokens=6, min_new_tokens=6, do_sample=False, output_logits=True, return_dict_in_generate=True)
    with torch.no_grad():
        wanted, found = eager.generate(**given, **new), ours.generate(**given, **new)
    assert torch.equal(found.sequences, wanted.sequences)
    assert all(error(a, b) < 2e-5 for a, b in zip(found.logits, wanted.logits))

"""Tiny random models of each kind that Transformers has, and inputs for them."""
import copy

import torch
import transformers as t

WORDS = 37  # in each vocabulary
_TEXT = {"vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 36}
_LLAMA = {
    **_TEXT, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}

CONFIGS = {
    "bert": lambda: t.BertConfig(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
        max_position_embeddings=64,
    ),
    "gpt2": lambda: t.GPT2Config(**_TEXT, n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "llama": lambda: t.LlamaConfig(**_LLAMA),
    "mistral": lambda: t.MistralConfig(**_LLAMA, sliding_window=4),
    "gemma2": lambda: t.Gemma2Config(**_LLAMA, head_dim=8, sliding_window=4, attn_logit_softcapping=2.0),
    "gpt_oss": lambda: t.GptOssConfig(
        **_LLAMA, head_dim=8, sliding_window=4, num_local_experts=2, num_experts_per_tok=1,
    ),
    "t5": lambda: t.T5Config(
        vocab_size=WORDS, d_model=32, d_kv=8, d_ff=24, num_layers=2, num_heads=4, pad_token_id=0, eos_token_id=36,
        decoder_start_token_id=0,
    ),
    "whisper": lambda: t.WhisperConfig(
        **_TEXT, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=24, decoder_ffn_dim=24, num_mel_bins=8, max_source_positions=12, max_target_positions=64,
        decoder_start_token_id=1,
    ),
    "vit": lambda: t.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24, image_size=16, patch_size=4,
        num_labels=5,
    ),
}
CLASSES = {
    "bert": t.BertForMaskedLM, "gpt2": t.GPT2LMHeadModel, "llama": t.LlamaForCausalLM, "mistral": t.MistralForCausalLM,
    "gemma2": t.Gemma2ForCausalLM, "gpt_oss": t.GptOssForCausalLM, "t5": t.T5ForConditionalGeneration,
    "whisper": t.WhisperForConditionalGeneration, "vit": t.ViTForImageClassification,
}
DECODERS = ("gpt2", "llama", "mistral", "gemma2", "gpt_oss")


def tiny(name, **changes):
    """A model whose attention is far from even: weights as Transformers draws them would hide a wrong mask."""
    config = CONFIGS[name]()
    for key, value in changes.items():
        setattr(config, key, value)
    model = CLASSES[name]._from_config(config, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.normal_(std=0.3)
            elif p.dim() == 1 and p.numel() == 4:  # the sinks of gpt-oss
                p.normal_()
    return model.eval()


def twins(name, **changes):
    """(with eager attention, with attend), of the same weights."""
    model = tiny(name, **changes)
    ours = copy.deepcopy(model)
    ours.set_attn_implementation("attend")
    return model, ours


def padding(kind, batch=3, length=11):
    """attention_mask: the first sequence has all tokens, each other fewer, at one end."""
    real = torch.arange(length) < (length - 3 * torch.arange(batch)).unsqueeze(1)
    return {"none": torch.ones(batch, length), "right": real, "left": real.flip(1)}[kind].long()


def inputs(name, pad="none"):
    """With labels: -100 where there is padding, and for the token after it, which padding would predict."""
    if name == "vit":
        return {"pixel_values": torch.randn(3, 3, 16, 16), "labels": torch.tensor([0, 3, 1])}
    real = padding(pad)
    ids = torch.randint(2, WORDS - 1, real.shape) * real
    before = torch.cat([real[:, :1], real[:, :-1]], 1)
    labels = ids.masked_fill(real * before == 0, -100)
    if name == "whisper":
        return {"input_features": torch.randn(3, 8, 24), "labels": labels}
    if name == "t5":
        return {"input_ids": ids, "attention_mask": real, "labels": labels[:, :5].clone()}
    return {"input_ids": ids, "attention_mask": real, "labels": labels}


def error(found, wanted):
    """The largest difference, in units of the largest number or 1; NaN is infinite."""
    assert found.shape == wanted.shape, f"{found.shape} is not {wanted.shape}"
    difference = (found.double() - wanted.double()).abs().max().item()
    return difference / max(1.0, wanted.abs().max().item()) if difference == difference else float("inf")

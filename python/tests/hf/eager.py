"""What captures and edits are held against: the same models with Transformers' own attention, and plain hooks."""
import contextlib

import torch
import transformers as t

from tiny import WORDS, twins

MODELS = ("bert", "gpt2", "llama", "albert", "t5")
HEADS, WIDTH = 4, 8  # of each of them; heads and features of a head


def both(name):
    """(with eager attention, with attend), of the same weights."""
    if name != "albert":
        return twins(name)
    config = t.AlbertConfig(
        vocab_size=WORDS, embedding_size=16, hidden_size=32, num_hidden_layers=3, num_attention_heads=HEADS,
        intermediate_size=24, max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )
    models = []
    for implementation in ("eager", "attend"):
        torch.manual_seed(5)
        model = t.AlbertForMaskedLM._from_config(config, dtype=torch.float32, attn_implementation=implementation)
        with torch.no_grad():
            for p in model.parameters():
                if p.dim() > 1:
                    p.normal_(std=0.3)
        models.append(model.eval())
    return tuple(models)


def texts(name, batch=2, length=7):
    ids = torch.randint(2, WORDS - 1, (batch, length))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}
    if name == "t5":
        given["labels"] = ids[:, :5].clone()
    return given


def attentions(result):
    """The weights of an eager forward pass, in the order of the calls."""
    if "encoder_attentions" not in result:
        return list(result.attentions)
    decoder = [x for pair in zip(result.decoder_attentions, result.cross_attentions) for x in pair]
    return [*result.encoder_attentions, *decoder]


def checkpointing(model, reentrant):
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()


LAYERS = {  # of each model some attention, with its output projection and what makes its values
    "bert": ("bert.encoder.layer.1.attention.self", "bert.encoder.layer.1.attention.output.dense", "value"),
    "gpt2": ("transformer.h.1.attn", "transformer.h.1.attn.c_proj", "c_attn"),
    "llama": ("model.layers.1.self_attn", "model.layers.1.self_attn.o_proj", "v_proj"),
    "albert": (
        "albert.encoder.albert_layer_groups.0.albert_layers.0.attention",
        "albert.encoder.albert_layer_groups.0.albert_layers.0.attention.dense", "value",
    ),
    "t5": ("decoder.block.1.layer.1.EncDecAttention", "decoder.block.1.layer.1.EncDecAttention.o", "v"),
}


def matrix(projection):
    """[in, out]"""
    return projection.weight if type(projection).__name__ == "Conv1D" else projection.weight.t()


@contextlib.contextmanager
def changed(model, name, change, call=0):
    """`change(heads [batch, queries, heads, width], values [batch, keys, heads, width])` replaces the joined heads in front of the
    output projection, in the call-th pass through it.
    """
    layer, projection, maker = LAYERS[name]
    seen = {"calls": 0, "values": None}

    def keep(module, arguments, result):
        seen["values"] = result[..., -HEADS * WIDTH // (2 if name == "llama" else 1) :]

    def replace(module, arguments):
        nth, seen["calls"] = seen["calls"], seen["calls"] + 1
        if nth % (3 if name == "albert" else 1) != call:
            return None
        values = seen["values"].unflatten(-1, (-1, WIDTH))
        values = values.repeat_interleave(HEADS // values.size(2), 2)
        return (change(arguments[0].unflatten(-1, (HEADS, WIDTH)), values).flatten(2),)

    handles = [
        model.get_submodule(f"{layer}.{maker}").register_forward_hook(keep),
        model.get_submodule(projection).register_forward_pre_hook(replace),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()

"""Models of which some attention does not come to attend: whoever looks or edits is told, before anything runs."""
import pytest
import torch
import transformers as t
from torch import nn

import attend
import attend.hf
from eager import both, texts


class WithVision(nn.Module):
    """A text model on attend beside a tower of PyTorch's own layers."""

    def __init__(self):
        super().__init__()
        _, self.text = both("bert")
        self.vision = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 16, batch_first=True), 2).eval()

    def forward(self, x, **given):
        return self.vision(x).sum() + self.text(**given).logits


STAYS = "vision.layers.0.self_attn: it is PyTorch's own layer, which attend.torch.replace"


@pytest.mark.parametrize("layers, words", [
    ("*", r"layer '\*' means attentions that do not come to attend; say others by name:\n  " + STAYS),
    ("vision*", r"layer 'vision\*' means attentions that do not come to attend; say others by name:\n  " + STAYS),
    ("vision.layers.0.self_attn", "layer 'vision.layers.0.self_attn' does not come to attend: it is PyTorch's own layer"),
    (("vision.layers.0.self_attn", 0), r"layer \('vision.layers.0.self_attn', 0\) does not come"),
    (["text*", "*.1.*"], r"layer '\*.1.\*' means attentions that do not come to attend; say others by name:\n  vision.layers.1"),
    (None, "attentions of this model do not come to attend; name those that are meant by layers=:"),
    ("sound*", r"layer 'sound\*' is not there"),
])
def test_a_layer_that_does_not_come_is_refused_with_its_reason(layers, words):
    """Or a star would touch the text alone, without a word."""
    model, ran = WithVision(), []
    model.register_forward_pre_hook(lambda *given: ran.append(given))
    blocks = [lambda: attend.hf.capture(model, layers=layers), lambda: attend.hf.head_importance(model, texts("bert"), layers=layers)]
    if layers is not None:
        several = layers if isinstance(layers, list) else [layers]
        blocks += [lambda: attend.hf.edit(model, {(x, 0): attend.zero for x in several}), lambda: attend.hf.capture(model, layers={x: 0 for x in several})]
    for block in blocks:
        with pytest.raises(ValueError, match=words):
            with block():
                pass
    assert not ran


def test_beside_attentions_that_do_not_come_those_that_do_are_chosen_by_name():
    model, x = WithVision(), torch.randn(1, 3, 16)
    for layers in ("text*", 1, {0: [1], 1: [2]}):
        with torch.no_grad(), attend.hf.capture(model, layers=layers) as run:
            model(x, **texts("bert"))
        assert {layer.name for layer in run.layers} <= {f"text.bert.encoder.layer.{n}.attention.self" for n in (0, 1)} and run.layers


def test_a_number_among_attentions_of_which_some_do_not_come_is_refused():
    _, model = both("bert")
    layers = model.bert.encoder.layer
    layers[0].attention.self.config = type(model.config)(**{**model.config.to_dict(), "attn_implementation": "eager"})
    assert len(attend.hf.check(model).stays) == 1
    with pytest.raises(ValueError, match="layer 0 counts attentions that do not come to attend; say others by name:\n  bert.encoder.layer.0"):
        attend.hf.capture(model, layers=0)


_TEXT = {"vocab_size": 37, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 36}
_BERT = {**_TEXT, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 24, "max_position_embeddings": 64}
BY_THEMSELVES = {  # the first two take Transformers' masks, the others make their own
    "mpt": lambda: t.MptConfig(**_TEXT, d_model=32, n_heads=4, n_layers=2, max_seq_len=32, expansion_ratio=1),
    "longformer": lambda: t.LongformerConfig(**_BERT, attention_window=4),
    "deberta": lambda: t.DebertaConfig(**_BERT),
    "deberta_v2": lambda: t.DebertaV2Config(**_BERT),
    "openai": lambda: t.OpenAIGPTConfig(vocab_size=37, n_embd=32, n_layer=2, n_head=4, n_positions=32),
    "xlm": lambda: t.XLMConfig(**{**_TEXT, "emb_dim": 32, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64}),
    "funnel": lambda: t.FunnelConfig(architectures=["FunnelModel"], vocab_size=37, block_sizes=[2], d_model=32, n_head=4, d_head=8, d_inner=24, pad_token_id=0),
}


@pytest.mark.parametrize("name", BY_THEMSELVES)
@pytest.mark.filterwarnings("ignore:attend.hf")  # that a test of its own asks for
def test_a_model_that_computes_all_by_itself_is_refused_by_everything_that_looks_or_changes(name):
    """Transformers takes the name for it, some without a word: what is asked of attend must not be nothing."""
    model = t.AutoModel.from_config(BY_THEMSELVES[name](), attn_implementation="attend").eval()
    given, ran = {"input_ids": torch.full((1, 8), 5)}, []
    model.register_forward_pre_hook(lambda *inputs: ran.append(inputs))
    kinds = "by itself, without Transformers' AttentionInterface|no softmax attention is found in its code"
    for block in (
        lambda: attend.hf.capture(model), lambda: attend.hf.capture(model, layers=0, heads=0), lambda: attend.hf.capture(model, layers="*"),
        lambda: attend.hf.edit(model, {(0, 0): attend.zero}), lambda: attend.hf.edit(model, {("*", 0): attend.zero}),
        lambda: attend.hf.head_importance(model, given), lambda: attend.hf.view(model, None, given), lambda: attend.view(model, None, given),
    ):
        with pytest.raises((ValueError, NotImplementedError), match=kinds):
            with block():
                pass
    assert not ran
    for block in (lambda: attend.hf.capture(), lambda: attend.hf.edit({("*", 0): attend.zero})):  # which model, is not known before
        with pytest.raises(RuntimeError, match="never called attend's attention.*attend.hf.check"):
            with block(), torch.no_grad():
                model(**given)
    assert len(ran) == 2

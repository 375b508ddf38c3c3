"""Does the page of a model hold what the model computed?"""
import re

import numpy as np
import pytest
import torch
import transformers as t
import words
from test_view import data_of, weights_of_page
from tiny import CLASSES, inputs, tiny, twins

import attend
import attend.hf
from attend.hf.observing import short_names

TEXT = "w5 w9 w3 w5 w9 w20 w31"
PARTS = {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}


def layers_of(view):
    return data_of(view)["runs"][0]["layers"]


def check_weights(view, attentions, batch=0):
    layers = layers_of(view)
    assert len(layers) == len(attentions)
    for layer, wanted in zip(layers, attentions):
        found = weights_of_page(layer)
        assert np.abs(found - wanted[batch].numpy()).max() < 1e-5


@pytest.mark.parametrize("name", [name for name in CLASSES if name not in ("t5", "whisper", "vit")])
def test_weights_are_the_models(name):
    """Windows, caps and sinks of every layer, and padding at either end."""
    model = tiny(name)
    check = {"use_cache": False} if name != "bert" else {}
    with torch.no_grad():
        given = words.word_level()(TEXT, return_tensors="pt")
        given.pop("token_type_ids", None)
        wanted = model(**given, output_attentions=True, **check).attentions
        check_weights(attend.view(model, words.word_level(), TEXT), wanted)
        for pad, batch in (("right", 1), ("left", 2)):
            given = {k: x for k, x in inputs(name, pad).items() if k != "labels"}
            wanted = model(**given, output_attentions=True, **check).attentions
            real = given["attention_mask"][batch].bool()
            view = attend.hf.view(model, words.word_level(), given, batch=batch)
            for layer, of_eager in zip(layers_of(view), wanted):
                difference = weights_of_page(layer) - of_eager[batch].numpy()
                assert np.abs(difference[:, real.numpy()]).max() < 1e-5  # rows of padding are nobody's concern


@pytest.mark.parametrize("part", PARTS)
def test_parts_of_an_encoder_decoder(part):
    model, tokenizer = tiny("t5"), words.word_level()
    view = attend.view(model, tokenizer, TEXT, target="w7 w8", part=part)
    with torch.no_grad():
        given = tokenizer(TEXT, return_tensors="pt").input_ids
        read = torch.tensor([[0, 7, 8]])
        wanted = model(input_ids=given, decoder_input_ids=read, output_attentions=True)[PARTS[part]]
    check_weights(view, wanted)
    run = data_of(view)["runs"][0]
    assert run["tokens"] == (TEXT.split() if part == "encoder" else ["<pad>", "w7", "w8"])
    assert run["key_tokens"] == (TEXT.split() if part == "cross" else None)


def test_the_attention_between_is_what_an_encoder_decoder_shows_first():
    view = attend.view(tiny("t5"), words.word_level(), TEXT, new_tokens=3)
    assert [(x["queries"], x["keys"]) for x in layers_of(view)] == [(4, 7)] * 2


def test_sound_has_no_tokens():
    given = inputs("whisper")
    given["decoder_input_ids"] = given.pop("labels").clamp_min(0)
    view = attend.view(tiny("whisper"), words.word_level(), given)
    run = data_of(view)["runs"][0]
    assert run["key_tokens"] == [str(n) for n in range(12)] and len(run["tokens"]) == 11


def test_a_decoder_with_queries_of_its_own():
    """DETR's is given no tokens. Its 5 queries look at the 16 places of a picture."""
    layers = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    backbone = t.ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], out_features=["stage2"])
    config = t.DetrConfig(backbone_config=backbone, d_model=32, encoder_ffn_dim=24, decoder_ffn_dim=24, num_queries=5, **layers)
    model, given = t.DetrModel._from_config(config, attn_implementation="eager").eval(), {"pixel_values": torch.randn(2, 3, 32, 32)}
    with torch.no_grad():
        wanted = model(**given, output_attentions=True)
    for part, name in ((None, "cross_attentions"), ("encoder", "encoder_attentions"), ("decoder", "decoder_attentions")):
        check_weights(attend.view(model, None, given, part=part), wanted[name])
    assert wanted.cross_attentions[0].shape == (2, 4, 5, 16)


def test_the_models_own_generation_does_not_matter():
    model = tiny("llama")
    wanted = data_of(attend.view(model, words.word_level(), TEXT, new_tokens=3))["runs"][0]["tokens"]
    model.generation_config.update(return_dict_in_generate=True, num_return_sequences=2, num_beams=2, do_sample=True)
    assert data_of(attend.view(model, words.word_level(), TEXT, new_tokens=3))["runs"][0]["tokens"] == wanted


def test_pictures_need_no_tokenizer():
    given = inputs("vit")
    model = tiny("vit")
    with torch.no_grad():
        wanted = model(**given, output_attentions=True).attentions
    check_weights(attend.view(model, None, given, batch=2), wanted, batch=2)


@pytest.mark.parametrize("name", ["gpt2", "mistral"])
def test_generated_tokens_are_shown(name):
    """A window of 4 and 10 new tokens: the cache has forgotten the first by then."""
    model, tokenizer = tiny(name), words.word_level()
    ids = tokenizer(TEXT, return_tensors="pt").input_ids
    wanted = model.generate(ids, max_new_tokens=10, do_sample=False, eos_token_id=None)
    model.generation_config.eos_token_id = None
    view = attend.view(model, tokenizer, TEXT, new_tokens=10)
    assert data_of(view)["runs"][0]["tokens"] == tokenizer.convert_ids_to_tokens(wanted[0])
    with torch.no_grad():
        check_weights(view, model(wanted, output_attentions=True).attentions)


def test_the_model_is_as_it_was():
    model = tiny("gemma2").train()
    model.model.layers[1].eval()
    modes = [m.training for m in model.modules()]
    attend.view(model, words.word_level(), TEXT)
    assert model.config._attn_implementation == "eager" and [m.training for m in model.modules()] == modes
    with pytest.raises(ValueError, match="part 'cross' is not there"):
        attend.view(model, words.word_level(), TEXT, part="cross")
    assert model.config._attn_implementation == "eager" and [m.training for m in model.modules()] == modes


def test_chosen_layers_and_arguments_of_the_page():
    _, model = twins("llama")
    view = attend.view(model, words.word_level(), TEXT, layers="*layers.1.*", title="one layer", language="zh")
    data = data_of(view)
    assert data["title"] == "one layer" and data["language"] == "zh" and len(data["runs"][0]["layers"]) == 1
    assert data_of(attend.view(model, words.word_level(), TEXT))["title"] == "LlamaForCausalLM"


def test_names_of_layers():
    assert [x["name"] for x in layers_of(attend.view(tiny("llama"), words.word_level(), TEXT))] == ["layers.0", "layers.1"]
    assert short_names(["a.h.0.x", "a.h.10.x"]) == ["h.0", "h.10"]
    assert short_names(["a.x", "a.x (call 1)"]) == ["a.x", "a.x (call 1)"]
    assert short_names(["vision.0", "text.0"]) == ["vision.0", "text.0"]
    assert short_names(["a.b.0.attn"]) == ["a.b.0.attn"]


def test_a_layer_that_is_called_more_than_once():
    import transformers as t

    config = t.AlbertConfig(vocab_size=37, hidden_size=32, embedding_size=8, num_hidden_layers=3, num_attention_heads=4,
                            intermediate_size=24, max_position_embeddings=64)
    model = t.AlbertModel._from_config(config, attn_implementation="eager").eval()
    ids = words.word_level()(TEXT, return_tensors="pt").input_ids
    view = attend.view(model, words.word_level(), TEXT)
    assert [x["name"].rpartition("attention")[2] for x in layers_of(view)] == ["", " (call 1)", " (call 2)"]
    with torch.no_grad():
        check_weights(view, model(ids, output_attentions=True).attentions)


class OwnAttention(torch.nn.Module):
    """As many models have it: without Transformers' interface."""

    def __init__(self):
        super().__init__()
        self.query = torch.nn.Linear(32, 32)

    def forward(self, x, **more):
        return torch.softmax(self.query(x) @ x.transpose(1, 2), -1) @ x, None


def test_a_model_with_other_attention_is_refused():
    model = tiny("llama")
    model.model.layers[1].self_attn = OwnAttention()
    with pytest.raises(NotImplementedError, match=r"layers\.1\.self_attn: its code computes the attention by itself"):
        attend.view(model, words.word_level(), TEXT)


def test_a_layer_that_never_calls_is_an_error():
    model = tiny("llama")
    model.model.layers[1].forward = lambda hidden_states, **_: hidden_states  # as an early exit does
    with pytest.raises(RuntimeError, match=r"view: 'model.layers.1.self_attn' never called attend's attention|view: model.layers.1"):
        attend.view(model, words.word_level(), TEXT)
    view = attend.view(model, words.word_level(), TEXT, layers="*.0.*")
    assert len(layers_of(view)) == 1 and model.config._attn_implementation == "eager"


def test_inputs_may_say_use_cache_themselves():
    given = {"input_ids": torch.tensor([[5, 9, 3]]), "use_cache": False}
    model = tiny("llama")
    assert len(layers_of(attend.view(model, None, given))) == 2
    assert len(layers_of(attend.view(model, None, given | {"use_cache": True}, new_tokens=2))) == 2


REFUSED = {
    "no_text": ("llama", {"text": 5}, TypeError, "text is a str"),
    "empty": ("llama", {"text": ""}, ValueError, "no tokens"),
    "no_tokenizer": ("llama", {"tokenizer": None}, TypeError, "tokenizer, found NoneType"),
    "too_long": ("bert", {"text": "w5 " * 65}, ValueError, "65 tokens; BertForMaskedLM takes 64"),
    "too_long_as_numbers": ("gpt2", {"text": {"input_ids": torch.ones(1, 65, dtype=torch.int64)}}, ValueError, "input_ids has 65 tokens; GPT2LMHeadModel"),
    "too_many_new": ("gpt2", {"text": "w5 " * 60, "new_tokens": 5}, ValueError, "new_tokens is 5, .* 65 tokens; GPT2LMHeadModel takes 64"),
    "too_many_new_of_a_decoder": ("whisper", {"text": {"input_features": torch.zeros(1, 8, 24)}, "new_tokens": 64}, ValueError, "65 tokens; Whisper.* takes 64"),
    "no_generation": ("bert", {"new_tokens": 3}, ValueError, "BertForMaskedLM does not generate"),
    "negative": ("llama", {"new_tokens": -1}, ValueError, "new_tokens is -1"),
    "target_of_a_decoder": ("llama", {"target": "w5"}, ValueError, "has no encoder"),
    "nothing_to_decode": ("t5", {}, ValueError, "say what the decoder reads"),
    "both": ("t5", {"target": "w5", "new_tokens": 3}, ValueError, "target and new_tokens both"),
    "part": ("t5", {"new_tokens": 3, "part": "middle"}, ValueError, "'middle' is not there; the parts are 'encoder', 'decoder', 'cross'"),
    "batch": ("llama", {"batch": "1"}, TypeError, "batch is '1'; it is the number of the sequence"),
    "batch_of_a_text": ("llama", {"batch": 1}, ValueError, "no batch element 1; input_ids have 1"),
    "no_sequence": ("llama", {"batch": True}, TypeError, "batch is True"),
    "layer": ("llama", {"layers": "h.5"}, ValueError, "layer 'h.5' is not there"),
    "numbers_in_a_list": ("llama", {"text": {"input_ids": [[5, 6]]}}, ValueError, r"input_ids take a tensor \[batch, tokens\], found list"),
    "one_dimension": ("llama", {"text": {"input_ids": torch.tensor([5, 6])}}, ValueError, r"input_ids take a tensor \[batch, tokens\], found \[2\]"),
    "another_models_tokenizer": ("llama", {"tokenizer": words.utf8()}, ValueError, "there is a token 122, and LlamaForCausalLM knows 37"),
    "tokens": ("llama", {"tokens": ["a"]}, TypeError, "tokens does not go with a model"),
    "option": ("llama", {"causal": True}, TypeError, "causal does not go with a model"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    name, given, error, words_of_it = REFUSED[case]
    given = {"tokenizer": words.word_level(), "text": TEXT, **given}
    with pytest.raises(error, match=words_of_it):
        attend.view(tiny(name), given.pop("tokenizer"), given.pop("text"), **given)


@pytest.mark.parametrize("shape", [(2, 7, 7), (1, 7), (3, 7), (7,), (2, 6)])
def test_a_mask_of_another_shape_is_refused(shape):
    given = {"input_ids": torch.ones(2, 7, dtype=torch.int64), "attention_mask": torch.ones(shape, dtype=torch.int64)}
    with pytest.raises(ValueError, match=re.escape(f"the attention_mask is {list(shape)} and input_ids [2, 7]; a mask has")):
        attend.view(tiny("gpt2"), None, given)


def test_what_is_refused_is_refused_before_the_model_runs(monkeypatch):
    model = tiny("t5")
    monkeypatch.setattr(model, "forward", lambda **_: pytest.fail("it ran"))
    for given in ({"part": "middle"}, {"layers": "h.5"}, {"new_tokens": -1}):
        with pytest.raises(ValueError):
            attend.view(model, words.word_level(), TEXT, **({"new_tokens": 2} | given))
    for shape, batch, told in (((1, 0), 0, r"are \[1, 0\], which holds no tokens"), ((2, 3), 2, "no batch element 2; input_ids have 2")):
        with pytest.raises(ValueError, match=told):
            attend.view(model, None, {"input_ids": torch.ones(shape, dtype=torch.int64)}, batch=batch, new_tokens=2)


def test_layers_of_another_part():
    with pytest.raises(ValueError, match="none of the layers that were chosen is of part 'decoder'"):
        attend.view(tiny("t5"), words.word_level(), TEXT, new_tokens=2, part="decoder", layers="encoder*")


def test_positions_that_begin_after_that_of_padding():
    import transformers as t

    config = t.RobertaConfig(vocab_size=37, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=24,
                             max_position_embeddings=64, pad_token_id=1)
    model = t.RobertaModel._from_config(config).eval()
    assert layers_of(attend.view(model, words.word_level(), "w5 " * 62))[0]["keys"] == 62
    with pytest.raises(ValueError, match="the text has 63 tokens; RobertaModel takes 62"):
        attend.view(model, words.word_level(), "w5 " * 63)


def test_a_module_that_is_no_model():
    with pytest.raises(TypeError, match="Linear is no model of Transformers"):
        attend.view(torch.nn.Linear(2, 2), words.word_level(), TEXT)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_values_are_weighed_by_what_the_output_takes_of_them(name):
    _, model = twins(name)
    with torch.no_grad(), attend.hf.capture(model, what=("qkv",)) as run:
        model(**words.word_level()(TEXT, return_tensors="pt", return_token_type_ids=False))
    for layer, found in zip(run.layers, layers_of(attend.view(model, words.word_level(), TEXT))):
        v = run[layer].values()[0].float()
        np.testing.assert_allclose(found["value_norm"].repeat(len(v) // len(found["value_norm"]), 0), v.norm(dim=-1), rtol=1e-4)
        projection = attend.torch.output_projection(model, layer)
        w = projection.weight if name == "gpt2" else projection.weight.t()
        wanted = (v @ w.detach().float().unflatten(0, (len(v), -1))).norm(dim=-1)
        np.testing.assert_allclose(found["output_norm"], wanted, rtol=1e-4)


def test_progress_and_page_bytes_go_through():
    told = []
    view = attend.view(tiny("llama"), words.word_level(), TEXT, page_bytes=1 << 20, progress=lambda *x: told.append(x))
    assert len(view.html.encode()) <= 1 << 20 and told[-1][0] == told[-1][1] > len(told)
    with pytest.raises(TypeError, match="w_o does not go with a model"):
        attend.view(tiny("llama"), words.word_level(), TEXT, w_o=np.zeros((2, 2), "f4"))

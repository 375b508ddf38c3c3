"""Head importance, attention rollout and value-weighted weights, against the same in a few plain lines."""
import pytest
import torch

import attend
import attend.hf
import attend.torch
from eager import HEADS, LAYERS, MODELS, WIDTH, attentions, both, changed, checkpointing, matrix, texts


@pytest.mark.parametrize("name", MODELS)
def test_head_importance(name):
    eager, model = both(name)
    layer, call = LAYERS[name][0], 2 if name == "albert" else 0
    batches = [texts(name), texts(name, batch=1)]
    wanted = torch.zeros(HEADS)
    for given in batches:
        gates = torch.ones(HEADS, requires_grad=True)
        with changed(eager, name, lambda heads, values: heads * gates.view(1, 1, -1, 1), call):
            wanted += torch.autograd.grad(eager(**given).loss, gates)[0].abs() / 2
    found = attend.hf.head_importance(model, batches)
    torch.testing.assert_close(found[(layer, call)], wanted, rtol=1e-3, atol=1e-6)
    assert len(found) == (6 if name == "t5" else 3 if name == "albert" else 2)
    assert all(p.grad is None for p in model.parameters())
    one = attend.hf.head_importance(model, batches[0], layers=(layer, call), loss=lambda result: result.logits.square().mean())
    assert list(one) == [(layer, call)] and one[(layer, call)].min() > 0


def test_head_importance_needs_a_loss():
    _, model = both("bert")
    with pytest.raises(ValueError, match="the model gave no loss"):
        attend.hf.head_importance(model, {"input_ids": torch.tensor([[3, 4]])})
    with pytest.raises(ValueError, match="there are no inputs"):
        attend.hf.head_importance(model, [])


def test_head_importance_of_what_is_computed_again():
    """Or is not recorded at all: then the importance is not 0."""
    _, model = both("llama")
    given = texts("llama")
    wanted = attend.hf.head_importance(model, given)
    model.train()
    checkpointing(model, reentrant=False)
    found = attend.hf.head_importance(model, given)
    assert found.keys() == wanted.keys() and all(torch.equal(found[layer], wanted[layer]) for layer in wanted)
    checkpointing(model, reentrant=True)
    with pytest.raises(RuntimeError, match="head_importance: model.layers.0.self_attn runs without gradients.*use_reentrant=True"):
        attend.hf.head_importance(model, given)
    model.eval()  # which computes nothing again
    layer = model.model.layers[0]
    layer.forward = torch.no_grad()(layer.forward)
    with pytest.raises(RuntimeError, match="model.layers.0.self_attn runs without gradients, under torch.no_grad"):
        attend.hf.head_importance(model, given)
    (found,) = attend.hf.head_importance(model, given, layers=1).values()
    assert torch.equal(found, wanted["model.layers.1.self_attn", 0])


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "albert"])
def test_rollout(name):
    eager, model = both(name)
    given = texts(name)
    with torch.no_grad(), attend.hf.capture(model) as run:
        model(**given)
        wanted = torch.eye(7).expand(2, 7, 7)
        for weights in attentions(eager(**given, output_attentions=True)):
            wanted = (0.3 * torch.eye(7) + 0.7 * weights.mean(1)) @ wanted
    torch.testing.assert_close(attend.torch.attention_rollout(run, residual=0.3), wanted, atol=1e-5, rtol=0)
    torch.testing.assert_close(
        attend.torch.attention_rollout([run[layer].weights for layer in run.layers], residual=0.3), wanted, atol=1e-5, rtol=0)


def test_rollout_of_an_encoder_decoder():
    eager, model = both("t5")
    given = texts("t5")
    with torch.no_grad(), attend.hf.capture(model) as run:
        model(**given)
        first, second = eager(**given, output_attentions=True).encoder_attentions
    with pytest.raises(ValueError, match="of another size than those before"):
        attend.torch.attention_rollout(run)
    found = attend.torch.attention_rollout(run, layers=["encoder.block.0.*", "encoder.block.1.*"], residual=0)
    torch.testing.assert_close(found, second.mean(1) @ first.mean(1), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_value_weighted(name):
    eager, model = both(name)
    layer, projection, _ = LAYERS[name]
    given, seen = texts(name), []

    def look(heads, values):
        seen.append(values)
        return heads

    with torch.no_grad(), changed(eager, name, look):
        weights = attentions(eager(**given, output_attentions=True))
        with attend.hf.capture(model, layers=(layer, 0), heads=[1, 3], what=("weights", "qkv")) as run:
            model(**given)
    place = {"albert": 0, "t5": 5}.get(name, 1)
    w = matrix(eager.get_submodule(projection)).detach().view(HEADS, WIDTH, -1)
    terms = torch.einsum("bhij,bjhd,hdm->bhijm", weights[place], seen[0], w)  # p v W^O, all of them
    found = attend.torch.value_weighted(run[layer], attend.torch.output_projection(model, run.layers[0]))
    torch.testing.assert_close(found, terms.norm(dim=-1)[:, [1, 3]], atol=1e-4, rtol=1e-4)
    assert torch.equal(found, attend.torch.value_weighted(run[layer], matrix(eager.get_submodule(projection))))


def test_value_weighted_says_what_is_missing():
    _, model = both("bert")
    with torch.no_grad(), attend.hf.capture(model, layers=0) as run:
        model(**texts("bert"))
    with pytest.raises(LookupError, match="v of bert.*were not captured"):
        attend.torch.value_weighted(run[0], torch.ones(32, 32))
    with torch.no_grad(), attend.hf.capture(model, layers=0, what=("weights", "qkv")) as run:
        model(**texts("bert"))
    with pytest.raises(ValueError, match=r"W\^O is \[30, 32\]"):
        attend.torch.value_weighted(run[0], torch.ones(30, 32))
    with pytest.raises(LookupError, match="none is found"):
        attend.torch.output_projection(model, "bert.embeddings.LayerNorm")


def test_output_projections_by_their_names():
    import transformers as t

    sizes = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=24, vocab_size=37)
    distil = t.DistilBertConfig(vocab_size=37, dim=32, hidden_dim=24, n_layers=1, n_heads=4)
    modern = t.ModernBertConfig(**sizes, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)
    for config, name in ((distil, "out_lin"), (modern, "Wo")):
        model = t.AutoModel.from_config(config, attn_implementation="attend")
        (layer,) = attend.hf.check(model).comes
        assert attend.torch.output_projection(model, layer) is model.get_submodule(f"{layer}.{name}")

    class Attention(torch.nn.Module):
        """As in diffusers."""

        def __init__(self):
            super().__init__()
            self.to_q = torch.nn.Linear(8, 8)
            self.to_out = torch.nn.ModuleList([torch.nn.Linear(8, 8), torch.nn.Dropout()])

    model = torch.nn.ModuleDict({"attn1": Attention()})
    assert attend.torch.output_projection(model, "attn1") is model["attn1"].to_out[0]

"""capture(): the weights, statistics, q, k and v of chosen layers and heads are those of the model's own run."""
import threading

import pytest
import torch

import attend
import attend.hf
import attend.torch
from attend.torch import contexts
from eager import HEADS, LAYERS, MODELS, attentions, both, checkpointing, texts
from peak import peak_of
from tiny import tiny


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_eagers_and_the_model_does_not_notice(name):
    eager, model = both(name)
    given = texts(name)
    with torch.no_grad():
        wanted = attentions(eager(**given, output_attentions=True))
        plain = model(**given).logits
        with attend.hf.capture(model) as run:
            assert torch.equal(model(**given).logits, plain)
    assert len(run.layers) == len(wanted) == (6 if name == "t5" else 3 if name == "albert" else 2)
    for layer, weights in zip(run.layers, wanted):
        assert run[layer].heads == tuple(range(HEADS))
        torch.testing.assert_close(run[layer].weights, weights, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("grad", [False, True])
def test_chosen_heads_alone_have_the_bits_they_have_among_all(name, grad):
    _, model = both(name)
    given, layer = texts(name), LAYERS[name][0]
    with torch.set_grad_enabled(grad):
        with attend.hf.capture(model, layers=(layer, 0)) as every:
            model(**given)
        with attend.hf.capture(model, layers=[(layer, 0)], heads=[3, 1], what=("weights", "qkv", "out")) as some:
            model(**given)
    found, all_heads = some[layer], every[layer]
    assert some.layers == every.layers == [(layer, 0)]
    assert found.weights.shape[1] == 2 and torch.equal(found.weights, all_heads.weights[:, [3, 1]])
    assert not found.weights.requires_grad
    assert torch.allclose(found.weights @ found.values(), found.out, atol=1e-5)
    assert torch.equal(found.mean, all_heads.mean[[3, 1]])
    assert found.q.shape[1] == 2 and found.k.shape[1] == len(found.key_heads)


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_each_step_of_generate(name):
    eager, model = both(name)
    given = {k: x for k, x in texts(name, batch=1).items() if k != "labels"}
    new = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    wanted = eager.generate(**given, **new, output_attentions=True, return_dict_in_generate=True)
    with attend.hf.capture(model, what=("weights", "qkv")) as run:
        tokens = model.generate(**given, **new)
    assert torch.equal(tokens, wanted.sequences)
    steps = run.steps if name != "t5" else run.steps[1:]  # the encoder's comes first
    of_steps = wanted.attentions if name != "t5" else wanted.decoder_attentions
    layer = [x for x in run.layers if "decoder" in x.name or name != "t5"][0]
    assert len(steps) == len(of_steps) == 4
    for step, weights in zip(steps, of_steps):
        torch.testing.assert_close(step[layer].weights, weights[0], atol=1e-5, rtol=0)
    lengths = [x.k.size(2) for x in run.all(layer)]  # a cache that grows leaves what was captured as it was
    assert lengths == list(range(lengths[0], lengths[0] + 4))


def test_a_static_cache_does_not_change_what_was_captured():
    _, model = both("llama")
    given = {k: x for k, x in texts("llama", batch=1).items() if k != "labels"}
    with attend.hf.capture(model, layers=0, heads=2, what="qkv") as run:
        model.generate(**given, max_new_tokens=3, min_new_tokens=3, do_sample=False, cache_implementation="static")
    first, last = run.all(0)[0], run.all(0)[-1]
    assert first.k[:, :, 7:9].abs().max() == 0 and last.k[:, :, 7:9].abs().max() > 0


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_statistics_are_those_of_inspect(name):
    _, model = both(name)
    given = texts(name)
    given["attention_mask"][1, 5:] = 0
    with torch.no_grad(), attend.hf.capture(
        model, layers=1, heads=[2, 0], what=("stats", "weights"), inspect={"top_k": 1}
    ) as run:
        model(**given)
    found = run[1]
    assert [h.head for h in found.stats.heads[:2]] == [2, 0]
    rows = found.weights.double()
    entropy = -(rows * rows.clamp_min(1e-300).log()).sum(-1)
    torch.testing.assert_close(found.stats.entropy.double(), entropy, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.stats.maximum, found.weights.amax(-1), atol=1e-6, rtol=0)
    assert torch.equal(found.stats.top_keys[..., 0], found.weights.argmax(-1))


@pytest.mark.parametrize("grad", [False, True])
def test_the_weights_of_one_head_take_the_memory_of_one_head(grad):
    """At the worst moment, 4 MiB for each of 16 heads; with gradients they are of a pass of their own over this head."""
    model = tiny("llama", num_attention_heads=16, num_key_value_heads=8, hidden_size=64, head_dim=4, max_position_embeddings=1024, num_hidden_layers=1)
    model.set_attn_implementation("attend")
    tokens = torch.randint(2, 36, (1, 1024))

    def work(heads):
        with torch.set_grad_enabled(grad), attend.hf.capture(model.model, layers=0, heads=heads) as run:
            return model.model(tokens), run

    def anew():
        contexts._current = None  # it keeps memory of calls before

    one, every = (peak_of(lambda: work(heads), anew) for heads in (5, None))
    assert one < 16 and every > 56


def test_what_was_captured_is_kept_in_a_file(tmp_path):
    """torch.load() takes it back without a word of trust (weights_only), and it is as good as new; of it the file has these heads alone."""
    _, model = both("llama")
    given, file = texts("llama"), tmp_path / "run.pt"
    with attend.hf.capture(model, heads=[2], what=("weights", "stats", "qkv", "out"), inspect={"top_k": 2}) as run:
        model(**given)
    torch.save(run, file)
    back = torch.load(file, weights_only=True)
    assert back.layers == run.layers and repr(back) == repr(run)
    for layer in run.layers:
        for name, x in vars(run[layer]).items():
            found = getattr(back[layer], name)
            assert torch.equal(found, x) if isinstance(x, torch.Tensor) else name == "stats" or found == x
            assert not isinstance(x, torch.Tensor) or x.untyped_storage().nbytes() == x.nbytes
        assert torch.equal(torch.as_tensor(back[layer].stats.top_keys), torch.as_tensor(run[layer].stats.top_keys))
        assert [h.label for h in back[layer].stats.heads] == [h.label for h in run[layer].stats.heads]
    with torch.no_grad(), attend.hf.edit(model, {(1, 2): attend.pattern_of(back), (0, 2): attend.mean_of(back)}):
        model(**given)
    torch.save(run[0].weights, file)
    assert torch.equal(torch.load(file, weights_only=True), run[0].weights) and file.stat().st_size < run[0].weights.nbytes + 4096


def test_names_without_a_model_are_those_inside_of_what_is_called():
    _, model = both("bert")
    with torch.no_grad(), attend.hf.capture(layers="bert.encoder.layer.0.*", heads=[1]) as run:
        model(**texts("bert"))
    assert run.layers == [("bert.encoder.layer.0.attention.self", 0)]
    with torch.no_grad(), attend.hf.capture() as run:
        model(**texts("bert"))
        model(**texts("bert"))
    assert len(run.steps) == 2 and len(run.layers) == 2
    with pytest.raises(LookupError, match="2 forward passes"):
        run[0]


def test_heads_of_each_layer():
    _, model = both("gpt2")
    with attend.hf.capture(model, layers={0: [1], "transformer.h.1.attn": None}) as run:
        model(**texts("gpt2"))
    assert run[0].heads == (1,) and run[1].heads == (0, 1, 2, 3)
    assert run[("transformer.h.1.attn", 0)].weights.shape == (2, 4, 7, 7)


def test_what_is_not_there_is_said_before_anything_runs():
    _, model = both("t5")
    cross = LAYERS["t5"][0]

    def refuses(error, words, *arguments, **options):
        with pytest.raises(error, match=words):
            attend.hf.capture(*arguments, **options)

    refuses(ValueError, r"layer 'encoder.block.7' is not there; the attentions are encoder.block.0", model, layers="encoder.block.7")
    refuses(ValueError, r"layer 0 may be any of 3 kinds, decoder.block.*say it by name", model, layers=0)
    refuses(ValueError, r"head 4 is not there; decoder.*EncDecAttention has 4 heads", model, layers=cross, heads=4)
    refuses(ValueError, "head -1 is not there", model, heads=-1)
    refuses(ValueError, "heads holds 2 twice", model, heads=[2, 1, 2])
    refuses(ValueError, "heads is empty", model, heads=[])
    refuses(ValueError, "layers is empty", model, layers=[])
    refuses(ValueError, "what is 'weight'; it is 'weights', 'stats'", model, what="weight")
    refuses(ValueError, "what has no 'stats'", model, inspect={"top_k": 1})
    refuses(ValueError, "layer 2 is not there; the model has 2 attentions", both("bert")[1], layers=2)
    refuses(TypeError, "a layer is a name, a pair", model, layers=[(0, 1, 2)])
    refuses(TypeError, "model takes an nn.Module, found str", "bert")
    refuses(ValueError, "do not come to attend.*\n.*its config asks for 'eager'", both("bert")[0])


def test_a_number_of_a_module_that_is_called_often_is_refused():
    _, model = both("albert")
    with pytest.raises(ValueError, match=r"layer 0 may be any of several calls of albert.*say \('albert.*', call\)"):
        with attend.hf.capture(model, layers=0):
            model(**texts("albert"))


def test_a_layer_that_never_calls_is_an_error():
    _, model = both("t5")
    with pytest.raises(RuntimeError, match="EncDecAttention' never called attend's attention in this block, where 1 forward pass"):
        with attend.hf.capture(model, layers=LAYERS["t5"][0]):
            model.encoder(input_ids=torch.tensor([[3, 4]]))
    with pytest.raises(RuntimeError, match="nothing came to attend"):
        with attend.hf.capture():
            pass
    with pytest.raises(RuntimeError, match=r"\('albert.*', 5\) never called"):
        _, model = both("albert")
        with attend.hf.capture(model, layers=(LAYERS["albert"][0], 5)):
            model(**texts("albert"))


@pytest.mark.parametrize("layers", ["*", ["encoder.*", "decoder.block.?.layer.1.*"]])
def test_a_name_with_a_star_wants_every_layer_it_means(layers):
    _, model = both("t5")
    with pytest.raises(RuntimeError, match="capture: 'decoder.block.0.*EncDecAttention' never called attend's attention"):
        with attend.hf.capture(model, layers=layers):
            model.encoder(input_ids=torch.tensor([[3, 4]]))
    with pytest.raises(RuntimeError, match="edit: 'decoder.*' never called"):
        with attend.hf.edit(model, {("*", 0): attend.zero}):
            model.encoder(input_ids=torch.tensor([[3, 4]]))
    with attend.hf.capture(model, layers=layers) as run:
        model(**texts("t5"))
    assert len(run.layers) == (6 if layers == "*" else 4)


def test_a_name_that_may_be_any_of_several_calls():
    _, model = both("albert")
    with attend.hf.capture(model) as run:
        model(**texts("albert"))
    name = LAYERS["albert"][0]
    for call in (lambda: run[name], lambda: run.all(name), lambda: run.mean(name, 0)):
        with pytest.raises(LookupError, match=r"may be any of several, say \(name, call\): albert.*, albert.* \(call 1\)"):
            call()
    assert len(run.all((name, 1))) == 1


def test_an_error_inside_is_the_one_that_comes_out():
    _, model = both("bert")
    with pytest.raises(ZeroDivisionError):
        with attend.hf.capture(model):
            1 / 0
    with attend.hf.capture(model) as run:  # and nothing is left behind
        model(**texts("bert"))
    assert len(run.steps) == 1


def test_blocks_inside_of_each_other_and_other_threads():
    _, model = both("bert")
    given = texts("bert")
    with torch.no_grad(), attend.hf.capture(model, heads=[0]) as outer:
        with attend.hf.capture(model, layers=1, heads=[3]) as inner:
            model(**given)
        other = threading.Thread(target=lambda: model(**given))
        other.start()
        other.join()
    assert len(outer.steps) == len(inner.steps) == 1
    assert outer[1].heads == (0,) and inner[1].heads == (3,) and len(inner.layers) == 1


def test_weights_for_others_are_still_handed_out():
    eager, model = both("bert")
    given = texts("bert")
    with torch.no_grad(), attend.hf.capture(model, layers=0, heads=[2]) as run:
        found = model(**given, output_attentions=True).attentions
    assert found[0].shape == (2, 4, 7, 7) and torch.equal(run[0].weights[:, 0], found[0][:, 2])


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_counts_once(reentrant):
    _, model = both("llama")
    model.train()
    checkpointing(model, reentrant)
    with attend.hf.capture(model) as run:
        model(**texts("llama")).loss.backward()
    assert len(run.steps) == 1 and len(run.layers) == 2


def test_compiled_models_are_refused():
    _, model = both("bert")
    compiled = torch.compile(model, backend="eager")
    with pytest.raises(NotImplementedError, match="capture: .* is compiled.*do not work inside torch.compile"):
        attend.torch.capture(compiled)
    with pytest.raises(NotImplementedError, match="edit: .* is compiled"):
        attend.torch.edit(compiled, {(0, 0): attend.zero})

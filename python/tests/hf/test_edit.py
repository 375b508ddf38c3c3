"""edit(): a head that is ablated, gives its mean, or weighs as in another run, against hooks on eager attention."""
import contextlib

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import attend
import attend.hf
import attend.torch
from eager import HEADS, LAYERS, MODELS, both, changed, checkpointing, texts
from tiny import error, inputs


def gradients(model, loss):
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    found = torch.autograd.grad(loss, [p for _, p in named], allow_unused=True)
    return {name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(named, found)}


def agree(eager, model, given, change, edits, call=0):
    name = next(key for key, value in LAYERS.items() if value[0] in dict(model.named_modules()))
    with changed(eager, name, change, call):
        wanted = eager(**given)
        of_eager = gradients(eager, wanted.loss)
    plain = model(**given)
    with attend.hf.edit(model, edits):
        found = model(**given)
    of_model = gradients(model, found.loss)  # after the block: it is bound to the forward pass
    assert error(found.logits, wanted.logits) < 1e-5
    assert error(plain.logits, wanted.logits) > 1e-3  # else the edit would prove nothing
    for key, gradient in of_eager.items():
        assert error(of_model[key], gradient) < 1e-4, key


@pytest.mark.parametrize("name", MODELS)
def test_zero(name):
    eager, model = both(name)
    layer, call = LAYERS[name][0], 1 if name == "albert" else 0

    def without(heads, values):
        heads = heads.clone()
        heads[:, :, [0, 2]] = 0
        return heads

    edits = {((layer, call), 2): attend.zero, ((layer, call), 0): attend.zero}
    agree(eager, model, texts(name), without, edits, call)


@pytest.mark.parametrize("name", MODELS)
def test_mean_of_another_run(name):
    eager, model = both(name)
    layer = LAYERS[name][0]
    seen = []

    def look(heads, values):
        seen.append(heads[:, :, 1].detach().mean((0, 1)))
        return heads

    other = texts(name, batch=3)
    with torch.no_grad(), changed(eager, name, look), attend.hf.capture(model, layers=(layer, 0), what="out") as run:
        eager(**other)
        model(**other)

    def mean(heads, values):
        heads = heads.clone()
        heads[:, :, 1] = seen[0]
        return heads

    agree(eager, model, texts(name), mean, {((layer, 0), 1): attend.mean_of(run)})


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("source", ["run", "array", "numpy"])
def test_pattern(name, source):
    eager, model = both(name)
    layer = LAYERS[name][0]
    with torch.no_grad(), attend.hf.capture(model, layers=(layer, 0), heads=[3]) as run:
        model(**texts(name))
    pattern = run[layer].weights[:, 0]

    def patched(heads, values):
        return torch.cat([heads[:, :, :3], (pattern @ values[:, :, 3]).unsqueeze(2)], 2)

    what = {"run": attend.pattern_of(run), "array": pattern, "numpy": pattern.numpy()}[source]
    agree(eager, model, texts(name), patched, {((layer, 0), 3): what})


def test_captures_see_what_was_edited():
    _, model = both("bert")
    uniform = torch.full((7, 7), 1 / 7)
    with torch.no_grad(), attend.hf.edit(model, {(1, 2): uniform, (1, 0): attend.zero}):
        with attend.hf.capture(model, layers=1, what=("weights", "out")) as run:
            recorded = model(**texts("bert"), output_attentions=True).attentions[1]
    assert torch.equal(run[1].weights[:, 2], uniform.expand(2, 7, 7)) and torch.equal(recorded, run[1].weights)
    assert run[1].out[:, 0].abs().max() == 0 and run[1].mean[0].abs().max() == 0


def test_a_run_patched_with_its_own_patterns_is_itself():
    _, model = both("gpt2")
    given = {k: x for k, x in texts("gpt2", batch=1).items() if k != "labels"}
    new = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    with attend.hf.capture(model) as run:
        plain = model.generate(**given, **new)
    everything = {(layer, None): attend.pattern_of(run) for layer in range(2)}
    with attend.hf.edit({("transformer.h.*.attn", h): attend.pattern_of(run) for h in range(HEADS)}):
        named = model.generate(**given, **new)
    with attend.hf.edit(model, everything):
        patched = model.generate(**given, **new)
    for a, b, c in zip(plain.logits, patched.logits, named.logits):
        assert error(b, a) < 1e-5 and torch.equal(b, c)


@pytest.mark.parametrize("name, cross", [("t5", "decoder.*EncDecAttention"), ("whisper", "model.decoder.*encoder_attn")])
def test_a_pass_is_given_the_patterns_of_the_same_pass(name, cross):
    """The encoder's is a pass too, in which no layer of the capture calls."""
    _, model = both(name)
    given = {k: x[:1] for k, x in inputs(name).items() if k in ("input_ids", "input_features")}
    new = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    with attend.hf.capture(model, layers=cross) as run:
        plain = model.generate(**given, **new)
    with attend.hf.edit(model, {(cross, None): attend.pattern_of(run)}):
        patched = model.generate(**given, **new | {"max_new_tokens": 3, "min_new_tokens": 3})
    for a, b in zip(plain.logits[:3], patched.logits, strict=True):
        assert error(b, a) < 1e-5
    assert [step.number for step in run.steps] == [1, 2, 3, 4]
    with pytest.raises(LookupError, match="of forward pass 5 the run has no .*; it has those of the passes 1, 2, 3, 4"):
        with attend.hf.edit(model, {(cross, None): attend.pattern_of(run)}):
            model.generate(**given, **new | {"max_new_tokens": 5, "min_new_tokens": 5})


def checkpoint_functions(model):
    """{module: the function that it is checkpointed by}"""
    return {name: vars(m)["_gradient_checkpointing_func"] for name, m in model.named_modules() if "_gradient_checkpointing_func" in vars(m)}


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_checkpointing_computes_with_the_edits_of_the_forward_pass(name, reentrant):
    _, model = both(name)
    model.train()
    layer = LAYERS[name][0]
    edits = {(layer, 1): attend.zero, (layer, 2): torch.full((7, 7), 1 / 7)}
    given = texts(name)
    results = []
    for checkpointed in (False, True):
        torch.manual_seed(3)
        if checkpointed:
            checkpointing(model, reentrant)
        before = checkpoint_functions(model)
        with attend.hf.edit(model, edits):
            loss = model(**given).loss
            inside = checkpoint_functions(model)
        assert bool(before) == checkpointed and before.keys() == inside.keys()
        assert any(inside[key] is not before[key] for key in before) == checkpointed  # else it is not edit() that is put back
        assert all(function is before[key] for key, function in checkpoint_functions(model).items())
        model.zero_grad()
        loss.backward()  # after the block
        results.append({key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None})
    assert results[0].keys() == results[1].keys()
    for key, gradient in results[0].items():
        assert error(results[1][key], gradient) < 1e-6, key


def test_mistakes_are_said():
    _, model = both("bert")
    given = texts("bert")
    with torch.no_grad(), attend.hf.capture(model, layers=1, heads=[0], what="stats") as run:
        model(**given)

    def refuses(kind, words, edits):
        with pytest.raises(kind, match=words):
            with attend.hf.edit(model, edits):
                model(**given)

    refuses(ValueError, "layer 5 is not there", {(5, 0): attend.zero})
    refuses(ValueError, "head 9 is not there; bert.*has 4 heads", {(0, 9): attend.zero})
    refuses(TypeError, "a key is", {3: attend.zero})
    refuses(TypeError, "it takes attend.zero", {(0, 0): "zero"})
    refuses(TypeError, r"is given \[3\]; it takes", {(0, 0): torch.ones(3)})
    refuses(TypeError, "takes {\\(layer, head\\): what}", {})
    refuses(TypeError, "takes what a capture\\(\\) block handed out, found int", {(0, 0): attend.mean_of(3)})
    refuses(LookupError, "head 2 of bert.*was not captured; heads 0 were", {(1, 2): attend.mean_of(run)})
    refuses(LookupError, "weights of bert.*were not captured", {(1, 0): attend.pattern_of(run)})
    refuses(LookupError, "was not captured", {(0, 0): attend.mean_of(run)})
    refuses(ValueError, r"are \[3, 7\]; in this pass it has 7 queries and 7 keys of 2 sequences", {(0, 0): torch.ones(3, 7)})
    refuses(RuntimeError, "never called", {(("bert.encoder.layer.0.attention.self", 1), 0): attend.zero})


class Shared(nn.Module):
    """One attention, called three times."""

    def __init__(self, run):
        super().__init__()
        self.layer = attend.torch.MultiheadAttention(16, 2, batch_first=True)
        self.run = run

    def part(self, x):
        return x + self.layer(x, x, x, need_weights=False)[0]

    def forward(self, x):
        for _ in range(3):
            x = self.run(self.part, x)
        return x


def test_ones_own_checkpointing_is_refused_or_kept():
    x = torch.randn(1, 5, 16, requires_grad=True)

    def gradient(run, edits=True):
        torch.manual_seed(1)
        model = Shared(run)
        with attend.torch.edit(model, {(("layer", 1), 1): attend.zero}) if edits else contextlib.nullcontext():
            y = model(x)
        x.grad = None
        y.square().sum().backward()
        return x.grad

    wanted = gradient(lambda part, x: part(x))
    with pytest.raises(RuntimeError, match="wrap the function that is checkpointed in attend.torch.keep_edits"):
        gradient(lambda part, x: checkpoint(part, x, use_reentrant=False))
    for reentrant in (False, True):
        found = gradient(lambda part, x: checkpoint(attend.torch.keep_edits(part), x, use_reentrant=reentrant))
        torch.testing.assert_close(found, wanted)
    plain = gradient(lambda part, x: checkpoint(part, x, use_reentrant=False), edits=False)  # nothing is to be kept
    assert error(plain, wanted) > 1e-3

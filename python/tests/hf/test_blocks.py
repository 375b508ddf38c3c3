"""Blocks around models: what they leave behind, what they refuse, and what padding may hold inside of them."""
import copy
import functools

import numpy
import pytest
import torch
from torch.nn.modules import module as hooks_of_all
from torch.utils.checkpoint import checkpoint

import attend
import attend.hf
import attend.torch
from attend.torch import taps
from eager import both, texts


def gpt2():
    return both("gpt2")[1]


def nothing_is_left():
    return not taps.active.get() and not hooks_of_all._global_forward_hooks and not hooks_of_all._global_forward_pre_hooks


def test_blocks_that_end_in_another_order_leave_nothing():
    model = gpt2()
    first, second = attend.hf.capture(model), attend.hf.capture(model)
    first.__enter__(), second.__enter__()
    model(**texts("gpt2"))
    first.__exit__(None, None, None)
    assert taps.active.get() == (second,)
    second.__exit__(None, None, None)
    assert nothing_is_left()


def test_a_block_that_ends_in_another_context_leaves_nothing():
    import contextvars

    model = gpt2()

    def steps():
        with attend.hf.capture(model) as run:
            yield model(**texts("gpt2"))
        assert len(run.steps) == 1

    running = steps()
    contextvars.copy_context().run(next, running)
    assert list(running) == [] and nothing_is_left()


def test_a_block_that_is_entered_again_begins_anew():
    model = gpt2()
    given = texts("gpt2")
    with torch.no_grad():
        block = attend.hf.capture(model)
        with block as first:
            model(**given), model(**given)
        with block as second:
            model(**given)
        assert [step.number for step in first.steps] == [0, 1] and [step.number for step in second.steps] == [0]
        block = attend.hf.edit(model, {(1, 2): attend.pattern_of(first)})
        for _ in range(2):
            with block:  # each pass has the pattern of the same number
                model(**given), model(**given)
        with pytest.raises(RuntimeError, match=r"edit: 1 never called"), block:
            pass
    assert nothing_is_left()


def test_a_pattern_hides_what_padding_holds():
    """Weights of 0 times NaN are NaN in a product of matrices."""
    model = gpt2()
    tokens = torch.arange(3, 13).view(1, 10)
    seen = torch.ones(1, 10, dtype=torch.int64)
    seen[0, :3] = 0
    with torch.no_grad(), attend.hf.capture(model, layers=0, heads=1) as run:
        model(tokens, attention_mask=seen)
    places = (seen.cumsum(1) - 1).clamp(min=0)
    clean = model.get_input_embeddings()(tokens).detach()
    odd = clean.clone()
    odd[0, :3] = torch.nan
    results, gradients = [], []
    for given in (clean, odd):
        given.requires_grad_()
        with attend.hf.edit(model, {(0, 1): attend.pattern_of(run)}):
            out = model(inputs_embeds=given, attention_mask=seen, position_ids=places).logits[:, 3:]
        results.append(out.detach())
        gradients.append(torch.autograd.grad(out.sum(), given)[0][:, 3:])
    assert torch.equal(*results) and torch.equal(*gradients) and gradients[0].isfinite().all()


def test_a_pattern_shows_what_its_keys_hold():
    from attend.torch.editing import _weighed

    v = torch.ones(1, 3, 2)
    v[0, 1, 0] = torch.inf
    found = _weighed(torch.tensor([[0.5, 0.0, 0.5], [0.5, 0.5, 0.0]]), v)
    assert found[0, 0].tolist() == [1.0, 1.0] and found[0, 1, 0].isnan() and found[0, 1, 1] == 1.0


def loss_of(model, given):
    return model(**given).loss


def test_an_edit_before_does_not_stop_checkpointing_of_a_captured_pass():
    model, given = gpt2(), texts("gpt2")
    with attend.hf.edit(model, {(0, 1): attend.zero}):
        edited = model(**given).loss
    model.train()
    with attend.hf.edit(model, {(0, 1): attend.zero}), torch.no_grad():
        model(**given)
    with attend.hf.capture(model):
        loss = checkpoint(functools.partial(loss_of, model), given, use_reentrant=False)
    (loss + edited).backward()


def test_an_edited_pass_is_not_computed_again_without_its_edit_after_another_pass():
    model, given = gpt2(), texts("gpt2")
    with attend.hf.edit(model, {(0, 1): attend.zero}):
        edited = checkpoint(functools.partial(loss_of, model), given, use_reentrant=False)
    plain = checkpoint(functools.partial(loss_of, model), given, use_reentrant=False)
    with pytest.raises(RuntimeError, match="GPT2Attention was edited in a forward pass.*keep_edits"):
        (edited + plain).backward()
    del edited, plain  # and with it what is known of that pass
    checkpoint(functools.partial(loss_of, model), given, use_reentrant=False).backward()


def test_a_copy_made_inside_has_the_function_of_checkpointing_itself():
    import pickle

    function = functools.partial(checkpoint, use_reentrant=False)
    for found in (copy.deepcopy(taps._Keeping(function)), pickle.loads(pickle.dumps(taps._Keeping(function)))):
        assert isinstance(found, functools.partial) and found.func is checkpoint


def test_what_cannot_be_captured_is_said_before_anything_runs():
    model = gpt2()

    def refuses(error, words, **options):
        with pytest.raises(error, match=words):
            attend.hf.capture(model, **options)

    refuses(TypeError, "heads takes a number, a list of numbers or None, found True", heads=True)
    refuses(ValueError, "call -1 of layer 'transformer.h.0.attn' is not there", layers=("transformer.h.0.attn", -1))
    refuses(ValueError, r"what is \[\]; it is 'weights'", what=[])
    refuses(ValueError, "what is None; it is 'weights'", what=None)
    refuses(TypeError, "inspect takes a dict of options, found int", what="stats", inspect=3)
    refuses(ValueError, "inspect holds 'causal'; the options are top_k", what="stats", inspect={"causal": True})
    refuses(ValueError, "top_k is -3", what="stats", inspect={"top_k": -3})
    with pytest.raises(RuntimeError, match="capture: the model never called attend's attention.*attend.torch.sdpa"):
        with attend.torch.capture(torch.nn.Linear(2, 2)):
            pass


def test_two_things_for_one_head_are_refused():
    model = gpt2()
    with pytest.raises(ValueError, match=r"head 1 of transformer.h.0.attn is given two things, the second by 'transformer"):
        with attend.hf.edit(model, {(0, 1): attend.zero, ("transformer.h.0.attn", None): numpy.eye(7, dtype="f")}):
            model(**texts("gpt2"))


def test_what_cannot_be_read_off_is_said():
    model, given = gpt2(), texts("gpt2")
    with attend.hf.capture(model, layers=1, heads=[3, 1], what=("weights", "qkv")) as run:
        model(**given)
    layer = run.layers[0]
    for call, error, words in (
        (lambda: attend.torch.attention_rollout(run), ValueError, "2 of 4 heads of transformer.h.1.attn were captured"),
        (lambda: attend.torch.attention_rollout([run[1].weights], layers=[1]), TypeError, "beside which layers= says nothing"),
        (lambda: attend.torch.attention_rollout(run[1]), TypeError, "found Captured"),
        (lambda: attend.torch.attention_rollout(run, residual="a"), ValueError, "residual is 'a'"),
        (lambda: attend.torch.value_weighted(run, torch.eye(4)), TypeError, r"run\[layer\], found Run"),
        (lambda: attend.torch.value_weighted(run[1], torch.ones(999, 4)), ValueError, r"W\^O is \[999, 4\].* has 4 heads of"),
        (lambda: attend.torch.output_projection(model, "h.9"), LookupError, "layer 'h.9' is not there in this GPT2"),
        (lambda: attend.hf.head_importance(model, [given["input_ids"]]), TypeError, "inputs take a dict.*found Tensor"),
        (lambda: attend.hf.head_importance(model, given, loss=3), TypeError, "loss takes a function.*found int"),
    ):
        with pytest.raises(error, match=words):
            call()
    with torch.inference_mode(), pytest.raises(RuntimeError, match="inference_mode"):
        attend.hf.head_importance(model, given)
    assert attend.torch.value_weighted(run[1], attend.torch.output_projection(model, layer)).shape == (2, 2, 7, 7)


def test_weight_heads_of_what_is_no_query():
    k = torch.ones(1, 2, 3, 4)
    with pytest.raises(TypeError, match="q takes a torch.Tensor, found list"):
        attend.torch.attention([1], k, k, return_weights=True, weight_heads=[0])
    with pytest.raises(ValueError, match=r"q takes \[batch, heads, length, dim\], found \[2, 3, 4\]"):
        attend.torch.attention(k[0], k, k, return_weights=True, weight_heads=[0])

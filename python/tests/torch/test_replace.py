"""attend.torch.replace: what it swaps, what it leaves, and that attend's code then really runs."""
import copy
import io

import attend.torch
import pytest
import torch
from torch import nn
from torch.profiler import profile

NATIVE = {"aten::_transformer_encoder_layer_fwd", "aten::_native_multi_head_attention"}


def operators(function):
    """The names of all operators that a call ran."""
    with profile() as found:
        function()
    return {event.name for event in found.events()}


def runs_attend(function):
    names = operators(function)
    return "attend::attention" in names and not names & NATIVE


def test_says_by_name_what_was_swapped():
    model = nn.Transformer(16, 2, num_encoder_layers=1, num_decoder_layers=1, batch_first=True)
    done = attend.torch.replace(model)
    assert done.swapped == [
        "encoder.layers.0.self_attn", "decoder.layers.0.self_attn", "decoder.layers.0.multihead_attn",
    ]
    assert done.kept == {}
    assert done.changed == {"encoder": "use_nested_tensor is now False"}
    assert "swapped  decoder.layers.0.multihead_attn" in str(done)


def test_says_what_was_kept_and_why():
    class Special(nn.MultiheadAttention):
        pass

    model = nn.ModuleDict({
        "special": Special(8, 2),
        "ours": attend.torch.MultiheadAttention(8, 2),
        "complex": nn.MultiheadAttention(8, 2, dtype=torch.complex64),
        "plain": nn.MultiheadAttention(8, 2),
        "other": nn.Linear(8, 8),
    })
    done = attend.torch.replace(model)
    assert done.swapped == ["plain"]
    assert "class of its own" in done.kept["special"]
    assert "already" in done.kept["ours"]
    assert "complex64" in done.kept["complex"]
    assert set(done.kept) == {"special", "ours", "complex"}
    assert type(model["special"]) is Special


def test_a_model_without_any_says_so():
    assert str(attend.torch.replace(nn.Linear(2, 2))) == "no nn.MultiheadAttention found"


def test_the_model_itself_may_be_one():
    model = nn.MultiheadAttention(8, 2)
    x = torch.randn(3, 1, 8)
    expected = model(x, x, x)
    assert attend.torch.replace(model).swapped == [""]
    assert type(model) is attend.torch.MultiheadAttention
    torch.testing.assert_close(model(x, x, x), expected)


def test_twice_changes_nothing_more():
    model = nn.TransformerEncoderLayer(8, 2)
    attend.torch.replace(model)
    assert attend.torch.replace(model).swapped == []


def test_parameters_hooks_and_training_flag_stay():
    model = nn.TransformerEncoderLayer(8, 2).eval()
    model.self_attn.train()
    called = []
    model.self_attn.register_forward_hook(lambda *_: called.append(True))
    module, parameters = model.self_attn, dict(model.named_parameters())
    attend.torch.replace(model)
    assert model.self_attn is module and module.training and not model.training
    assert all(x is parameters[name] for name, x in model.named_parameters())
    model(torch.randn(3, 1, 8))
    assert called


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("gradients", [True, False])
def test_attends_code_runs_in_an_encoder_layer(training, gradients):
    """In eval without gradients PyTorch's layer takes a fast path that would never call its module."""
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True).train(training)
    x = torch.randn(2, 5, 16)
    with torch.set_grad_enabled(gradients):
        expected = model(x)
        if not training and not gradients:
            assert operators(lambda: model(x)) & NATIVE  # so there is something to be avoided
        attend.torch.replace(model)
        assert runs_attend(lambda: model(x))
        torch.testing.assert_close(model(x), expected)


def test_attends_code_runs_in_a_padded_encoder_stack():
    """PyTorch would make a nested tensor of the input there."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(2, 5, 16)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad():
        expected = model(x, src_key_padding_mask=padding)
        attend.torch.replace(model)
        assert runs_attend(lambda: model(x, src_key_padding_mask=padding))
        found = model(x, src_key_padding_mask=padding)
    torch.testing.assert_close(found[~padding], expected[~padding])


def test_a_stack_made_of_a_replaced_layer_makes_no_nested_tensors():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    attend.torch.replace(layer)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad():
        assert runs_attend(lambda: model(torch.randn(2, 5, 16), src_key_padding_mask=padding))


def test_a_whole_transformer_gives_the_same_numbers_and_gradients():
    torch.manual_seed(0)
    theirs = nn.Transformer(16, 2, 1, 1, 32, dropout=0.0, batch_first=True, dtype=torch.float64)
    mine = copy.deepcopy(theirs)
    attend.torch.replace(mine)
    source, target = torch.randn(2, 6, 16, dtype=torch.float64), torch.randn(2, 4, 16, dtype=torch.float64)
    causal = nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64)
    results = []
    for model in (mine, theirs):
        out = model(source, target, tgt_mask=causal, tgt_is_causal=True)
        out.sin().sum().backward()
        results.append([out, *(x.grad for x in model.parameters())])
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_copies_pickles_and_new_parameters_work():
    model = nn.TransformerEncoderLayer(8, 2)
    attend.torch.replace(model)
    x = torch.randn(3, 1, 8)
    model.eval()
    expected = model(x)
    assert torch.equal(copy.deepcopy(model)(x), expected)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert type(loaded.self_attn) is attend.torch.MultiheadAttention
    assert torch.equal(loaded(x), expected)
    model.self_attn._reset_parameters()
    assert model.self_attn.in_proj_bias.abs().max() == 0


def test_importing_changes_nothing_in_pytorch():
    import subprocess
    import sys

    code = """
import torch, torch.nn as nn, torch.nn.functional as F
def state():
    return (F.scaled_dot_product_attention, nn.MultiheadAttention, nn.MultiheadAttention.forward,
            nn.TransformerEncoderLayer.forward, torch.get_num_threads(), torch.get_default_dtype(),
            torch.backends.mha.get_fastpath_enabled(), torch.are_deterministic_algorithms_enabled(),
            torch.initial_seed(), torch.is_grad_enabled())
torch.manual_seed(3); before = state(); bits = torch.get_rng_state()
import attend.torch
assert state() == before and torch.equal(torch.get_rng_state(), bits)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    subprocess.run([sys.executable, "-c", "import attend, sys; assert 'torch' not in sys.modules"], check=True)

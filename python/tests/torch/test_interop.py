"""PyTorch's conventions, one by one: what a user who changes one import relies on."""
import inspect
import itertools

import attend
import attend.torch
import pytest
import torch
from torch import nn
from torch.nn import functional as F

sdpa = attend.torch.scaled_dot_product_attention
VARIANTS = {
    "plain": {},
    "no bias": {"bias": False},
    "kdim": {"kdim": 5},
    "kdim and vdim": {"kdim": 5, "vdim": 3},
    "bias_kv": {"add_bias_kv": True},
    "zero_attn": {"add_zero_attn": True},
    "everything": {"add_bias_kv": True, "add_zero_attn": True, "kdim": 5, "vdim": 3, "batch_first": True},
}


def pair(embed=12, heads=3, dtype=torch.float64, **options):
    """PyTorch's layer and attend's with the same random parameters."""
    theirs = nn.MultiheadAttention(embed, heads, dtype=dtype, **options)
    for p in theirs.parameters():
        nn.init.normal_(p, std=0.5)
    mine = attend.torch.MultiheadAttention(embed, heads, dtype=dtype, **options)
    mine.load_state_dict(theirs.state_dict(), strict=True)
    return mine, theirs


def assert_same(mine, theirs):
    torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-11)


def test_signatures_are_pytorchs():
    ours, theirs = attend.torch.MultiheadAttention, nn.MultiheadAttention
    signature = inspect.signature(ours)
    *same, context = signature.parameters.values()  # the one argument more, by its name alone
    assert signature.replace(parameters=same) == inspect.signature(theirs)
    assert context.name == "context" and context.kind == inspect.Parameter.KEYWORD_ONLY

    def names(f):
        *found, last = inspect.signature(f).parameters.values()
        ours = last.name == "context" and last.kind == inspect.Parameter.KEYWORD_ONLY and last.default is None
        return [(p.name, p.default) for p in (found if ours else [*found, last])]

    assert names(ours.forward) == names(theirs.forward)
    assert names(sdpa) == [
        ("query", inspect.Parameter.empty), ("key", inspect.Parameter.empty), ("value", inspect.Parameter.empty),
        ("attn_mask", None), ("dropout_p", 0.0), ("is_causal", False), ("scale", None), ("enable_gqa", False),
    ]


@pytest.mark.parametrize("variant", VARIANTS)
def test_state_dict_goes_both_ways(variant):
    options = VARIANTS[variant]
    ours, theirs = attend.torch.MultiheadAttention(12, 3, **options), nn.MultiheadAttention(12, 3, **options)
    shapes = lambda m: {name: x.shape for name, x in m.state_dict().items()}  # noqa: E731
    assert list(shapes(ours).items()) == list(shapes(theirs).items())
    start = {name: x.clone() for name, x in ours.state_dict().items()}
    theirs.load_state_dict(ours.state_dict(), strict=True)
    back = attend.torch.MultiheadAttention(12, 3, **options)
    back.load_state_dict(theirs.state_dict(), strict=True)
    assert all(torch.equal(x, start[name]) for name, x in back.state_dict().items())
    assert repr(ours) == repr(theirs)


def test_state_dict_names_and_shapes():
    shapes = {name: tuple(x.shape) for name, x in attend.torch.MultiheadAttention(12, 3).state_dict().items()}
    assert shapes == {
        "in_proj_weight": (36, 12), "in_proj_bias": (36,), "out_proj.weight": (12, 12), "out_proj.bias": (12,),
    }
    more = attend.torch.MultiheadAttention(12, 3, kdim=5, vdim=4, add_bias_kv=True).state_dict()
    assert more["q_proj_weight"].shape == (12, 12)
    assert more["k_proj_weight"].shape == (12, 5)
    assert more["v_proj_weight"].shape == (12, 4)
    assert more["bias_k"].shape == more["bias_v"].shape == (1, 1, 12)


def test_the_same_seed_starts_with_the_same_parameters():
    layers = []
    for make in (attend.torch.MultiheadAttention, nn.MultiheadAttention):
        torch.manual_seed(5)
        layers.append(make(12, 3, add_bias_kv=True))
    assert all(torch.equal(a, b) for a, b in zip(*(layer.parameters() for layer in layers)))


@pytest.mark.parametrize("variant", VARIANTS)
def test_length_comes_before_the_batch_unless_batch_first(variant):
    options = {**VARIANTS[variant]}
    for batch_first in (False, True):
        options["batch_first"] = batch_first
        mine, theirs = pair(**options)
        shapes = [(4, 2, 12), (6, 2, mine.kdim), (6, 2, mine.vdim)]  # heads 3, batch 2, lengths 4, 6
        if batch_first:
            shapes = [(n, length, e) for length, n, e in shapes]
        inputs = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
        assert_same(mine(*inputs), theirs(*inputs))


@pytest.mark.parametrize("batch_first", [False, True])
def test_input_without_a_batch(batch_first):
    mine, theirs = pair(batch_first=batch_first)
    q, k = torch.randn(4, 12, dtype=torch.float64), torch.randn(6, 12, dtype=torch.float64)
    padding, blocked = torch.arange(6) > 4, torch.rand(3, 4, 6) < 0.3
    for average in (True, False):
        options = dict(key_padding_mask=padding, attn_mask=blocked, average_attn_weights=average)
        found = mine(q, k, k, **options)
        assert_same(found, theirs(q, k, k, **options))
        assert found[1].shape == ((4, 6) if average else (3, 4, 6))


@pytest.mark.parametrize("floats", [False, True])
def test_keys_that_are_added_are_seen_whatever_the_masks_say(floats):
    mine, theirs = pair(add_bias_kv=True, add_zero_attn=True)
    x = torch.randn(4, 2, 12, dtype=torch.float64)
    blocked = torch.ones(4, 4, dtype=torch.bool)
    padding = torch.tensor([[True] * 4, [False, True, False, True]])
    masks = dict(attn_mask=blocked, key_padding_mask=padding)
    if floats:
        masks = {name: torch.zeros(m.shape, dtype=x.dtype).masked_fill(m, -torch.inf) for name, m in masks.items()}
    found = mine(x, x, x, **masks)
    assert_same(found, theirs(x, x, x, **masks))
    assert (found[1][..., :4] == 0).all() and (found[1][..., 4:] > 0).all()


def test_the_examples_in_the_docstrings():
    import doctest
    import importlib

    names = {"attend": attend, "torch": torch, "nn": nn}
    for module in ("functional", "general", "modules", "sdpa"):  # attend.torch.sdpa is the function
        failed, tried = doctest.testmod(importlib.import_module(f"attend.torch.{module}"), extraglobs=names)
        assert not failed and tried


def test_true_blocks_in_the_module_and_takes_part_in_the_function():
    torch.manual_seed(0)
    blocked = torch.rand(4, 6) < 0.4
    mine, theirs = pair()
    q, k = torch.randn(4, 2, 12, dtype=torch.float64), torch.randn(6, 2, 12, dtype=torch.float64)
    found = mine(q, k, k, attn_mask=blocked)
    assert_same(found, theirs(q, k, k, attn_mask=blocked))
    assert (found[1][:, blocked] == 0).all() and (found[1][:, ~blocked] > 0).all()
    q, k = torch.randn(2, 3, 4, 5, dtype=torch.float64), torch.randn(2, 3, 6, 5, dtype=torch.float64)
    assert_same(sdpa(q, k, k, ~blocked), F.scaled_dot_product_attention(q, k, k, ~blocked))


def test_float_masks_are_added():
    mine, theirs = pair()
    x = torch.randn(4, 2, 12, dtype=torch.float64)
    options = dict(
        attn_mask=torch.randn(6, 4, 4, dtype=torch.float64), key_padding_mask=torch.randn(2, 4, dtype=torch.float64)
    )
    assert_same(mine(x, x, x, **options), theirs(x, x, x, **options))


def test_gradients_reach_a_float_mask():
    masks = [torch.randn(4, 4, dtype=torch.float64).requires_grad_() for _ in range(2)]
    masks[1].data.copy_(masks[0].data)
    x = torch.randn(4, 2, 12, dtype=torch.float64)
    for layer, mask in zip(pair(), masks):
        layer(x, x, x, attn_mask=mask)[0].sin().sum().backward()
    assert_same(masks[0].grad, masks[1].grad)


def test_is_causal_of_the_function_is_aligned_top_left():
    for queries, keys in ((3, 7), (7, 3), (5, 5)):
        q, k = torch.randn(1, 2, queries, 4, dtype=torch.float64), torch.randn(1, 2, keys, 4, dtype=torch.float64)
        expected = F.scaled_dot_product_attention(q, k, k, torch.ones(queries, keys, dtype=torch.bool).tril())
        assert_same(sdpa(q, k, k, is_causal=True), expected)


def test_weights_are_those_after_dropout():
    torch.manual_seed(0)
    layer = attend.torch.MultiheadAttention(8, 2, dropout=0.5, batch_first=True, dtype=torch.float64)
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    out, weights = layer(x, x, x, average_attn_weights=False)
    assert (weights == 0).any()
    v = F.linear(x, layer.in_proj_weight[16:], layer.in_proj_bias[16:]).unflatten(-1, (2, 4)).transpose(1, 2)
    assert_same(out, layer.out_proj((weights @ v).transpose(1, 2).flatten(2)))
    layer.eval()
    assert_same(layer(x, x, x)[1].sum(-1), torch.ones(2, 5, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_each_type_gives_its_own(dtype):
    mine, theirs = pair(dtype=dtype)
    x = torch.randn(4, 2, 12).to(dtype)
    found = mine(x, x, x)
    assert found[0].dtype == found[1].dtype == dtype
    torch.testing.assert_close(found, theirs(x, x, x), rtol=3e-2, atol=3e-2)


def test_a_query_that_sees_no_key_gives_zero_before_the_projection():
    mine, _ = pair()
    x = torch.randn(4, 2, 12, dtype=torch.float64)
    blocked = torch.zeros(4, 4, dtype=torch.bool)
    blocked[2] = True
    out, weights = mine(x, x, x, attn_mask=blocked)
    assert torch.equal(out[2], mine.out_proj.bias.expand(2, 12))
    assert (weights[:, 2] == 0).all() and not out.isnan().any()
    q = torch.randn(1, 1, 4, 5)
    assert (sdpa(q, q, q, ~blocked)[0, 0, 2] == 0).all()


def test_attends_own_layer_refuses_pytorchs_masks_and_names_the_polarity():
    layer = attend.MultiHeadAttention(model_dim=8, heads=2)
    x = torch.ones(1, 3, 8)
    for name in ("attn_mask", "key_padding_mask"):
        with pytest.raises(TypeError, match=r"True \(or 1\) means that the key takes part.*opposite"):
            layer.forward(x, **{name: torch.ones(3, 3, dtype=torch.bool)})


def refused(error, words, function, *args, **kwargs):
    with pytest.raises(error, match=words):
        function(*args, **kwargs)


def test_masks_of_wrong_shapes_or_types_are_refused():
    layer, q = attend.torch.MultiheadAttention(8, 2), torch.ones(3, 2, 8)
    refused(ValueError, r"attn_mask takes \[3, 3\] or \[4, 3, 3\], found \[3, 2\]", layer, q, q, q,
            attn_mask=torch.ones(3, 2))
    refused(ValueError, r"key_padding_mask takes \[2, 3\], found \[3, 2\]", layer, q, q, q,
            key_padding_mask=torch.ones(3, 2))
    refused(TypeError, "takes booleans, or floats", layer, q, q, q, attn_mask=torch.ones(3, 3, dtype=torch.int64))
    refused(RuntimeError, "no attn_mask", layer, q, q, q, is_causal=True)
    q = torch.ones(2, 4, 3, 8)
    refused(ValueError, r"attn_mask \[3, 2\] does not broadcast", sdpa, q, q, q, torch.ones(3, 2))
    refused(ValueError, "exclude each other", sdpa, q, q, q, torch.ones(3, 3), is_causal=True)
    refused(TypeError, "takes booleans, or floats", sdpa, q, q, q, torch.ones(3, 3, dtype=torch.uint8))
    refused(ValueError, "bias", sdpa, q, q, q, torch.ones(3, 3, dtype=torch.float64))


def test_inputs_that_do_not_fit_are_refused():
    layer, q = attend.torch.MultiheadAttention(8, 2), torch.ones(3, 2, 8)
    refused(ValueError, r"query is \[3, 2, 8\], key \[3, 8\]", layer, q, q[:, 0], q)
    refused(ValueError, "batch", layer, q, q[:, :1], q[:, :1])
    q = torch.ones(2, 4, 3, 8)
    refused(ValueError, "found \\[8\\]", sdpa, q[0, 0, 0], q, q)
    refused(ValueError, "do not fit", sdpa, q, q[:, :2], q[:, :2])
    refused(ValueError, "4 heads of query are no multiple of the 3 of key", sdpa, q, q[:, :3], q[:, :3],
            enable_gqa=True)
    refused(ValueError, "between 0 and 1", sdpa, q, q, q, dropout_p=1.5)
    refused(ValueError, "k is f64 and q f32; k must be f32", sdpa, q, q.double(), q)


def test_leading_dimensions_broadcast_as_pytorchs():
    leads = [(), (0,), (1,), (2,), (3,), (0, 1), (1, 2), (2, 1), (3, 2), (2, 1, 2)]
    for each in itertools.product(leads, repeat=3):
        q, k, v = (torch.ones(*lead, rows, 4, requires_grad=True) for lead, rows in zip(each, (2, 3, 3)))
        try:
            wanted = torch.broadcast_shapes(*each)
        except RuntimeError:
            refused(ValueError, "do not fit", sdpa, q, k, v)
        else:
            assert sdpa(q, k, v).shape == (*wanted, 2, 4), each


def test_what_is_not_dense_or_elsewhere_is_refused_with_the_reason():
    layer, q = attend.torch.MultiheadAttention(8, 2, batch_first=True), torch.ones(2, 3, 8)
    nested = torch.nested.nested_tensor([torch.ones(3, 8), torch.ones(2, 8)])
    for call in (layer, sdpa):
        refused(NotImplementedError, "nested tensor.*replace", call, nested, nested, nested)
        refused(NotImplementedError, "layout torch.sparse_coo", call, q, q.to_sparse(), q)
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode(), pytest.raises(NotImplementedError, match="query is on xpu.*computes on the CPU and on NVIDIA GPUs"):
        sdpa(*[torch.empty(1, 2, 3, 4, device="xpu")] * 3)


def test_grouped_heads_are_interleaved_not_tiled():
    q, k, v = (torch.randn(2, h, 5, 4, dtype=torch.float64) for h in (6, 2, 2))
    whole = [x.repeat_interleave(3, 1) for x in (k, v)]
    assert_same(sdpa(q, k, v, enable_gqa=True), F.scaled_dot_product_attention(q, *whole))
    v = torch.randn(2, 3, 5, 4, dtype=torch.float64)  # keys and values grouped differently
    expected = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert_same(sdpa(q, k, v, enable_gqa=True), expected)

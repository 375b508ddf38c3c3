"""What a mask becomes: options where its function is known, booleans else; the same keys are visible in any case."""
import itertools
import re

import pytest
import torch
from tiny import tiny
from transformers import masking_utils as mu

from attend.hf.described import DescribedMask
from attend.hf.masks import attend_mask
from attend.hf.patterns import Pattern, check_known, pattern_of


def visible(mask):
    """Booleans by the options' own definitions (attend.attention), written anew."""
    batch, _, queries, keys = mask.shape
    options = dict(mask.options)
    offset = options.pop("query_offset", 0)
    i, j = torch.arange(queries).view(-1, 1) + offset, torch.arange(keys).view(1, -1)
    seen = torch.ones(batch, 1, queries, keys, dtype=torch.bool)
    if options.pop("causal", False):
        seen &= j <= i
    left, right = options.pop("window", (None, None))
    if left is not None:
        seen &= j >= i - left
    if right is not None:
        seen &= j <= i + right
    lengths = options.pop("key_lengths", None)
    if lengths is not None:
        seen &= j < lengths.view(-1, 1, 1, 1)
    of_keys = options.pop("mask", None)
    if of_keys is not None:
        seen &= of_keys
    assert not options
    return seen


def booleans(**arguments):
    return mu.sdpa_mask(**arguments, allow_is_causal_skip=False, allow_is_bidirectional_skip=False)


def floats(**arguments):
    """The mask of eager attention."""
    return mu.eager_mask(**arguments, allow_is_bidirectional_skip=False)


FUNCTIONS = {
    "causal": mu.causal_mask_function,
    "bidirectional": mu.bidirectional_mask_function,
    "window 1": mu.sliding_window_causal_mask_function(1),
    "window 3": mu.sliding_window_causal_mask_function(3),
    "both ways": mu.sliding_window_bidirectional_mask_function(2),
    "overlay": mu.sliding_window_overlay(3),
    "nested": mu.and_masks(mu.sliding_window_causal_mask_function(5), mu.sliding_window_overlay(2)),
}
PADS = {
    "none": None,
    "all": [[1] * 9] * 3,
    "right": [[1] * 9, [1] * 5 + [0] * 4, [1] + [0] * 8],
    "left": [[1] * 9, [0] * 4 + [1] * 5, [0] * 8 + [1]],
    "holes": [[1] * 9, [1, 0, 1, 1, 0, 1, 1, 1, 0], [0] * 9],
    "short": [[1] * 4] * 3,
    "short, left": [[0] + [1] * 3] * 3,
    "long": [[1] * 14, [0] * 3 + [1] * 11, [1] * 12 + [0] * 2],
}


@pytest.mark.parametrize("pad", PADS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_options_show_the_same_keys(function, pad):
    real = None if PADS[pad] is None else torch.tensor(PADS[pad], dtype=torch.bool)
    for q_length, kv_length, q_offset, kv_offset in itertools.product((1, 2, 9), (1, 4, 9), (0, 3, 8), (0, 2, 5)):
        arguments = dict(
            batch_size=3, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset,
            mask_function=FUNCTIONS[function], attention_mask=real,
        )
        mask = attend_mask(**arguments)
        assert type(mask) is DescribedMask, arguments
        assert torch.equal(visible(mask), booleans(**arguments)), arguments
        assert torch.equal(mask.plain(), floats(**arguments)), arguments


def options_of(q_length, kv_length, q_offset, real=None, function=mu.causal_mask_function):
    real = None if real is None else torch.tensor(real, dtype=torch.bool)
    batch = 1 if real is None else len(real)
    return attend_mask(batch, q_length, kv_length, q_offset, mask_function=function, attention_mask=real).options


def test_what_hides_nothing_is_left_out():
    window = mu.sliding_window_causal_mask_function(3)
    assert options_of(1, 7, 6) == {}  # a token after its cache
    assert options_of(1, 3, 2, function=window) == {}
    assert options_of(1, 9, 5, [[1] * 6]) == {"causal": True, "query_offset": 5}  # in a static cache of 9
    assert options_of(5, 5, 0, [[1] * 5]) == {"causal": True, "query_offset": 0}
    assert options_of(4, 7, 3) == {"causal": True, "query_offset": 3}
    assert options_of(5, 5, 0, function=window) == {"causal": True, "window": (2, None), "query_offset": 0}


def test_padding_at_the_end_is_lengths_and_elsewhere_a_mask_of_keys():
    both = mu.bidirectional_mask_function
    found = options_of(3, 3, 0, [[1, 1, 1], [1, 1, 0]], both)
    assert found.keys() == {"key_lengths"} and found["key_lengths"].tolist() == [3, 2]
    found = options_of(3, 3, 0, [[1, 1, 1], [0, 1, 1]])
    assert found.keys() == {"causal", "query_offset", "mask"} and found["mask"].shape == (2, 1, 1, 3)


def lookalike(batch_idx, head_idx, q_idx, kv_idx):
    return kv_idx <= q_idx


lookalike.__name__, lookalike.__qualname__ = mu.causal_mask_function.__name__, mu.causal_mask_function.__qualname__
lookalike.__module__ = mu.causal_mask_function.__module__

UNKNOWN = {
    "of the same name": lookalike,
    "or": mu.or_masks(mu.causal_mask_function, mu.sliding_window_overlay(2)),
    "chunked": mu.chunked_causal_mask_function(3, torch.zeros(2, dtype=torch.int64)),
    "packed": mu.packed_sequence_mask_function(torch.tensor([[0, 0, 0, 1, 1, 1, 1]] * 2)),
    "with a part unknown": mu.and_masks(mu.causal_mask_function, lambda b, h, q, k: k != 2),
    "a lambda": lambda b, h, q, k: (q + k) % 2 == 0,
    "a window of no number": mu.sliding_window_overlay(torch.tensor(3)),
    "a window of nothing": mu.sliding_window_causal_mask_function(0),
    "offsets": mu.add_offsets_to_mask_function(mu.causal_mask_function, 1, 0),
    "by position": mu.remap_positions_for_packed_sequence(
        mu.causal_mask_function, torch.tensor([[0, 1, 2, 0, 1, 2, 3]] * 2)
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_known_is_described_by_booleans(name):
    assert pattern_of(UNKNOWN[name]) is None
    real = torch.tensor([[1] * 7, [0, 0, 1, 1, 1, 1, 1]], dtype=torch.bool)
    arguments = dict(batch_size=2, q_length=7, kv_length=7, mask_function=UNKNOWN[name], attention_mask=real)
    mask = attend_mask(**arguments)
    assert mask.options.keys() == {"mask"} and torch.equal(mask.options["mask"], booleans(**arguments))
    assert torch.equal(mask, floats(**arguments)) and mask.options is None


def test_a_class_that_is_called_is_not_known():
    class Function:
        def __call__(self, b, h, q, k):
            return k <= q

    assert pattern_of(Function()) is None
    assert pattern_of(len) is None


@pytest.mark.parametrize("shape", [(2, 7, 7), (1, 7), (3, 7), (7,)])
@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
def test_a_mask_of_another_batch_is_refused(name, shape):
    model, real = tiny(name), torch.ones(shape, dtype=torch.int64)
    model.set_attn_implementation("attend")
    given = {"input_ids": torch.ones(2, 7, dtype=torch.int64), "attention_mask": real}
    if name == "t5":
        given["decoder_input_ids"] = given["input_ids"]
    told = re.escape(f"the attention_mask is {list(shape)}, the input has a batch of 2; a mask is [2, positions]")
    with pytest.raises(ValueError, match=told):
        model(**given)


def test_never_none():
    """Whether Transformers would allow it or not: None leaves it to each attention to guess whether it is causal."""
    for function in (mu.causal_mask_function, mu.bidirectional_mask_function):
        mask = attend_mask(1, 5, 5, mask_function=function, allow_is_causal_skip=True, allow_is_bidirectional_skip=True)
        assert type(mask) is DescribedMask


def test_a_static_cache_counts_on_after_the_mask_was_made():
    seen = torch.tensor(3)
    mask = attend_mask(1, 2, 8, q_offset=seen)
    seen += 2
    assert torch.equal(visible(mask), booleans(batch_size=1, q_length=2, kv_length=8, q_offset=3))
    assert torch.equal(mask.plain(), floats(batch_size=1, q_length=2, kv_length=8, q_offset=3))


def test_other_meanings_of_known_names_are_noticed(monkeypatch):
    monkeypatch.setattr(mu, "causal_mask_function", lambda b, h, q, k: k < q)
    with pytest.raises(RuntimeError, match="causal_mask_function"):
        check_known()


def described():
    return attend_mask(2, 4, 4)


@pytest.mark.parametrize("operation", [
    lambda m: m[:, :, -1:], lambda m: -m, lambda m: m.bool(), lambda m: torch.where(m < 0, 0.0, -1.0), lambda m: m * m,
    lambda m: torch.cat([m, m], -1), lambda m: m.expand(2, 3, 4, 4), lambda m: m.sum(), lambda m: m.clone(), lambda m: m.to(torch.float64),
    lambda m: torch.zeros(2, 1, 4, 4).masked_fill(m != 0, 1.0), lambda m: m.reshape(2, 16), lambda m: m.detach(), lambda m: 1.0 - m,
    lambda m: m + m, lambda m: torch.nn.functional.pad(m, (0, 2)),
    lambda m: m.expand(2, 3, 4, 4).reshape(6, 4, 4), lambda m: m.transpose(2, 3).contiguous().view(2, 16), lambda m: m.mT.reshape(2, 16),
    lambda m: m.permute(3, 0, 2, 1).reshape(4, 8), lambda m: m[:, :, ::2, 1:].flatten(1), lambda m: m[:, 0, 1:].mT.clone().mT.view(-1),
    lambda m: m.expand(2, 3, 4, 4).contiguous().view(6, 16), lambda m: m.mT.to(torch.float64).mT.view(2, 16),
], ids=lambda f: str(f.__code__.co_firstlineno))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_described_mask_is_eagers_to_everybody(operation, dtype):
    wanted = operation(floats(batch_size=2, q_length=4, kv_length=4, dtype=dtype))
    for function in (mu.causal_mask_function, lookalike):
        mask = attend_mask(2, 4, 4, mask_function=function, dtype=dtype)
        found = operation(mask)
        assert mask.dtype == dtype and found.dtype == wanted.dtype and torch.equal(found, wanted)
        assert mask.options is None  # whoever has seen the numbers may have changed them


def test_a_part_of_a_mask_lies_in_memory_as_eagers_does():
    """PyTorch chooses by it between a view and a copy."""
    wanted = floats(batch_size=2, q_length=4, kv_length=4)
    for part in (lambda m: m.expand(2, 3, 4, 4), lambda m: m.mT, lambda m: m[:, :, ::2, 1:], lambda m: m.mT.clone(), lambda m: m.mT.contiguous()):
        found = part(described())
        assert type(found) is DescribedMask and found.stride() == part(wanted).stride()
        assert found.is_contiguous() == part(wanted).is_contiguous()


def test_what_is_written_into_a_described_mask_counts():
    mask = described()
    mask[:, :, 2, 0] = -1.0
    assert mask.options is None and (mask.plain()[:, :, 2, 0] == -1.0).all()
    mask = described()
    mask[0].view(-1)[5] = -1.0
    assert (mask.plain() != floats(batch_size=2, q_length=4, kv_length=4)).sum() == 1


@pytest.mark.parametrize("make", [
    described, lambda: described()[:, :, :2], lambda: described().expand(2, 3, 4, 4).reshape(6, 4, 4), lambda: attend_mask(2, 4, 4, mask_function=lookalike), lambda: described().to(torch.float64),
])
def test_a_mask_is_not_added_to_scores(make):
    """Who does that computes attention by itself, and attend would be left out without a word."""
    scores = torch.zeros(make().shape)
    for add in (lambda m: scores + m, lambda m: m + scores, lambda m: scores.clone().add_(m), lambda m: torch.sub(scores, m)):
        with pytest.raises(NotImplementedError, match="adds its mask to scores.*attend.hf.check"):
            add(make())
    assert (make() + 1).max() == 1


@pytest.mark.parametrize("function", [mu.causal_mask_function, lookalike])
def test_elsewhere_and_for_tracers_a_mask_is_eagers(function):
    """On devices where attend does not compute, in torch.compile, and for torch.jit.trace."""
    given = dict(batch_size=2, q_length=4, kv_length=4, mask_function=function, dtype=torch.bfloat16)
    assert type(attend_mask(**given, device="meta")) is torch.Tensor and attend_mask(**given, device="meta").dtype == torch.bfloat16
    compiled = torch.compile(lambda: attend_mask(**given), backend="eager", fullgraph=True)
    real = torch.ones(2, 4, dtype=torch.bool)
    traced = torch.jit.trace(lambda real: attend_mask(**given, attention_mask=real), real, check_trace=False)
    for found in (compiled(), traced(real)):
        assert torch.equal(found, floats(**given))


def test_a_described_mask_takes_no_memory_before_it_is_looked_at():
    mask = attend_mask(1, 1 << 20, 1 << 20)
    assert mask.shape == (1, 1, 1 << 20, 1 << 20) and mask.numbers is None


def test_intersections():
    assert Pattern(3, None) & Pattern(None, 0) & Pattern(5, 2) == Pattern(3, 0)

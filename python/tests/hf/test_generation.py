"""Generated tokens with attend are those with eager attention: greedy and beams, every cache, padding at the left."""
import pytest
import torch
import transformers as t
from tiny import DECODERS, error, inputs, padding, twins

CACHES = ("dynamic", "static")


def generated(model, given, **options):
    with torch.no_grad():
        return model.generate(**given, max_new_tokens=12, min_new_tokens=12, do_sample=False, **options)


def prompt(name):
    given = inputs(name, "left")
    del given["labels"]
    return given


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", DECODERS)
def test_greedy(name, cache):
    """Mistral, Gemma 2 and gpt-oss have sliding layers, whose caches of either kind keep the window alone."""
    eager, ours = twins(name)
    given = prompt(name)
    wanted = generated(eager, given)
    assert len(wanted[0].unique()) > 3
    assert torch.equal(generated(ours, given, cache_implementation=cache), wanted)


@pytest.fixture
def reordered(monkeypatch):
    """What caches were told when beams changed places: which of the old each new one goes on from."""
    told = []
    for cls in (t.Cache, t.EncoderDecoderCache):
        def reorder_cache(self, places, of=cls.reorder_cache):
            told.append(places.tolist())
            return of(self, places)

        monkeypatch.setattr(cls, "reorder_cache", reorder_cache)
    return told


def change_places(told):
    """Else beams would be so many greedy generations."""
    return any(places != list(range(len(places))) for places in told)


@pytest.mark.parametrize("name, cache", [("llama", "dynamic"), ("mistral", "static"), ("gpt_oss", "dynamic"), ("gpt2", "dynamic")])
def test_beams(name, cache, reordered):
    eager, ours = twins(name)
    given = prompt(name)
    options = {"num_beams": 3, "num_return_sequences": 2, "cache_implementation": cache}
    wanted = generated(eager, given, **options)
    of_eager = reordered[:]
    reordered.clear()
    assert torch.equal(generated(ours, given, **options), wanted)
    assert reordered == of_eager and change_places(reordered)


@pytest.mark.parametrize("cache, beams", [("dynamic", 1), ("dynamic", 3), ("static", 1)])
@pytest.mark.parametrize("name", ["t5", "whisper"])
def test_encoder_and_decoder(name, cache, beams, reordered):
    eager, ours = twins(name)
    given = prompt(name) if name == "t5" else {"input_features": torch.randn(3, 8, 24)}
    wanted = generated(eager, given, num_beams=beams)
    reordered.clear()
    assert torch.equal(generated(ours, given, num_beams=beams, cache_implementation=cache), wanted)
    assert change_places(reordered) == (beams > 1)


def test_without_a_cache():
    eager, ours = twins("gemma2")
    given = prompt("gemma2")
    assert torch.equal(generated(ours, given, use_cache=False), generated(eager, given))


@pytest.mark.parametrize("name", DECODERS)
def test_a_prompt_in_parts(name):
    """Several queries after a cache: each at its own place, in windows too."""
    from transformers import DynamicCache

    _, ours = twins(name)
    ids, real = torch.randint(2, 36, (3, 11)), padding("left")
    with torch.no_grad():
        wanted = ours(input_ids=ids, attention_mask=real, position_ids=torch.arange(11).expand(3, -1)).logits
        cache, parts = DynamicCache(config=ours.config), []
        for begin, end in ((0, 4), (4, 9), (9, 10), (10, 11)):
            parts.append(ours(
                input_ids=ids[:, begin:end], attention_mask=real[:, :end], past_key_values=cache,
                position_ids=torch.arange(begin, end).expand(3, -1),
            ).logits)
    assert error(torch.cat(parts, 1)[real.bool()], wanted[real.bool()]) < 2e-5

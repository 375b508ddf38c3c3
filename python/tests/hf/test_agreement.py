"""Models of every kind give with attend what they give with Transformers' eager attention: logits, loss, gradients."""
import pytest
import torch
from tiny import CLASSES, DECODERS, error, inputs, padding, tiny, twins

CLOSE = 2e-5
PADDINGS = [(name, pad) for name in CLASSES for pad in ("none", "right", "left") if pad == "none" or name not in ("vit", "whisper")]


def logits_at(model, given):
    """Those of real tokens: what a position of padding holds is nobody's concern."""
    out = model(**given)
    real = given.get("attention_mask")
    return out.logits if real is None or out.logits.shape[:2] != real.shape else out.logits[real.bool()]


@pytest.mark.parametrize("name, pad", PADDINGS)
def test_logits_loss_and_gradients(name, pad):
    eager, ours = twins(name)
    given = inputs(name, pad)
    for model in (eager, ours):
        model(**given).loss.backward()
    with torch.no_grad():
        assert error(logits_at(ours, given), logits_at(eager, given)) < CLOSE
        assert error(ours(**given).loss, eager(**given).loss) < CLOSE
    for (parameter, wanted), found in zip(eager.named_parameters(), ours.parameters()):
        assert (wanted.grad is None) == (found.grad is None), parameter
        if wanted.grad is not None:
            assert error(found.grad, wanted.grad) < CLOSE, parameter


def test_the_models_differ_where_attention_does():
    """What the tests above compare does depend on masks, windows, caps and sinks."""
    given = inputs("gpt_oss", "left")
    for change in ({"sliding_window": 5}, {}):
        model = tiny("gpt_oss")
        before = logits_at(model, given)
        for key, value in change.items():
            setattr(model.config, key, value)
        if not change:
            model.model.layers[1].self_attn.sinks.data += 1
        assert error(logits_at(model, given), before) > 100 * CLOSE


@pytest.mark.parametrize("name", ["bert", "llama", "gemma2", "gpt_oss", "t5"])
def test_bfloat16(name):
    """No farther from the truth, which is f32 with the same weights, than eager is; 1.25 for chance in so few numbers."""
    squares = torch.zeros(2)
    for _ in range(4):
        eager, ours = (model.bfloat16() for model in twins(name))
        given = inputs(name, "right")
        with torch.no_grad():
            both = logits_at(ours, given), logits_at(eager, given)
            truth = logits_at(eager.float(), given)
        squares += torch.stack([(x - truth).square().mean() for x in both])
    assert squares[0].sqrt() < 1.25 * squares[1].sqrt()


@pytest.mark.parametrize("dtype, close", [(torch.float16, 2e-2), (torch.float64, 1e-6)])
def test_other_types(dtype, close):
    """Beside eager in f32: in f64 that one gives NaN with padding at the left."""
    eager, ours = twins("llama")
    given = inputs("llama", "left")
    with torch.no_grad():
        found = logits_at(ours.to(dtype), given)
        assert found.dtype == dtype and error(found, logits_at(eager, given)) < close


@pytest.mark.parametrize("pad", ["right", "left"])
def test_padding_may_hold_anything(pad):
    _, ours = twins("mistral")
    given = inputs("mistral", pad)
    real = given["attention_mask"].bool()
    embedded = ours.get_input_embeddings()(given["input_ids"]).detach()
    with torch.no_grad():
        wanted, found = (
            ours(inputs_embeds=embedded.masked_fill(~real.unsqueeze(-1), odd), attention_mask=real.long()).logits[real]
            for odd in (0.0, torch.nan)
        )
    assert torch.equal(found, wanted) and found.isfinite().all()


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "t5"])
def test_weights_where_they_are_asked_for(name):
    eager, ours = twins(name)
    given = inputs(name, "right")
    with torch.no_grad():
        wanted, found = (model(**given, output_attentions=True) for model in (eager, ours))
    lists = [key for key in wanted if "attentions" in key and wanted[key]]
    assert lists
    for key in lists:
        assert len(found[key]) == len(wanted[key]) == 2
        for a, b in zip(found[key], wanted[key]):
            assert error(a, b) < CLOSE


@pytest.mark.parametrize("name", ["bert", "llama", "gpt_oss", "t5"])
def test_dropout(name):
    """Everything dropped is what eager makes of it; less is repeated by torch.manual_seed, and is not nothing."""
    names = {"bert": "attention_probs_dropout_prob", "t5": "dropout_rate"}
    given = inputs(name, "right")

    def trained(model, p, seed=0):
        for module in model.modules():
            for key in ("attention_dropout", "dropout"):
                if isinstance(getattr(module, key, None), float):
                    setattr(module, key, p)
            if isinstance(module, torch.nn.Dropout):
                module.p = p if name == "bert" and module in attention_dropouts(model) else 0.0
        torch.manual_seed(seed)
        with torch.no_grad():
            return logits_at(model.train(), given)

    def attention_dropouts(model):
        return [layer.attention.self.dropout for layer in model.bert.encoder.layer]

    eager, ours = twins(name, **{names.get(name, "attention_dropout"): 0.1})
    assert error(trained(ours, 1.0), trained(eager, 1.0)) < CLOSE
    half = trained(ours, 0.5)
    assert torch.equal(half, trained(ours, 0.5))
    assert error(trained(ours, 0.5, seed=1), half) > 100 * CLOSE
    assert error(trained(ours, 0.0), half) > 100 * CLOSE


def test_gradient_checkpointing():
    wanted = twins("mistral")[1].train()
    found = twins("mistral")[1].train()
    found.load_state_dict(wanted.state_dict())
    found.activation_checkpointing_enable()
    given = inputs("mistral", "left")
    for model in (wanted, found):
        model(**given).loss.backward()
    for a, b in zip(found.parameters(), wanted.parameters()):
        assert torch.equal(a.grad, b.grad)


@pytest.mark.parametrize("name", DECODERS)
def test_packed_sequences(name):
    """Several sequences in one row, told by positions that begin again."""
    eager, ours = twins(name)
    given = {"input_ids": torch.randint(2, 36, (2, 11)), "use_cache": False}
    given["position_ids"] = torch.tensor([[0, 1, 2, 3, 0, 1, 0, 1, 2, 3, 4]] * 2)
    with torch.no_grad():
        wanted, found = eager(**given).logits, ours(**given).logits
        alone = ours(input_ids=given["input_ids"][:, 6:], use_cache=False).logits
    assert error(found, wanted) < CLOSE
    if name != "gpt_oss":  # its own code passes no positions to the mask
        assert error(found[:, 6:], alone) < CLOSE


def test_masks_of_four_dimensions():
    """The user's own: booleans, True = takes part, and floats that are added."""
    eager, ours = twins("llama")
    ids = torch.randint(2, 36, (2, 9))
    seen = torch.rand(2, 1, 9, 9) < 0.5
    seen |= torch.eye(9, dtype=torch.bool)
    added = torch.zeros(2, 1, 9, 9).masked_fill(~seen, torch.finfo(torch.float32).min)
    with torch.no_grad():
        wanted = eager(input_ids=ids, attention_mask=added).logits
        assert error(ours(input_ids=ids, attention_mask=added).logits, wanted) < CLOSE
        assert error(ours(input_ids=ids, attention_mask=seen).logits, wanted) < CLOSE


def test_a_decoder_that_looks_both_ways():
    """config.is_causal = False makes an encoder of it; no mask must not become a causal one."""
    eager, ours = twins("llama", is_causal=False)
    for pad in ("none", "right", "left"):
        given = inputs("llama", pad)
        with torch.no_grad():
            assert error(logits_at(ours, given), logits_at(eager, given)) < CLOSE


def test_rows_that_see_nothing_are_finite():
    eager, ours = twins("gemma2")
    given = inputs("gemma2", "left")
    out = ours(**given)
    assert out.logits.isfinite().all()
    out.logits.sum().backward()
    assert all(p.grad.isfinite().all() for p in ours.parameters() if p.grad is not None)
    ids = torch.randint(2, 36, (2, 5))
    nothing = torch.zeros(2, 5, dtype=torch.long)
    assert ours(input_ids=ids, attention_mask=nothing).logits.isfinite().all()


def test_a_padded_batch_is_each_alone():
    _, ours = twins("mistral")
    given = inputs("mistral", "right")
    real = padding("right")
    with torch.no_grad():
        together = ours(**given).logits
        for row, ids, seen in zip(together, given["input_ids"], real):
            n = int(seen.sum())
            assert error(row[:n], ours(input_ids=ids[None, :n]).logits[0]) < CLOSE

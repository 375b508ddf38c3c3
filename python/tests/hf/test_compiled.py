"""Models in torch.compile, whose first graph takes longer than most tests: they run where models of real weights do."""
import torch
from test_own_masks import pair, texts
from tiny import error, inputs, twins


def test_under_torch_compile():
    eager, ours = twins("mistral", num_hidden_layers=1)
    given = inputs("mistral", "left")
    compiled = torch.compile(ours, backend="eager")
    with torch.no_grad():
        real = given["attention_mask"].bool()
        assert error(compiled(**given).logits[real], eager(**given).logits[real]) < 2e-5


def test_weights_that_are_asked_for_under_torch_compile():
    """GPT-2 does not tell its attentions that the weights are recorded."""
    eager, ours = twins("gpt2", num_hidden_layers=1)
    given = inputs("gpt2", "right")
    real = given["attention_mask"].bool()
    with torch.no_grad():
        wanted, found = (model(**given, output_attentions=True) for model in (eager, torch.compile(ours, backend="eager")))
    assert error(found.logits[real], wanted.logits[real]) < 2e-5 and len(found.attentions) == len(wanted.attentions) == 1
    assert error(found.attentions[0].transpose(1, 2)[real], wanted.attentions[0].transpose(1, 2)[real]) < 2e-5


def test_compiled_code_that_adds_its_mask_stays_causal():
    """A graph refuses nothing: it gets eager's mask, and does what eager does."""
    eager, ours = pair("bloom")
    given = texts("right")
    compiled = torch.compile(ours, backend="eager")
    with torch.no_grad():
        wanted, found = (model(**given).last_hidden_state[given["attention_mask"].bool()] for model in (eager, compiled))
    assert error(found, wanted) < 2e-5

"""Models of Transformers on a GPU with attend: the numbers and tokens that they have with eager attention."""
import os

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed: it is for attend.hf alone")

import attend.hf
from tiny import DECODERS, error, inputs, twins

transformers.utils.logging.set_verbosity_error()


@pytest.fixture(autouse=True, scope="module")
def registered():
    attend.hf.register()


def on_gpu(name, pad="none"):
    models = [model.cuda() for model in twins(name)]
    return *models, {key: x.cuda() for key, x in inputs(name, pad).items()}


@pytest.mark.parametrize("pad", ["none", "right", "left"])
@pytest.mark.parametrize("name", ["bert", "llama", "gemma2", "gpt_oss", "t5"])
def test_losses_and_gradients(name, pad):
    eager, ours, given = on_gpu(name, pad)
    wanted, found = eager(**given), ours(**given)
    assert abs(found.loss - wanted.loss).item() < 1e-4
    for model, result in ((eager, wanted), (ours, found)):
        result.loss.backward()
    gradients = {n: p.grad for n, p in eager.named_parameters() if p.grad is not None}
    for n, p in ours.named_parameters():
        if n in gradients:
            assert error(p.grad, gradients[n]) < 1e-3, n


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", DECODERS)
def test_generated_tokens(name, cache):
    eager, ours, given = on_gpu(name, "left")
    del given["labels"]
    options = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False, "disable_compile": True}
    with torch.no_grad():
        wanted = eager.generate(**given, **options)
        assert torch.equal(ours.generate(**given, cache_implementation=cache, **options), wanted)


def test_a_model_in_bf16():
    """Of head size 64, so that the kernels of the matrix units run; without padding no numbers of a mask are made."""
    sizes = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    eager, ours, given = on_gpu("llama")
    for key, size in sizes.items():
        setattr(eager.config, key, size)
    eager = type(eager)(eager.config).to("cuda", torch.bfloat16).eval()
    ours = type(eager)._from_config(eager.config, dtype=torch.bfloat16, attn_implementation="attend").cuda().eval()
    ours.load_state_dict(eager.state_dict())
    del given["labels"]
    with torch.no_grad(), attend.torch.capture(ours, what="qkv") as run:
        found = ours(**given).logits
    assert run.steps[0][run.layers[0]].q.is_cuda
    with torch.no_grad():
        assert error(found, eager(**given).logits) < 3e-2

"""What models may pass to an attention: each argument counts, and what is not known is refused by its name."""
import pytest
import torch
from tiny import error, tiny
from torch import nn
from transformers import masking_utils as mu
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from attend.hf.interface import attend_attention
from attend.hf.masks import attend_mask


class Layer(nn.Module):
    is_causal, num_key_value_groups = True, 2


def heads(batch=2, queries=5, keys=5):
    return torch.randn(batch, 4, queries, 8), torch.randn(batch, 2, keys, 8), torch.randn(batch, 2, keys, 6)


def textbook(q, k, v, mask=None, bias=0.0, softcap=None, scaling=None):
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    s = q @ k.mT * (q.size(-1) ** -0.5 if scaling is None else scaling)
    s = s if softcap is None else softcap * torch.tanh(s / softcap)
    s = s + bias
    s = s if mask is None else s.masked_fill(~mask, -torch.inf)
    return (s.softmax(-1) @ v).transpose(1, 2)


def test_without_a_mask_is_causal_and_the_layer_decide():
    q, k, v = heads()
    lower = torch.ones(5, 5, dtype=torch.bool).tril()
    layer = Layer()
    assert error(attend_attention(layer, q, k, v, None)[0], textbook(q, k, v, lower)) < 1e-6
    assert error(attend_attention(layer, q, k, v, None, is_causal=False)[0], textbook(q, k, v)) < 1e-6
    layer.is_causal = False
    assert error(attend_attention(layer, q, k, v, None)[0], textbook(q, k, v)) < 1e-6
    assert error(attend_attention(layer, q, k, v, None, is_causal=True)[0], textbook(q, k, v, lower)) < 1e-6
    one = q[:, :, :1]
    assert error(attend_attention(Layer(), one, k, v, None)[0], textbook(one, k, v)) < 1e-6


@pytest.mark.parametrize("keys", [5, 8])
def test_without_a_mask_as_transformers_does(keys):
    q, k, v = heads(keys=keys)
    for layer, is_causal in ((Layer(), None), (Layer(), False), (nn.Identity(), False), (nn.Identity(), True)):
        layer.num_key_value_groups = 2
        wanted = sdpa_attention_forward(layer, q, k, v, None, is_causal=is_causal)[0]
        assert error(attend_attention(layer, q, k, v, None, is_causal=is_causal)[0], wanted) < 1e-6


@pytest.mark.parametrize("keys", [5, 8])
def test_where_nobody_says_causal_nothing_is_hidden(keys):
    """As with eager, to which no mask is no mask: of cross attention, whose modules may have no is_causal."""
    q, k, v = heads(keys=keys)
    assert error(attend_attention(nn.Identity(), q, k, v, None)[0], textbook(q, k, v)) < 1e-6
    eager, ours = (cross_attention(name) for name in ("eager", "attend"))
    ours.load_state_dict(eager.state_dict())
    x, states = torch.randn(2, 5, 32), torch.randn(2, keys, 32)
    with torch.no_grad():
        assert error(ours(x, states)[0], eager(x, states)[0]) < 1e-6


def cross_attention(implementation):
    from transformers.models.mllama.configuration_mllama import MllamaTextConfig
    from transformers.models.mllama.modeling_mllama import MllamaTextCrossAttention

    config = MllamaTextConfig(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=1, cross_attention_layers=[0])
    config._attn_implementation = implementation
    return MllamaTextCrossAttention(config, layer_idx=0).eval()


def test_a_mask_is_all_there_is():
    """is_causal and sliding_window say what the mask was made with; they count no second time."""
    q, k, v = heads()
    seen = torch.rand(2, 1, 5, 5) < 0.5
    seen[..., 0] = True
    found = attend_attention(Layer(), q, k, v, seen, is_causal=True, sliding_window=2)[0]
    assert error(found, textbook(q, k, v, seen)) < 1e-6
    window = attend_mask(2, 5, 5, mask_function=mu.sliding_window_causal_mask_function(3))
    found = attend_attention(Layer(), q, k, v, window, sliding_window=2)[0]
    assert error(found, textbook(q, k, v, window.make() == 0)) < 1e-6


def test_every_argument_counts():
    q, k, v = heads()
    bias, mask = torch.randn(1, 4, 5, 5), attend_mask(2, 5, 5)
    seen = mask.make() == 0
    found = attend_attention(Layer(), q, k, v, mask, scaling=0.7, softcap=1.5, position_bias=bias)[0]
    assert error(found, textbook(q, k, v, seen, bias, 1.5, 0.7)) < 1e-6
    added = torch.randn(2, 1, 5, 5)
    found = attend_attention(Layer(), q, k, v, added, position_bias=bias)[0]
    assert error(found, textbook(q, k, v, None, bias + added)) < 1e-6
    found = attend_attention(Layer(), q, k, v, mask, s_aux=torch.full((4,), 80.0))[0]
    assert found.abs().max() < 1e-6  # the sinks take it all


def test_queries_of_one_batch_for_all():
    q, k, v = heads()
    q = q[:1]
    assert error(attend_attention(Layer(), q, k, v, None)[0], attend_attention(Layer(), q.expand(2, -1, -1, -1), k, v, None)[0]) == 0


@pytest.mark.parametrize("name", ["cu_seq_lens_q", "max_length_k", "cache", "sinks", "indices", "something_new"])
def test_what_is_not_known_is_refused_by_name(name):
    q, k, v = heads()
    attend_attention(Layer(), q, k, v, None, **{name: None})
    with pytest.raises(NotImplementedError, match=f"called by Layer: the argument {name} is not known"):
        attend_attention(Layer(), q, k, v, None, **{name: 0})


def test_what_a_model_is_given_and_does_not_know_is_refused():
    model = tiny("llama")
    model.set_attn_implementation("attend")
    with pytest.raises(NotImplementedError, match="LlamaAttention: the argument cu_seq_lens_q"):
        model(input_ids=torch.ones(1, 4, dtype=torch.long), cu_seq_lens_q=torch.tensor([0, 4]))
    model(input_ids=torch.ones(1, 4, dtype=torch.long), num_items_in_batch=3)


@pytest.mark.parametrize("shape", [(5, 5), (2, 1, 5, 4), (2, 1, 4, 5), (2, 5, 5)])
def test_masks_of_another_shape(shape):
    q, k, v = heads()
    with pytest.raises(ValueError, match=r"is not one of 5 queries and 5 keys"):
        attend_attention(Layer(), q, k, v, torch.ones(shape, dtype=torch.bool))


def test_masks_that_cannot_be_honoured():
    q, k, v = heads()
    with pytest.raises(TypeError, match="torch.int64"):
        attend_attention(Layer(), q, k, v, torch.ones(2, 1, 5, 5, dtype=torch.int64))
    with pytest.raises(NotImplementedError, match="sliding_window = 3 of 5 keys came without a mask"):
        attend_attention(Layer(), q, k, v, None, sliding_window=3)
    attend_attention(Layer(), q, k, v, None, sliding_window=5)

"""Attention in the manner of diffusers inside sdpa(): a module that has the weights and hands itself to a processor, which is no
module and calls PyTorch's function. Written for this test, after the shape of that library's modules.
"""
import attend
import attend.torch
import pytest
import torch
from support import error
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, channels, of_text=None, heads=2, groups=None):
        super().__init__()
        self.heads = heads
        self.group_norm = None if groups is None else nn.GroupNorm(groups, channels)
        self.to_q = nn.Linear(channels, channels, bias=False)
        self.to_k = nn.Linear(of_text or channels, channels, bias=False)
        self.to_v = nn.Linear(of_text or channels, channels, bias=False)
        self.to_out = nn.ModuleList([nn.Linear(channels, channels), nn.Dropout(0.0)])
        self.processor = Processor()

    def forward(self, x, text=None, mask=None, **more):
        return self.processor(self, x, encoder_hidden_states=text, attention_mask=mask, **more)


class Processor:
    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None):
        residual, shape = hidden_states, hidden_states.shape
        if hidden_states.dim() == 4:  # a picture
            hidden_states = hidden_states.flatten(2).transpose(1, 2)
        if attn.group_norm is not None:
            hidden_states = attn.group_norm(hidden_states.transpose(1, 2)).transpose(1, 2)
        seen = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        batch, keys, _ = seen.shape
        if attention_mask is not None:  # [batch, keys], numbers that are added: one for each head, as it is joined to the batch
            attention_mask = attention_mask[:, None].repeat_interleave(attn.heads, 0).view(batch, attn.heads, 1, keys)
        q, k, v = (f(x).view(batch, -1, attn.heads, attn.to_q.out_features // attn.heads).transpose(1, 2)
                   for f, x in ((attn.to_q, hidden_states), (attn.to_k, seen), (attn.to_v, seen)))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask, dropout_p=0.0, is_causal=False)
        out = out.transpose(1, 2).reshape(batch, -1, attn.to_q.out_features).to(q.dtype)
        for layer in attn.to_out:
            out = layer(out)
        if residual.dim() == 4:
            out = out.transpose(-1, -2).reshape(shape)
        return out + residual


class Block(nn.Module):
    """Of a picture that attends to itself, and of its places that attend to themselves and to a text."""

    def __init__(self):
        super().__init__()
        self.attentions = nn.ModuleList([Attention(16, groups=4)])
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.attn1, self.attn2 = Attention(16), Attention(16, of_text=12)

    def forward(self, x, text, mask):
        x = self.attentions[0](x)
        x = x.flatten(2).transpose(1, 2)
        x = self.attn1(self.norm1(x))
        return self.attn2(self.norm2(x), text, mask)


def given(dtype=torch.float32):
    mask = torch.zeros(2, 5, dtype=dtype)
    mask[1, 3:] = -10000.0  # padding, as that library has it
    return torch.randn(2, 16, 3, 4, dtype=dtype), torch.randn(2, 5, 12, dtype=dtype), mask


NAMES = ["attentions.0", "attn1", "attn2"]


@pytest.mark.parametrize("train", [True, False])
def test_results_and_gradients_are_pytorchs(train):
    model, inputs = Block().train(train), given()
    results = []
    for on_attend in (False, True):
        model.zero_grad()
        if on_attend:
            with attend.torch.sdpa(model, strict=True) as calls:
                out = model(*inputs)
        else:
            out = model(*inputs)
        out.square().sum().backward()
        results.append([out.detach(), *(p.grad.clone() for p in model.parameters())])
    assert max(error(a, b.double()) for a, b in zip(*results)) < 1e-5
    assert [call.module for call in calls.counts] == NAMES and calls.on_attend == len(calls) == 3
    assert [call.key for call in calls.counts] == [(2, 2, 12, 8), (2, 2, 12, 8), (2, 2, 5, 8)]


def test_without_gradients_and_in_narrow_types():
    model, inputs = Block().to(torch.bfloat16).eval(), given(torch.bfloat16)
    truth = Block().double().eval()
    truth.load_state_dict(model.state_dict())
    with torch.inference_mode():
        with attend.torch.sdpa(model, strict=True) as calls:
            found = model(*inputs)
        wanted = truth(*(x.double() for x in inputs))
    assert calls.on_attend == 3 and {call.dtype for call in calls.counts} == {"bfloat16"} and error(found, wanted) < 0.05


def test_heads_are_seen_and_changed_by_the_names_of_the_modules():
    model, inputs = Block().eval(), given()
    with torch.no_grad(), attend.torch.sdpa(model):
        with attend.torch.capture(model, layers="attn2", heads=1, what=("weights", "qkv")) as run:
            plain = model(*inputs)
        with attend.torch.edit(model, {("attn2", 1): attend.zero}):
            assert not torch.equal(model(*inputs), plain)
    found = run["attn2"]
    wanted = (found.q @ found.k.mT / 8**0.5 + inputs[2][:, None, None]).softmax(-1)
    assert found.weights.shape == (2, 1, 12, 5) and error(found.weights, wanted.double()) < 1e-6
    assert found.weights[1, :, :, 3:].max() == 0

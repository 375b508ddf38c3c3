"""The two modules that explain multi-head attention, as they were printed, beside attend's layers.

Both are typed in as they stand but for their comments; their weights go through a safetensors file into attend's own layer,
whose loader knows their names, and into attend.torch.MultiheadAttention.
"""
import math

import attend
import attend.torch
import pytest
import torch
import torch.nn as nn


class MultiHeadAttention(nn.Module):
    def __init__(self, num_hiddens=512, h=8):
        super().__init__()
        self.d_k = num_hiddens // h
        self.h = h
        self.W_Q = nn.Linear(num_hiddens, num_hiddens)
        self.W_K = nn.Linear(num_hiddens, num_hiddens)
        self.W_V = nn.Linear(num_hiddens, num_hiddens)
        self.W_O = nn.Linear(num_hiddens, num_hiddens)

    def forward(self, X):
        batch_size = X.size(0)

        Q = self.W_Q(X).view(batch_size, -1, self.h, self.d_k).transpose(1, 2)
        K = self.W_K(X).view(batch_size, -1, self.h, self.d_k).transpose(1, 2)
        V = self.W_V(X).view(batch_size, -1, self.h, self.d_k).transpose(1, 2)

        scores = torch.matmul(Q, K.transpose(-2, -1)) / torch.sqrt(torch.tensor(self.d_k, dtype=torch.float32))
        weights = torch.softmax(scores, dim=-1)
        output = torch.matmul(weights, V)

        output = output.transpose(1, 2).contiguous().view(batch_size, -1, self.h * self.d_k)
        return self.W_O(output)


FirstNote = MultiHeadAttention


class MultiHeadAttention(nn.Module):  # noqa: F811
    def __init__(self, embed_size, num_heads):
        super(MultiHeadAttention, self).__init__()
        self.num_heads = num_heads
        self.embed_size = embed_size
        self.head_dim = embed_size // num_heads

        assert embed_size % num_heads == 0

        self.query_linear = nn.Linear(embed_size, embed_size)
        self.key_linear = nn.Linear(embed_size, embed_size)
        self.value_linear = nn.Linear(embed_size, embed_size)

        self.out_linear = nn.Linear(embed_size, embed_size)

    def forward(self, query, key, value, mask=None):
        batch_size = query.size(0)

        Q = self.query_linear(query)
        K = self.key_linear(key)
        V = self.value_linear(value)

        Q = Q.view(batch_size, -1, self.num_heads, self.head_dim).transpose(1, 2)
        K = K.view(batch_size, -1, self.num_heads, self.head_dim).transpose(1, 2)
        V = V.view(batch_size, -1, self.num_heads, self.head_dim).transpose(1, 2)

        scores = torch.matmul(Q, K.transpose(-2, -1)) / math.sqrt(self.head_dim)

        if mask is not None:
            scores = scores.masked_fill(mask == 0, float('-inf'))

        attention = torch.softmax(scores, dim=-1)
        output = torch.matmul(attention, V)

        output = output.transpose(1, 2).contiguous().view(batch_size, -1, self.num_heads * self.head_dim)

        output = self.out_linear(output)

        return output


FourthNote = MultiHeadAttention


def as_attend(module, path):
    """attend's own layer, from the module's state_dict in a file."""
    attend.save_safetensors(path, {name: x.detach() for name, x in module.state_dict().items()})
    return attend.MultiHeadAttention.load(path, heads=8)


def as_torch(module, names):
    """attend.torch's module with the same weights."""
    q, k, v, o = (getattr(module, name) for name in names)
    layer = attend.torch.MultiheadAttention(512, 8, batch_first=True)
    with torch.no_grad():
        layer.in_proj_weight.copy_(torch.cat([x.weight for x in (q, k, v)]))
        layer.in_proj_bias.copy_(torch.cat([x.bias for x in (q, k, v)]))
    layer.out_proj.load_state_dict(o.state_dict())
    return layer


def assert_agree(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("shape", [(2, 10, 512), (32, 20, 512)])
def test_the_first_notes_module_agrees(shape, tmp_path):
    torch.manual_seed(1)
    module = FirstNote()
    x = torch.randn(shape)
    with torch.no_grad():
        expected = module(x)
        assert_agree(as_attend(module, tmp_path / "note.safetensors").forward(x), expected)
        layer = as_torch(module, ("W_Q", "W_K", "W_V", "W_O"))
        assert_agree(layer(x, x, x)[0], expected)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shape", [(2, 10, 512), (32, 20, 512), (32, 10, 512)])
def test_the_fourth_notes_module_agrees_with_its_0_1_mask(shape, masked, tmp_path):
    torch.manual_seed(4)
    module = FourthNote(512, 8)
    query, key, value = (torch.rand(shape) for _ in range(3))
    batch, length, _ = shape
    mask = None
    if masked:  # 0 hides, as there; every row sees itself
        mask = (torch.rand(batch, 1, length, length) < 0.7) | torch.eye(length, dtype=torch.bool)
        mask = mask.int()
    with torch.no_grad():
        expected = module(query, key, value, mask)
        own = as_attend(module, tmp_path / "note.safetensors")
        assert_agree(own.forward(query, key, value, mask=mask), expected)
        # PyTorch's layer means the opposite: True = blocked, and wants a mask for every head.
        blocked = None if mask is None else (mask == 0).expand(-1, 8, -1, -1).flatten(0, 1)
        layer = as_torch(module, ("query_linear", "key_linear", "value_linear", "out_linear"))
        assert_agree(layer(query, key, value, attn_mask=blocked)[0], expected)


def test_a_hidden_row_is_nan_in_the_fourth_note_and_the_bias_alone_here(tmp_path):
    torch.manual_seed(4)
    module = FourthNote(512, 8)
    x = torch.rand(2, 10, 512)
    mask = torch.ones(2, 1, 10, 10, dtype=torch.int32)
    mask[1, :, 3] = 0
    with torch.no_grad():
        expected = module(x, x, x, mask)
        found = as_attend(module, tmp_path / "note.safetensors").forward(x, x, x, mask=mask)
    assert expected[1, 3].isnan().all()
    assert torch.equal(found[1, 3], module.out_linear.bias)
    seen = ~expected.isnan()
    assert_agree(found[seen], expected[seen])

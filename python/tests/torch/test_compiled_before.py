"""capture() and edit() of what torch.compile made before the block: a graph that knows nothing of it is not run inside of it."""
import attend
import attend.torch
import pytest
import torch
from concurrent.futures import ThreadPoolExecutor
from torch import nn
from torch.nn import functional as F

WORDS = "capture\\(\\) and edit\\(\\) do not work inside torch.compile"


class Own(nn.Module):
    def forward(self, x):
        q = x.unflatten(-1, (2, 8)).transpose(1, 2)
        return x + F.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(2)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([attend.torch.MultiheadAttention(16, 2, batch_first=True)])
        self.own = Own()

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x, x, x, need_weights=False)[0]
        return self.own(x)


@pytest.fixture(autouse=True)
def anew():
    torch._dynamo.reset()


@pytest.fixture
def inside():
    with attend.torch.sdpa(), torch.no_grad():
        yield


def test_a_block_sees_and_changes_what_was_compiled_before(inside):
    """As uncompiled: torch.compile leaves to Python what it may not put into a graph."""
    model, x = Model(), torch.randn(2, 3, 16)
    compiled = torch.compile(model.forward, backend="eager")
    plain = compiled(x)
    for _ in range(2):
        with attend.torch.capture(model) as run:
            compiled(x)
        assert [str(layer) for layer in run.layers] == ["layers.0", "own"]
        assert [len(step) for step in run.steps] == [1, 1]  # forward() calls them, and is not called as a module: each is a pass
        with attend.torch.edit({("*", 1): attend.zero}):
            found = compiled(x)
        with attend.torch.edit({("*", 1): attend.zero}):
            assert torch.equal(found, model(x)) and not torch.equal(found, plain)
        assert torch.equal(compiled(x), plain)


def test_a_star_that_another_layer_meets_counts_for_the_compiled_one_too(inside):
    """So that the end of the block would not notice."""
    model, x = Model(), torch.randn(2, 3, 16)
    first = torch.compile(lambda x: model.layers[0](x, x, x, need_weights=False)[0], backend="eager", fullgraph=True)
    plain = first(x)
    with attend.torch.edit({("*", None): attend.zero}):
        model.own(x)
        with pytest.raises(Exception, match=WORDS):
            first(x)
    assert torch.equal(first(x), plain)


@pytest.mark.parametrize("block", [attend.torch.capture, lambda: attend.torch.edit({("*", 0): attend.zero})])
def test_one_whole_graph_raises_in_words(block, inside):
    model, x = Model(), torch.randn(2, 3, 16)
    compiled = torch.compile(model.forward, backend="eager", fullgraph=True)
    plain = compiled(x)
    with pytest.raises(Exception, match=WORDS):
        with block():
            compiled(x)
    assert torch.equal(compiled(x), plain)


def test_a_block_of_another_thread_is_none():
    model, x = Model(), torch.randn(2, 3, 16)

    def work(x):
        return model.layers[0](x, x, x, need_weights=False)[0]

    compiled = torch.compile(work, backend="eager", fullgraph=True)
    with torch.no_grad(), ThreadPoolExecutor(1) as pool:
        plain = compiled(x)
        with attend.torch.capture(model.layers[0]) as run:
            assert torch.equal(pool.submit(torch.no_grad()(compiled), x).result(), plain)
            assert torch.equal(work(x), plain)
    assert len(run.steps) == 1

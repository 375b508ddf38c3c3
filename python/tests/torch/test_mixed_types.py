"""Mixed types: what torch.autocast gives, attend's own layers, and the modules that take PyTorch's place."""
import attend
import attend.torch
import pytest
import torch
from support import TOLERANCE, error
from torch import nn

DIM, HEADS = 16, 2
NARROW = {torch.bfloat16: "bf16", torch.float16: "f16"}


@pytest.fixture(autouse=True)
def same_numbers():
    torch.manual_seed(0)


@pytest.fixture(params=NARROW, ids=NARROW.values())
def dtype(request):
    return request.param


def pair(tmp_path, cls=nn.MultiheadAttention):
    """PyTorch's layer, and attend's own with its weights, both f32."""
    theirs = cls(DIM, HEADS, batch_first=True)
    path = tmp_path / "layer.safetensors"
    attend.save_safetensors(path, {name: x.detach() for name, x in theirs.state_dict().items()})
    return theirs, attend.MultiHeadAttention.load(path, heads=HEADS)


def test_without_autocast_both_refuse_two_types(dtype):
    x, layer = torch.randn(3, DIM), nn.Linear(DIM, 4)
    mine = attend.Linear.from_weights(layer.weight.detach(), layer.bias.detach())
    narrow = nn.Linear(DIM, 4, dtype=dtype)
    for theirs, own, given in ((layer, mine, x.to(dtype)), (narrow, mine.to(NARROW[dtype]), x)):
        with pytest.raises(RuntimeError, match="same dtype"):
            theirs(given)
        with pytest.raises(ValueError, match="convert it, or the layer with to"):
            own.forward(given)


@torch.no_grad()
@pytest.mark.parametrize("wide", [True, False])
def test_a_linear_layer_in_another_type_is_autocasts(dtype, wide):
    """Whatever the type of x: autocast rounds it and the weights, and the result has its type."""
    x = torch.randn(5, DIM) if wide else torch.randn(5, DIM).to(dtype)
    theirs = nn.Linear(DIM, 7)
    mine = attend.Linear.from_weights(theirs.weight.detach(), theirs.bias.detach()).to(NARROW[dtype])
    with torch.autocast("cpu", dtype=dtype):
        expected = theirs(x)
    found = mine.forward(x.to(dtype))
    assert found.dtype == expected.dtype == dtype
    truth = nn.functional.linear(*(t.to(dtype).double() for t in (x, theirs.weight, theirs.bias)))
    assert error(found, truth) <= max(TOLERANCE[dtype], error(expected, truth))


@torch.no_grad()
def test_attention_in_another_type_is_autocasts(dtype, tmp_path):
    theirs, mine = pair(tmp_path)
    x = torch.randn(2, 6, DIM)
    with torch.autocast("cpu", dtype=dtype):
        expected = theirs(x, x, x, need_weights=False)[0]
    found = mine.to(NARROW[dtype]).forward(x.to(dtype))
    assert found.dtype == expected.dtype == dtype
    truth = theirs.double()(*[x.double()] * 3, need_weights=False)[0]
    assert error(found, truth) <= 2 * max(TOLERANCE[dtype], error(expected, truth))


@torch.no_grad()
def test_norms_keep_the_type_of_x(dtype):
    """Under autocast or not, PyTorch's take x of 16 bits with weights of f32; inside both compute in f32."""
    x, theirs = torch.randn(4, DIM).to(dtype), nn.LayerNorm(DIM)
    nn.init.normal_(theirs.weight)
    mine = attend.LayerNorm(DIM)
    mine.parameters()["weight"][...] = theirs.weight.numpy()
    with torch.autocast("cpu", dtype=dtype):
        expected = theirs(x)
    found = mine.to(NARROW[dtype]).forward(x)
    assert found.dtype == expected.dtype == dtype
    assert error(found, expected.double()) <= 2 * TOLERANCE[dtype]      # the weights are rounded too


def test_gradients_of_16_bits_step_weights_of_f32(dtype):
    """Autocast's training: weights of f32, a pass in 16 bits, gradients of 16 bits."""
    x, dy = torch.randn(8, DIM), torch.randn(8, 3).to(dtype)
    theirs = nn.Linear(DIM, 3)
    mine = attend.Linear.from_weights(theirs.weight.detach(), theirs.bias.detach())
    with torch.autocast("cpu", dtype=dtype):
        theirs(x).backward(dy)
    narrow = mine.to(NARROW[dtype])
    _, saved = narrow.forward_train(x.to(dtype))
    gradients = narrow.backward(dy, saved).parameters
    attend.SGD().step(mine.parameters(), gradients, 0.1)
    torch.optim.SGD(theirs.parameters(), 0.1).step()
    assert theirs.weight.grad.dtype == torch.float32
    for name, value in theirs.named_parameters():
        found = torch.from_numpy(mine.parameters()[name])
        assert error(found, value.double()) <= TOLERANCE[dtype], name


@pytest.mark.parametrize("weights", [torch.float32, None], ids=["weights f32", "weights narrow"])
@pytest.mark.parametrize("inputs", [torch.float32, None], ids=["x f32", "x narrow"])
def test_the_module_follows_autocast(dtype, weights, inputs):
    theirs = nn.MultiheadAttention(DIM, HEADS, batch_first=True, dtype=weights or dtype)
    mine = attend.torch.MultiheadAttention(DIM, HEADS, batch_first=True, dtype=weights or dtype)
    mine.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 5, DIM).to(inputs or dtype)
    results = []
    for layer in (theirs, mine):
        if weights != inputs:
            with pytest.raises(RuntimeError, match="same dtype"):
                layer(x, x, x)
        with torch.autocast("cpu", dtype=dtype):
            out, _ = layer(x, x, x)
        out.float().square().sum().backward()
        results.append((out, *(p.grad for p in layer.parameters())))
    for expected, found in zip(*results):
        assert found.dtype == expected.dtype
        assert error(found, expected.double()) <= 6 * TOLERANCE[dtype]


def test_pytorchs_own_scaler_with_the_module():
    layer = attend.torch.MultiheadAttention(DIM, HEADS, batch_first=True)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    x = torch.randn(2, 5, DIM)
    before = layer.in_proj_weight.detach().clone()
    for _ in range(40):
        with torch.autocast("cpu", dtype=torch.float16):
            out, _ = layer(x, x, x)
        optimizer.zero_grad()
        scaler.scale(out.float().square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() < 2.0**30                       # it was too large, and steps were left out
    assert not torch.equal(before, layer.in_proj_weight) and layer.in_proj_weight.isfinite().all()

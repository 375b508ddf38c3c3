"""attend.torch.attention and its operator, option by option: attend.attention's bits, gradients, PyTorch's checks."""
import attend
import attend.torch
import pytest
import torch
from attend.torch import general
from attend.torch.operators import attention, attention_backward
from support import TOLERANCE, error

F64 = torch.float64


def case(shapes=((2, 4, 3, 5), (2, 2, 6, 5), (2, 2, 6, 7)), **options):
    return [torch.randn(shape, dtype=F64) for shape in shapes], options


PACKED = ((1, 4, 7, 5), (1, 2, 9, 5), (1, 2, 9, 6))
PAGES = ((2, 4, 2, 5), (5, 2, 3, 5), (5, 2, 3, 6))
CASES = {
    "causal": lambda: case(causal=True),
    "mask": lambda: case(mask=torch.rand(2, 1, 3, 6) < 0.6, scale=-0.4),
    "short mask of integers": lambda: case(mask=torch.tensor([1, 0, 3, 1])),
    "bias": lambda: case(bias=torch.randn(4, 1, 6, dtype=F64)),
    "window": lambda: case(window=(2, 1)),
    "window of one side": lambda: case(window={"left": 1}, query_offset=2),
    "query_offset": lambda: case(causal=True, query_offset=1),
    "query_offset of each": lambda: case(causal=True, query_offset=torch.tensor([0, 4])),
    "key_offset": lambda: case(causal=True, query_offset=9, key_offset=6),
    "softcap": lambda: case(softcap=0.8, bias=torch.randn(3, 6, dtype=F64)),
    "bias_before_softcap": lambda: case(softcap=0.8, bias=torch.randn(3, 6, dtype=F64), bias_before_softcap=True),
    "sinks": lambda: case(sinks=torch.randn(4, dtype=F64)),
    "alibi": lambda: case(alibi=torch.rand(4, dtype=F64), causal=True),
    "key_lengths": lambda: case(key_lengths=torch.tensor([6, 2], dtype=torch.int32), sinks=torch.randn(4, dtype=F64)),
    "blocks": lambda: case(blocks=(torch.tensor([[[[1, 0], [1, 1]]]]), 2, 3)),
    "packed": lambda: case(((1, 4, 7, 5),) * 3, cu_seqlens_q=torch.tensor([0, 2, 2, 7]), causal=True, max_q=5),
    "packed keys": lambda: case(
        PACKED, cu_seqlens_q=torch.tensor([0, 3, 7]), cu_seqlens_k=torch.tensor([0, 4, 9]), max_q=4, max_k=6,
        bias=torch.randn(2, 1, 4, 6, dtype=F64), sinks=torch.randn(4, dtype=F64)),
    "pages": lambda: case(
        PAGES, block_table=torch.tensor([[4, 0], [2, 3]]), key_lengths=torch.tensor([5, 4]), causal=True),
    "scales": lambda: case(k_scales=torch.rand(2, 2, 6), v_scales=torch.rand(2, 2, 6)),
    "dropout": lambda: case(
        dropout=attend.Dropout(0.4, 2**64 - 3, 5, attend.Origin(b=1, i=2)), bias=torch.randn(6, dtype=F64)),
    "packed dropout": lambda: case(
        PACKED, cu_seqlens_q=torch.tensor([0, 3, 7]), cu_seqlens_k=torch.tensor([0, 4, 9]), max_q=4, max_k=5,
        dropout=(0.4, 1)),
    "all": lambda: case(
        causal=True, window=(4, 0), softcap=2.0, query_offset=torch.tensor([3, 2]), key_lengths=torch.tensor([5, 6]),
        mask=torch.rand(2, 4, 3, 6) < 0.9, bias=torch.randn(6, dtype=F64), sinks=torch.randn(4, dtype=F64),
        alibi=torch.rand(4, dtype=F64), blocks=(torch.ones(1, 1, 3, 2, dtype=torch.bool), 1, 3), dropout=(0.2, 3)),
}
GRAPH = ("test_aot_dispatch_dynamic",)
IN_A_GRAPH = ("sinks", "query_offset of each", "packed keys", "pages", "scales", "all")  # the slow check; of the others in test_graphs.py
every_option = pytest.mark.parametrize("name", CASES)


def leaves(name):
    """([q, k, v, bias, sinks, alibi] that collect gradients, a function of them with the other options)"""
    tensors, options = CASES[name]()
    names = [x for x in ("bias", "sinks", "alibi") if x in options]
    inputs = [x.requires_grad_() for x in (*tensors, *(options.pop(x) for x in names))]

    def function(q, k, v, *rest, by=attend.torch.attention, **more):
        return by(q, k, v, **options, **dict(zip(names, rest)), **more)

    return inputs, function


@every_option
def test_the_bits_are_attends_with_and_without_the_operator(name):
    inputs, function = leaves(name)
    tensors = [x.detach() for x in inputs]
    wanted = function(*tensors, by=attend.attention, return_lse=True, return_weights=True)
    for given in (tensors, inputs):
        found = function(*given, return_lse=True, return_weights=True)
        assert len(found) == 3 and all(torch.equal(x, y) for x, y in zip(wanted, found))
        assert found[0].requires_grad == given[0].requires_grad
        assert torch.equal(function(*given), wanted[0])


@every_option
def test_gradients_through_out_lse_and_weights(name):
    inputs, function = leaves(name)
    weights = name != "pages"

    def results(*inputs):
        out, lse, *rest = function(*inputs, return_lse=True, return_weights=weights)
        return out, lse.clamp(min=-1e3), *rest

    assert torch.autograd.gradcheck(results, inputs, fast_mode=True)


def heard(name, monkeypatch, **asked):
    """{"forward": (arguments, keywords), "backward": ...} of the two operators, as PyTorch's own checks take them."""
    seen = {}

    def listen(operator, key):
        def call(*args, **kwargs):
            seen[key] = args, kwargs
            return operator(*args, **kwargs)
        return call

    monkeypatch.setattr(general, "attention_operator", listen(attention, "forward"))
    monkeypatch.setattr("attend.torch.operators.attention_backward", listen(attention_backward, "backward"))
    inputs, function = leaves(name)
    results = function(*inputs, return_lse=True, return_weights=name != "pages", **asked)
    sum(x.clamp(min=-1e3).sum() for x in results).backward()
    monkeypatch.undo()
    # The gradient's own gradient is refused, which the checks would take for a defect.
    args, kwargs = seen["backward"]
    seen["backward"] = tuple(x.detach() if isinstance(x, torch.Tensor) else x for x in args), kwargs
    return seen


@every_option
def test_opcheck(name, monkeypatch):
    utils = ("test_schema", "test_faketensor", "test_autograd_registration", *GRAPH * (name in IN_A_GRAPH))
    seen = heard(name, monkeypatch)
    torch.library.opcheck(attention, *seen["forward"], test_utils=utils)
    torch.library.opcheck(attention_backward, *seen["backward"], test_utils=utils)


REFUSED = {
    "array": (TypeError, "attention: q takes a torch.Tensor, found ndarray", lambda x: attend.torch.attention(
        x.numpy(), x, x)),
    "array as an option": (TypeError, "attention: sinks takes a torch.Tensor, found list", lambda x: (
        attend.torch.attention(x, x, x, sinks=[0.0, 0.0]))),
    "dimensions": (ValueError, r"attention: q takes \[batch, heads, length, dim\], found \[2, 3, 4\]",
                   lambda x: attend.torch.attention(x[0].requires_grad_(), x, x)),
    "window": (ValueError, "attention: window holds -1; its numbers are at least 0",
               lambda x: attend.torch.attention(x.requires_grad_(), x, x, window=(-1, 0))),
    "window of three": (TypeError, r"attention: window takes \(left, right\), or a dict of them, found \(1, 2, 3\)",
                        lambda x: attend.torch.attention(x.requires_grad_(), x, x, window=(1, 2, 3))),
    "window of a number": (TypeError, r"attention: window takes \(left, right\)",
                           lambda x: attend.torch.attention(x.requires_grad_(), x, x, window=4)),
    "softcap": (TypeError, "attention: softcap takes a number, found str",
                lambda x: attend.torch.attention(x.requires_grad_(), x, x, softcap="3")),
    "causal": (TypeError, "attention: causal takes True or False, found int",
               lambda x: attend.torch.attention(x.requires_grad_(), x, x, causal=1)),
    "query_offset": (TypeError, "attention: query_offset takes a whole number, found float",
                     lambda x: attend.torch.attention(x.requires_grad_(), x, x, query_offset=1.5)),
    "blocks": (TypeError, r"attention: blocks takes \(visible, query_size, key_size\)",
               lambda x: attend.torch.attention(x, x, x, blocks=(torch.ones(1), 2))),
    "two dropouts": (ValueError, "attention: dropout and dropout_p are both given",
                     lambda x: attend.torch.attention(x, x, x, dropout=(0.5, 1), dropout_p=0.1)),
    "dropout_p": (ValueError, "the probability of dropout is 1.5", lambda x: attend.torch.attention(
        x, x, x, dropout_p=1.5)),
    "seed": (ValueError, "attention: dropout.seed is -1", lambda x: attend.torch.attention(
        x, x, x, dropout=(0.5, -1))),
    "context": (TypeError, "attention: context takes an attend.Context, found int",
                lambda x: attend.torch.attention(x, x, x, context=3)),
    "sinks": (ValueError, r"attention: sinks is \[3\]", lambda x: attend.torch.attention(
        x, x, x, sinks=torch.zeros(3).requires_grad_())),
    "a mask of floats": (TypeError, "numbers that are added to the scores are bias=", lambda x: attend.torch.attention(
        x.requires_grad_(), x, x, mask=torch.zeros(3, 3))),
    "devices": (ValueError, "attention: the tensors are on cpu and meta",
                lambda x: attend.torch.attention(x, x, x, key_lengths=torch.tensor([3], device="meta"))),
    "keys of another size": (ValueError, "attention: ", lambda x: attend.torch.attention(
        x.requires_grad_(), x[..., :3], x)),
    "option": (TypeError, "unexpected keyword argument", lambda x: attend.torch.attention(x, x, x, is_causal=True)),
    "forward mode": (NotImplementedError, "no forward-mode derivative", lambda x: torch.func.jvp(
        lambda x: attend.torch.attention(x, x, x, causal=True), (x,), (x,))),
    "weights of pages": (NotImplementedError, "gather the pages", lambda x: attend.torch.attention(
        x.requires_grad_(), x, x, block_table=torch.tensor([[0]]), key_lengths=torch.tensor([3]),
        return_weights=True)[1].sum().backward()),
    "packed weights without numbers": (ValueError, "give max_q and max_k", lambda x: attend.torch.attention(
        *[x.to("meta")] * 3, cu_seqlens_q=torch.zeros(3, dtype=torch.int64, device="meta"), return_weights=True)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_why(name):
    kind, message, call = REFUSED[name]
    with pytest.raises(kind, match=message):
        call(torch.ones(1, 2, 3, 4))


def test_the_operator_without_an_offset_is_pytorchs_and_the_function_attends():
    q, k = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4)
    top_left, *_ = attention(q, k, k, None, None, None, True, 0.0, None, False)
    assert torch.equal(top_left, attend.torch.attention(q, k, k, causal=True, query_offset=0))
    bottom_right = attend.torch.attention(q, k, k, causal=True)
    assert torch.equal(bottom_right, attend.torch.attention(q, k, k, causal=True, query_offset=2))
    assert not torch.equal(top_left, bottom_right)


def everything(q, k, v, sinks):
    return attend.torch.attention(
        q, k, v, causal=True, window=(4, None), softcap=2.0, sinks=sinks, key_lengths=torch.tensor([6, 5]),
        query_offset=torch.tensor([3, 2]))


def test_torch_compile_in_one_graph_with_gradients():
    inputs = [torch.randn(2, 4, 3, 5), torch.randn(2, 2, 6, 5), torch.randn(2, 2, 6, 5), torch.randn(4)]
    results = []
    for function in (everything, torch.compile(everything, fullgraph=True, backend="aot_eager")):
        tensors = [x.clone().requires_grad_() for x in inputs]
        out = function(*tensors)
        out.sin().sum().backward()
        results.append([out, *(x.grad for x in tensors)])
    assert all(torch.equal(x, y) for x, y in zip(*results))


def test_a_compiled_graph_takes_another_offset_without_being_made_anew():
    def step(q, k, at):
        return attend.torch.attention(q, k, k, causal=True, query_offset=at, window=(3, 0))

    q, k = torch.randn(1, 2, 1, 4), torch.randn(1, 2, 9, 4)
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend=count)
    for at in (2, 3, 7):
        assert torch.equal(compiled(q, k, at), step(q, k, at))
    assert len(graphs) == 1


def test_torch_export_keeps_the_options():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.sinks = torch.nn.Parameter(torch.randn(4))

        def forward(self, q, k):
            return everything(q, k, k, self.sinks)

    model, q, k = Model(), torch.randn(2, 4, 3, 5), torch.randn(2, 2, 6, 5)
    program = torch.export.export(model, (q, k))
    assert sum("attend.attention" in str(node.target) for node in program.graph.nodes) == 1
    assert torch.equal(program.module()(q, k), model(q, k))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_narrow_types_are_rounded_once(dtype):
    torch.manual_seed(1)
    tensors = [torch.randn(shape).to(dtype) for shape in ((2, 4, 3, 8), (2, 2, 6, 8), (2, 2, 6, 8))]
    sinks = torch.randn(4)
    results = []
    for inputs in ([*tensors, sinks], [*(x.double() for x in tensors), sinks.double()]):
        inputs = [x.clone().requires_grad_() for x in inputs]
        out = everything(*inputs)
        out.sum().backward()
        results.append([out, *(x.grad for x in inputs)])
    assert [x.dtype for x in results[0]] == [dtype] * 4 + [torch.float32]
    assert max(error(x, y) for x, y in zip(*results)) < 4 * TOLERANCE[dtype]


def test_keys_and_values_of_8_bits_have_no_gradient_and_q_has():
    q = torch.randn(1, 2, 3, 8, requires_grad=True)
    k = torch.randint(-100, 100, (1, 2, 5, 8), dtype=torch.int8)
    scales = torch.rand(1, 2, 5) / 100
    out = attend.torch.attention(q, k, k, k_scales=scales, v_scales=scales)
    out.sin().sum().backward()
    wide = q.detach().double().requires_grad_()
    keys = k.double() * scales.double().unsqueeze(-1)
    attend.torch.attention(wide, keys, keys).sin().sum().backward()
    assert error(q.grad, wide.grad) < 1e-5


@pytest.mark.parametrize("hide", ["key_lengths", "window", "blocks", "packed"])
def test_hidden_nan_reaches_nothing(hide):
    q, k = torch.randn(1, 2, 4, 4), torch.randn(1, 2, 4, 4)
    k[:, :, 3] = torch.nan
    options = {
        "key_lengths": {"key_lengths": torch.tensor([3])},
        "window": {"window": (None, 0), "query_offset": -1},
        "blocks": {"blocks": (torch.tensor([[[[1, 0]]]]), 4, 3)},
        "packed": {"cu_seqlens_q": torch.tensor([0, 4, 4]), "cu_seqlens_k": torch.tensor([0, 3, 4])},
    }[hide]
    q, k, sinks = q.requires_grad_(), k.requires_grad_(), torch.zeros(2, requires_grad=True)
    out, lse, weights = attend.torch.attention(q, k, k, sinks=sinks, return_lse=True, return_weights=True, **options)
    (out.sum() + lse.sum() + weights.square().sum()).backward()
    assert all(x.isfinite().all() for x in (out, lse, weights, q.grad, k.grad, sinks.grad))


def test_dropout_p_follows_pytorchs_generator_and_gives_the_weights_before_it():
    q = torch.randn(1, 2, 8, 4)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(attend.torch.attention(q, q, q, dropout_p=0.5, return_weights=True))
    assert torch.equal(results[0][0], results[1][0]) and not torch.equal(results[0][0], results[2][0])
    assert torch.equal(results[0][1], attend.attention(q, q, q, return_weights=True)[1])


def test_autocast_computes_in_its_type():
    q, sinks = torch.randn(1, 2, 5, 8, requires_grad=True), torch.zeros(2, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attend.torch.attention(q, q, q, sinks=sinks)
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert q.grad.dtype == sinks.grad.dtype == torch.float32

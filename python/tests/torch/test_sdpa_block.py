"""with attend.torch.sdpa(): other people's models on attend, what the block says of them, and what it leaves behind."""
import sys
import threading

import attend
import attend.cuda
import attend.torch
import pytest
import torch
from support import error
from torch import nn
from torch.nn import functional as F


class Own(nn.Module):
    """A model as people write them."""

    def __init__(self, causal=True, dropout=0.0):
        super().__init__()
        self.project = nn.Linear(16, 48)
        self.causal, self.dropout = causal, dropout

    def forward(self, x, mask=None):
        q, k, v = self.project(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, mask, self.dropout, self.causal and mask is None)
        return out.transpose(1, 2).flatten(2)


def encoder(**options):
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True, **options), 2)


def padding():
    mask = torch.zeros(2, 5, dtype=torch.bool)
    mask[0, 3:] = True
    return mask


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_encoder_in_inference_runs_on_attend():
    model, x = encoder().eval(), torch.randn(2, 5, 16)
    with torch.inference_mode():
        wanted = model(x, src_key_padding_mask=padding())
        with attend.torch.sdpa(model) as calls:
            found = model(x, src_key_padding_mask=padding())
            model(x)
    assert error(found[~padding()], wanted[~padding()].double()) < 1e-5
    assert [call.module for call in calls.counts] == ["layers.0.self_attn", "layers.1.self_attn"]
    assert list(calls.counts.values()) == [2, 2] and len(calls) == calls.on_attend == 4 and not calls.in_pytorch
    assert str(calls).splitlines()[0] == (
        "     2 x attend   layers.0.self_attn: query [2, 4, 5, 4], key [2, 4, 5, 4], value [2, 4, 5, 4], float32")


@pytest.mark.parametrize("make", [Own, encoder])
def test_training_with_backward_after_the_block(make):
    model, x = make(), torch.randn(2, 5, 16)
    gradients = []
    for on_attend in (False, True):
        model.zero_grad()
        if on_attend:
            with attend.torch.sdpa() as calls:
                out = model(x)
            assert calls.on_attend == len(calls) > 0
        else:
            out = model(x)
        out.sin().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    assert max(error(x, y.double()) for x, y in zip(*gradients)) < 1e-5


def test_the_gradient_is_the_operators():
    seen, x = [], torch.randn(2, 5, 16)

    class Listens(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    with attend.torch.sdpa():
        out = Own()(x)
    with Listens():
        out.sum().backward()
    assert "attend.attention_backward.default" in seen


@pytest.mark.parametrize("mask", ["bool", "float", "causal", "grouped", "three dimensions", "scale"])
def test_arguments_mean_what_they_mean_in_pytorch(mask):
    q, k = torch.randn(2, 4, 3, 8), torch.randn(2, 4, 6, 8)
    arguments = {
        "bool": {"attn_mask": torch.rand(2, 1, 3, 6) < 0.7}, "float": {"attn_mask": torch.randn(3, 6)},
        "causal": {"is_causal": True}, "grouped": {"enable_gqa": True}, "three dimensions": {}, "scale": {"scale": 0.2},
    }[mask]
    if mask == "grouped":
        k = k[:, :2]
    if mask == "three dimensions":
        q, k = q[0], k[0]
    wanted = F.scaled_dot_product_attention(q, k, k, **arguments)
    with attend.torch.sdpa(strict=True) as calls:
        found = F.scaled_dot_product_attention(q, k, value=k, **arguments)
    assert error(found, wanted.double()) < 1e-6 and calls.on_attend == 1
    assert torch.equal(found, attend.torch.scaled_dot_product_attention(q, k, k, **arguments))


def test_what_both_refuse_is_refused():
    q = torch.ones(1, 2, 3, 4)
    with attend.torch.sdpa(), pytest.raises(ValueError, match="do not fit"):
        F.scaled_dot_product_attention(q, q[:, :, :, :2].expand(3, 2, 3, 2), q[:, :1].expand(2, 1, 3, 4))
    with attend.torch.sdpa(), pytest.raises(ValueError, match="exclude each other"):
        F.scaled_dot_product_attention(q, q, q, torch.ones(3, 3, dtype=torch.bool), is_causal=True)


def in_transform(q):
    return torch.func.vmap(F.scaled_dot_product_attention)(q, q, q)


def forward_mode(q):
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # the others have no derivative either
        return torch.func.jvp(lambda q: F.scaled_dot_product_attention(q, q, q), (q,), (q,))[0]


def dual(q):
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), torch.autograd.forward_ad.dual_level():
        x = torch.autograd.forward_ad.make_dual(q, q)
        return torch.autograd.forward_ad.unpack_dual(F.scaled_dot_product_attention(x, x, x)).tangent


def nested(q):
    x = torch.nested.nested_tensor([q[0], q[0]], layout=torch.jagged)
    return F.scaled_dot_product_attention(x, x, x).unbind()[0].unsqueeze(0)


class Named(torch.Tensor):
    pass


def subclass(q):
    return F.scaled_dot_product_attention(*[q.as_subclass(Named)] * 3).as_subclass(torch.Tensor)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("function, why", [
    (in_transform, "transform of torch.func"), (forward_mode, "forward-mode derivative"),
    (dual, "query has a forward-mode derivative"),
    (nested, "query is a nested tensor"), (subclass, "query is a Named"),
])
def test_what_attend_cannot_take_runs_in_pytorch_and_is_listed(function, why):
    q = torch.randn(1, 2, 3, 4)
    wanted = function(q)
    with attend.torch.sdpa() as calls:
        found = function(q)
    torch.testing.assert_close(found, wanted)
    assert calls.on_attend == 0 and len(calls) >= 1
    assert all(why in call.why for call in calls.in_pytorch) and "PyTorch" in str(calls)
    with attend.torch.sdpa(strict=True), pytest.raises(NotImplementedError, match=r"sdpa\(strict=True\): .*" + why):
        function(q)


def test_tensors_of_a_gpu_that_attend_has_no_kernels_for_run_in_pytorch():
    """They hold no numbers here: what is asked is where the call goes."""
    reason = attend.cuda.why_unavailable()
    if not reason:
        pytest.skip("this machine has a GPU: python/tests/cuda")
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode(), attend.torch.sdpa() as calls:
        x = torch.empty(1, 2, 3, 4, device="cuda")
        assert F.scaled_dot_product_attention(x, x, x).device.type == "cuda"
    assert [call.why for call in calls.in_pytorch] == [f"query is on cuda:0, and attend in this process {reason}"]
    with FakeTensorMode(), pytest.raises(NotImplementedError, match="in this process"), attend.torch.sdpa(strict=True):
        F.scaled_dot_product_attention(*[torch.empty(1, 2, 3, 4, device="cuda")] * 3)


@pytest.mark.parametrize("need_weights", [False, True])
def test_multi_head_attention_with_and_without_weights(need_weights):
    layer, x = nn.MultiheadAttention(16, 4, batch_first=True, add_bias_kv=True), torch.randn(2, 5, 16)
    arguments = {"need_weights": need_weights, "key_padding_mask": padding()}
    wanted, _ = layer(x, x, x, **arguments)
    with attend.torch.sdpa(layer) as calls:
        found, weights = layer(x, x, x, **arguments)
    assert error(found, wanted.double()) < 1e-6 and (weights is not None) == need_weights
    (call,) = calls.counts
    assert call.module == "(the model)" and call.where == ("PyTorch" if need_weights else "attend")
    assert not need_weights or "attend.torch.replace(model)" in call.why
    if need_weights:
        with attend.torch.sdpa(strict=True), pytest.raises(NotImplementedError, match="asked for weights"):
            layer(x, x, x)


def test_the_fast_path_comes_back_after_exceptions_and_nested_blocks():
    enabled = torch.backends.mha.get_fastpath_enabled
    assert enabled()
    with pytest.raises(KeyError), attend.torch.sdpa():
        with attend.torch.sdpa():
            assert not enabled()
        assert not enabled()
        raise KeyError
    assert enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with attend.torch.sdpa():
            pass
        assert not enabled()
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    q = torch.ones(1, 1, 2, 4)
    with attend.torch.sdpa() as calls:
        pass
    F.scaled_dot_product_attention(q, q, q)
    assert len(calls) == 0 and str(calls) == "no call of scaled_dot_product_attention"


def test_the_inner_block_takes_the_call():
    q = torch.ones(1, 1, 2, 4)
    with attend.torch.sdpa(strict=True) as outer:
        F.scaled_dot_product_attention(q, q, q)
        with attend.torch.sdpa() as inner:
            F.scaled_dot_product_attention(q, q, q)
            x = q.as_subclass(Named)
            with attend.torch.sdpa() as innermost:
                F.scaled_dot_product_attention(q, q, q)
        F.scaled_dot_product_attention(q, q, q)
    assert (len(outer), len(inner), len(innermost)) == (2, 1, 1)
    with attend.torch.sdpa() as outer, attend.torch.sdpa() as inner:
        F.scaled_dot_product_attention(x, x, x)
    assert (len(outer), len(inner), len(inner.in_pytorch)) == (0, 1, 1)


def test_a_block_is_of_its_thread():
    q, others = torch.ones(1, 1, 2, 4), []

    def elsewhere():
        F.scaled_dot_product_attention(q, q, q)
        with attend.torch.sdpa() as calls:
            F.scaled_dot_product_attention(q, q, q)
        others.append(len(calls))

    with attend.torch.sdpa() as calls:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        F.scaled_dot_product_attention(q, q, q)
        assert not torch.backends.mha.get_fastpath_enabled()
    assert others == [1] and len(calls) == 1 and torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("make", [Own, encoder])
def test_torch_compile_inside_the_block(make):
    model, x = make(), torch.randn(2, 5, 16)
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, fullgraph=True, backend=keep)
    wanted = model(x)
    for _ in range(2):
        with attend.torch.sdpa(model) as calls:
            found = compiled(x)
        assert error(found, wanted.detach().double()) < 1e-5
        if len(graphs) == 1 and not calls.counts:
            continue  # the graph of the first block, used again
        (call,) = calls.counts
        assert call.module == "torch.compile" and call.where == "attend"
    assert len(graphs) == 1
    assert any("attend.attention" in str(node.target) for node in graphs[0].graph.nodes)
    found.sum().backward()
    compiled(x)
    assert not any("attend.attention" in str(node.target) for node in graphs[1].graph.nodes)


def test_autocast_checkpointing_and_dropout():
    from torch.utils.checkpoint import checkpoint

    x = torch.randn(2, 5, 16)
    with attend.torch.sdpa() as calls, torch.autocast("cpu", dtype=torch.bfloat16):
        assert Own()(x).dtype == torch.bfloat16
    gradients, model = [], Own(dropout=0.3)
    for again, by_grad in ((0, False), (1, False), (1, True)):  # 1: it is called a second time
        model.zero_grad()
        torch.manual_seed(3)
        with attend.torch.sdpa() as calls:
            loss = (checkpoint(model, x, use_reentrant=False) if again else model(x)).sin().sum()
            if by_grad:
                gradients.append(torch.autograd.grad(loss, model.project.weight)[0])
            else:
                loss.backward()
                gradients.append(model.project.weight.grad.clone())
        assert calls.on_attend == len(calls) == 1 + again
    assert torch.equal(gradients[0], gradients[1]) and torch.equal(gradients[0], gradients[2])


def run_in_a_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_thread_of_the_backward_pass_runs_on_attend():
    """PyTorch's for a GPU has the modes of the thread that asked for gradients, and none of Python's variables of that thread. Here
    the part of the model that is computed again is, in such a thread.
    """
    from attend.torch.sdpa import _modes
    from torch.utils.checkpoint import checkpoint

    model, x, runs = Own(), torch.randn(2, 5, 16, requires_grad=True), []

    def part(x):
        runs.append(x)
        if len(runs) == 1:
            return model(x)
        made = []

        def again():
            with torch.enable_grad(), _modes[False]:
                made.append(model(x))

        run_in_a_thread(again)
        return made[0]

    wanted = torch.autograd.grad(model(x).sin().sum(), x)[0]
    with attend.torch.sdpa(model) as calls:
        checkpoint(part, x, use_reentrant=True).sin().sum().backward()
    assert error(x.grad, wanted.double()) < 1e-5 and len(runs) == 2
    (call,) = calls.counts
    assert call.module == "(the model)" and calls.counts[call] == 2


def test_a_thread_whose_block_may_be_one_of_several_is_not_listed():
    from attend.torch.sdpa import _modes

    q, inside, ended = torch.ones(1, 1, 2, 4), threading.Event(), threading.Event()

    def other():
        with attend.torch.sdpa():
            inside.set()
            ended.wait()

    def of_nobody():
        with _modes[False]:
            F.scaled_dot_product_attention(q, q, q)

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait()
    with attend.torch.sdpa() as calls:
        run_in_a_thread(of_nobody)
        assert len(calls) == 0
        ended.set()
        thread.join()
        run_in_a_thread(of_nobody)
    assert len(calls) == calls.on_attend == 1


def test_a_thread_that_ended_inside_a_block_has_none_any_more():
    """In a generator that nobody closed; here it is closed at the end, in another thread."""
    from attend.torch.sdpa import _modes, _of_threads

    q, left = torch.ones(1, 1, 2, 4), []

    def leaves():
        left.append(attend.torch.sdpa())
        left[0].__enter__()

    def of_nobody():
        with _modes[False]:
            F.scaled_dot_product_attention(q, q, q)

    run_in_a_thread(leaves)
    with attend.torch.sdpa() as calls:
        run_in_a_thread(of_nobody)
        assert len(calls) == calls.on_attend == 1
    _modes[False].__enter__()  # the one that PyTorch takes away is that of the thread that closes
    left.pop().gen.close()
    assert len(_of_threads) == 0 and torch.backends.mha.get_fastpath_enabled()


def test_calls_that_threads_add_at_once_are_all_counted():
    calls, call, before = attend.torch.Calls(), attend.torch.Call("", (), (), (), "float32", "attend"), sys.getswitchinterval()

    def add():
        for _ in range(20_000):
            calls.add(call)

    threads = [threading.Thread(target=add) for _ in range(4)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert calls.on_attend == 80_000


def test_a_context_of_its_own_and_what_is_none():
    q = torch.randn(1, 2, 3, 4)
    with attend.torch.sdpa(context=attend.Context(threads=2)) as calls:
        found = F.scaled_dot_product_attention(q, q, q)
    assert calls.on_attend == 1 and torch.equal(found, attend.torch.scaled_dot_product_attention(q, q, q))
    for arguments, message in (
        ({"context": 3}, "sdpa: context takes an attend.Context, found int"),
        ({"model": "bert"}, "sdpa: model takes an nn.Module, found str"),
        ({"strict": 1}, "sdpa: strict takes True or False, found int"),
    ):
        with pytest.raises(TypeError, match=message), attend.torch.sdpa(**arguments):
            pass

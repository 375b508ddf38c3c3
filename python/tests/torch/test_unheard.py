"""Calls that nobody else listens to go without PyTorch's dispatch; all others must not."""
import ctypes
import pickle
import resource
import subprocess
import sys

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import attend
import attend.torch
from attend._attend import TorchOptions
from attend.torch.calls import untapped
from attend.torch.unheard import CAUSAL, EVERY_KEY, calls, plain


def draw(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype)


def taken(q, k=None, v=None, options=EVERY_KEY, **more):
    """Whether a call goes the short way."""
    k = q if k is None else k
    found = calls.attention(q, k, k if v is None else v, None, options, **more)
    if found is not None:
        assert torch.equal(found, attend.attention(q.detach(), k.detach(), (k if v is None else v).detach()))
    return found is not None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [{}, {"causal": True, "query_offset": 2}, {"window": (3, 0)}, "mask", "key_lengths"])
def test_the_bits_are_attends(dtype, options):
    q, k, v = draw(2, 5, 4, 8, dtype=dtype).transpose(1, 2), draw(2, 2, 7, 8, dtype=dtype), draw(2, 2, 7, 3, dtype=dtype)
    if isinstance(options, str):
        options = {options: torch.rand(5, 7) < 0.7 if options == "mask" else torch.tensor([3, 7])}
    read = TorchOptions(options, 5, 7)
    for scale in (None, 0.3, 0.3, None):  # the first is kept
        wanted = attend.attention(q, k, v, scale=scale, **options)
        found = calls.attention(q, k, v, scale, read)
        last = calls.attention(q, k, v, scale, read, heads_last=True)
        assert torch.equal(found, wanted) and found.dtype == dtype and type(found) is torch.Tensor
        assert torch.equal(last, wanted.transpose(1, 2)) and last.is_contiguous()
        assert found.transpose(1, 2).is_contiguous()  # as q lies
    assert calls.attention(k, k, v, None, TorchOptions({})).is_contiguous()


def test_options_are_for_some_lengths_and_heads():
    q, k = draw(1, 4, 5, 8), draw(1, 2, 7, 8)
    assert taken(q, k, options=TorchOptions({}, 5, 7)) and taken(q, k)
    assert not taken(q, k, options=TorchOptions({}, 4, 7)) and not taken(q, k, options=TorchOptions({}, 5, 6))
    assert not taken(q, k, same_heads=True) and taken(q, q, same_heads=True)
    assert not taken(q, k.expand(2, -1, -1, -1))
    assert not taken(q, k, options=pickle.loads(pickle.dumps(TorchOptions({}, 5, 6))))
    with pytest.raises(TypeError, match="unexpected keyword argument 'is_causal': here it is causal="):
        TorchOptions({"is_causal": True})
    for arguments in ((q, k, q), (q[..., :6], k, k), (q, k, k[:, :, :6]), (q, k[:, :0], k[:, :0]), (q[:, :3], k, k),
                      (q.expand(2, -1, -1, -1), k.expand(2, -1, -1, -1), k), (q, k.bfloat16(), k), (q, k, k.double())):
        assert calls.attention(*arguments, None, EVERY_KEY) is None


class Mine(torch.Tensor):
    pass


class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Dispatched(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


BLOCKS = {
    "a function mode": Functions, "a dispatch mode": Dispatched, "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "forward mode": forward_ad.dual_level, "the profiler": torch.profiler.profile,
}


@pytest.mark.parametrize("name", BLOCKS)
def test_whoever_listens_hears_of_it(name):
    q = draw(1, 2, 3, 4)
    assert taken(q) and plain(q)
    with BLOCKS[name]():
        assert not taken(q) and not plain(q)
    assert taken(q) and plain(q)


def test_transforms_and_tracers_hear_of_it():
    q, heard = draw(2, 1, 2, 3, 4), []

    def function(x):
        heard.append(calls.attention(x, x, x, None, EVERY_KEY))
        return x + 1

    torch.func.vmap(function)(q)
    torch.func.grad(lambda x: function(x).sum())(q[0])
    torch.jit.trace(function, q[0], check_trace=False)
    assert heard == [None] * 3


NOT_PLAIN = {
    "a subclass": lambda: draw(1, 2, 3, 4).as_subclass(Mine), "without memory": lambda: torch.empty(1, 2, 3, 4, device="meta"),
    "sparse": lambda: draw(1, 2, 3, 4).to_sparse(), "nested": lambda: torch.nested.nested_tensor([draw(2, 3, 4)]),
    "a pending minus sign": lambda: torch.randn(1, 2, 3, 4, dtype=torch.complex64).conj().imag,
    "integers": lambda: torch.ones(1, 2, 3, 4, dtype=torch.int64), "three dimensions": lambda: draw(2, 3, 4),
    "no tensor": lambda: draw(1, 2, 3, 4).numpy(), "None": lambda: None,
}


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_other_tensors_go_another_way(name):
    q, odd = draw(1, 2, 3, 4), NOT_PLAIN[name]()
    for arguments in ((odd, q, q), (q, odd, q), (q, q, odd)):
        assert calls.attention(*arguments, None, EVERY_KEY) is None
    for scale in (1, "1", torch.tensor(1.0)):
        assert calls.attention(q, q, q, scale, EVERY_KEY) is None


def test_no_gradient_is_lost():
    q, k, v = (draw(1, 2, 3, 4) for _ in range(3))
    for x in (q, k, v):
        x.requires_grad_()
        assert not taken(q, k, v) and not plain(q, k, v)
        with torch.no_grad():
            assert taken(q, k, v) and plain(q, k, v)
        with torch.inference_mode():
            assert calls.attention(q, k, v, None, EVERY_KEY).is_inference()
        x.requires_grad_(False)
    parameter = torch.nn.Parameter(q)
    assert not taken(parameter, k, v)
    attend.torch.scaled_dot_product_attention(parameter, k, v, is_causal=True).sum().backward()
    assert parameter.grad is not None


def test_blocks_hear_of_calls():
    q = draw(1, 2, 3, 4)
    assert untapped.attention(q, q, q, None, CAUSAL) is not None
    with attend.torch.capture() as run:
        assert untapped.attention(q, q, q, None, CAUSAL) is None
        with attend.torch.sdpa() as done:
            F.scaled_dot_product_attention(q, q, q)
    assert len(run.layers) == 1 and done.on_attend == 1
    assert untapped.attention(q, q, q, None, CAUSAL) is not None


def test_what_pytorch_broadcasts_is_broadcast():
    q, k, v = draw(2, 4, 5, 8), draw(2, 2, 7, 8), draw(2, 4, 7, 8)
    for key, value, grouped in ((k, v, True), (v, v[:1], False), (v[:, :1], v, False)):
        wanted = F.scaled_dot_product_attention(q, key, value, enable_gqa=grouped)
        with attend.torch.sdpa() as done:
            torch.testing.assert_close(F.scaled_dot_product_attention(q, key, value, enable_gqa=grouped), wanted)
        assert done.on_attend == 1


def test_results_live_and_die_by_themselves():
    q = draw(1, 1, 64, 1024)
    kept = calls.attention(q, q, q, None, EVERY_KEY)
    wanted = kept.clone()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(2000):  # 512 MB
        out = calls.attention(q[:, :, :1].expand(1, 1, 64, 1024), q[:, :, :1], q[:, :, :1], None, EVERY_KEY)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18  # KiB
    del q
    out[:] = 7.0  # memory of its own, which may be written
    assert torch.equal(kept, wanted)


class Api(ctypes.Structure):  # the head of DLPackExchangeAPI
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("older", ctypes.c_void_p), ("functions", ctypes.c_void_p * 5)]


def test_a_pytorch_without_the_exchange_api():
    """None at all, and one of a later version of DLPack that knows nothing of this one."""
    code = """
import ctypes, sys, torch
sys.path.insert(0, %r)
if sys.argv[1] == 'none':
    del torch.Tensor.__dlpack_c_exchange_api__
else:
    from test_unheard import Api
    api = Api(2, 0, None)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    torch.Tensor.__dlpack_c_exchange_api__ = new(ctypes.addressof(api), b'dlpack_exchange_api', None)
import attend.torch
from attend.torch.unheard import calls, EVERY_KEY
q = torch.randn(1, 2, 3, 4)
assert calls.attention(q, q, q, None, EVERY_KEY) is None
wanted = torch.nn.functional.scaled_dot_product_attention(q, q, q)
for found in (attend.attention(q, q, q), attend.torch.scaled_dot_product_attention(q, q, q), attend.torch.attention(q, q, q)):
    assert type(found) is torch.Tensor
    torch.testing.assert_close(found, wanted)
print('done')
""" % __file__.rpartition("/")[0]
    for which in ("none", "later"):
        done = subprocess.run([sys.executable, "-c", code, which], capture_output=True, text=True, timeout=540)
        assert done.stdout == "done\n", done.stderr

"""Does attend.torch compute with as many threads as PyTorch, or as the Context that it is given?"""
import copy
import gc
import io
import os
import pickle
import subprocess
import sys

import pytest
import torch

import attend
import attend.torch
from attend._attend import TorchCalls
from attend.torch import contexts
from attend.torch.unheard import EVERY_KEY

Q = torch.ones(1, 2, 4, 8)


@pytest.fixture
def used(monkeypatch):
    """The Contexts that attention is called with."""
    found = []
    for name in ("attention", "attention_backward"):
        real = getattr(attend, name)

        def call(*arrays, real=real, context=None, **options):
            found.append(context)
            return real(*arrays, context=context, **options)

        monkeypatch.setattr(attend, name, call)
    return found


@pytest.fixture(params=[1, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_every_way_follows_torch_set_num_threads(used, threads):
    q = Q.clone().requires_grad_()
    attend.torch.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
    layer = attend.torch.MultiheadAttention(8, 2)
    layer(*[torch.ones(3, 1, 8)] * 3)[0].sum().backward()
    assert len(used) == 4 and {context.threads for context in used} == {threads}
    assert len({id(context) for context in used}) == 1, "made once for each number"


def test_a_given_context_comes_first(used, threads):
    context = attend.Context(threads=2)
    q = Q.clone().requires_grad_()
    attend.torch.scaled_dot_product_attention(q, q, q, context=context).sum().backward()
    layer = attend.torch.MultiheadAttention(8, 2, context=context)
    layer(*[torch.ones(3, 1, 8)] * 3)[0].sum().backward()
    copy.deepcopy(layer)(*[torch.ones(3, 1, 8)] * 3)
    model = torch.nn.TransformerEncoderLayer(8, 2, 8)
    attend.torch.replace(model, context=context)
    model(torch.ones(3, 1, 8))
    plain = attend.torch.MultiheadAttention(8, 2)
    plain(*[torch.ones(3, 1, 8)] * 3, context=context)
    assert len(used) == 7 and all(found is context for found in used)


def test_so_does_the_way_without_the_operator(threads):
    """Told by the bits: those of the reference are others."""
    q, reference = torch.randn(1, 2, 40, 8), attend.Context(kernels="forward:reference.forward")
    wanted = attend.attention(q, q, q, context=reference)
    assert not torch.equal(wanted, attend.attention(q, q, q))
    assert torch.equal(attend.torch.scaled_dot_product_attention(q, q, q, context=reference), wanted)
    assert not torch.equal(attend.torch.scaled_dot_product_attention(q, q, q), wanted)  # the number is known from here on
    asked = []
    calls = TorchCalls([], torch.is_grad_enabled, torch.get_num_threads, lambda: asked.append(threads) or reference)
    for number in (threads + 1, threads, threads):  # asked again for another number alone
        torch.set_num_threads(number)
        assert torch.equal(calls.attention(q, q, q, None, EVERY_KEY), wanted)
    assert len(asked) == 2
    torch.set_num_threads(threads + 2)  # for the next test
    assert not torch.equal(attend.torch.scaled_dot_product_attention(q, q, q), wanted)


def test_a_context_that_is_gone_by_the_backward_pass_is_not_missed(used):
    q = Q.clone().requires_grad_()
    context = attend.Context(threads=2)
    out = attend.torch.scaled_dot_product_attention(q, q, q, context=context)
    used.clear()
    del context
    gc.collect()
    out.sum().backward()
    assert len(used) == 1 and used[0] is contexts.current()


def test_something_else_as_a_context_is_refused_in_words():
    for call in (
        lambda: attend.torch.scaled_dot_product_attention(Q, Q, Q, context=1),
        lambda: attend.torch.MultiheadAttention(8, 2)(*[torch.ones(3, 1, 8)] * 3, context=1),
        lambda: attend.torch.replace(torch.nn.Linear(2, 2), context=1),
    ):
        with pytest.raises(TypeError, match="context takes an attend.Context, found int"):
            call()


def test_attend_threads_comes_before_torchs_number():
    code = ("import attend.torch, torch; torch.set_num_threads(1); from attend.torch import contexts; "
            "print(contexts.current().threads)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=540,
                          env={**os.environ, "ATTEND_THREADS": "5"})
    assert done.stdout == "5\n", done.stderr


def test_attend_threads_is_read_at_the_first_call():
    code = ("import attend.torch, os, torch; os.environ['ATTEND_THREADS'] = '3'; torch.set_num_threads(1); "
            "from attend.torch import contexts; print(contexts.current().threads)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=540,
                          env={name: x for name, x in os.environ.items() if name != "ATTEND_THREADS"})
    assert done.stdout == "3\n", done.stderr


OPENMP = "parallel backend: OpenMP" in torch.__config__.parallel_info()
STARTED = """
import os, time, torch, attend, attend.torch
q = torch.randn(1, 8, 512, 64)

def named():
    names = []
    for task in os.listdir('/proc/self/task'):
        try:
            names.append(open(f'/proc/self/task/{task}/comm').read().strip())
        except OSError:  # it has just ended
            pass
    return names.count('attend')

def named_in_time(count):  # a thread names itself when it first gets a processor
    end = time.monotonic() + 300
    while named() != count and time.monotonic() < end:
        time.sleep(0.01)
    return named()
"""


def said(code, **environment):
    free = {name: x for name, x in os.environ.items() if name != "ATTEND_THREADS"}
    done = subprocess.run([sys.executable, "-c", STARTED + code], capture_output=True, text=True, timeout=540,
                          env={**free, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not OPENMP, reason="this PyTorch has other threads than OpenMP's")
def test_pytorchs_threads_compute_and_none_of_attends():
    """By the names of the threads, and the time of all but this one: it does not do the work alone."""
    code = """
for threads in (2, 5, 4):
    torch.set_num_threads(threads)
    attend.torch.scaled_dot_product_attention(q, q, q)
alone, end = True, time.monotonic() + 300
while alone and time.monotonic() < end:  # the others may get no processor for a while
    attend.torch.scaled_dot_product_attention(q.expand(8, -1, -1, -1), q, q)
    ticks = {task: sum(map(int, open(f'/proc/self/task/{task}/stat').read().rsplit(')', 1)[1].split()[11:13]))
             for task in os.listdir('/proc/self/task')}
    alone = sum(ticks.values()) < ticks[str(os.getpid())] + 10
print(named(), alone)
"""
    assert said(code) == "0 False\n"


def test_threads_of_attends_own_compute_where_the_environment_asks_for_them():
    assert said("attend.torch.scaled_dot_product_attention(q, q, q); print(named_in_time(2))", ATTEND_THREADS="3") == "2\n"


@pytest.mark.parametrize("number", [3, 4])
def test_a_child_of_fork_has_threads_of_attends_own(number):
    """PyTorch's are not there, and would be waited for: with its number of before, and with another one."""
    code = f"""
torch.set_num_threads(3)
before = attend.torch.scaled_dot_product_attention(q, q, q)
child = os.fork()
if child == 0:
    torch.set_num_threads({number})
    same = attend.torch.scaled_dot_product_attention(q, q, q).numpy().tobytes() == before.numpy().tobytes()
    os._exit(10 * same + named_in_time({number - 1}))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert said(code) == f"{10 + number - 1}\n"


@pytest.mark.skipif(not OPENMP, reason="this PyTorch has other threads than OpenMP's")
def test_ctrl_c_ends_a_call_on_pytorchs_threads():
    """Of minutes: the caller has tasks of its own, between which it asks, however many threads there are."""
    code = """
import signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(8)
clock = time.pthread_getcpuclockid(threading.get_ident())

def ended(call):
    begin = time.clock_gettime(clock)
    def send():  # when this thread has computed for a while: it is then at work
        while time.clock_gettime(clock) - begin < 0.2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
    try:
        threading.Thread(target=send).start()
        call()
    except KeyboardInterrupt:
        return True

long = torch.zeros(1, 2, 1 << 17, 64, requires_grad=True)
print(ended(lambda: attend.torch.scaled_dot_product_attention(long, long, long)))
print(torch.equal(attend.torch.scaled_dot_product_attention(q, q, q), attend.attention(q, q, q)))
"""
    assert said(code) == "True\nTrue\n"


def test_every_thread_rounds_as_the_caller_does():
    code = """
import ctypes, platform
round = ctypes.CDLL(None).fesetround
toward_zero = 0xC00 if platform.machine() in ('x86_64', 'AMD64') else 0xC00000
usual = attend.attention(q, q, q, context=attend.Context(threads=1)).numpy().tobytes()
torch.set_num_threads(4)
attend.torch.scaled_dot_product_attention(q, q, q)
round(toward_zero)
alone = attend.attention(q, q, q, context=attend.Context(threads=1)).numpy().tobytes()
all = [attend.torch.scaled_dot_product_attention(q, q, q).numpy().tobytes() for _ in range(20)]
round(0)
all += [attend.torch.scaled_dot_product_attention(q, q, q).numpy().tobytes()]
print(alone == usual, set(all[:-1]) == {alone}, all[-1] == usual)
"""
    assert said(code) == "False True True\n"


def test_a_layer_with_a_context_can_be_saved_and_copied():
    context = attend.Context(threads=2, kernels="forward:reference.forward")
    layer = attend.torch.MultiheadAttention(8, 2, context=context)
    assert copy.copy(layer).context is context and copy.copy(context) is context
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert loaded.context is not context and loaded.context.threads == 2
    q = torch.ones(1, 1, 2, 8)
    assert attend.Plan.attention(q, q, q, context=loaded.context).kernel == "reference.forward"
    layer.context = attend.default_context()
    assert pickle.loads(pickle.dumps(layer)).context is attend.default_context()


def test_one_thread_of_torchs_starts_none_of_attends():
    code = """
import os, torch, attend.torch
torch.set_num_threads(1)
q = torch.randn(1, 8, 512, 64)
before = len(os.listdir('/proc/self/task'))
attend.torch.scaled_dot_product_attention(q, q, q, is_causal=True)
print(len(os.listdir('/proc/self/task')) - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=540)
    assert done.stdout == "0\n", done.stderr


def test_grouped_heads_without_the_flag_are_told_of_it():
    with pytest.raises(ValueError, match="8 heads of query with 2 of key are grouped heads.*enable_gqa=True"):
        attend.torch.scaled_dot_product_attention(
            torch.ones(1, 8, 3, 4), torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4))


def test_enable_gqa_is_not_advised_where_it_would_not_help():
    ones = torch.ones
    for q, k, more in (
        (ones(3, 8, 3, 4), ones(2, 2, 3, 4), {}),  # of the batch
        (ones(1, 8, 3, 4), ones(1, 8, 3, 4), {"attn_mask": ones(1, 3, 3, 3)}),  # of the mask
        (ones(3, 8, 3, 4), ones(2, 2, 3, 4), {"enable_gqa": True}),
    ):
        with pytest.raises(ValueError, match="do not fit") as error:
            attend.torch.scaled_dot_product_attention(q, k, k, **more)
        assert "enable_gqa" not in str(error.value)

"""Is the package safe, and parallel, from many threads?"""
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import attend


def comes_true(condition):
    """Whether it does, however often it takes; ten minutes are for what never does."""
    end = time.monotonic() + 600
    while not condition():
        if time.monotonic() > end:
            return False
    return True


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_many_threads_get_the_bits_of_one():
    layer = attend.MultiHeadAttention(model_dim=16, heads=4)
    inputs = [draw(1, 4, 5 + n, 8, seed=n) for n in range(8)]
    rows = [draw(2, 3 + n, 16, seed=n) for n in range(8)]

    def work(n):
        x = inputs[n % 8]
        out, lse = attend.attention(x, x, x, causal=True, return_lse=True)
        gradients = attend.attention_backward(x, x, x, out, lse, out, causal=True)
        y, saved = layer.forward_train(rows[n % 8])
        return [out, *gradients, y, layer.backward(y, saved).dx]

    alone = [work(n) for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for n, results in enumerate(pool.map(work, range(200))):
            for got, want in zip(results, alone[n % 8], strict=True):
                np.testing.assert_array_equal(got, want)


def slow(q, context):
    """Calls that take long enough to watch: {name: call}."""
    out, lse = attend.attention(q, q, q, return_lse=True, context=context)
    rows = q[0]                                          # [heads, length, d]
    layer = attend.MultiHeadAttention(model_dim=64, heads=1)
    y, saved = layer.forward_train(rows, context=context)
    logits, targets = np.zeros((3000, 2000), np.float32), np.zeros(3000, np.int64)
    large = {"w": np.zeros(4_000_000, np.float32)}
    optimizer = attend.AdamW()
    return {
        "attention": lambda: attend.attention(q, q, q, context=context),
        "attention_backward": lambda: attend.attention_backward(q, q, q, out, lse, out, context=context),
        "forward": lambda: layer.forward(rows, context=context),
        "backward": lambda: layer.backward(y, saved, context=context),
        "trace": lambda: layer.trace(rows, context=context),
        "cross_entropy": lambda: attend.cross_entropy(logits, targets),
        "step": lambda: optimizer.step(large, large, 0.1),
    }


def test_python_runs_while_a_kernel_does():
    context = attend.Context(threads=1, kernels="forward:reference.forward,backward:reference.backward")

    def turns_beside(call):
        """How many turns this thread has between the beginning of the call in another, and its end."""
        ended, turns, seen = threading.Event(), 0, []

        def work():
            seen.append(turns)
            call()
            seen.append(turns)
            ended.set()

        thread = threading.Thread(target=work)
        thread.start()
        while not ended.is_set():
            turns += 1
            time.sleep(0.001)
        thread.join()
        return seen[1] - seen[0]

    for name, call in slow(draw(1, 1, 600, 64), context).items():
        # 0 or 1 if the interpreter had to wait. On a busy machine sometimes few, too: then once more.
        assert comes_true(lambda: turns_beside(call) > 3), name


def test_a_cache_is_for_one_thread_at_a_time():
    layer = attend.MultiHeadAttention(model_dim=64, heads=4)
    cache = layer.make_cache(batch=1, capacity=3000)
    context = attend.Context(threads=1, kernels="forward:reference.forward")
    x = draw(1, 2500, 64)

    def refused():
        """Whether the cache was refused twice, to a look and to a call, while a thread filled it."""
        cache.truncate(0, 0)
        thread = threading.Thread(target=lambda: layer.forward(x, cache=cache, context=context))
        thread.start()
        try:
            while thread.is_alive():                     # until the call has begun
                try:
                    cache.length(0)
                except RuntimeError:
                    break
            if not thread.is_alive():
                return False                             # it was over before anybody looked
            try:
                layer.forward(draw(1, 1, 64), cache=cache)
            except RuntimeError as error:
                return "in use by another thread" in str(error)
            return False
        finally:
            thread.join()

    assert comes_true(refused)                           # this thread may have looked too late
    assert cache.length(0) == 2500
    layer.forward(draw(1, 1, 64), cache=cache)           # free again


def test_nobody_looks_at_a_cache_that_a_model_fills():
    model = attend.LanguageModel(vocabulary=5, length=1500, layers=1, model_dim=64)
    caches = model.make_caches(1)
    refused = set()
    looks = {"length": lambda c: c.length(0), **{
        name: lambda c, name=name: getattr(c, name)
        for name in ("options", "free_pages", "keys", "values", "key_lengths", "block_table")}}

    def all_refused():
        """After one more filling, of which this thread may have missed some."""
        caches[0].truncate(0, 0)
        thread = threading.Thread(target=model.forward, args=(np.zeros((1, 1500), np.int64), caches))
        thread.start()
        while thread.is_alive():
            for name, look in looks.items():
                try:
                    look(caches[0])
                except RuntimeError as error:
                    assert "KvCache is in use by another thread" in str(error)
                    refused.add(name)
        thread.join()
        return refused == set(looks)

    assert comes_true(all_refused), refused
    assert caches[0].length(0) == 1500 and caches[0].keys.shape[2] == 1500


def test_errors_cross_threads_unharmed():
    def work(n):
        with pytest.raises(ValueError, match="k has d 3"):
            attend.attention(draw(1, 1, 2, 4), draw(1, 1, 2, 3), draw(1, 1, 2, 3))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(100)))


def test_first_calls_at_once_do_not_wait_for_each_other():
    """Nothing of the module is made at the first call under a lock while Python imports."""
    code = """if True:
        import sys, threading, attend
        sys.setswitchinterval(1e-5)
        refused = []
        def work():
            try:
                attend.attention(1, 1, 1)
            except TypeError:
                refused.append(1)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print(len(refused))
    """
    for _ in range(3):
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert ran.stdout == "4\n", ran.stderr


def test_a_subinterpreter_is_refused_and_the_main_one_goes_on():
    code = """
import numpy as np
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
import attend

other = interpreters.create()
failed = interpreters.run_string(other, '''
import sys
try:
    import attend._attend
except ImportError as error:
    assert 'subinterpreter' in str(error), error
else:
    sys.exit('it was imported')
''')
assert failed is None, failed    # from Python 3.13 on it is given back, not raised
interpreters.destroy(other)
q = np.ones((1, 1, 2, 2), 'f4')
print(attend.attention(q, q, q).shape)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=540)
    assert done.returncode == 0 and done.stdout == "(1, 1, 2, 2)\n", done.stderr


@pytest.mark.parametrize("value, wanted", [("3", "3"), ("1", "1")])
def test_the_environment_says_how_many_threads(value, wanted):
    code = "import attend; print(attend.default_context().threads, attend.Context().threads, attend.Context(threads=2).threads)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=540,
                          env={**os.environ, "ATTEND_THREADS": value})
    assert done.stdout.split() == [wanted, wanted, "2"], done.stderr


@pytest.mark.parametrize("value", ["two", "0", "-1", "4097", "2 ", "99999999999999999999"])
def test_a_bad_number_of_threads_in_the_environment_is_an_error_in_words(value):
    code = "import attend\ntry:\n attend.default_context()\nexcept ValueError as e: print(e)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=540,
                          env={**os.environ, "ATTEND_THREADS": value})
    assert done.stdout == (f"context: the environment variable ATTEND_THREADS is \"{value}\"; "
                           "it must be a whole number from 1 to 4096\n"), done.stderr

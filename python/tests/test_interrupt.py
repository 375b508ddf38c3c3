"""Does Ctrl-C end a call that would last for minutes, and leave everything as it was?

Nothing here depends on how fast it does: where it did not, the child would not end in time.
"""
import subprocess
import sys
import textwrap

import pytest

START = """
import os, signal, sys, threading, time
import numpy as np
import attend

signal.signal(signal.SIGINT, signal.default_int_handler)   # who runs the tests may ignore it
LONG = 1 << 17
context = attend.Context(threads=int(sys.argv[1]))
q = np.zeros((1, 1, LONG, 64), 'float32')      # 4 * 64 * 2^34 operations: minutes
rows = q[0]
layer = attend.MultiHeadAttention(64, 1)
out, lse = np.zeros_like(q), np.zeros((1, 1, LONG), 'float32')
small = np.random.default_rng(0).standard_normal((1, 2, 300, 8)).astype('float32')
before = attend.attention(small, small, small, causal=True, context=context)

main_clock = time.pthread_getcpuclockid(threading.get_ident())

# A thread that sends the signal when the main thread has computed for 0.2 s, by its own clock: however
# busy the machine is, the call is then at work.
def signal_from_inside(number):
    begin = time.clock_gettime(main_clock)
    def send():
        while time.clock_gettime(main_clock) - begin < 0.2:
            time.sleep(0.01)
        os.kill(os.getpid(), number)
    thread = threading.Thread(target=send)
    thread.start()
    return thread

def interrupted(call, number=signal.SIGINT, kind=KeyboardInterrupt):
    try:
        sender = signal_from_inside(number)
        call()
    except kind as error:
        sender.join()
        again = attend.attention(small, small, small, causal=True, context=context)
        assert (again == before).all()
        return error
    raise SystemExit('the call ended by itself')
"""


def run(threads, code):
    done = subprocess.run([sys.executable, "-c", START + textwrap.dedent(code), str(threads)],
                          capture_output=True, text=True, timeout=540)
    assert done.returncode == 0 and done.stdout.split() == ["well"], done.stdout + done.stderr


@pytest.mark.parametrize("threads", [1, 3])
def test_ctrl_c_ends_attention_its_gradient_statistics_and_a_page(threads):
    run(threads, """
        interrupted(lambda: attend.attention(q, q, q, context=context))
        interrupted(lambda: attend.attention_backward(q, q, q, out, lse, out, context=context))
        interrupted(lambda: attend.inspect(q, q, context=context))
        interrupted(lambda: attend.view(q, q, q, context=context))
        given = np.zeros_like(q)
        interrupted(lambda: attend.attention(q, q, q, out=given, context=context))
        given.resize((1, 1, 1, 1))      # refused while anything holds it
        print('well')
    """)


def test_ctrl_c_ends_a_layer_and_its_cache_has_not_moved():
    run(2, """
        interrupted(lambda: layer.forward(rows, context=context))
        cache = layer.make_cache(1, 2 * LONG)
        layer.forward(rows[:, :3], cache=cache)
        interrupted(lambda: layer.forward(rows, cache=cache, context=context))
        assert cache.length(0) == 3
        layer.forward(rows[:, :3], cache=cache)
        assert cache.length(0) == 6
        print('well')
    """)


def test_a_handler_of_ones_own_decides_what_is_raised():
    run(1, """
        class Enough(Exception):
            pass

        def handle(number, frame):
            seen.append(number)
            if len(seen) == 2:
                raise Enough('by the handler')
            # The call goes on. Python would take two signals for one if both were waiting.
            signal_from_inside(signal.SIGUSR1)

        seen = []
        signal.signal(signal.SIGUSR1, handle)
        error = interrupted(lambda: attend.attention(q, q, q), signal.SIGUSR1, Enough)
        assert str(error) == 'by the handler' and len(seen) == 2
        print('well')
    """)


def test_a_call_of_another_thread_is_not_ended_by_a_signal():
    run(1, """
        few = np.zeros((1, 1, 3000, 64), 'float32')
        slow = attend.Context(threads=1, kernels='forward:reference.forward')
        results, clocks = [], []

        def work():
            clocks.append(time.pthread_getcpuclockid(threading.get_ident()))
            results.append(attend.attention(few, few, few, context=slow).shape)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            while not clocks:
                time.sleep(0.001)
            while thread.is_alive() and time.clock_gettime(clocks[0]) < 0.1:   # till it computes
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGINT)
            thread.join()
        except KeyboardInterrupt:
            pass
        thread.join()
        assert results == [(1, 1, 3000, 64)]
        print('well')
    """)


def test_ctrl_c_ends_a_call_of_ranks_and_the_others_hear_of_it():
    """The main thread is a rank; the other one, a thread of little work, waits for it in its next call."""
    run(1, """
        from attend import distributed

        group = distributed.ThreadGroup(2)
        layout = distributed.Layout([LONG], [[1] + [0] * (LONG // 256 - 1)], 2)
        heard = []

        def call(rank, timeout=60):
            x = distributed.take_rows(layout, rank, q)
            return distributed.attention(x, x, x, group=group.rank(rank), layouts=layout, causal=True,
                                         scheme='gather', timeout=timeout, context=context)

        def other():
            assert call(1).shape == (1, 1, 256, 64)
            try:
                call(1, 0.1)
            except distributed.PeerError as error:
                heard.append(str(error))

        thread = threading.Thread(target=other)
        thread.start()
        interrupted(lambda: call(0))
        thread.join()
        assert heard == ['distributed.attention: no answer from rank 0 within 100 ms'], heard
        for rank in 0, 1:
            try:
                call(rank)
            except distributed.PeerError as error:
                assert 'takes no more calls' in str(error)
            else:
                raise SystemExit('a group that failed took a call')
        print('well')
    """)


def test_ctrl_c_while_ranks_are_threads_reaches_who_waits_for_them():
    """They go on till their calls end, as any other thread's, and the process does not end before."""
    run(1, """
        from attend import distributed

        few = np.zeros((1, 1, 1500, 64), 'float32')
        slow = attend.Context(threads=1, kernels='forward:reference.forward')
        clocks, results = {}, []

        def rank(group):
            clocks[group.rank] = time.pthread_getcpuclockid(threading.get_ident())
            layout = distributed.Layout.serpentine([1500], 2)
            x = distributed.take_rows(layout, group.rank, few)
            results.append(distributed.attention(x, x, x, group=group, layouts=layout, context=slow).shape[2])

        def send():
            while len(clocks) < 2 or min(map(time.clock_gettime, clocks.values())) < 0.1:   # till both compute
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGINT)

        sender = threading.Thread(target=send)
        sender.start()
        try:
            distributed.ThreadGroup(2).run(rank)
        except KeyboardInterrupt:
            print('well')
        else:
            raise SystemExit('the call ended by itself')
        for thread in threading.enumerate():
            if thread is not threading.main_thread():
                thread.join()
        assert sum(results) == 1500
    """)

"""Attention over ranks: threads here, processes under mpirun in test_distributed_mpi.py."""
import doctest
import inspect
import pathlib
import threading
import types

import numpy as np
import pytest

import attend
from attend import distributed
from attend.distributed import Layout, PeerError, ThreadGroup

RNG = np.random.default_rng(5)
T, HEADS, KEY_HEADS, D = 700, 4, 2, 8


def rows(length, heads, d=D, kind="float32"):
    return RNG.standard_normal((1, heads, length, d)).astype(kind)


Q, K, V = rows(T, HEADS), rows(T, KEY_HEADS), rows(T, KEY_HEADS)
PACKED = np.array([0, 5, 300, 300, T])
OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window": (100, None)},
    "sinks and alibi": {"causal": True, "sinks": np.ones(HEADS, "f4"), "alibi": np.full(HEADS, 0.1, "f4")},
    "bias": {"bias": RNG.standard_normal((1, 1, T, T)).astype("f4"), "softcap": 5.0},
    "mask": {"mask": RNG.random((1, HEADS, T, T)) < 0.7},
    "packed": {"causal": True, "cu_seqlens_q": PACKED, "cu_seqlens_k": PACKED},
    "dropout": {"dropout": (0.2, 7)},
}


def divided(group, owners, options, **more):
    """Each rank's call, put together: out, lse, (dq, dk, dv), and the gradients of options by rank."""
    found = {name: np.empty(shape, "f4") for name, shape in
             {"out": Q.shape, "lse": Q.shape[:3], "dq": Q.shape, "dk": K.shape, "dv": V.shape}.items()}

    def rank(own):
        queries, keys = owners
        q = distributed.take_rows(queries, own.rank, Q)
        k, v = (distributed.take_rows(keys, own.rank, x) for x in (K, V))
        out, lse = distributed.attention(q, k, v, group=own, return_lse=True, **more, **options)
        back = distributed.attention_backward(q, k, v, out, lse, out, group=own, **more, **options)
        for name, layout, part in (("out", queries, out), ("lse", queries, lse), ("dq", queries, back[0]),
                                   ("dk", keys, back[1]), ("dv", keys, back[2])):
            distributed.put_rows(layout, own.rank, part, found[name])
        return back[3:]

    return found, group.run(rank)


@pytest.mark.parametrize("name", OPTIONS)
def test_ranks_give_the_bits_of_one_process(name):
    options = OPTIONS[name]
    out, lse = attend.attention(Q, K, V, return_lse=True, **options)
    back = attend.attention_backward(Q, K, V, out, lse, out, **options)
    layouts = distributed.balanced_layouts(T, ranks=3, **options)
    for more in ({}, {"layouts": layouts, "scheme": "heads"}, {"layouts": layouts, "scheme": "gather"}):
        found, others = divided(ThreadGroup(3), layouts, options, **more)
        for name, wanted in (("out", out), ("lse", lse), ("dq", back[0]), ("dk", back[1]), ("dv", back[2])):
            np.testing.assert_array_equal(found[name], wanted, err_msg=f"{name} {more}")
        for of_rank in others:
            for wanted, gradient in zip(back[3:], of_rank):
                np.testing.assert_array_equal(gradient, wanted)


class Boxes(distributed.Group):
    """A Group made in Python, of threads. Bytes belong to the n-th transfer: the next may be polled before it is done."""

    def __init__(self, rank, boxes):
        super().__init__(rank, len(boxes))
        self.boxes, self.transfers = boxes, 0

    def exchange(self, send, receive):
        others = [r for r in range(self.size) if r != self.rank]
        return self.transfer({r: send[r] for r in others}, {r: receive[r] for r in others})

    def broadcast(self, root, memory):
        if root != self.rank:
            return self.transfer({}, {root: memory})
        return self.transfer({r: memory for r in range(self.size) if r != root}, {})

    def transfer(self, send, receive):
        self.transfers += 1
        for r, memory in send.items():
            self.boxes[r][self.rank][self.transfers] = bytes(memory)
        return Arriving(self.boxes[self.rank], self.transfers, receive)


class Arriving:
    def __init__(self, boxes, transfer, wanted):
        self.boxes, self.transfer, self.wanted = boxes, transfer, wanted

    def poll(self):
        for r, memory in list(self.wanted.items()):
            if self.transfer in self.boxes[r]:
                memory[:] = self.boxes[r].pop(self.transfer)
                del self.wanted[r]
        return not self.wanted

    def missing(self):
        return list(self.wanted)


class BoxRanks(ThreadGroup):
    def __init__(self, size):
        super().__init__(size)
        boxes = [[{} for _ in range(size)] for _ in range(size)]
        self.of = [Boxes(r, boxes) for r in range(size)]

    def rank(self, r):
        return self.of[r]


def test_a_group_made_in_python_moves_the_bytes():
    layout = Layout.serpentine([T], 3, 64)
    out = attend.attention(Q, K, V, causal=True)
    for scheme in ("gather", "heads"):
        found, _ = divided(BoxRanks(3), (layout, layout), {"causal": True}, layouts=layout, scheme=scheme)
        np.testing.assert_array_equal(found["out"], out)


@pytest.mark.parametrize("ranks", [ThreadGroup, BoxRanks])
def test_a_rank_that_does_not_come_is_told_in_time(ranks):
    group = ranks(2)

    def rank(own):
        if own.rank == 1:
            return None
        with pytest.raises(PeerError, match="rank.* 1 within 100 ms"):
            distributed.attention(Q[:, :, :512], K[:, :, :512], V[:, :, :512], group=own, timeout=0.1)
        with pytest.raises(PeerError, match="takes no more calls"):
            distributed.attention(Q[:, :, :512], K[:, :, :512], V[:, :, :512], group=own, timeout=0.1)
        return own.failure

    assert "within 100 ms" in group.run(rank)[0]


MISTAKES = {
    "no array": ({"q": [1, 2]}, TypeError, "q takes a NumPy array"),
    "rank of q": ({"q": np.ones(3, "f4")}, ValueError, "rank 1"),
    "type of k": ({"k": K[:, :, :188].astype("f8")}, ValueError, "rank 1"),
    "no option": ({"attn_mask": 1}, TypeError, "here it is mask="),
    "scheme": ({"scheme": "ring"}, ValueError, "scheme is 'automatic', 'heads' or 'gather', found 'ring'"),
    "timeout": ({"timeout": -1}, ValueError, "timeout is -1"),
    "other option": ({"causal": False}, ValueError, "causal"),
    "window": ({"window": (-5, None)}, ValueError, "window holds -5"),
    "more dimensions": ({"q": Q[None, :, :, :188]}, ValueError, "q has 5 dimensions"),
    "fewer dimensions of k": ({"k": K[0, :, :188]}, ValueError, "k has 3 dimensions"),
    "context": ({"context": "x"}, TypeError, "context takes an attend.Context or None, found str"),
    "lengths": ({"key_lengths": np.array([T, T])}, ValueError, "key_lengths"),
}


@pytest.mark.parametrize("layouts", [None, Layout.serpentine([T], 2)])
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_of_one_rank_is_an_error_of_all(name, layouts):
    mistake, kind, message = MISTAKES[name]

    def rank(own):
        layout = Layout.serpentine([T], 2)
        given = {"causal": True, "group": own, "layouts": layouts}
        given |= {key: distributed.take_rows(layout, own.rank, x) for key, x in (("q", Q), ("k", K), ("v", V))}
        try:
            distributed.attention(**(given | mistake if own.rank == 1 else given))
        except Exception as error:
            wrong = error
        distributed.attention(**given)  # the group goes on
        return wrong

    other, own = ThreadGroup(2).run(rank)
    assert isinstance(own, kind) and message in str(own)
    assert isinstance(other, ValueError) and "rank 1" in str(other) and message in str(other)
    assert str(other).endswith(str(own))


@pytest.mark.parametrize("name", ["ä" * 700, "x" + "ä" * 700])
def test_a_long_mistake_is_cut_between_characters(name):
    def rank(own):
        with pytest.raises((TypeError, ValueError)) as error:
            distributed.attention(Q, K, V, group=own, **{name: 1} if own.rank == 1 else {})
        return str(error.value)

    other, own = ThreadGroup(2).run(rank)
    assert other.startswith("rank 1: ") and other.endswith("ä") and own.startswith(other[8:])


def test_a_mistake_of_all_ranks_is_each_ranks_own():
    def rank(own):
        with pytest.raises(TypeError) as error:
            distributed.attention([1, 2], K, V, group=own)
        with pytest.raises(ValueError) as value:
            distributed.attention(Q[0], K, V, group=own)
        return str(error.value), str(value.value)

    for error, value in ThreadGroup(2).run(rank):
        assert "q takes a NumPy array" in error
        assert value.startswith("rank 0: distributed.attention: q has 3 dimensions [4, 700, 8]; it must be [batch")


@pytest.mark.parametrize("without", [0, 1])
def test_layouts_of_one_rank_alone_are_an_error_of_all(without):
    layout = Layout.serpentine([T], 2)

    def rank(own):
        q, k, v = (distributed.take_rows(layout, own.rank, x) for x in (Q, K, V))
        out, lse = distributed.attention(q, k, v, group=own, layouts=layout, return_lse=True)
        given = None if own.rank == without else layout
        errors = []
        for call in (distributed.attention, distributed.attention_backward):
            with pytest.raises(ValueError) as error:
                call(*(q, k, v) + ((out, lse, out) if call is distributed.attention_backward else ()), group=own,
                     layouts=given)
            errors.append(str(error.value))
        distributed.attention(q, k, v, group=own, layouts=layout)  # the group goes on
        return errors

    was = ["rank 1 was given no layouts, rank 0 was given layouts", "rank 1 was given layouts, rank 0 was given no layouts"]
    for errors in ThreadGroup(2).run(rank):
        assert errors == [f"distributed.{name}: {was[without == 0]}; all ranks must describe one problem"
                          for name in ("attention", "attention_backward")]


class Gone(BaseException):
    pass


@pytest.mark.parametrize("method, kind, raised", [("moves", Gone, Gone), ("moves", OSError, PeerError), ("missing", Gone, Gone),
                                                  ("missing", OSError, PeerError)])
def test_only_an_exception_of_a_transfers_hints_is_swallowed(method, kind, raised):
    """Ctrl-C is none, wherever it comes."""
    def fail(self):
        raise kind("here")

    box = type("Box", (Boxes,), {"transfer": lambda self, send, receive: arriving(self.boxes[self.rank], 1, receive)})
    arriving = type("Late", (Arriving,), {method: fail})
    asked = (method, kind) == ("moves", Gone)   # before the time is up: a busy machine may need more than it
    with pytest.raises(raised):
        distributed.attention(Q, K, V, group=box(0, [[{}, {}], [{}, {}]]), timeout=60 if asked else 0.1)


def test_threads_that_cannot_be_started_are_told_and_nobody_waits_for_them(monkeypatch):
    start, count, ran = threading.Thread.start, [0], []

    def some(self):
        count[0] += 1
        if count[0] == 3:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", some)
    with pytest.raises(RuntimeError, match="ThreadGroup: of 4 threads only 2 could be started: can't start new thread"):
        ThreadGroup(4).run(lambda own: ran.append(own.rank))
    assert not ran and threading.active_count() == 1


class Failed(Exception):
    pass


@pytest.mark.parametrize("raised, seen", [(KeyboardInterrupt, KeyboardInterrupt), (Failed, PeerError), (OSError, OSError)])
def test_an_mpi_group_that_is_not_made_keeps_what_mpi_may_write(raised, seen):
    class Request:
        def Test(self):
            raise raised("here")

    kept = []
    group = types.SimpleNamespace(rank=0, _mpi=types.SimpleNamespace(Exception=Failed), _abort_at_exit=lambda *memory: kept.extend(memory))
    request = Request()
    with pytest.raises(seen, match="here"):
        distributed.MpiGroup._await(group, request, 1e300, 300.0, "the communicator", "where MPI writes")
    assert kept == ["the communicator", request, "where MPI writes"]


def test_a_transfer_of_mpi_moves_while_a_rank_that_has_begun_has_something_left():
    class Request:
        done = False

        def Get_status(self):
            return self.done

    requests = [Request() for _ in range(8)]
    begin_1, begin_2, receive_1, receive_2, receive_3, sent_begin_1, sent_begin_2, send_1 = requests
    pieces = [(1, 0), (2, 0), (1, 1000000), (2, 1000000), (3, 8), (1, 0), (2, 0), (1, 1000000)]
    group = types.SimpleNamespace(_mpi=types.SimpleNamespace(Status=lambda: None), _abort_at_exit=lambda: None)
    transfer = distributed._MpiTransfer(group, requests, pieces, 5, 2)
    for done, moves in ((sent_begin_2, False), (begin_1, True), (receive_1, True), (send_1, False), (begin_2, True), (receive_2, False)):
        done.done = True
        assert transfer.moves() == transfer.moves() == moves   # ranks 2 and 3 are late
    assert transfer.missing() == [1, 3]


def test_what_is_no_group_is_refused():
    with pytest.raises(TypeError, match="group takes a communicator of mpi4py, or an attend.distributed.Group, found int"):
        distributed.attention(Q, K, V, group=5)
    for started, ended, word in ((False, False, "not initialised"), (True, True, "finalised already")):
        mpi = types.SimpleNamespace(Is_initialized=lambda: started, Is_finalized=lambda: ended)
        with pytest.raises(ValueError, match=f"MpiGroup: MPI is {word}"):
            distributed._check_started(mpi, "MpiGroup")
    with pytest.raises(ValueError, match="rank is 2 of 2"):
        distributed.Group(2, 2)
    with pytest.raises(NotImplementedError, match="defines exchange"):
        distributed.attention(Q, K, V, group=distributed.Group(0, 2))


def test_a_group_knows_how_long_calls_have_waited():
    layout = Layout.serpentine([Q.shape[2]], 2)

    def rank(own):
        before = own.waited
        mine = distributed.take_rows(layout, own.rank, Q)
        distributed.attention(mine, mine, mine, group=own, layouts=layout)
        return before, own.waited

    for before, after in ThreadGroup(2).run(rank):
        assert before == 0 < after


def test_layouts_are_values():
    layout = Layout([10, 600], [[1], [0, 1, 1]], 2)
    assert layout == Layout([10, 600], [[1], [0, 1, 1]], 2) != Layout.contiguous([10, 600], 2)
    assert (layout.ranks, layout.granule, layout.lengths, layout.total) == (2, 256, [10, 600], 610)
    assert layout.runs(1) == [(0, 0, 10, 0), (1, 256, 600, 10)]
    assert (layout.owned(0), layout.owner(1, 255), layout.owner(1, 256)) == (256, 0, 1)
    x = np.arange(610)
    np.testing.assert_array_equal(distributed.take_rows(layout, 0, x, dim=0), np.arange(10, 266))
    with pytest.raises(ValueError, match="put_rows: the rows are f32, the whole is f64; they must be of one type"):
        distributed.put_rows(layout, 0, np.ones(256, "f4"), np.empty(610), dim=0)
    with pytest.raises(TypeError, match="layouts takes a Layout, or a pair"):
        distributed.plan([layout], heads=1, d=8)


def test_a_plan_says_what_a_call_costs():
    layout = Layout.serpentine([8192], 4)
    cost = distributed.plan(layout, heads=8, key_heads=2, d=64, scheme="gather", causal=True)
    assert cost.scheme == cost.backward_scheme == "gather" and len(cost.forward) == len(cost.backward) == 4
    assert sum(c.sent for c in cost.forward) == sum(c.received for c in cost.forward) > 0
    assert "gather" in cost.describe() and repr(cost) == cost.describe()


def test_the_plan_in_the_documents_is_what_plan_says():
    cost = distributed.plan(Layout.serpentine([16384], 16), heads=32, key_heads=8, d=128, causal=True)
    assert cost.describe() in (pathlib.Path(__file__).parents[2] / "docs" / "distributed.md").read_text()


@pytest.mark.parametrize("name", distributed.__all__)
def test_examples_in_docstrings_run(name):
    thing = getattr(distributed, name)
    assert inspect.getdoc(thing)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    test = doctest.DocTestParser().get_doctest(inspect.getdoc(thing), {"attend": attend, "numpy": np}, name, None, 0)
    assert runner.run(test).failed == 0

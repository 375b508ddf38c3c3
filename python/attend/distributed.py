"""Attention over several processes ("ranks"), each of which holds some of the tokens.

Every rank hands in the rows that it owns and gets those of the result; options are those of the whole
problem, the same on every rank. Under mpirun, with the package mpi4py:

    from mpi4py import MPI
    layout, _ = attend.distributed.balanced_layouts(T, ranks=MPI.COMM_WORLD.size, causal=True)
    mine = layout.owned(MPI.COMM_WORLD.rank)            # q, k, v: [batch, heads, mine, d]
    out = attend.distributed.attention(q, k, v, group=MPI.COMM_WORLD, causal=True)

`group` is a communicator of mpi4py, or a Group: ThreadGroup has threads of one process as ranks, for tests
and debugging, and a class derived from Group moves bytes by whatever there is. All ranks make the same calls in the
same order. If one rank's arguments are wrong, or differ from the others', all of them raise an error that names it; if
one is lost, the others raise PeerError within `timeout` seconds. docs/distributed.md says how it works, and what it costs.
"""
import atexit
import sys
import threading
import time
import weakref
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from . import _attend
from ._attend import (
    Context,
    DistributedPlan,
    Group,
    Layout,
    PeerError,
    RankCost,
    balanced_layouts,
    put_rows,
    take_rows,
)
from ._types import Array, ArrayT

__all__ = [
    "DistributedPlan",
    "Group",
    "Layout",
    "MpiGroup",
    "PeerError",
    "RankCost",
    "ThreadGroup",
    "attention",
    "attention_backward",
    "balanced_layouts",
    "plan",
    "put_rows",
    "take_rows",
]

Scheme = Literal["automatic", "heads", "gather"]
Bits = Literal["one_process", "fast"]
Layouts = Layout | Sequence[Layout]
ResultT = TypeVar("ResultT")


def attention(
    q: ArrayT, k: Array, v: Array, *, group: Any, layouts: Layouts | None = None, scheme: Scheme = "automatic",
    bits: Bits = "one_process", timeout: float = 300.0, out: ArrayT | None = None, return_lse: bool = False,
    context: Context | None = None, **options: Any,
) -> Any:
    """attend.attention() of a whole problem whose rows are divided among ranks.

    q, k, v    this rank's rows: [batch, heads, owned, d], packed [1, heads, owned, d]
    group      a communicator of mpi4py, or a Group
    layouts    who owns which positions: a Layout for queries and keys, or one for each. None, on all ranks: those of
               balanced_layouts(), for as many rows as all ranks have together
    scheme     'heads': a rank computes whole heads; 'gather': it computes its own queries, and the keys and values
               come to it head by head; 'automatic': heads, if there are enough key heads for all ranks and if they do
               not move more than twice the bytes
    bits       'one_process': those of the undivided call; 'fast': dk and dv may be joined in another order
    timeout    seconds to wait for other ranks before PeerError
    options    those of attend.attention(), of the whole: a mask, bias, lengths are given to every rank; k_scales
               and v_scales are rows, as k and v are

    Returns this rank's rows of out, or (out, lse). Tensors of PyTorch that require a gradient get one: its backward
    pass is a call of all ranks, too.

    >>> q = numpy.random.default_rng(0).standard_normal((1, 2, 600, 8)).astype('float32')
    >>> layout = attend.distributed.Layout.serpentine([600], 3)
    >>> def rank(group):
    ...     mine = attend.distributed.take_rows(layout, group.rank, q)
    ...     return attend.distributed.attention(mine, mine, mine, group=group, causal=True)
    >>> whole = numpy.empty_like(q)
    >>> for r, rows in enumerate(attend.distributed.ThreadGroup(3).run(rank)):
    ...     attend.distributed.put_rows(layout, r, rows, whole)
    >>> bool((whole == attend.attention(q, q, q, causal=True)).all())
    True
    """
    given = dict(layouts=layouts, scheme=scheme, bits=bits, timeout=timeout, context=context, **options)
    if _needs_gradient(q, k, v, options):
        from .torch.ranks import attention as with_gradient

        return with_gradient(q, k, v, out, _group(group, timeout), return_lse, given)
    q, k, v = (_without_gradient(x) for x in (q, k, v))
    given |= {name: _without_gradient(x) for name, x in options.items()}
    return _attend.distributed_attention(_group(group, timeout), q, k, v, out=out, return_lse=return_lse, **given)


def attention_backward(
    q: ArrayT, k: Array, v: Array, out: Array, lse: Array, dout: Array, *, group: Any, layouts: Layouts | None = None,
    scheme: Scheme = "automatic", bits: Bits = "one_process", timeout: float = 300.0, dlse: Array | None = None,
    context: Context | None = None, **options: Any,
) -> Any:
    """attend.attention_backward() of a whole problem whose rows are divided among ranks.

    Inputs and (dq, dk, dv) are this rank's rows. dbias, dsinks and dalibi of a BackwardResult are those of the whole,
    on every rank: they are not to be added up again.
    """
    return _attend.distributed_attention_backward(
        _group(group, timeout), q, k, v, out, lse, dout, layouts=layouts, scheme=scheme, bits=bits, timeout=timeout,
        dlse=dlse, context=context, **options)


def plan(
    layouts: Layouts, *, heads: int, d: int, key_heads: int | None = None, dv: int | None = None, batch: int = 1,
    type: str = "f32", k_type: str | None = None, v_type: str | None = None, scheme: Scheme = "automatic",
    bits: Bits = "one_process", **options: Any,
) -> DistributedPlan:
    """What such a call will cost: bytes, memory, and how evenly the work is divided. Nothing is sent: any process can ask.
    Keys and values have the type of q, or that of their cache (k_type="i8").

    >>> layout = attend.distributed.Layout.serpentine([4096], 4)
    >>> cost = attend.distributed.plan(layout, heads=8, key_heads=2, d=64, causal=True)
    >>> cost.scheme, cost.forward[0].received > 0
    ('gather', True)
    """
    return _attend.distributed_plan(layouts, heads=heads, d=d, key_heads=key_heads, dv=dv, batch=batch, type=type,
                                    k_type=k_type, v_type=v_type, scheme=scheme, bits=bits, **options)


class ThreadGroup(_attend.ThreadRanks):
    """Ranks that are threads of this process, for tests and debugging.

    >>> attend.distributed.ThreadGroup(3).run(lambda group: group.rank)
    [0, 1, 2]
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size

    def run(self, body: Callable[[Group], ResultT]) -> list[ResultT]:
        """What body(group) returns on each rank, on threads of their own. If any raised, what the first did, or,
        if that was a PeerError, the first that was another. Ctrl-C raises KeyboardInterrupt here; ranks go on till their calls end."""
        results: list[Any] = [None] * self.size
        errors: list[BaseException | None] = [None] * self.size
        decided, ended, all_started = threading.Event(), threading.Semaphore(0), False

        def call(rank: int) -> None:
            try:
                decided.wait()
                if all_started:
                    results[rank] = body(self.rank(rank))
            except BaseException as error:
                errors[rank] = error
            finally:
                ended.release()

        threads = [threading.Thread(target=call, args=(rank,)) for rank in range(self.size)]
        started = 0
        try:
            for thread in threads:
                thread.start()
                started += 1
            all_started = True
        except RuntimeError as error:
            raise RuntimeError(f"ThreadGroup: of {self.size} threads only {started} could be started: {error}") from error
        finally:   # if there are not enough, nobody waits for those that are not there
            decided.set()
            # Python 3.11 takes a thread whose join() was interrupted for one that has ended, and does not wait for it at its end.
            for _ in range(started):
                ended.acquire()
            for thread in threads[:started]:
                thread.join()
        raised = [error for error in errors if error is not None]
        for error in sorted(raised, key=lambda error: isinstance(error, PeerError)):
            raise error
        return results


_LARGE = 1 << 18  # bytes; smaller messages go in a few steps


class MpiGroup(Group):
    """The ranks of a communicator of mpi4py, as MPI numbers them. attention() makes one by itself, once for each communicator.

    It has a communicator of its own, a duplicate; all ranks make it together. Only the thread that calls uses MPI. After a
    PeerError, or a call that Ctrl-C ended, the process ends by MPI_Abort, which ends all ranks: MPI's own end would wait for
    the others.

    piece      the bytes of one message at most: MPI counts them by an int. The smallest of all ranks'
    timeout    seconds to wait for the other ranks to make theirs

    free() gives the duplicate back, as does whoever deletes it. The one that attention() makes goes with its communicator.
    """

    def __init__(self, comm: Any, *, piece: int = 1 << 30, timeout: float = 300.0) -> None:
        from mpi4py import MPI

        _check_started(MPI, "MpiGroup")
        if not isinstance(comm, MPI.Intracomm) or comm == MPI.COMM_NULL:
            raise TypeError(f"MpiGroup: takes a communicator of mpi4py, found {type(comm).__name__}")
        if not 1 <= piece < 1 << 31:
            raise ValueError(f"MpiGroup: piece is {piece}; it is from 1 to {(1 << 31) - 1}")
        seconds = _seconds(timeout)
        if seconds is None:
            raise ValueError(f"MpiGroup: timeout is {timeout!r}; it is a number of seconds above 0")
        super().__init__(comm.rank, comm.size)
        self._mpi, self._started, self._will_abort = MPI, 0, False
        end = time.monotonic() + seconds
        duplicate, made = comm.Idup()
        self._await(made, end, seconds, comm, duplicate)
        self._comm = duplicate
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)
        least = array("q", [piece])  # sender and receiver must cut a message alike
        self._await(self._comm.Iallreduce(MPI.IN_PLACE, least, MPI.MIN), end, seconds, comm, least)
        self._piece = least[0]
        _made.add(self)

    def _await(self, request: Any, end: float, seconds: float, comm: Any, memory: Any) -> None:
        try:
            while not request.Test():
                if time.monotonic() > end:
                    raise PeerError(f"rank {self.rank}: not all ranks of the communicator have made their MpiGroup within {seconds} s")
                time.sleep(0.0001)
        except BaseException as error:   # a signal's, too
            self._abort_at_exit(comm, request, memory)   # where MPI may still write
            if isinstance(error, self._mpi.Exception):
                raise PeerError(f"rank {self.rank}: its MpiGroup could not be made: {error}") from error
            raise

    def free(self) -> None:
        """Gives its communicator back to MPI; no more calls. After a PeerError that is left to the end of the process."""
        comm, self._comm = getattr(self, "_comm", None), None
        if comm is None or self._mpi.Is_finalized():
            return
        if self.failure:
            self._abort_at_exit(comm)
        elif not self._will_abort:
            comm.Free()

    def __del__(self) -> None:
        self.free()

    def exchange(self, send: Sequence[memoryview], receive: Sequence[memoryview]) -> "_MpiTransfer":
        others = [(self.rank + step) % self.size for step in range(1, self.size)]
        large = [r for r in others if max(len(send[r]), len(receive[r])) > _LARGE]
        return self._start(large, [(r, receive[r]) for r in reversed(others)], [(r, send[r]) for r in others])

    def broadcast(self, root: int, bytes: memoryview) -> "_MpiTransfer":
        others = [(self.rank + step) % self.size for step in range(1, self.size)] if self.rank == root else [root]
        messages = [(r, bytes) for r in others]
        receives, sends = ([], messages) if self.rank == root else (messages, [])
        return self._start(others if len(bytes) > _LARGE else [], receives, sends)

    def abort(self, status: int = 1) -> None:
        """Ends all processes of the communicator, in practice all of the job: what a program does about a PeerError."""
        (self._comm or self._mpi.COMM_WORLD).Abort(status)

    def _start(self, large: list[int], receives: list[tuple[int, memoryview]],
               sends: list[tuple[int, memoryview]]) -> "_MpiTransfer":
        """MPI does not say whether a message is on its way or its sender has not come yet: two ranks send each other an
        empty one first, if there is a large one between them."""
        if self._comm is None:
            raise ValueError("MpiGroup: it has been freed")
        _check_started(self._mpi, "MpiGroup")
        tag = self._started % 32768  # as many as every MPI has
        self._started += 1
        byte, requests = self._mpi.BYTE, []
        begins = [(rank, memoryview(bytearray())) for rank in large]
        into = begins + [(rank, piece) for rank, memory in receives for piece in self._pieces(memory)]
        out = begins + [(rank, piece) for rank, memory in sends for piece in self._pieces(memory)]
        try:
            for rank, piece in into:
                requests.append(self._comm.Irecv([piece, byte], rank, tag))
            for rank, piece in out:
                requests.append(self._comm.Isend([piece, byte], rank, tag))
        except self._mpi.Exception as error:
            raise self._lost(str(error)) from error
        return _MpiTransfer(self, requests, [(rank, len(piece)) for rank, piece in into + out], len(into), len(large))

    def _pieces(self, memory: memoryview) -> list[memoryview]:
        return [memory[at:at + self._piece] for at in range(0, len(memory), self._piece)]

    def _lost(self, why: str) -> PeerError:
        self._abort_at_exit()
        return PeerError(f"rank {self.rank}: {why}")

    def _abort_at_exit(self, comm: Any = None, *kept: Any) -> None:
        """mpi4py calls MPI_Finalize when Python has ended, which would wait for the rank that is lost."""
        if not self._will_abort:
            self._will_abort = True
            atexit.register(lambda comm, *kept: comm.Abort(1), comm or self._comm, *kept)


_made: "weakref.WeakSet[MpiGroup]" = weakref.WeakSet()


@atexit.register
def _abort_after_failures() -> None:
    """A call that ended in its middle may have left transfers, of which nobody else knows: what Ctrl-C ended in one of them
    holds it until Python has ended."""
    for group in list(_made):
        if group.failure and group._comm is not None and not group._mpi.Is_finalized():   # not one that was freed before
            group.abort()


class _MpiTransfer:
    """Pieces (rank, bytes) on their way; those that are received come first, and of these `begins` empty ones."""

    def __init__(self, group: MpiGroup, requests: list[Any], pieces: list[tuple[int, int]], received: int, begins: int) -> None:
        self._group, self._requests, self._pieces, self._received = group, requests, pieces, received
        self._begins, self._done = begins, 0
        self._begun: set[int] = set()   # ranks, as far as moves() has looked,
        self._moving = -1               # and the piece that it found
        self._status = group._mpi.Status()

    def poll(self) -> bool:
        status = self._status
        while self._done < len(self._requests):
            try:
                if not self._requests[self._done].Test(status):
                    return False
            except self._group._mpi.Exception as error:
                raise self._group._lost(f"a message failed: {error}") from error
            if self._done < self._received:
                rank, size = self._pieces[self._done]
                if status.count != size:
                    raise self._group._lost(f"rank {rank} sent {status.count} bytes where {size} were expected")
            self._done += 1
        return True

    def moves(self) -> bool:
        """Whether a rank that has begun has something large left."""
        at = self._moving
        if self._done <= at < len(self._requests) and not self._requests[at].Get_status():
            return True
        for n in range(self._begins):
            if self._requests[n].Get_status():
                self._begun.add(self._pieces[n][0])
        for n in range(max(self._begins, self._done), len(self._requests)):
            rank, size = self._pieces[n]
            if rank in self._begun and size > 0 and not self._requests[n].Get_status():
                self._moving = n
                return True
        return False

    def missing(self) -> list[int]:
        waiting = zip(self._pieces[self._done:], self._requests[self._done:])
        return sorted({rank for (rank, _), request in waiting if not request.Get_status()})

    def __del__(self) -> None:
        if self._done < len(self._requests):  # given up: it never will be done
            self._group._abort_at_exit()


def _check_started(mpi: Any, who: str) -> None:
    """MPI ends a process that calls it before its beginning or after its end."""
    if not mpi.Is_initialized() or mpi.Is_finalized():
        raise ValueError(f"{who}: MPI is {'finalised already' if mpi.Is_initialized() else 'not initialised'}")


def _seconds(timeout: Any) -> float | None:
    """A time limit, or None if it is none."""
    try:
        seconds = float(timeout)
    except (TypeError, ValueError):
        return None
    return seconds if 0 < seconds <= 1e9 else None


def _group(group: Any, timeout: Any) -> Group:
    """A Group as it is; the one of a communicator, which is made once and kept with it. What is wrong about `timeout` is said
    by the call that follows, on all ranks."""
    if isinstance(group, Group):
        return group
    mpi4py = sys.modules.get("mpi4py.MPI")
    if mpi4py is None or not isinstance(group, mpi4py.Comm):
        raise TypeError(f"distributed: group takes a communicator of mpi4py, or an attend.distributed.Group, found {type(group).__name__}")
    _check_started(mpi4py, "distributed")
    if group == mpi4py.COMM_NULL:
        raise ValueError("distributed: group is COMM_NULL: a communicator that was freed, or that this process is not of")
    key = _key_of(mpi4py)
    found: Group | None = group.Get_attr(key)
    if found is None:
        found = MpiGroup(group, timeout=_seconds(timeout) or 300.0)
        group.Set_attr(key, found)
    return found


_keys: dict[Any, int] = {}


def _key_of(mpi4py: Any) -> int:
    if mpi4py not in _keys:   # not copied to duplicates; all ranks free a communicator together, and its Group with it
        _keys[mpi4py] = mpi4py.Comm.Create_keyval(delete_fn=lambda comm, key, group: group.free())
    return _keys[mpi4py]


def _without_gradient(x: Any) -> Any:
    """Under torch.no_grad() a tensor that requires a gradient is as any other."""
    torch = sys.modules.get("torch")
    return x.detach() if torch is not None and isinstance(x, torch.Tensor) and x.requires_grad else x


def _needs_gradient(q: Any, k: Any, v: Any, options: dict[str, Any]) -> bool:
    torch = sys.modules.get("torch")
    if torch is None or not torch.is_grad_enabled():
        return False
    tensors = (q, k, v, options.get("bias"), options.get("sinks"), options.get("alibi"))
    return any(isinstance(x, torch.Tensor) and x.requires_grad for x in tensors)

"""What test_distributed_mpi.py runs under mpirun: mpi_ranks.py {bits|mistake|groups|stop FOLDER|interrupt}."""
import gc
import os
import pathlib
import signal
import sys

import numpy as np
from mpi4py import MPI

import attend
from attend import distributed

COMM = MPI.COMM_WORLD
RNG = np.random.default_rng(1)
T = 3000
Q, K, V = (RNG.standard_normal((1, heads, T, 16)).astype("f4") for heads in (4, 2, 2))
LAYOUT = distributed.Layout.serpentine([T], COMM.size)
OWN = [distributed.take_rows(LAYOUT, COMM.rank, x) for x in (Q, K, V)]


def bits():
    """Through the communicator, and through a Group of small messages."""
    out, lse = attend.attention(Q, K, V, causal=True, return_lse=True)
    wanted = attend.attention_backward(Q, K, V, out, lse, out, causal=True)
    for group in (COMM, distributed.MpiGroup(COMM, piece=1 << 12)):
        for scheme in ("gather", "heads"):
            own, own_lse = distributed.attention(*OWN, group=group, causal=True, scheme=scheme, return_lse=True)
            found = distributed.attention_backward(*OWN, own, own_lse, own, group=group, causal=True, scheme=scheme)
            for a, b in zip((own, own_lse, *found), (out, lse, *wanted)):
                np.testing.assert_array_equal(a, distributed.take_rows(LAYOUT, COMM.rank, b))
    for part in (COMM.Split(COMM.rank % 2), MPI.COMM_SELF):   # each has its own Group
        layout = distributed.Layout.serpentine([T], part.size)
        own = distributed.attention(*(distributed.take_rows(layout, part.rank, x) for x in (Q, K, V)), group=part, causal=True)
        np.testing.assert_array_equal(own, distributed.take_rows(layout, part.rank, out))


def mistake():
    """One rank's mistake is all ranks' error, and the next call goes on."""
    try:
        distributed.attention("no array" if COMM.rank == 1 else OWN[0], *OWN[1:], group=COMM)
    except (TypeError, ValueError) as error:
        text = str(error)
    texts = COMM.allgather(text)
    assert "found str" in texts[1] and all("rank 1" in texts[r] for r in range(COMM.size) if r != 1), texts
    distributed.attention(*OWN, group=COMM)
    fresh = COMM.Dup()   # whose Group the call itself makes
    try:
        distributed.attention(*OWN, group=fresh, timeout=-1.0 if COMM.rank == 1 else 60.0)
    except ValueError as error:
        text = str(error)
    texts = COMM.allgather(text)
    assert "timeout is -1" in texts[1] and all("rank 1" in texts[r] for r in range(COMM.size) if r != 1), texts
    distributed.attention(*OWN, group=fresh)
    fresh.Free()


def groups():
    """Groups are as many as a program makes one after the other, agree on the size of pieces, and refuse what is wrong."""
    for timeout in (-1, "soon", None, float("nan")):
        try:
            distributed.MpiGroup(COMM, timeout=timeout)
        except ValueError as error:
            assert str(error) == f"MpiGroup: timeout is {timeout!r}; it is a number of seconds above 0"
        else:
            raise AssertionError(timeout)
    out = distributed.attention(*OWN, group=COMM)
    group = distributed.MpiGroup(COMM, piece=1 << (9 + COMM.rank))
    np.testing.assert_array_equal(distributed.attention(*OWN, group=group), out)
    group.free()
    group.free()
    try:
        distributed.attention(*OWN, group=group)
    except ValueError as error:
        assert str(error) == "MpiGroup: it has been freed"
    else:
        raise AssertionError("a freed group took a call")

    freed = []
    key = MPI.Comm.Create_keyval(delete_fn=lambda *_: freed.append(1))
    group = distributed.MpiGroup(COMM)
    group._comm.Set_attr(key, 1)
    del group
    gc.collect()
    assert len(freed) == 1   # nobody keeps it
    own = COMM.Dup()
    distributed.attention(*OWN, group=own)
    kept = own.Get_attr(distributed._key_of(MPI))
    kept._comm.Set_attr(key, 1)
    del kept
    gc.collect()
    assert len(freed) == 1
    own.Free()
    assert len(freed) == 2

    def refused(group):
        try:
            distributed.attention(*OWN, group=group)
        except ValueError as error:
            return str(error)

    assert refused(own) == "distributed: group is COMM_NULL: a communicator that was freed, or that this process is not of"
    group = distributed.MpiGroup(COMM)
    MPI.Finalize()
    assert refused(COMM) == "distributed: MPI is finalised already"
    assert refused(group) == "MpiGroup: MPI is finalised already"


def stop(folder):
    """Rank 1 stops; the others' programs end by the exception."""
    distributed.attention(*OWN, group=COMM, layouts=LAYOUT)
    if COMM.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        distributed.attention(*OWN, group=COMM, layouts=LAYOUT, timeout=1)
    except distributed.PeerError as error:
        pathlib.Path(folder, f"error.{COMM.rank}").write_text(str(error))
        raise


def interrupt():
    """Rank 1 never comes; rank 0 is interrupted while it waits, and must end without it."""
    distributed.attention(*OWN, group=COMM, layouts=LAYOUT)
    if COMM.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    distributed.attention(*OWN, group=COMM, layouts=LAYOUT)


{"bits": bits, "mistake": mistake, "groups": groups, "stop": stop, "interrupt": interrupt}[sys.argv[1]](*sys.argv[2:])
print("well")

"""Attention over the processes of an MPI job, each of which holds some of the tokens; needs mpi4py.

    mpirun -n 3 python distributed.py

The result has the bits that one process alone computes, whatever the number of processes.
"""
import numpy
from mpi4py import MPI

import attend
from attend import distributed

T, HEADS, KEY_HEADS, D = 3000, 4, 2, 32
comm = MPI.COMM_WORLD
options = {"causal": True, "window": (1000, None)}

layout, _ = distributed.balanced_layouts(T, ranks=comm.size, **options)   # of queries and keys alike
if comm.rank == 0:
    print(distributed.plan(layout, heads=HEADS, key_heads=KEY_HEADS, d=D, **options))

# Here all of it is made and a part of it taken; a program would load its own rows.
rng = numpy.random.default_rng(0)
whole = [rng.standard_normal((1, heads, T, D)).astype("float32") for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
q, k, v = (distributed.take_rows(layout, comm.rank, x) for x in whole)

out, lse = distributed.attention(q, k, v, group=comm, return_lse=True, **options)
dq, dk, dv = distributed.attention_backward(q, k, v, out, lse, out, group=comm, **options)

alone = distributed.take_rows(layout, comm.rank, attend.attention(*whole, **options))
same = bool((out == alone).all())
print(f"rank {comm.rank} of {comm.size}: {layout.owned(comm.rank)} tokens, the bits of one process: {'yes' if same else 'no'}")
if not same:
    raise SystemExit(1)

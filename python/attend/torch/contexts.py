"""With which threads attend.torch computes: with PyTorch's own and as many, unless a call is given a Context.

torch.set_num_threads() counts at the next call. The environment variable ATTEND_THREADS, which
every other function of attend follows, comes before PyTorch's number; it is read at the first call.
"""
import os
import weakref

import torch

from attend import Context, default_context

_current: Context | None = None  # that of the last call, and no other: each may have threads of its own
_by_environment = False
_given: weakref.WeakValueDictionary[int, Context] = weakref.WeakValueDictionary()


def current() -> Context:
    """The Context of a call that was given none. Made anew where PyTorch's number is another than at
    the last call.
    """
    global _current, _by_environment
    found = _current
    if found is None:
        _by_environment = bool(os.environ.get("ATTEND_THREADS"))
    elif _by_environment or found.threads == torch.get_num_threads():
        return found
    _current = default_context() if _by_environment else _as_pytorch(torch.get_num_threads())
    return _current


def _as_pytorch(threads: int) -> Context:
    # Its threads wait for work by spinning: others would have to take the processors from them.
    if threads > 1 and "parallel backend: OpenMP" in torch.__config__.parallel_info():
        return Context.with_openmp(threads)
    shared = default_context()
    return shared if shared.threads == threads else Context(threads=threads)


def number_of(where: str, context: Context | None) -> int:
    """What stands for a Context in an operator's arguments, which are numbers and tensors. 0: none."""
    if context is None:
        return 0
    if not isinstance(context, Context):
        raise TypeError(f"{where}: context takes an attend.Context, found {type(context).__name__}")
    _given[id(context)] = context
    return id(context)


def by_number(number: int) -> Context:
    """The Context again; if it is gone since, as in a backward pass long after, the current one."""
    return current() if number == 0 else _given.get(number) or current()

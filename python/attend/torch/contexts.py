"""How many threads attend.torch computes with: as many as PyTorch, unless a call is given a Context.

torch.set_num_threads() counts at the next call. The environment variable ATTEND_THREADS, which
every other function of attend follows, comes before PyTorch's number.
"""
import os
import weakref

import torch

from attend import Context, default_context

_BY_ENVIRONMENT = bool(os.environ.get("ATTEND_THREADS"))
_of_threads: dict[int, Context] = {}
_given: weakref.WeakValueDictionary[int, Context] = weakref.WeakValueDictionary()


def current() -> Context:
    """The Context of a call that was given none. A dict's look-up: short calls take microseconds."""
    if _BY_ENVIRONMENT:
        return default_context()
    threads = torch.get_num_threads()
    found = _of_threads.get(threads)
    if found is None:
        shared = default_context()
        found = _of_threads[threads] = shared if shared.threads == threads else Context(threads=threads)
    return found


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

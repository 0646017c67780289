"""Which exceptions ``on_error`` pays for: those that may come of what an agent said, never of a busy machine."""

from __future__ import annotations

import errno
import subprocess

from ..rewards import Skip
from .instances import Late

_OF_THE_MACHINE = (MemoryError, TimeoutError, subprocess.TimeoutExpired, Late)
"""Memory is the whole process's, and a limit of wall time that the author set ends slow machines, too."""
_SHORTAGES = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOSPC))
_NO_THREAD = "can't start new thread"


def may_pay(error: BaseException) -> bool:
    """Whether an exception of the author's code earns ``on_error``.

    Not one of which anything that led to it is a shortage of the machine or a time limit; of a group, each must earn.
    """
    seen = set[int]()
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if not isinstance(one, Exception) or isinstance(one, Skip) or _of_the_machine(one):
            return False
        before = (one.__cause__, None if one.__suppress_context__ else one.__context__)
        waiting += [each for each in (*before, *getattr(one, "exceptions", ())) if isinstance(each, BaseException)]
    return True


def _of_the_machine(error: Exception) -> bool:
    short = isinstance(error, OSError) and error.errno in _SHORTAGES
    return short or isinstance(error, _OF_THE_MACHINE) or (isinstance(error, RuntimeError) and _NO_THREAD in str(error))

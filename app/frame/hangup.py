"""Ends the program once its terminal is gone, also where nobody tells it so.

The kernel sends SIGHUP to programs whose controlling terminal goes. One that was started with `setsid`, or that ignores
the signal as under `nohup`, hears nothing: Textual would read the end of its input again and again, and wait for ever
to write what nobody takes.
"""

from __future__ import annotations

import os
import select
import signal
import threading

_LOOK = 1000
"""Milliseconds between two looks: some systems wake nobody up for a terminal that has gone."""


def end_with_terminal(terminal: int) -> None:
    """From now on, end this process as SIGHUP does as soon as nothing is at the other end of the descriptor.

    A thread waits for it, because by then the event loop may be waiting to write. Nothing is cleaned up, as after
    SIGHUP. Does nothing where the system cannot watch terminals.
    """
    if hasattr(select, "poll"):
        threading.Thread(target=_wait, args=(terminal,), name="hangup", daemon=True).start()


def _wait(terminal: int) -> None:
    watched = select.poll()
    watched.register(terminal, 0)  # a hangup is always told
    while not (told := watched.poll(_LOOK)):
        pass
    if told[0][1] & select.POLLHUP:  # else the system cannot watch this kind of file
        os.kill(os.getpid(), signal.SIGHUP)
        os._exit(128 + signal.SIGHUP)  # the signal is ignored

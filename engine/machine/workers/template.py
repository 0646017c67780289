"""Imports what workers need, then forks them.

``python -P -m marlaas.engine.machine.workers.template FD PARENT THREADS MODULE …``. Forks save the seconds of imports,
and most of PyTorch's memory: of 150 MB, 20 are written to.

An order over FD is a pickle of (name, cores, niceness, environment) with two descriptors: the worker's socket and log.
Answers are pickles of None (ready), (process id, None) for a birth, and (process id, exit code) for an end.

One thread, so a fork copies no foreign lock. Libraries read their threads at import: all workers have THREADS cores (0:
any).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from . import host
from .handle import LONGEST


def main(arguments: list[str]) -> None:
    """Import, report it, and serve until the engine goes away."""
    descriptor, parent, threads, *modules = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    host.die_with(int(parent))
    if int(threads):
        os.environ |= dict.fromkeys(host.THREAD_VARIABLES, threads)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # it starts its threads when it is imported; the work is not done in NumPy
    for module in modules:
        importlib.import_module(module)
    if len(os.listdir("/proc/self/task")) > 1:
        sys.exit("A library has started threads as it was imported: workers are not forked.")
    gc.collect()
    gc.freeze()  # garbage collection writes to every object
    serve(socket.socket(fileno=int(descriptor)))


def serve(engine: socket.socket) -> None:
    """Fork a worker per order; returns at the engine's close."""
    woken, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    engine.send(pickle.dumps(None))
    while True:
        ready, _, _ = select.select([engine.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 1 << 12)
            for end in ended():
                engine.send(pickle.dumps(end))
        if engine.fileno() in ready:
            frame, descriptors, _, _ = socket.recv_fds(engine, LONGEST, 2)
            if not frame:
                return
            order: tuple[str, str, int, dict[str, str]] = pickle.loads(frame)
            template = os.getpid()
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for descriptor in (woken, wakes, engine.detach()):
                    os.close(descriptor)
                become(*order, template, descriptors[0], descriptors[1])
            for descriptor in descriptors:
                os.close(descriptor)
            engine.send(pickle.dumps((pid, None)))


def ended() -> list[tuple[int, int]]:
    """Ended workers with exit codes, negative for signals."""
    ends = []
    with contextlib.suppress(ChildProcessError):
        while (end := os.waitpid(-1, os.WNOHANG))[0]:
            ends.append((end[0], os.waitstatus_to_exitcode(end[1])))
    return ends


def become(
    name: str, cores: str, nice: int, environment: dict[str, str], template: int, connection: int, log: int
) -> None:
    """Never returns."""
    try:
        os.setpgid(0, 0)
        os.environ.clear()
        os.environ.update(environment)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        words = [name, str(connection), str(template), cores, str(nice)]
        call_oneself([sys.executable, "-P", "-m", host.__name__, *words])
        host.main(words)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)


def call_oneself(command: Sequence[str]) -> None:
    """Show another command line in `ps`, as far as there is room."""
    fields = Path("/proc/self/stat").read_text("utf-8").rpartition(")")[2].split()
    begins, ends = int(fields[45]), int(fields[46])
    room = ends - begins
    if room > 0:
        ctypes.memmove(begins, b"\0".join(map(os.fsencode, command))[: room - 1].ljust(room, b"\0"), room)


if __name__ == "__main__":
    main(sys.argv[1:])

"""The child's main program: serves calls to async methods of one object.

``python -P -m marlaas.engine.machine.workers.host NAME FD PARENT CORES NICE``, CORES such as ``0,1`` or ``any``. It
ends when the engine closes FD, or a method raises ``OutOfMemory``. Heavy imports come after pinning: thread pools read
cores when loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from ...devices.limits import end_process
from ...errors import OutOfMemory
from ...faults import switch_on
from .wire import PING, Answer, Call, Message, Outbox, Streamed, describe, pack, read

PR_SET_PDEATHSIG = 1
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def main(arguments: list[str]) -> None:
    """Never returns."""
    name, descriptor, parent, cores, nice = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with(int(parent))
    pin(cores)
    os.nice(int(nice))
    switch_on(name)
    try:
        asyncio.run(serve(socket.socket(fileno=int(descriptor))))
    except MemoryError as error:
        end_process("There is no memory for what the engine has sent.", error)


def die_with(parent: int) -> None:
    """End with the parent; outside Linux the closed socket does that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def pin(cores: str) -> None:
    """A thread per core: pools that share a core are 10 to 100 times slower."""
    if cores == "any":
        return
    wanted = {int(core) for core in cores.split(",")}
    for variable in THREAD_VARIABLES:
        os.environ[variable] = str(len(wanted))
    if hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):  # a container may have lost the core; slower, but it runs
            os.sched_setaffinity(0, wanted)


async def serve(connection: socket.socket) -> None:
    """Calls run as tasks.

    The object's ``tidy`` removes temporary files at the end.
    """
    reader, writer = await asyncio.open_connection(sock=connection)
    first = await read(reader)
    if not first or not isinstance(first[0], Call):
        _end(1)
    try:
        module, _, name = first[0].method.partition(":")
        target = getattr(importlib.import_module(module), name)(**first[0].args[0])
    except Exception as error:
        failed = describe(0, error)
        print(failed.traceback, file=sys.stderr)
        writer.write(pack(failed))
        await writer.drain()
        _end(1)
    writer.write(pack(Answer(0, None)))

    def refuse(message: Message, error: Exception) -> None:
        if isinstance(message, Answer):  # a value that cannot be pickled must not leave the caller waiting
            outbox.send(describe(message.id, error))

    outbox = Outbox(writer.write, refuse)
    running: set[asyncio.Task[None]] = set()
    while calls := await read(reader):
        for call in calls:
            assert isinstance(call, Call)
            task = asyncio.create_task(_answer(target, call, outbox.send))
            running.add(task)
            task.add_done_callback(running.discard)
    getattr(target, "tidy", lambda: None)()
    _end(0)


async def _answer(target: Any, call: Call, send: Callable[[Message], None]) -> None:
    number = call.id or 0
    options = {"stream_to": lambda value: send(Streamed(number, value))} if call.streaming else {}
    message: Message
    try:
        value = None if call.method == PING else await getattr(target, call.method)(*call.args, **options)
        message = Answer(number, value)
    except OutOfMemory as error:
        end_process(str(error), error)
    except Exception as error:
        message = failed = describe(number, error)
        if call.id is None or not isinstance(error, ValueError):
            print(failed.traceback, file=sys.stderr, flush=True)
    if call.id is not None:
        send(message)


def _end(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])

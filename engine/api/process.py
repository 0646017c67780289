"""A gateway's process: started on a listening socket that the engine keeps, watched, and started again when it ends.

Whoever connects while there is none waits in the socket's line, and is served by the next one at the same port.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from ..racing import until_first
from ..workers import last_line, signal_name
from .link import Desk, Link

PROGRAM = (sys.executable, "-P", "-m", "marlaas.engine.gateway.main")
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""How this machine reaches what listens on all networks."""
STEADY = 10.0
"""Seconds after which a gateway counts as one that runs: the next one is started at once when it ends."""
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0
"""Seconds before the next start of one that ends soon; they double each time."""
GRACE = 3.0
"""Seconds that a gateway has to end once its link is closed."""


class GatewayProcess:
    """Keeps one gateway running, until ``stop``."""

    def __init__(self, listening: socket.socket, asked: tuple[str, int], limits: str, log: Path, desk: Desk) -> None:
        """``listening`` is bound to ``asked``, whose port may be 0; ``limits`` is JSON of ``gateway.limits.Limits``.
        What the process prints goes to the file ``log``."""
        host, self.asked = asked[0], asked
        reached = ANYWHERE.get(host, host)
        self.url = f"http://{f'[{reached}]' if ':' in reached else reached}:{listening.getsockname()[1]}"
        """As this machine reaches it."""
        self.pid: int | None = None
        """Of the process that runs now."""
        self._listening = listening
        self._limits = limits
        self._log = log
        self._desk = desk
        self._runs = asyncio.create_task(self._run(), name=f"gateway at {self.url}")

    async def stop(self) -> None:
        """End it and give up the port; its requests under way end."""
        self._runs.cancel()
        await asyncio.gather(self._runs, return_exceptions=True)
        self._listening.close()

    async def _run(self) -> None:
        pause = 0.0
        while True:
            began = monotonic()
            try:
                how = await self._live()
            except OSError as error:
                how = f"could not be started: {error}"
            lasted = monotonic() - began
            pause = 0.0 if lasted > STEADY else min(max(FIRST_PAUSE, 2 * pause), LONGEST_PAUSE)
            if pause < LONGEST_PAUSE:  # one that never lives long is not told of without end
                self._desk.log("api", f"The gateway at {self.url} {how}; it is started again.", "warning")
            await asyncio.sleep(pause)

    async def _live(self) -> str:
        """Start one and serve it until it ends; returns how it ended, for a sentence."""
        size = self._log.stat().st_size if self._log.exists() else 0
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as failing:
            failing.callback(ours.close)
            process = await self._start(theirs)
            failing.pop_all()
        self.pid = process.pid
        try:
            await until_first(Link(self._desk).serve(ours), process.wait())
        finally:
            await _ended(process)  # it ends by itself, since the link is closed
            self.pid = None
        return _ending(process.returncode, last_line(self._log, size))

    async def _start(self, theirs: socket.socket) -> asyncio.subprocess.Process:
        inherited: Sequence[int] = (theirs.fileno(), self._listening.fileno())
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with open(self._log, "ab") as log:
            return await asyncio.create_subprocess_exec(
                *(*PROGRAM, *map(str, inherited), self._limits),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=inherited,
                process_group=0,  # Ctrl-C in a terminal is the engine's, which ends the gateway in order
            )


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Wait until it has ended, by force where it takes too long."""
    try:
        async with asyncio.timeout(GRACE):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        await process.wait()


def _ending(code: int | None, line: str) -> str:
    """How it ended, behind "the gateway"; ``line`` is the last of its log."""
    if code is None or code < 0:
        return f"was ended by signal {signal_name(-(code or 0))}"
    return f"ended with exit status {code}" + (f" ({line.rstrip('.')})" if line and code else "")

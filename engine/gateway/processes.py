"""The gateways of an engine and their processes: one for clients, one for episodes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from time import monotonic

from ..errors import ConfigError
from ..machine.workers.child import last_line
from ..programs import signal_name
from ..racing import until_first
from ..wire import Address, Answerer
from .link import Desk, Link

# A gateway's process, started on a listening socket of the engine, watched, and restarted.
#
# Connections wait in the socket's queue meanwhile, and the next process serves them at the same port.

PROGRAM = (sys.executable, "-P", "-m", "marlaas.engine.gateway.http.main")
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
STEADY = 10.0
"""Seconds after which a gateway counts as stable: it is restarted at once."""
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0
"""Seconds before the restart of one that ends soon; they double each time."""
GRACE = 3.0
"""Seconds that a gateway has to end once its link is closed."""


class GatewayProcess:
    """Keeps one gateway running, until ``stop``."""

    def __init__(self, listening: socket.socket, asked: tuple[str, int], limits: str, log: Path, desk: Desk) -> None:
        """``listening`` is bound to ``asked``; its port may be 0.

        ``limits`` is JSON of ``gateway.limits.Limits``. The process prints to the file ``log``.
        """
        host, self.asked = asked[0], asked
        reached = ANYWHERE.get(host, host)
        self.url = f"http://{f'[{reached}]' if ':' in reached else reached}:{listening.getsockname()[1]}"
        self.pid: int | None = None
        self._listening = listening
        self._limits = limits
        self._log = log
        self._desk = desk
        self._runs = asyncio.create_task(self._run(), name=f"gateway at {self.url}")

    async def stop(self) -> None:
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
            if pause < LONGEST_PAUSE:  # one that never lives long must not fill the log
                self._desk.log("api", f"The gateway at {self.url} {how}; it is started again.", "warning")
            await asyncio.sleep(pause)

    async def _live(self) -> str:
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
                process_group=0,  # a terminal's Ctrl-C goes to the engine, and it ends the gateway in order
            )


async def _ended(process: asyncio.subprocess.Process) -> None:
    try:
        async with asyncio.timeout(GRACE):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        await process.wait()


def _ending(code: int | None, line: str) -> str:
    if code is None or code < 0:
        return f"was ended by signal {signal_name(-(code or 0))}"
    return f"ended with exit status {code}" + (f" ({line.rstrip('.')})" if line and code else "")


# The gateways of an engine: one for clients while the API is open, and one for episodes, once one needs an address.
#
# They share only the engine, so that many clients cannot block an episode's program. The gateway of episodes is at a
# free port of 127.0.0.1.

LOCAL = "127.0.0.1"
NEEDS = ("starlette", "uvicorn")
PATIENCE = 5.0
"""Seconds in which a starting engine retries a taken port: the gateway of a killed one still ends."""
AGAIN = 0.1
WAITING = 1024


class Gateways:
    """Starts and ends gateways; implements ``gateway.Endpoints``, even while the API is closed to clients."""

    def __init__(self, desk: Desk, limits: str, log: Path) -> None:
        self.clients: GatewayProcess | None = None
        self._episodes: GatewayProcess | None = None
        self._desk = desk
        self._limits = limits
        self._log = log
        self._one_at_a_time = asyncio.Lock()

    async def open(self, answerer: Answerer) -> Address:
        """An address for this episode's answerer, until it is closed; the first one starts a gateway.

        Raises ``ConfigError`` if the extra is not installed or no port can be had.
        """
        async with self._one_at_a_time:
            if self._episodes is None:
                self._episodes = await self._start(LOCAL, 0)
        return Address(self._episodes.url, self._desk.callers.admit(answerer))

    def close(self, address: Address) -> None:
        self._desk.dismiss(address.key)

    async def for_clients(self, host: str, port: int, patience: float = 0.0) -> GatewayProcess:
        """The clients' gateway at an address, replacing the one before; a taken port is retried for ``patience``
        seconds. Raises ``ConfigError``.
        """
        host = LOCAL if host == "localhost" else host
        async with self._one_at_a_time:
            before = self.clients
            if before is not None and before.asked == (host, port):
                return before
            self.clients = found = await self._start(host, port, patience)
            if before is not None:
                await before.stop()
            return found

    async def close_clients(self) -> None:
        async with self._one_at_a_time:
            gateway, self.clients = self.clients, None
            if gateway is not None:
                await gateway.stop()

    async def stop(self) -> None:
        async with self._one_at_a_time:
            running = [gateway for gateway in (self.clients, self._episodes) if gateway is not None]
            self.clients = self._episodes = None
            await asyncio.gather(*(gateway.stop() for gateway in running))

    async def _start(self, host: str, port: int, patience: float = 0.0) -> GatewayProcess:
        check_installed()
        listening = await _listening(host, port, patience)
        return GatewayProcess(listening, (host, port), self._limits, self._log, self._desk)


def check_installed() -> None:
    """Raise ``ConfigError`` if a needed package is not installed."""
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"The API needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed.",
            "Install the extra: `make install EXTRAS=api`, or `pip install 'marlaas[api]'`.",
        )


async def _listening(host: str, port: int, patience: float) -> socket.socket:
    """A listening socket; waits ``patience`` seconds for a taken port. Raises ``ConfigError``."""
    until = monotonic() + patience
    while True:
        try:
            return _bound(host, port)
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            if not taken or monotonic() >= until:
                cause = "another program has this port" if taken else error.strerror or str(error)
                raise ConfigError(
                    f"The API cannot listen at {host}, port {port}: {cause}.",
                    "`marlaas api start --port 0` takes a free one; [api] in marlaas.toml has `listen` and `port`.",
                ) from error
        await asyncio.sleep(AGAIN)


def _bound(host: str, port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(WAITING)
    except BaseException:
        listening.close()
        raise
    return listening

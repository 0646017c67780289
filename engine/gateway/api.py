"""The API of an engine, and its gateways' processes.

Commands open or close it, else the settings; commands outlive the engine.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from time import monotonic

import msgspec

from ..errors import ConfigError, MarlaasError, StoreError
from ..home.paths import Home
from ..home.settings import ApiSettings
from ..machine.workers.handle import last_line
from ..programs import signal_name
from ..racing import until_first
from ..store.store import Store
from ..store.submissions import API_SWITCHES
from ..store.tasks import Command
from ..wire import Address, Answerer, Endpoints
from .keys import Identity
from .limits import Limits
from .link import Desk, Figures, Link, Log

PROGRAM = (sys.executable, "-P", "-m", "marlaas.engine.gateway.http.main")
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
STEADY = 10.0
"""Seconds until a gateway is restarted at once."""
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0
"""Seconds before an unstable one's restart; doubled each time."""
GRACE = 3.0
"""Seconds to end after the link is closed."""
LOCAL = "127.0.0.1"
NEEDS = ("starlette", "uvicorn")
PATIENCE = 5.0
"""Seconds for a taken port: a killed engine's gateway still ends."""
AGAIN = 0.1
WAITING = 1024


class GatewayProcess:
    """Keeps one gateway running.

    The listening socket queues connections during restarts.
    """

    def __init__(self, listening: socket.socket, asked: tuple[str, int], limits: Limits, log: Path, desk: Desk) -> None:
        """``listening`` is bound to ``asked``, port 0 possible. ``log`` gets the output."""
        host, self.asked = asked[0], asked
        reached = ANYWHERE.get(host, host)
        self.url = f"http://{f'[{reached}]' if ':' in reached else reached}:{listening.getsockname()[1]}"
        self.pid: int | None = None
        self._listening = listening
        self._limits = msgspec.json.encode(limits).decode()
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
            pause = 0.0 if monotonic() - began > STEADY else min(max(FIRST_PAUSE, 2 * pause), LONGEST_PAUSE)
            if pause < LONGEST_PAUSE:  # one that never lives long must not fill the log
                self._desk.log("api", f"The gateway at {self.url} {how}; it is started again.", "warning")
            await asyncio.sleep(pause)

    async def _live(self) -> str:
        size = self._log.stat().st_size if self._log.exists() else 0
        self._log.parent.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair()
        inherited = theirs.fileno(), self._listening.fileno()
        with ExitStack() as failing, theirs, open(self._log, "ab") as log:
            failing.callback(ours.close)
            process = await asyncio.create_subprocess_exec(
                *(*PROGRAM, *map(str, inherited), self._limits),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=inherited,
                process_group=0,  # a terminal's Ctrl-C goes to the engine, and it ends the gateway in order
            )
            failing.pop_all()
        self.pid = process.pid
        try:
            await until_first(Link(self._desk).serve(ours), process.wait())
        finally:
            await _ended(process)  # it ends by itself, since the link is closed
            self.pid = None
        code, line = process.returncode or 0, last_line(self._log, size)
        if code < 0:
            return f"was ended by signal {signal_name(-code)}"
        return f"ended with exit status {code}" + (f" ({line.rstrip('.')})" if line and code else "")


async def _ended(process: asyncio.subprocess.Process) -> None:
    try:
        await asyncio.wait_for(process.wait(), GRACE)
    except TimeoutError:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        await process.wait()


class Gateways:
    """Implements ``wire.Endpoints``, even while the API is closed to clients."""

    def __init__(self, desk: Desk, limits: Limits, log: Path) -> None:
        self.desk = desk
        self.running: dict[str, GatewayProcess] = {}
        """That for *clients* and that for *episodes*, if they run."""
        self._limits = limits
        self._log = log
        self._lock = asyncio.Lock()

    async def open(self, answerer: Answerer) -> Address:
        """The first call starts a gateway.

        Raises ``ConfigError`` without the extra or a free port.
        """
        gateway = await self.start("episodes", LOCAL, 0)
        return Address(gateway.url, self.desk.admit(answerer))

    def close(self, address: Address) -> None:
        self.desk.dismiss(address.key)

    async def stop(self, *names: str) -> None:
        """All by default."""
        async with self._lock:
            ending = [self.running.pop(name) for name in names or [*self.running] if name in self.running]
            await asyncio.gather(*(gateway.stop() for gateway in ending))

    async def start(self, name: str, host: str, port: int, patience: float = 0.0) -> GatewayProcess:
        """Replaces that gateway; retries a taken port for ``patience`` seconds. Raises ``ConfigError``."""
        host = LOCAL if host == "localhost" else host
        async with self._lock:
            before = self.running.get(name)
            if before is not None and before.asked == (host, port):
                return before
            check_installed()
            listening = await _listening(host, port, patience)
            self.running[name] = gateway = GatewayProcess(listening, (host, port), self._limits, self._log, self.desk)
            if before is not None:
                await before.stop()
            return gateway


@asynccontextmanager
async def open_gateways(folder: Path, log: Log) -> AsyncIterator[Gateways]:
    """Endpoints without an engine, until the block ends; ``folder`` gets the gateway's logs."""
    desk = Desk(lambda digest: None, lambda uses: None, log)
    gateways = Gateways(desk, Limits(log=str(folder / "api.log")), folder / "gateway.log")
    try:
        yield gateways
    finally:
        await gateways.stop()


def check_installed() -> None:
    """Raise ``ConfigError`` if a package is missing."""
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"The API needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed.",
            "Install the extra: `make install EXTRAS=api`, or `pip install 'marlaas[api]'`.",
        )


async def _listening(host: str, port: int, patience: float) -> socket.socket:
    """Retries a taken port for ``patience`` seconds. Raises ``ConfigError``."""
    until, family = monotonic() + patience, socket.AF_INET6 if ":" in host else socket.AF_INET
    while True:
        try:
            both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
            return socket.create_server((host, port), family=family, backlog=WAITING, dualstack_ipv6=both)
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            if not taken or monotonic() >= until:
                cause = "another program has this port" if taken else error.strerror or str(error)
                raise ConfigError(
                    f"The API cannot listen at {host}, port {port}: {cause}.",
                    "`marlaas api start --port 0` takes a free one; [api] in marlaas.toml has `listen` and `port`.",
                ) from error
        await asyncio.sleep(AGAIN)


MEGABYTE = 1 << 20


POLL = 0.2


def open_api(store: Store, settings: ApiSettings, home: Home, log: Log) -> Api:
    """The API; it opens while ``run`` runs."""
    limits = Limits(
        body_bytes=settings.body_mb * MEGABYTE,
        seconds=settings.seconds,
        connections=settings.connections,
        log_prompts=settings.log_prompts,
        log=str(home.logs / "api.log"),
    )
    desk = Desk(store.api.key, store.api.add_use, log)
    return Api(store, settings, Gateways(desk, limits, home.logs / "gateway.log"))


class Api:
    """Always answers programs, clients while open."""

    def __init__(self, store: Store, settings: ApiSettings, gateways: Gateways) -> None:
        self._store = store
        self._settings = settings
        self._gateways = gateways
        self._desk = gateways.desk
        self._seen = -1
        self._begun = False
        self.endpoints: Endpoints = gateways

    def serve(self, serving: Callable[[Identity], Answerer], figures: Figures) -> None:
        self._desk.serving, self._desk.figures = serving, figures

    async def run(self) -> None:
        await until_first(self._run(), self._desk.run())

    async def _run(self) -> None:
        while True:
            with suppress(StoreError):  # a full disk, or a lock: it is tried again
                await self._look()
            await asyncio.sleep(POLL)

    async def stop(self) -> None:
        self._desk.open = False
        with suppress(StoreError):
            if self._store.api.state().open:
                self._store.api.tell(False)
        await self._gateways.stop()
        with suppress(StoreError):
            self._desk.flush()

    async def _look(self) -> None:
        seen = self._store.changed()
        if seen == self._seen:
            return
        self._seen = -1  # until all is carried out
        commands = [command for command in self._store.tasks.new_commands() if command.kind in API_SWITCHES]
        if not self._begun:
            await self._begin(bool(commands))
        for command in commands:
            self._store.tasks.finish_command(command.id, await self._obey(command))
        self._seen = seen

    async def _begin(self, commanded: bool) -> None:
        state = self._store.api.state()
        wanted = self._settings.enabled if state.switched is None else state.switched
        if wanted and not commanded:
            if refused := await self._open(state.port, PATIENCE):
                self._desk.log("api", refused, "warning")
        elif state.open:  # the engine before was killed
            self._store.api.tell(False)
        self._begun = True

    async def _obey(self, command: Command) -> str:
        if command.kind == "api_stop":
            self._store.api.switch(False)
            was_open, self._desk.open = self._desk.open, False
            self._store.api.tell(False)
            await self._gateways.stop("clients")
            if was_open:
                self._desk.log("api", "The API is closed to clients.", "info")
            return ""
        port = command.arguments.get("port")
        port = port if isinstance(port, int) and 0 <= port <= 65535 else None
        if port is None and self._desk.open:
            port = self._store.api.state().port  # it keeps its port
        refused = await self._open(port)
        if not refused:
            self._store.api.switch(True, port)
        return refused

    async def _open(self, port: int | None, patience: float = 0.0) -> str:
        listen, store, why = self._settings.listen, self._store.api, ""
        try:
            if self._settings.local or store.any_key():
                port = self._settings.port if port is None else port
                gateway = await self._gateways.start("clients", listen, port, patience)
            else:
                why = (
                    f"The API is to listen at {listen}, where other machines reach it, and there is no key yet."
                    " `marlaas api key new TENANT` makes one."
                )
        except MarlaasError as error:
            why = str(error)
        if why:
            if not self._desk.open:
                store.tell(False, note=why)
        elif not self._desk.open or store.state().url != gateway.url:
            store.tell(True, gateway.url)
            self._desk.open = True
            self._desk.log("api", f"The API is open to clients at {gateway.url}.", "info")
        return why

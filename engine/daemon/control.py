"""Starts, asks and stops a home's engine. Standard library only."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ..errors import ConfigError, DatabaseUnwritable, EngineUnreachable, HomeLocked, MarlaasError, StoreError
from ..home.guard import check_place, make_private
from ..home.paths import Home, version
from ..locks import check_lockable, said_by_holder, try_lock
from ..models.find import anchored
from ..programs import signal_name
from ..queue.submission.queue import HomeBase, settled_base
from ..store.queries.reader import Reader
from ..store.rows import EngineRow
from ..store.schema import is_current
from ..store.submissions import command

ATTEMPTS, PAUSE = 10, 0.02
"""Tries, and seconds between: askers hold the lock briefly."""
PREPARES = " prepares the database"
STARTS = " starts: "
SIZE = 512


class EngineLock:
    """Holds a home's lock file, which names the holder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def acquire(self, pause: Callable[[float], None] = time.sleep, prepares: bool = False) -> None:
        """``prepares``: for the database, no engine.

        Waits for such a holder; raises ``HomeLocked`` for others, ``ConfigError`` as ``try_lock``.
        """
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        attempts = 0
        try:
            while not try_lock(file, self._path):
                holder = os.pread(file, SIZE, 0).decode(errors="replace").partition("\n")[0]
                attempts += not holder.endswith(PREPARES)
                if attempts >= ATTEMPTS:
                    process = holder.partition(STARTS)[0]
                    raise HomeLocked(
                        f"An engine (process {process or 'unknown'}) serves {self._path.parent} already.",
                        "Use it, stop it with `marlaas engine stop`, or choose another --home.",
                    )
                pause(PAUSE)
        except BaseException:
            os.close(file)
            raise
        os.truncate(file, 0)
        self._file = file
        self._write(PREPARES if prepares else "")

    def keep(self) -> None:
        """Put a removed file (clean-up of ``*.lock``) back. Raises ``HomeLocked`` if another engine has started."""
        assert self._file is not None, "the lock is not held"
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(self._path), os.fstat(self._file)):
                return
        again = EngineLock(self._path)
        again.acquire()
        os.close(self._file)
        self._file = again._file

    def starting(self, words: str) -> None:
        self._write(f"{STARTS}{words}")

    def started(self) -> None:
        self._write("")

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, what: str) -> None:
        assert self._file is not None, "the lock is not held"
        line = f"{os.getpid()}{what}\n".encode()
        os.pwrite(self._file, line, 0)
        os.truncate(self._file, len(line))


def holder(path: Path) -> int | None:
    """The engine's process id, 0: unwritten; None: no engine."""
    text = _held(path)
    if text is None or text.endswith(PREPARES):
        return None
    process = text.partition(STARTS)[0]
    return int(process) if process.isdigit() else 0


def starts(path: Path) -> str:
    """The work before the first heartbeat; else empty."""
    return (_held(path) or "").partition(STARTS)[2]


def _held(path: Path) -> str | None:
    said = said_by_holder(path, SIZE)
    return None if said is None else said.partition("\n")[0]


STALE = 15.0
SERVING = ("running", "draining")
NOTICE = 5.0
UPDATE = 600.0
"""Most seconds for another process's database work."""
POLL = 0.05
_PATIENCE = {
    "starting": "The engine is still starting. Where a large base is converted first, that takes minutes, once.",
    "draining": "The engine finishes the steps under way and stops; then another one starts.",
}
started: list[subprocess.Popen[bytes]] = []
"""Kept for Python to reap, without waiting; engines outlive this process."""


def make_home(home: Home, notice: Callable[[str], None] | None = None) -> None:
    """Make home and settings if missing; ``notice`` gets corrected permissions.

    Raises ``ConfigError`` if that fails, or others can write to the home.
    """
    check_place(home)
    home.create()
    for sentence in make_private(home):
        if notice is not None:
            notice(sentence)
    if not home.config.exists():
        from ..home.settings import DOCUMENTED

        home.config.write_text(DOCUMENTED, encoding="utf-8")


def create_database(home: Home, notice: Callable[[str], None] | None = None) -> None:
    """Make or update the database. Raises as ``update_database``."""
    make_home(home, notice)
    update_database(home)


def update_database(home: Home) -> None:
    """Bring the database to this schema, under the engine's lock.

    Raises ``StoreError`` if an older engine serves the home, or the database is newer.
    """
    deadline = time.monotonic() + UPDATE
    while not is_current(home.database):
        lock = EngineLock(home.lock)
        try:
            lock.acquire(prepares=True)
        except HomeLocked:
            _refuse_older_engine(home)
            if time.monotonic() > deadline:
                raise
            continue
        try:
            if not is_current(home.database):
                open_database(home.database)
        finally:
            lock.release()


def open_database(database: Path) -> None:
    """For the holder of the engine's lock. Raises ``StoreError``."""
    from ..store.database import open_database as opened

    opened(database).close()


def _refuse_older_engine(home: Home) -> None:
    engine = None
    with contextlib.suppress(StoreError), Reader(home.database) as reader:
        engine = reader.engine()
    if engine is not None and engine.pid == holder(home.lock):
        raise StoreError(
            f"the engine (process {engine.pid}) is of an older marlaas than this program.",
            "Restart it: `marlaas engine drain`, then `marlaas engine start`.",
            where=str(home.root),
        )


def other_version(engine: EngineRow | None) -> str:
    """A sentence; empty: same version."""
    if engine is None or engine.version in ("", version()):
        return ""
    return (
        f"The engine is marlaas {engine.version}, and this is marlaas {version()}: restart it with"
        " `marlaas engine drain` and `marlaas engine start`."
    )


def alive(home: Home) -> bool:
    """True if an engine holds the lock and its heartbeat is recent."""
    return _state(home) in SERVING


def refuse_suspended(process: int | None) -> None:
    """Raises ``EngineUnreachable`` if a signal stopped this engine."""
    if not process:
        return
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        if state in ("T", "t"):
            raise EngineUnreachable(
                f"The engine (process {process}) is suspended, as by ctrl-z or `kill -STOP`.",
                f"`kill -CONT {process}` lets it go on; nothing is lost.",
            )


def _state(home: Home) -> str:
    pid = holder(home.lock)
    engine = _engine(home) if pid is not None else None
    # A killed engine leaves a fresh row behind: its successor has another process.
    if engine is None or engine.pid != pid or time.time() - engine.heartbeat >= STALE:
        return ""
    return engine.state


def _engine(home: Home) -> EngineRow | None:
    if not home.database.exists():
        return None
    with Reader(home.database) as reader:
        return reader.engine()


def served_base(home: Home) -> HomeBase:
    """The base of the home's engine, or of the next. Raises ``ConfigError`` if invalid."""
    engine = _engine(home) if alive(home) else None
    return HomeBase(engine.base, engine.fingerprint) if engine and engine.fingerprint else settled_base(home)


def ensure_running(home: Home, timeout: float = 60.0, notice: Callable[[str], None] | None = None) -> None:
    """Start an engine unless one is alive; wait until it serves.

    Without limit while ``notice`` gets reports. Raises ``EngineUnreachable`` after ``timeout`` silent seconds or if
    suspended; ``ConfigError`` if the home cannot be locked.
    """
    create_database(home, notice)
    check_lockable(home.lock)
    log = home.logs / "engine.log"
    process: subprocess.Popen[bytes] | None = None
    begun, said = time.monotonic(), ""
    heard = begun
    while time.monotonic() < heard + timeout:
        refuse_suspended(holder(home.lock))
        state, begins = _state(home), starts(home.lock)
        if begins or state in ("starting", "draining"):
            heard = time.monotonic()
        if state == "running":
            if notice is not None and (other := other_version(_engine(home))):
                notice(other)
            return
        if notice is not None and time.monotonic() > begun + NOTICE:
            engine = _engine(home)
            note = engine.note if engine is not None and engine.state == "starting" else ""
            words = begins or note or said or _PATIENCE.get(state, _PATIENCE["starting"])
            if words != said:
                notice(words)
            said = words
        if holder(home.lock) is None:
            if process is None:
                process = _start(home, log)
            elif process.poll() is not None:
                raise why_not(process.poll(), log)
        time.sleep(POLL)
    raise EngineUnreachable(
        f"the engine does not answer after {timeout:.0f} s: {_last_line(log)}", f"See {log}.", where=str(home.root)
    )


def stop(home: Home, timeout: float = 30.0) -> bool:
    """Stop and wait; False: none ran. Raises ``EngineUnreachable`` if it does not end."""
    engine = holder(home.lock)
    if engine is None:
        return False
    refuse_suspended(engine)
    try:
        command(home.database, "stop")
    except DatabaseUnwritable:
        with contextlib.suppress(ProcessLookupError):
            os.kill(engine, signal.SIGTERM)
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if holder(home.lock) is None:
            for process in started:
                if process.pid == engine:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(max(0.0, deadline - time.monotonic()))
            return True
        time.sleep(POLL)
    raise EngineUnreachable(
        f"The engine (process {holder(home.lock)}) did not stop within {timeout:.0f} s.",
        "Ending it by force loses nothing that was committed.",
    )


def drain(home: Home, notice: Callable[[str], None]) -> bool:
    """Ask the engine to end after the steps in progress; wait without limit; False: none ran.

    ``notice`` gets what it waits for. Raises ``EngineUnreachable`` if it hangs.
    """
    process = holder(home.lock)
    if process is None:
        return False
    refuse_suspended(process)
    command(home.database, "drain")
    said = ""
    with Reader(home.database) as reader:
        while holder(home.lock) == process:
            engine = reader.engine()
            if engine is not None and time.time() - engine.heartbeat > STALE:
                raise EngineUnreachable(
                    f"The engine (process {process}) does not answer.",
                    "Ending it by force loses nothing that was committed.",
                )
            if engine is not None and engine.state == "draining" and engine.note not in ("", said):
                said = engine.note
                notice(said)
            time.sleep(POLL)
    return True


def _start(home: Home, log: Path) -> subprocess.Popen[bytes]:
    command_line = [sys.executable, "-P", "-m", "marlaas.engine.daemon.main", str(home.root)]
    try:
        with open(log, "ab") as output:
            process = subprocess.Popen(
                command_line,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd=home.root,
                env=os.environ | {"PYTHONUNBUFFERED": "1"} | base_variable(),
            )
        started[:] = [*(earlier for earlier in started if earlier.poll() is None), process]
        return process
    except OSError as error:
        raise StoreError(f"the engine's log cannot be written: {error.strerror}.", where=str(log)) from error


def base_variable() -> dict[str, str]:
    """``MARLAAS_BASE``, absolute: the engine works elsewhere."""
    name = os.environ.get("MARLAAS_BASE")
    return {"MARLAAS_BASE": anchored(name, Path.cwd())} if name else {}


def why_not(code: int | None, log: Path) -> MarlaasError:
    """The error of an engine that ended at its start; ``ConfigError`` for a wrong configuration."""
    words = _last_line(log).removeprefix("marlaas: ")
    if code == ConfigError.exit_code:
        return ConfigError(words)
    if code is not None and code <= 0:
        words = f"it was ended by signal {signal_name(-code)}." if code else "it was asked to stop."
    return EngineUnreachable(f"The engine did not start: {words}", f"See {log}.")


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return "it left no log."
    return lines[-1] if lines else "it left no word."

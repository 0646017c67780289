"""The virtual environment of one set of libraries."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import uv
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion

from ...errors import ConfigError
from ...home.settings import EnvironmentSettings
from ...locks import try_lock
from .requirements import Requirements

# A Python on this machine: marlaas's own, else the oldest suitable one on the PATH, because most libraries have wheels
# for it.

_OLDEST, _NEWEST = 11, 30
_ANSWER = 10.0


class NoPython(ValueError):
    """This machine has no such Python."""


@dataclass(frozen=True)
class Python:
    """An interpreter."""

    executable: Path
    version: str


OWN = Python(Path(sys.executable), ".".join(platform.python_version_tuple()[:2]))


def suitable(requires: str) -> Python:
    """An interpreter for ``requires`` (PEP 440; empty: any). Raises ``NoPython``. May start processes."""
    wanted = SpecifierSet(requires)
    if _fits(platform.python_version(), wanted):
        return OWN
    for minor in range(_OLDEST, _NEWEST):
        found = shutil.which(f"python3.{minor}")
        if found is not None and _fits(_version_of(found), wanted):
            return Python(Path(found), f"3.{minor}")
    raise NoPython(
        f"it needs Python {requires}, but marlaas runs on {platform.python_version()} and no `python3.N` on the PATH"
        " will do"
    )


def _fits(version: str, wanted: SpecifierSet) -> bool:
    try:
        return wanted.contains(version, prereleases=True)
    except InvalidVersion:  # a custom build
        return False


def _version_of(executable: str) -> str:
    code = "import platform; print(platform.python_version())"
    try:
        done = subprocess.run(
            [executable, "-I", "-c", code], capture_output=True, text=True, timeout=_ANSWER, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


# ``KEY.allowed``: a person's consent to the list in it. ``complete``: a finished build of its list.

_COMPLETE = "complete"

Stamp = tuple[bool, int]


@dataclass(frozen=True)
class Venv:
    """A set of libraries for one Python, built or not."""

    folder: Path
    """Named by the set's key; built in place, since installed files contain its path."""
    dependencies: tuple[str, ...]
    base: Python = OWN

    @classmethod
    def of(cls, requirements: Requirements, base: Python, folder: Path) -> Venv:
        return cls(folder / requirements.key(base.version), requirements.dependencies, base)

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def log(self) -> Path:
        return self.folder.with_suffix(".log")

    @property
    def lock(self) -> Path:
        """One build at a time in a home."""
        return self.folder.parent / "lock"

    @property
    def built(self) -> bool:
        return _holds(self._complete, self.dependencies) and self.python.exists()

    @property
    def allowed(self) -> bool:
        return not self.dependencies or _holds(self._consent, self.dependencies)

    def allow(self) -> None:
        """A second consent retries a failed build."""
        self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(self._consent, self.dependencies)

    def clear(self) -> None:
        self._complete.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def finish(self) -> None:
        """The sync keeps a power cut from leaving a half build with this mark."""
        os.sync()
        _write(self._complete, self.dependencies)

    def stamp(self) -> Stamp:
        try:
            return self.built, self._consent.stat().st_mtime_ns
        except FileNotFoundError:
            return self.built, 0

    @property
    def _complete(self) -> Path:
        return self.folder / _COMPLETE

    @property
    def _consent(self) -> Path:
        return self.folder.with_suffix(".allowed")


def _write(path: Path, lines: tuple[str, ...]) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(_text(lines), encoding="utf-8")
    unfinished.replace(path)


def _holds(path: Path, lines: tuple[str, ...]) -> bool:
    """Compares the content: two lists can share a key."""
    try:
        return path.read_bytes() == _text(lines).encode()
    except OSError:
        return False


def _text(lines: tuple[str, ...]) -> str:
    return "".join(f"{line}\n" for line in lines)


# One build at a time in a home. Cancelling ends all that uv started. Only marlaas's own uv: another may have other
# options or messages.

PATIENCE = 3600.0
"""Seconds of a build: gigabytes may come over slow lines."""
_LOOK = 0.1
_CHUNK = 1 << 16
_KEPT = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
)
_REASON = re.compile(r"(?m)^(?:error|  cause): (.+)")
_LONGEST = 400

Said = Callable[[str], None]


class BuildFailed(Exception):
    """The message is the reason, without a full stop."""


async def build(venv: Venv, settings: EnvironmentSettings, said: Said = lambda line: None) -> None:
    """Install missing libraries; ``said`` gets each line of uv.

    Waits for another build of this home.
    """
    try:
        venv.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        async with _turn(venv.lock, said) as lock:
            if venv.built:
                return
            await asyncio.to_thread(venv.clear)
            try:
                async with asyncio.timeout(PATIENCE):
                    await _install(venv, settings, lock, said)
            except TimeoutError:
                raise BuildFailed(f"it took longer than {PATIENCE:g} s (log: {venv.log})") from None
            venv.finish()
    except (OSError, ConfigError) as error:
        raise BuildFailed(str(error).rstrip(".")) from error


@contextlib.asynccontextmanager
async def _turn(lock: Path, said: Said) -> AsyncIterator[int]:
    """Installers inherit the lock: one that outlives a killed engine keeps the next one out."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not try_lock(descriptor, lock):
            said("Another installation of this home is under way; this one comes after it.")
            while not try_lock(descriptor, lock):
                await asyncio.sleep(_LOOK)
        yield descriptor
    finally:
        os.close(descriptor)


async def _install(venv: Venv, settings: EnvironmentSettings, lock: int, said: Said) -> None:
    with venv.log.open("wb") as log:
        for command in commands(venv, settings):
            if await _run(command, venv.folder.parent, lock, log, said):
                words = venv.log.read_text(encoding="utf-8", errors="replace")
                raise BuildFailed(f"{complaint(words)} (log: {venv.log})")


async def _run(command: Sequence[str], folder: Path, lock: int, log: BinaryIO, said: Said) -> int:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=folder,  # outside of any project's settings
        env=variables_for_build(os.environ),
        pass_fds=(lock,),
        start_new_session=True,
    )
    try:
        if process.stdout is not None:
            await _listen(process.stdout, log, said)
        return await process.wait()
    except BaseException:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise


async def _listen(output: asyncio.StreamReader, log: BinaryIO, said: Said) -> None:
    rest = b""
    while piece := await output.read(_CHUNK):
        log.write(piece)
        log.flush()
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            said(line.decode("utf-8", "replace"))
        rest = rest[-_CHUNK:]


def commands(venv: Venv, settings: EnvironmentSettings) -> list[list[str]]:
    """Calls of uv, in order."""
    program = uv.find_uv_bin()
    made = [program, "venv", "--quiet", "--no-project", "--python", str(venv.base.executable), str(venv.folder)]
    if not venv.dependencies:
        return [made]
    install = [program, "pip", "install", "--python", str(venv.python), "--compile-bytecode"]
    return [made, [*install, *_sources(settings), *venv.dependencies]]


def _sources(settings: EnvironmentSettings) -> list[str]:
    folder = ["--find-links", settings.wheels] if settings.wheels else []
    if not settings.offline:
        return folder
    return ["--offline", "--no-index", *folder] if folder else ["--offline"]  # without an index its cache is empty


def in_words(settings: EnvironmentSettings, variables: Mapping[str, str]) -> str:
    """The libraries' source, for the person who is asked."""
    places = [f"the folder {settings.wheels}"] if settings.wheels else []
    if settings.offline:
        return places[0] if places else "uv's cache"
    index = variables.get("UV_DEFAULT_INDEX") or variables.get("UV_INDEX_URL")
    usual = "the index in uv's settings, else PyPI (pip's settings do not count)"
    return " and ".join([*places, f"the index {_without_password(index)}" if index else usual])


def variables_for_build(variables: Mapping[str, str]) -> dict[str, str]:
    """The engine's variables for uv; no plugin sees them."""
    return {
        name: value
        for name, value in variables.items()
        if name in _KEPT or name.startswith("UV_") or name.lower().endswith("_proxy")
    }


def _without_password(address: str) -> str:
    scheme, mark, rest = address.partition("://")
    host = rest.partition("/")[0]
    return f"{scheme}{mark}{rest[host.rfind('@') + 1 :]}" if mark else address


def complaint(said: str) -> str:
    """Uv's error with its causes, else its last line."""
    reason = ": ".join(_REASON.findall(said) or said.strip().splitlines()[-1:])
    return reason if len(reason) <= _LONGEST else f"{reason[: _LONGEST - 1]}…"

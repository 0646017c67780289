"""Builds a virtual environment with uv: one at a time in a home, with a log, a time limit, and nothing half-done left.

Cancelling ends uv and all that it started. The uv is the one that came with marlaas: another on the PATH may not know
the same options, or fail in other words.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import uv

from ...errors import ConfigError
from ...home import EnvironmentSettings
from ...locks import try_lock
from .venv import Venv

PATIENCE = 3600.0
"""Seconds that a build may take; gigabytes of libraries come over slow lines."""
_LOOK = 0.1
"""Seconds between two looks whether another build has ended."""
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
"""How uv says what failed, and why; a build's own output stands further in."""
_LONGEST = 400

Said = Callable[[str], None]


class BuildFailed(Exception):
    """The libraries are not installed; the message says why, without a full stop."""


async def build(venv: Venv, settings: EnvironmentSettings, said: Said = lambda line: None) -> None:
    """Install the libraries unless they are there; ``said`` hears what uv says, line by line.

    Where another process of this home builds, this one waits; where that one built the same set, this one is done.
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
    """Hold the lock. Installers inherit it: one that outlives a killed engine still keeps the next one out."""
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
    """Run one command to its end; returns its exit code."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=folder,  # where no project's settings lie
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
    """Calls of uv, one after the other, that build ``venv``."""
    program = uv.find_uv_bin()
    made = [program, "venv", "--quiet", "--no-project", "--python", str(venv.base.executable), str(venv.folder)]
    if not venv.dependencies:
        return [made]
    install = [program, "pip", "install", "--python", str(venv.python), "--compile-bytecode"]
    return [made, [*install, *_sources(settings), *venv.dependencies]]


def _sources(settings: EnvironmentSettings) -> list[str]:
    """Where wheels are taken from."""
    folder = ["--find-links", settings.wheels] if settings.wheels else []
    if not settings.offline:
        return folder
    return ["--offline", "--no-index", *folder] if folder else ["--offline"]  # without an index its cache has nothing


def in_words(settings: EnvironmentSettings, variables: Mapping[str, str]) -> str:
    """Where libraries will come from, for the person who is asked."""
    places = [f"the folder {settings.wheels}"] if settings.wheels else []
    if settings.offline:
        return places[0] if places else "uv's cache"
    index = variables.get("UV_DEFAULT_INDEX") or variables.get("UV_INDEX_URL")
    usual = "the index in uv's settings, else PyPI (pip's settings do not count)"
    return " and ".join([*places, f"the index {_without_password(index)}" if index else usual])


def variables_for_build(variables: Mapping[str, str]) -> dict[str, str]:
    """Those of the engine's variables that uv may need; a plugin sees none of them."""
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
    """Why uv failed, of all that it said: its error with the causes, else the last line."""
    reason = ": ".join(_REASON.findall(said) or said.strip().splitlines()[-1:])
    return reason if len(reason) <= _LONGEST else f"{reason[: _LONGEST - 1]}…"

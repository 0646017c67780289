"""Builds a virtual environment: one at a time in a home, with a log, a time limit, and nothing half-done to be found.

Flows in: a set of libraries that somebody allowed. Flows out: its folder with the sign that it is whole, or
``BuildFailed``. Cancelling ends the installer and all that it started. Who asked, and for which plugin, is not known
here.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from ...home import EnvironmentSettings
from .commands import NoInstaller, commands, find_uv, variables_for_build
from .complaint import complaint
from .venv import Venv

PATIENCE = 3600.0
"""Seconds that a build may take; gigabytes of libraries come over slow lines."""
_LOOK = 0.1
"""Seconds between two looks whether another build has ended."""
_CHUNK = 1 << 16

Said = Callable[[str], None]


class BuildFailed(Exception):
    """The libraries are not installed; the message says why, without a full stop."""


async def build(venv: Venv, settings: EnvironmentSettings, said: Said = lambda line: None) -> None:
    """Install the libraries unless they are there; ``said`` hears what the installer says, line by line.

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
    except (NoInstaller, OSError) as error:
        raise BuildFailed(str(error)) from error


@contextlib.asynccontextmanager
async def _turn(lock: Path, said: Said) -> AsyncIterator[int]:
    """Hold the lock. Installers inherit it: one that outlives a killed engine still keeps the next one out."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not _locked(descriptor):
            said("Another installation of this home is under way; this one comes after it.")
            while not _locked(descriptor):
                await asyncio.sleep(_LOOK)
        yield descriptor
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def _install(venv: Venv, settings: EnvironmentSettings, lock: int, said: Said) -> None:
    with venv.log.open("wb") as log:
        for command in commands(venv, settings, find_uv()):
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

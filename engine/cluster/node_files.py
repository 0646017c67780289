"""State files on a node: kept by checksum, each pulled once, verified before it has its name, oldest gone first."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil

from ..adapters import put_state
from ..errors import AdapterDamaged, AdapterError

KEPT = 64
"""Files that stay. A sampler has read its version before it serves it; what is needed again is pulled again."""
PREFIX = "states-"


class NodeFiles:
    """The files of one node host, in a folder of its own below ``scratch``, which goes with the next one's start."""

    def __init__(self, scratch: Path) -> None:
        scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in scratch.glob(f"{PREFIX}*"):
            if not psutil.pid_exists(int(left.name.removeprefix(PREFIX))):
                shutil.rmtree(left, ignore_errors=True)
        self.folder = scratch / f"{PREFIX}{os.getpid()}"
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self._coming: dict[str, asyncio.Task[Path]] = {}
        self._parts: dict[str, dict[int, bytes]] = {}

    def path(self, digest: str) -> Path:
        """Where the file with a checksum is, or will be."""
        return self.folder / f"{digest}.safetensors"

    def here(self, digest: str) -> str:
        """The path of a file that is here; empty where it is not."""
        path = self.path(digest)
        with contextlib.suppress(OSError):
            os.utime(path)  # it is in use
            return str(path)
        return ""

    async def pull(self, digest: str, get: Callable[[], Awaitable[bytes]]) -> str:
        """Have a file here, which ``get`` brings if it is not; whoever asks meanwhile waits for the same bytes.

        Raises ``AdapterDamaged`` where other bytes come, and ``AdapterError`` where the disk refuses.
        """
        if found := self.here(digest):
            return found
        if digest not in self._coming:
            coming = self._coming[digest] = asyncio.ensure_future(self._pull(digest, get))
            coming.add_done_callback(lambda _: self._coming.pop(digest, None))
        return str(await asyncio.shield(self._coming[digest]))

    async def _pull(self, digest: str, get: Callable[[], Awaitable[bytes]]) -> Path:
        data = await get()
        return await asyncio.to_thread(self._keep, digest, data)

    def _keep(self, digest: str, data: bytes) -> Path:
        path = self.path(digest)
        if checksum_of(data) != digest:
            raise AdapterDamaged("is not what was sent: its checksum differs.", where=path.name)
        put_state(path, data, sync=False)
        self._forget_old()
        return path

    def take_part(self, digest: str, begin: int, part: bytes) -> None:
        """A part of a file that cannot come as a whole."""
        self._parts.setdefault(digest, {})[begin] = part

    async def parts_are_there(self, digest: str) -> str:
        """Have the file of which all parts have come. Raises as ``pull``."""
        parts = self._parts.pop(digest, {})
        data = b"".join(parts[begin] for begin in sorted(parts))
        return str(await asyncio.to_thread(self._keep, digest, data))

    async def adopt(self, path: str) -> tuple[str, int]:
        """Keep a file that a worker wrote here under its checksum; returns that, and its size in bytes.

        Raises ``AdapterError`` where it cannot be read.
        """
        return await asyncio.to_thread(self._adopt, Path(path))

    def _adopt(self, path: Path) -> tuple[str, int]:
        try:
            data = path.read_bytes()
            digest = checksum_of(data)
            os.replace(path, self.path(digest))
            self._forget_old()
        except OSError as error:
            raise AdapterError(f"cannot be read on its node: {error.strerror}.", where=str(path)) from error
        return digest, len(data)

    def read(self, digest: str, begin: int = 0, count: int = -1) -> bytes:
        """Bytes of a file that is here. Raises ``AdapterError`` where it is not any more."""
        try:
            with open(self.path(digest), "rb") as file:
                file.seek(begin)
                return file.read(count)
        except OSError as error:
            raise AdapterError(f"is not on its node any more: {error.strerror}.", where=f"{digest[:12]}") from error

    def _forget_old(self) -> None:
        files = sorted(self.folder.glob("*.safetensors"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for path in files[KEPT:]:
            path.unlink(missing_ok=True)


def checksum_of(data: bytes | memoryview) -> str:
    """SHA-256 of a file's bytes, hexadecimal. Pure."""
    return hashlib.sha256(data).hexdigest()

"""Carries state files between this machine and nodes: put once into Ray's object store, pulled once by each node.

A version that a trainer on a node has written is in the store already, and goes from there to the samplers' nodes.
Where the store is full a file goes in pieces, slower. Both ends verify its checksum. Part of the bridge.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from ..adapters import put_state
from ..errors import AdapterDamaged, AdapterError, AdapterUnreachable, MarlaasError
from .node_files import checksum_of
from .relay import PIECE, WINDOW

HELD = 4
"""Files that stay in the object store after their last use, for nodes that want them a moment later."""


class Way(Protocol):
    """The part of ``NodeLink`` that is used here."""

    async def call(self, method: str, *args: Any) -> Any:
        """Call the node host."""

    async def fetch(self, method: str, *args: Any) -> tuple[Any, Any]:
        """Call the node host: Ray's reference to what it returns, and that."""


class Shipping:
    """The files under way."""

    def __init__(self, put: Callable[[bytes], Any]) -> None:
        """``put`` puts bytes into the store and returns Ray's reference to them; it blocks."""
        self._put_bytes = put
        self._held: OrderedDict[str, Any] = OrderedDict()
        """Ray's references to files in the store, by checksum."""
        self._known: OrderedDict[Path, tuple[tuple[int, int], str]] = OrderedDict()
        """Checksums of files of this machine, with their size and time."""
        self._putting: dict[str, asyncio.Future[Any]] = {}
        self.put = 0
        """Files that were put into the store here."""
        self.pieced = 0
        """Files that went in pieces."""

    async def bring(self, link: Way, path: Path) -> str:
        """See ``Bridge``."""
        digest = await asyncio.to_thread(self._checksum, path)
        if found := await link.call("here", digest):
            return str(found)
        try:
            return str(await link.call("pull", digest, [await self._reference(digest, path)]))
        except MarlaasError:
            raise
        except Exception:  # full, or lost with the node that held it
            self._held.pop(digest, None)
        self.pieced += 1
        data = await asyncio.to_thread(self._read, path)
        for begin in range(0, len(data), PIECE):
            await link.call("take_part", digest, begin, data[begin : begin + PIECE])
        return str(await link.call("parts_are_there", digest))

    async def collect(self, link: Way, there: str, path: Path, sync: bool, new: bool) -> None:
        """See ``Bridge``."""
        digest, size = await link.call("adopt", there)
        try:
            reference, data = await link.fetch("read", digest)
            self._hold(digest, reference)
        except MarlaasError:
            raise
        except Exception:
            self.pieced += 1
            data = await self._in_pieces(link, digest, size)
        if checksum_of(data) != digest:
            raise AdapterDamaged("is not what was sent: its checksum differs.", where=str(path))
        await asyncio.to_thread(put_state, path, data, sync, new)
        self._remember(path, digest)

    async def _in_pieces(self, link: Way, digest: str, size: int) -> bytes:
        begins = list(range(0, size, PIECE))
        parts: list[bytes] = []
        for first in range(0, len(begins), WINDOW):
            some = begins[first : first + WINDOW]
            parts += await asyncio.gather(*(link.call("read", digest, begin, PIECE) for begin in some))
        return b"".join(parts)

    async def _reference(self, digest: str, path: Path) -> Any:
        """Ray's reference to a file, put into the store by whoever asks first."""
        if digest in self._held:
            self._held.move_to_end(digest)
            return self._held[digest]
        if digest not in self._putting:
            putting = self._putting[digest] = asyncio.ensure_future(asyncio.to_thread(self._put, path))
            putting.add_done_callback(lambda _: self._putting.pop(digest, None))
        reference = await asyncio.shield(self._putting[digest])
        self._hold(digest, reference)
        return reference

    def _put(self, path: Path) -> Any:
        self.put += 1
        return self._put_bytes(self._read(path))

    def _hold(self, digest: str, reference: Any) -> None:
        self._held[digest] = reference
        self._held.move_to_end(digest)
        while len(self._held) > HELD:
            self._held.popitem(last=False)

    def _checksum(self, path: Path) -> str:
        try:
            status = path.stat()
        except OSError as error:
            raise self._unreadable(path, error) from error
        signature = (status.st_size, status.st_mtime_ns)
        if path in self._known and self._known[path][0] == signature:
            return self._known[path][1]
        digest = checksum_of(self._read(path))
        self._remember(path, digest)
        return digest

    def _remember(self, path: Path, digest: str) -> None:
        status = path.stat()
        self._known[path] = (status.st_size, status.st_mtime_ns), digest
        while len(self._known) > 1000:
            self._known.popitem(last=False)

    def _read(self, path: Path) -> bytes:
        try:
            return path.read_bytes()
        except OSError as error:
            raise self._unreadable(path, error) from error

    def _unreadable(self, path: Path, error: OSError) -> AdapterError:
        return AdapterUnreachable(f"the state file cannot be read: {error.strerror}.", where=str(path))

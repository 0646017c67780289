"""Decides which policies are in the device's memory, and pages the others out."""

from __future__ import annotations

import itertools
import logging
import os
import pickle
import threading
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ...errors import AdapterError
from ...faults import Point, reach
from ...home import PrivateFolder, remove_orphans
from .policy_memory import PolicyMemory, TrainingState, to_device, to_host

# A policy comes back bit for bit, with its unfinished gradient. Files are overwritten: to remove one and make another
# takes longer than to fill it.

PREFIX = "marlaas-pages-"
HINT = "Resume the task: it goes on from its last committed step."
WORD = 8
SPARE = 2


@dataclass(frozen=True)
class _File:
    path: Path
    sizes: tuple[int, ...]
    """Bytes of its parts: a pickle, then the arrays that it refers to."""
    checksum: int


class Pages:
    """Stores paged-out policies in ``host`` bytes of memory, then in files of its own folder in ``scratch``.

    Any thread may call it, one at a time.
    """

    def __init__(self, scratch: Path, host: int = 0) -> None:
        self._scratch, self._host = scratch, host
        self._pages: dict[str, TrainingState | _File] = {}
        self._numbers = itertools.count()
        self._folder: PrivateFolder | None = None
        self._spare: list[Path] = []
        remove_orphans(scratch, PREFIX)

    def __contains__(self, policy: str) -> bool:
        return policy in self._pages

    def put(self, policy: str, state: TrainingState) -> None:
        """Store a policy. Raises ``OSError`` if neither memory nor the disk has room."""
        held = sum(page.size for page in self._pages.values() if isinstance(page, TrainingState))
        if held + state.size <= self._host:
            self._pages[policy] = state
            return
        path = self._spare.pop() if self._spare else self._own_folder() / str(next(self._numbers))
        try:
            self._pages[policy] = _write(path, state)
        except OSError:
            path.unlink(missing_ok=True)
            raise

    def take(self, policy: str) -> TrainingState:
        """Return a policy and remove it. Raises ``AdapterError`` if its file is gone or damaged."""
        page = self._pages.pop(policy)
        if isinstance(page, TrainingState):
            return page
        state = _read(policy, page)
        if len(self._spare) < SPARE:
            self._spare.append(page.path)
        else:
            page.path.unlink(missing_ok=True)
        return state

    def look(self, policy: str) -> TrainingState:
        page = self._pages[policy]
        return page if isinstance(page, TrainingState) else _read(policy, page)

    def drop(self, policy: str) -> None:
        page = self._pages.pop(policy, None)
        if isinstance(page, _File):
            page.path.unlink(missing_ok=True)

    def close(self) -> None:
        self._pages.clear()
        self._spare.clear()
        if self._folder is not None:
            self._folder.remove()
            self._folder = None

    def _own_folder(self) -> Path:
        if self._folder is None:
            self._folder = PrivateFolder(self._scratch, PREFIX)
        return self._folder.path


def _write(path: Path, state: TrainingState) -> _File:
    arrays: list[pickle.PickleBuffer] = []
    index = pickle.dumps(state, protocol=5, buffer_callback=arrays.append)
    parts = [memoryview(index), *(array.raw() for array in arrays)]
    checksum = 0
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "wb", buffering=0) as file:
        for part in parts:
            checksum = _add(checksum, part)
            left = part
            while len(left):
                left = left[file.write(left) :]
    return _File(path, tuple(len(part) for part in parts), checksum)


def _read(policy: str, page: _File) -> TrainingState:
    parts = [torch.empty(size, dtype=torch.uint8).numpy() for size in page.sizes]
    checksum = 0
    try:
        with open(page.path, "rb") as file:
            whole = all([file.readinto(part.data) == len(part) for part in parts])
    except OSError as error:
        raise AdapterError(
            f"Policy {policy} was paged out to {page.path}, which cannot be read: {error.strerror}.", HINT
        ) from error
    for part in parts:
        checksum = _add(checksum, part.data)
    if not whole or checksum != page.checksum:
        page.path.unlink(missing_ok=True)
        raise AdapterError(f"Policy {policy} was paged out to {page.path}, which has been damaged since.", HINT)
    state: TrainingState = pickle.loads(parts[0].data, buffers=parts[1:])
    return state


def _add(checksum: int, part: memoryview) -> int:
    """Add a part to a checksum: the sum of its words, a tenth of the cost of a CRC.

    It changes if any word does, or if blocks are missing or zero. Few bytes of a part fill no word.
    """
    words = len(part) // WORD
    found = int(np.frombuffer(part, np.uint64, words).sum(dtype=np.uint64)) if words else 0
    return (31 * checksum + found + zlib.crc32(part[words * WORD :])) % (1 << 64)


log = logging.getLogger(__name__)


class AdapterCache:
    """Holds at most ``slots`` policies in at most ``room`` bytes of ``device``; 0 is no limit.

    Policies used together are held together, even beyond the limits: check first that they ``fit``. One thread makes
    all calls except ``look``.
    """

    def __init__(self, pages: Pages, slots: int = 0, room: int = 0, device: str = "cpu") -> None:
        self._pages, self._slots, self._room, self._device = pages, slots, room, device
        self._held: dict[str, PolicyMemory] = {}
        self._sizes: dict[str, int] = {}
        self._paging = threading.Lock()

    def add(self, policy: str, memory: PolicyMemory) -> None:
        with self._paging:
            self._forget(policy)
            self._held[policy], self._sizes[policy] = memory, memory.size
            self._make_room((policy,))

    def use(self, *policies: str) -> tuple[PolicyMemory, ...]:
        """These policies, in memory until the next call.

        Raises ``AdapterError`` if one is not open or cannot be read back; it is then closed.
        """
        with self._paging:
            for policy in policies:
                self._held[policy] = self._held.pop(policy) if policy in self._held else self._wake(policy)
            self._make_room(policies)
            return tuple(self._held[policy] for policy in policies)

    def look(self, policy: str) -> TrainingState:
        """A policy's state; on a processor its arrays are views of its memory. The policy must not be in use.

        Raises ``AdapterError`` as ``use`` does.
        """
        with self._paging:
            if policy in self._held:
                return to_host(self._held[policy])
            if policy not in self._pages:
                raise _not_open(policy)
            return self._pages.look(policy)

    def fit(self, policies: Collection[str]) -> bool:
        """True if all of them may be in memory at the same time; a single one always may."""
        size = sum(self._sizes.get(policy, 0) for policy in policies)
        within = (not self._slots or len(policies) <= self._slots) and (not self._room or size <= self._room)
        return within or len(policies) <= 1

    def drop(self, policy: str) -> None:
        with self._paging:
            self._forget(policy)

    def _forget(self, policy: str) -> None:
        self._held.pop(policy, None)
        self._sizes.pop(policy, None)
        self._pages.drop(policy)

    def _wake(self, policy: str) -> PolicyMemory:
        if policy not in self._pages:
            raise _not_open(policy)
        try:
            return self._page_in(policy)
        except AdapterError:
            self._forget(policy)
            raise

    def _make_room(self, needed: Collection[str]) -> None:
        for policy in tuple(self._held):
            if self.fit(self._held):
                return
            if policy in needed:
                continue
            try:
                self._page_out(policy, self._held[policy])
            except OSError as error:
                log.warning("Policy %s cannot be paged out and stays in memory: %s.", policy, error.strerror)
                return
            del self._held[policy]

    def _page_in(self, policy: str) -> PolicyMemory:
        state = self._pages.take(policy)
        try:
            memory = to_device(state, self._device)
        except RuntimeError:
            self._pages.put(policy, state)
            raise
        reach(Point.PAGE_IN)
        return memory

    def _page_out(self, policy: str, memory: PolicyMemory) -> None:
        self._pages.put(policy, to_host(memory))
        reach(Point.PAGE_OUT)


def _not_open(policy: str) -> AdapterError:
    return AdapterError(f"Policy {policy} is not open in this trainer.")

"""Policies that are paged out: in host memory up to a limit, then in files of a private folder.

A policy is stored under its name and comes back bit for bit, its unfinished gradient included. The files are removed at
the end of the process or, after a crash, at the start of the next one. Knows no devices and no order of use.
"""

from __future__ import annotations

import itertools
import pickle
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..errors import AdapterError
from ..home import PrivateFolder, remove_orphans
from .adamw import AdamState
from .layout import Layout
from .policy_memory import PolicyMemory
from .protocol import PolicyConfig, TrainGroup

PREFIX = "marlaas-pages-"
HINT = "Resume the task: it goes on from its last committed step."


@dataclass(frozen=True)
class PagedPolicy:
    """A paged-out policy: all of a ``PolicyMemory``, off the device."""

    config: PolicyConfig
    layout: Layout
    vectors: tuple[bytes, ...]
    """Weights, both moments and gradient, float32 (P,) each."""
    updates: int
    version: int
    tokens: int
    rehearsal: tuple[TrainGroup, ...]
    fault: str

    @classmethod
    def of(cls, memory: PolicyMemory) -> PagedPolicy:
        """Copy a policy to the host."""
        state = memory.optimised
        vectors = (state.weights, state.moment1, state.moment2, memory.gradient)
        return cls(
            memory.config,
            memory.layout,
            tuple(vector.cpu().numpy().tobytes() for vector in vectors),
            state.step,
            memory.version,
            memory.tokens,
            tuple(memory.rehearsal),
            memory.fault,
        )

    def wake(self, device: str) -> PolicyMemory:
        """Bring it to the memory of a device."""
        weights, moment1, moment2, gradient = (_vector(part, device) for part in self.vectors)
        state = AdamState(weights, moment1, moment2, self.updates)
        memory = PolicyMemory.holding(self.config, self.layout, state, gradient, self.version)
        memory.tokens, memory.rehearsal, memory.fault = self.tokens, list(self.rehearsal), self.fault
        return memory

    @property
    def size(self) -> int:
        """Bytes of its vectors."""
        return sum(map(len, self.vectors))


@dataclass(frozen=True)
class _File:
    path: Path
    checksum: int
    """CRC-32 of the file, against damage; nobody else writes there."""


class Pages:
    """Stores paged-out policies in ``host`` bytes of memory, then in files of a folder of their own in ``scratch``."""

    def __init__(self, scratch: Path, host: int = 0) -> None:
        self._scratch, self._host = scratch, host
        self._pages: dict[str, PagedPolicy | _File] = {}
        self._numbers = itertools.count()
        self._folder: PrivateFolder | None = None
        remove_orphans(scratch, PREFIX)

    def __contains__(self, policy: str) -> bool:
        return policy in self._pages

    def put(self, policy: str, paged: PagedPolicy) -> None:
        """Store a policy. Raises ``OSError`` where there is room neither in memory nor on the disk."""
        held = sum(page.size for page in self._pages.values() if isinstance(page, PagedPolicy))
        if held + paged.size <= self._host:
            self._pages[policy] = paged
            return
        payload = pickle.dumps(paged, protocol=pickle.HIGHEST_PROTOCOL)
        path = self._own_folder() / str(next(self._numbers))
        try:
            path.write_bytes(payload)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        self._pages[policy] = _File(path, zlib.crc32(payload))

    def take(self, policy: str) -> PagedPolicy:
        """Return a policy and remove it. Raises ``AdapterError`` where its file is gone or damaged."""
        page = self._pages.pop(policy)
        if isinstance(page, PagedPolicy):
            return page
        try:
            payload = page.path.read_bytes()
        except OSError as error:
            raise AdapterError(
                f"Policy {policy} was paged out to {page.path}, which cannot be read: {error.strerror}.", HINT
            ) from error
        page.path.unlink(missing_ok=True)
        if zlib.crc32(payload) != page.checksum:
            raise AdapterError(f"Policy {policy} was paged out to {page.path}, which has been damaged since.", HINT)
        paged: PagedPolicy = pickle.loads(payload)  # our own bytes
        return paged

    def drop(self, policy: str) -> None:
        """Forget a policy; unknown names are fine."""
        page = self._pages.pop(policy, None)
        if isinstance(page, _File):
            page.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove all files."""
        self._pages.clear()
        if self._folder is not None:
            self._folder.remove()
            self._folder = None

    def _own_folder(self) -> Path:
        """The folder, which is created when it is first needed."""
        if self._folder is None:
            self._folder = PrivateFolder(self._scratch, PREFIX)
        return self._folder.path


def _vector(part: bytes, device: str) -> Tensor:
    return torch.frombuffer(bytearray(part), dtype=torch.float32).to(device)

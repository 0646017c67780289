"""State files of a simulation: real ones with a tiny adapter, for recovery, retention and the checker.

On the network they have the recorded size.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np

from ..adapters import PolicyState, StateHeader, checksum, read_state, write_state
from ..training import PolicyConfig


@dataclass(frozen=True)
class Written:
    """One state file."""

    step: int
    checksum: str
    size: int


class StateFiles:
    """All state files of one simulation."""

    def __init__(self, size: int, fingerprint: str) -> None:
        self.size = size
        self._fingerprint = fingerprint
        self._known: dict[str, Written] = {}
        self._there: set[tuple[str, str]] = set()

    def write(self, policy: str, step: int, config: PolicyConfig, path: str) -> Written:
        digest = blake2b(f"{policy} {step} {path}".encode(), digest_size=16).digest()
        adapter = {"m.lora_A": np.frombuffer(digest, np.uint16).astype(np.float32)[None]}
        header = StateHeader(config.rank, config.alpha, step, self._fingerprint)
        write_state(Path(path), PolicyState(header, adapter, adapter, adapter), sync=False)
        written = self._known[path] = Written(step, checksum(adapter), self.size)
        return written

    def get(self, path: str) -> Written:
        """The state file at a path, perhaps written by other means. Raises ``AdapterError``."""
        known = self._known.get(path)
        if known is None:
            state = read_state(Path(path), moments=False)
            known = self._known[path] = Written(state.header.step, checksum(state.adapter), self.size)
        return known

    def first(self, node: str, adapter: str) -> bool:
        """True once for each node and version."""
        if (node, adapter) in self._there:
            return False
        self._there.add((node, adapter))
        return True

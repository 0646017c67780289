"""The adapter versions that a sampler serves: immutable under their names, freed after their last request."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ...adapters import checksum, read_state
from ...base import BaseModel
from ...errors import AdapterError
from ...faults import Point, reach
from .context import Arrays


class Adapters(Protocol):
    """What loads and frees adapters; a ``Context`` does."""

    def load_adapter(self, adapter: Arrays, alpha: float) -> int:
        """Take an adapter in (named as in state files) and return its handle. Raises ``AdapterError`` if it does not
        fit."""

    def free_adapter(self, adapter: int) -> None:
        """Give an adapter's memory back."""


@dataclass
class Version:
    """One loaded adapter."""

    name: str
    checksum: str
    handle: int
    users: int = 0
    """Requests that wait or run under it."""
    retired: bool = False


class Versions:
    """All versions of one sampler."""

    def __init__(self, base: BaseModel, adapters: Adapters) -> None:
        self._base = base
        self._adapters = adapters
        self._versions: dict[str, Version] = {}
        self._checksums: dict[str, str] = {}
        """Checksum of every name that was ever loaded."""

    def load(self, name: str, path: Path) -> str:
        """Read the adapter of a state file and return the checksum of what was read.

        Raises ``AdapterError`` where the name stands for other bytes, and for an adapter of another base or shape.
        """
        reach(Point.SAMPLER_LOADING)
        state = read_state(path, moments=False)
        found = checksum(state.adapter)
        if self._checksums.get(name, found) != found:
            raise AdapterError(f"The version name {name!r} stands for other bytes; names are never used again.")
        if name in self._versions:
            self._versions[name].retired = False
            return found
        if state.header.base and state.header.base != self._base.fingerprint:
            raise AdapterError(
                f"was trained on the base {state.header.base}; this sampler serves {self._base.fingerprint}.",
                where=str(path),
            )
        handle = self._adapters.load_adapter(state.adapter, state.header.alpha)
        self._versions[name] = Version(name, found, handle)
        self._checksums[name] = found
        reach(Point.SAMPLER_LOADED)
        return found

    def serving(self, name: str) -> Version:
        """The version of that name. Raises ``AdapterError`` if it was never loaded or is retired."""
        version = self._versions.get(name)
        if version is None or version.retired:
            why = "has been retired" if name in self._checksums else "was never loaded"
            raise AdapterError(f"The adapter version {name!r} {why}.")
        return version

    def retire(self, name: str) -> None:
        """Refuse new requests at once, free the memory after the last one; unknown names are refused."""
        version = self.serving(name)
        version.retired = True
        self._free_if_unused(version)
        reach(Point.SAMPLER_RETIRED)

    def leave(self, version: Version) -> None:
        """A request under this version has ended."""
        version.users -= 1
        self._free_if_unused(version)

    def close(self) -> None:
        """Free all adapters."""
        for version in self._versions.values():
            self._adapters.free_adapter(version.handle)
        self._versions.clear()

    def _free_if_unused(self, version: Version) -> None:
        if version.retired and version.users == 0:
            self._adapters.free_adapter(version.handle)
            del self._versions[version.name]

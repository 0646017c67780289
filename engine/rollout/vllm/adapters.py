"""Adapters in vLLM, each with a folder of its own from which vLLM reads it.

vLLM reads adapters from folders, and its whole engine dies where it looks for one that is gone. So every adapter has a
folder that nothing else uses, below one that only this account may enter; vLLM reads it once, before its handle is
given to anybody, and keeps what it has read until the handle is freed. Damage to a folder after that does no harm.
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Protocol

from ...adapters import PolicyState, StateHeader, checksum, read_peft_folder, write_peft_folder
from ...errors import AdapterError
from ...home import PrivateFolder
from ..batching.context import Arrays

HANDLES = itertools.count(1)
"""Handles are never given twice in a process, for vLLM finds cached keys and values by them."""


class AdapterEngine(Protocol):
    """The part of ``Engine`` that is used here."""

    def add_adapter(self, handle: int, folder: Path) -> None:
        """Read an adapter and keep it in memory. Raises ``AdapterError``."""

    def remove_adapter(self, handle: int) -> None:
        """Forget one that no request under way uses."""


class FolderAdapters:
    """Implements ``versions.Adapters`` on vLLM; the adapters' folders are in ``folder``."""

    def __init__(self, engine: AdapterEngine, base: Path, folder: PrivateFolder, rank: int) -> None:
        """``rank`` is the largest that vLLM was started for."""
        self._engine = engine
        self._base = base
        self._folder = folder
        self._rank = rank

    def load_adapter(self, adapter: Arrays, alpha: float) -> int:
        """Have vLLM read an adapter. Raises ``AdapterError`` where its rank is too large, the disk or vLLM refuses it,
        or the folder holds other bytes once vLLM has read it."""
        rank = max((array.shape[0] for name, array in adapter.items() if name.endswith(".lora_A")), default=0)
        if rank > self._rank:
            raise AdapterError(
                f"The adapter has rank {rank}; vLLM was started for ranks up to {self._rank}.",
                f"Set `largest_rank = {rank}` under [rollout] in marlaas.toml and restart the engine.",
            )
        handle = next(HANDLES)
        folder = self._of(handle)
        try:
            self._folder.ensure()
            folder.mkdir(mode=0o700)
            write_peft_folder(folder, PolicyState(StateHeader(rank, alpha, 0, ""), adapter), self._base, "")
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise AdapterError(f"The adapter could not be written to {folder}: {error.strerror}.") from error
        try:
            self._engine.add_adapter(handle, folder)
            self._check(handle, folder, checksum(adapter))
        except AdapterError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return handle

    def free_adapter(self, adapter: int) -> None:
        """Forget an adapter that no request uses, then delete its folder."""
        self._engine.remove_adapter(adapter)
        shutil.rmtree(self._of(adapter), ignore_errors=True)

    def _check(self, handle: int, folder: Path, expected: str) -> None:
        """Raise ``AdapterError`` unless the folder still holds what was written."""
        try:
            found = checksum(read_peft_folder(folder).adapter)
        except AdapterError:
            found = "nothing that can be read"
        if found != expected:
            self._engine.remove_adapter(handle)
            raise AdapterError(f"While vLLM read the adapter in {folder} somebody changed it: it holds {found}.")

    def _of(self, handle: int) -> Path:
        return self._folder.path / str(handle)

"""A base that is on the device during the trainer's turns alone: brought before each turn, freed after it.

The base is frozen, so nothing is ever copied back: values stay in main memory, where a card's driver reads them fastest
(pinned), and on the device they are written again into the same tensors. The tensors and their views stay valid; only
their storage comes and goes, as in PyTorch's FSDP. Bringing a base of 16 GB costs under a second over PCIe, a tenth of
what vLLM takes to wake, and leaves that much to its keys and values meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import torch
from torch import Tensor, UntypedStorage


class OffloadedBase:
    """The storages of some tensors, and a copy of each in main memory."""

    def __init__(self) -> None:
        self._kept: list[tuple[UntypedStorage, UntypedStorage]] = []
        """Each storage on the device, with its copy in main memory."""

    def pack(self, tensors: Iterator[Tensor]) -> None:
        """Manage these tensors, which are on the device; nobody may write to them any more."""
        found = {storage.data_ptr(): storage for storage in (tensor.untyped_storage() for tensor in tensors)}
        self._kept = [(storage, _copy(storage)) for storage in found.values() if storage.resizable()]

    @property
    def size(self) -> int:
        """Bytes that are brought and freed."""
        return sum(values.nbytes() for _, values in self._kept)

    def come(self) -> None:
        """Bring the values. Raises ``torch.OutOfMemoryError`` where not all fit, and then brings none."""
        try:
            for storage, values in self._kept:
                storage.resize_(values.nbytes())
                storage.copy_(values, True)
        except torch.OutOfMemoryError:
            self.go()
            raise

    def go(self) -> None:
        """Free the device's memory, for other programs and libraries, too."""
        for storage, _ in self._kept:
            storage.resize_(0)
        torch.cuda.empty_cache()  # does nothing where there is no card


def tensors_of(record: object) -> Iterator[Tensor]:
    """Every tensor in a dataclass, in those inside of it and in tuples of such."""
    if isinstance(record, Tensor):
        yield record
    elif isinstance(record, tuple):
        for part in record:
            yield from tensors_of(part)
    elif is_dataclass(record):
        for field in fields(record):
            yield from tensors_of(getattr(record, field.name))


def _copy(storage: UntypedStorage) -> UntypedStorage:
    copy = UntypedStorage(storage.nbytes())  # type: ignore[no-untyped-call]
    copy.copy_(storage, False)
    return copy if storage.device.type == "cpu" else copy.pin_memory()

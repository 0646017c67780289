"""The state file of one policy version: adapter, optimizer moments and counters, in one safetensors file.

The trainer writes it (write, fsync, rename), the sampler and the exporters read its adapter part. numpy only. Keys are
``adapter/<module>.lora_A`` (r, in) and ``.lora_B`` (out, r), and ``moment1/…``, ``moment2/…`` under the same names,
where <module> is the path in the Hugging Face model, for example ``model.layers.0.self_attn.q_proj``.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ..errors import AdapterError
from ..faults import Point, reach

Array = NDArray[np.float32]
FORMAT = 1


@dataclass(frozen=True)
class StateHeader:
    """What the file says of itself."""

    rank: int
    alpha: float
    step: int
    """Steps made: the version's number."""
    base: str
    """Fingerprint of the base model that the adapter belongs to."""
    format: int = FORMAT
    updates: int | None = None
    """Optimizer updates made, several a step where it has several epochs; None: as many as steps."""


@dataclass(frozen=True)
class PolicyState:
    """A policy at rest. ``moments`` is empty in files that cannot be resumed from."""

    header: StateHeader
    adapter: dict[str, Array]
    moment1: dict[str, Array] = field(default_factory=dict)
    moment2: dict[str, Array] = field(default_factory=dict)

    @property
    def resumable(self) -> bool:
        """Whether training can go on from here."""
        return bool(self.moment1)


def checksum(adapter: dict[str, Array]) -> str:
    """First 16 hex digits of SHA-256 over names, shapes and bytes in sorted order: what trainer and sampler compare."""
    digest = hashlib.sha256()
    for name in sorted(adapter):
        array = np.ascontiguousarray(adapter[name], dtype=np.float32)
        digest.update(f"{name}{array.shape}".encode())
        digest.update(array.data)
    return digest.hexdigest()[:16]


def write_state(path: Path, state: PolicyState, sync: bool = True) -> int:
    """Write atomically and return the size in bytes; ``sync`` makes it survive a power cut.

    Raises ``AdapterError`` when the disk refuses; a file that stood there before is then untouched.
    """
    return _replace(path, state, sync, Point.STATE_WRITTEN, Point.STATE_NAMED)


def strip_moments(path: Path, expected: str) -> int:
    """Write a state file again without its moments, atomically, and return its size; doing so twice changes nothing.

    Raises ``AdapterError`` where the adapter's checksum is not the ``expected`` one, or the file or the disk does not
    do; the file then stays as it is.
    """
    state = read_state(path, moments=False)
    if (found := checksum(state.adapter)) != expected:
        raise AdapterError(f"The state file {path} is damaged: it holds {found}, not {expected}.")
    return _replace(path, state, True, Point.STRIP_WRITTEN, Point.STRIP_NAMED)


def restart_moments(path: Path) -> int:
    """Write a state file again with moments of zero, as a new optimizer has them, and return its size.

    Raises ``AdapterError`` where the file or the disk does not do.
    """
    return write_state(path, _with_new_optimizer(read_state(path, moments=False)))


def begin_from(start: Path, expected: str, path: Path) -> None:
    """Write the adapter of a state file as version 0 of another policy, with moments of zero.

    Raises ``AdapterError`` where its checksum is not the ``expected`` one, or a file or the disk does not do.
    """
    state = read_state(start, moments=False)
    if (found := checksum(state.adapter)) != expected:
        raise AdapterError(f"The state file {start} is damaged: it holds {found}, not {expected}.")
    begin(state, path)


def begin(state: PolicyState, path: Path) -> None:
    """Write a policy's adapter as version 0 of another one, with moments of zero. Raises as ``write_state`` does."""
    write_state(path, _with_new_optimizer(replace(state, header=replace(state.header, step=0))))


def _with_new_optimizer(state: PolicyState) -> PolicyState:
    zeros = {name: np.zeros_like(array) for name, array in state.adapter.items()}
    return replace(state, header=replace(state.header, updates=0), moment1=zeros, moment2=zeros)


def write_blank(like: Path, path: Path) -> str:
    """Write the adapter of an untrained policy, in the shapes of another file's, and return its checksum.

    It is all zeros: that adds nothing to the base, as a fresh one does whose second factor is zero. Raises
    ``AdapterError`` where a file or the disk does not do.
    """
    state = read_state(like, moments=False)
    zeros = {name: np.zeros_like(array) for name, array in state.adapter.items()}
    write_state(path, PolicyState(replace(state.header, step=0), zeros), sync=False)
    return checksum(zeros)


def _replace(path: Path, state: PolicyState, sync: bool, written: Point, named: Point) -> int:
    tensors = {f"adapter/{name}": array for name, array in state.adapter.items()}
    tensors |= {f"moment1/{name}": array for name, array in state.moment1.items()}
    tensors |= {f"moment2/{name}": array for name, array in state.moment2.items()}
    payload = save(tensors, metadata={"marlaas": json.dumps(asdict(state.header))})
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "wb") as file:
            reach(Point.STATE_WRITING)
            file.write(payload)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        reach(written)
        os.replace(partial, path)
        reach(named)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise AdapterError(
            f"The state file {path} could not be written: {error.strerror}.",
            "Free some space or move MARLAAS_HOME; training goes on from the last committed step.",
        ) from error
    return len(payload)


def read_state(path: Path, moments: bool = True) -> PolicyState:
    """Read a state file, or only its adapter. Raises ``AdapterError`` if it is missing or damaged."""
    parts: dict[str, dict[str, Array]] = {"adapter": {}, "moment1": {}, "moment2": {}}
    try:
        with safe_open(path, framework="np") as file:
            header = _header(path, file.metadata() or {})
            for key in file.keys():  # noqa: SIM118 - safe_open is no mapping
                part, _, name = key.partition("/")
                if part == "adapter" or (moments and part in parts):
                    parts[part][name] = _float32(file.get_tensor(key))
    except (OSError, SafetensorError, TypeError, AttributeError) as error:  # the last two: numbers that numpy lacks
        raise AdapterError(f"The state file {path} cannot be read: {error}.") from error
    if not parts["adapter"]:
        raise AdapterError(f"The state file {path} holds no adapter.")
    return PolicyState(header, parts["adapter"], parts["moment1"], parts["moment2"])


def holds_moments(path: Path) -> bool:
    """Whether training can go on from a state file. Raises ``AdapterError`` if it is missing or damaged."""
    try:
        with safe_open(path, framework="np") as file:
            return any(key.startswith("moment1/") for key in file.keys())  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise AdapterError(f"The state file {path} cannot be read: {error}.") from error


def _float32(array: NDArray[Any]) -> Array:
    """An array as it was written; ``TypeError`` for one of other numbers."""
    if array.dtype != np.float32:
        raise TypeError(f"its numbers are of the type {array.dtype}, not float32")
    return array


def _header(path: Path, metadata: dict[str, Any]) -> StateHeader:
    try:
        header = StateHeader(**json.loads(metadata["marlaas"]))
        numbers = (header.rank, header.step, header.format, header.updates or 0)
        if not all(type(number) is int for number in numbers) or not isinstance(header.base, str):
            raise TypeError("it says what is no number")
        if type(header.alpha) not in (int, float) or not math.isfinite(header.alpha):
            raise TypeError("its alpha is no number")
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise AdapterError(f"{path} is no marlaas state file.") from error
    if header.format != FORMAT:
        raise AdapterError(f"{path} has format {header.format}; this marlaas reads format {FORMAT}.")
    return header

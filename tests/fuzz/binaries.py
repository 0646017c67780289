"""Borders at which files of numbers come in: state files of policies, and GGUF files that users bring."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np

from marlaas.engine.adapters.statefile import PolicyState, StateHeader, checksum, read_state, write_state
from marlaas.engine.errors import AdapterError, BaseModelError
from marlaas.engine.home.paths import TINY_BASE
from marlaas.engine.models.config import read_config
from marlaas.engine.models.gguf import brought_names

from .border import FOLDER, Border

_CONFIG = read_config(TINY_BASE / "config.json")


def _file(name: str, data: bytes) -> Path:
    path = FOLDER / name
    path.write_bytes(data)
    return path


def _state() -> bytes:
    adapter = {"q.lora_A": np.arange(6, dtype=np.float32).reshape(2, 3), "q.lora_B": np.ones((4, 2), np.float32)}
    path = FOLDER / "sample.safetensors"
    write_state(path, PolicyState(StateHeader(2, 4.0, 7, "abc"), adapter, adapter, adapter), sync=False)
    return path.read_bytes()


def state(meta: str, dtype: str = "F32", bits: int = 32) -> bytes:
    """A file of one tensor of eight numbers, by hand."""
    tensor = {"dtype": dtype, "shape": [8], "data_offsets": [0, bits]}
    head = json.dumps({"__metadata__": {"marlaas": meta}, "adapter/q.lora_A": tensor}).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + bytes(bits)


META = json.dumps({"rank": 2, "alpha": 4.0, "step": 7, "base": "abc", "format": 1, "updates": 9})


def _text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def gguf_of(more: dict[bytes, bytes], axes: int = 2) -> bytes:
    """The header of a file of the shipped base's sizes, with a list, some other fields, and one tensor."""
    fields = {
        b"general.architecture": struct.pack("<I", 8) + _text(b"qwen3"),
        b"general.alignment": struct.pack("<II", 4, 32),
        b"qwen3.block_count": struct.pack("<II", 4, _CONFIG.layers),
        b"qwen3.embedding_length": struct.pack("<II", 4, _CONFIG.hidden_size),
        b"tokenizer.ggml.tokens": struct.pack("<IIQ", 9, 8, 2) + _text(b"a") + _text(b"b"),
    } | more
    shape = struct.pack("<I", axes) + struct.pack("<Q", _CONFIG.vocab_size) * axes
    tensor = _text(b"token_embd.weight") + shape + struct.pack("<IQ", 0, 0)
    written = b"".join(_text(key) + value for key, value in fields.items())
    return b"GGUF" + struct.pack("<IQQ", 3, 1, len(fields)) + written + tensor + bytes(64)


def state_file(data: bytes) -> None:
    """A state file: a policy whose numbers are what they say they are, or ``AdapterError``."""
    for moments in (False, True):
        try:
            found = read_state(_file("state.safetensors", data), moments)
        except AdapterError as error:
            error.message.encode()
            continue
        json.dumps(vars(found.header), allow_nan=False)
        numbers = (found.header.rank, found.header.step, found.header.updates or 0)
        assert all(type(number) is int for number in numbers) and isinstance(found.header.base, str)
        assert all(array.dtype == np.float32 for array in found.adapter.values())
        assert len(checksum(found.adapter)) == 16


def gguf(data: bytes) -> None:
    """A GGUF file: names for the base's tensors, or ``BaseModelError``."""
    try:
        brought_names(_file("base.gguf", data), _CONFIG)
    except BaseModelError as error:
        error.message.encode()


_NUMBERS = [struct.pack("<I", 1 << shift) for shift in range(0, 32, 5)] + [b"\xff" * 8, b"\x7f" + b"\xff" * 7]

BINARIES = (
    Border(
        "state files",
        [_state(), state(META), state(META, "BF16", 16), state(META, "F8_E5M2", 8)],
        [*_NUMBERS, b'"shape":[', b'"F32"', b'"F64"', b'"BF16"', b'"x"', b"null"],
        state_file,
    ),
    Border(
        "gguf",
        [gguf_of({})],
        [*_NUMBERS, _text(b"split.count"), struct.pack("<IIQ", 9, 9, 1) * 300, _text(b"general.alignment")],
        gguf,
    ),
)

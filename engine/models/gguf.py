"""GGUF, llama.cpp's file format.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The gguf package's reader takes seconds for 150,000 tokens;
this one skips lists unless asked. Our sampler's files hold no tokenizer; exported ones do.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import shutil
import struct
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import gguf
import numpy as np
import psutil
from numpy.typing import NDArray

from ..errors import AdapterError, BaseModelError
from .config import FAMILIES, BaseConfig
from .find import BaseModel
from .rope import llama3_divisors, unreadable
from .weights import BYTES, STORED, StoredTensor, Weights, check_adapter, linear_shapes, pairs, tensor_shapes

Array = NDArray[np.float32]
Scalar = TypeVar("Scalar", bound=np.generic)
Value = str | int | float | bool
Fields = dict[str, Value | list[Any]]
"""A Python int becomes uint32, a float float32."""


SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Types as format characters of ``struct``."""
STRING, LIST = 8, 9
READ_VERSIONS = (2, 3)
LONGEST = 1 << 24
"""Most bytes of a text, such as a chat template, and items of a list."""
EMBEDDING = "token_embd.weight"


@dataclass(frozen=True)
class GgufHeader:
    """The header of a GGUF file."""

    fields: dict[str, Value]
    """Without lists."""
    shapes: dict[str, tuple[int, ...]]
    """As in numpy: the last axis is contiguous."""
    size: int
    places: dict[str, tuple[int, int]]
    """Each tensor's ``GGMLQuantizationType`` and first byte."""
    lists: dict[str, list[Any]]

    @property
    def parameters(self) -> int:
        return sum(prod(shape) for name, shape in self.shapes.items() if not name.startswith("rope_"))

    def number(self, key: str) -> int:
        value = self.fields.get(key, 0)
        return int(value) if isinstance(value, int) else 0


def read_header(path: Path, lists: Collection[str] = ()) -> GgufHeader:
    """Read the header, with these ``lists``. Raises ``BaseModelError`` if it is no GGUF file or too short."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[:4] != b"GGUF":
                raise BaseModelError("is no GGUF file: it does not begin with these four letters.", where=str(path))
            if (version := int.from_bytes(data[4:8], "little")) not in READ_VERSIONS:
                big = int.from_bytes(data[4:8], "big") in READ_VERSIONS
                kind = "for big-endian processors" if big else f"of version {version}"
                hint = "marlaas and llama.cpp read versions 2 and 3, little-endian: take a newer file."
                raise BaseModelError(f"is a GGUF file {kind}.", hint, where=str(path))
            header, length = _Cursor(data, lists).header(), len(data)
    except FileNotFoundError as error:
        raise BaseModelError(f"There is no GGUF file {path}.") from error
    except OSError as error:
        raise BaseModelError(f"the GGUF file cannot be read: {error.strerror}.", where=str(path)) from error
    except struct.error as error:
        cause = "the GGUF file ends within its header; it was not copied whole."
        raise BaseModelError(cause, where=str(path)) from error
    except BaseModelError:
        raise
    except (ValueError, KeyError, RecursionError) as error:  # an empty file; unknown numbers for types; endless lists
        raise BaseModelError("is no GGUF file.", where=str(path)) from error
    if length < header.size:
        cause = f"the GGUF file has {length} bytes of {header.size}; it was not copied whole."
        raise BaseModelError(cause, where=str(path))
    return header


class _Cursor:
    """Raises ``struct.error`` past the end."""

    def __init__(self, data: mmap.mmap, wanted: Collection[str]) -> None:
        self._data, self._at, self._wanted = data, 8, wanted
        self._lists: dict[str, list[Any]] = {}

    def header(self) -> GgufHeader:
        count, fields = self._scalar("Q"), {}
        for _ in range(self._scalar("Q")):
            key = self._string()
            value = self._value(self._scalar("I"), key)
            if value is not None:
                fields[key] = value
        shapes, offsets, end = {}, {}, 0
        for _ in range(count):
            name, axes = self._string(), self._scalar("I")
            if axes > 4:
                raise ValueError("no shape")
            shape = tuple(self._scalar("Q") for _ in range(axes))
            kind, offset = self._scalar("I"), self._scalar("Q")
            if kind not in gguf.GGML_QUANT_SIZES:
                cause = f"the tensor {name} is of the type {kind}, which the gguf package does not know."
                raise BaseModelError(cause, "Upgrade gguf.")
            block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
            shapes[name], offsets[name] = shape[::-1], (kind, offset)
            end = max(end, offset + prod(shape) // block * size)
        alignment = fields.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 0 < alignment < 1 << 32:
            raise ValueError("no alignment")
        start = -(-self._at // alignment) * alignment
        places = {name: (kind, start + offset) for name, (kind, offset) in offsets.items()}
        return GgufHeader(fields, shapes, start + end, places, self._lists)

    def _value(self, kind: int, key: str = "") -> Value | None:
        if kind == STRING:
            return self._string()
        if kind != LIST:
            return self._scalar(SCALARS[kind])
        kind, count = self._scalar("I"), self._scalar("Q")
        if key in self._wanted and count <= LONGEST:
            self._lists[key] = [self._value(kind) for _ in range(count)]
        elif kind in SCALARS:
            self._skip(count * struct.calcsize(SCALARS[kind]))
        else:
            for _ in range(count):
                self._skip(self._scalar("Q")) if kind == STRING else self._value(kind)
        return None

    def _scalar(self, kind: str) -> int:
        value: int
        (value,) = struct.unpack_from(f"<{kind}", self._data, self._at)
        self._at += struct.calcsize(f"<{kind}")
        return value

    def _string(self) -> str:
        start, length = self._at + 8, self._scalar("Q")
        if length > LONGEST:
            raise ValueError("no text")
        self._skip(length)
        return self._data[start : self._at].decode("utf-8", "replace")

    def _skip(self, count: int) -> None:
        self._at += count
        if self._at > len(self._data):
            raise struct.error("past the end")


BRING = "Bring one of your own: `[rollout] gguf = FILE` in marlaas.toml."
INTERLEAVED = (
    *("llama", "arcee", "arctic", "bailingmoe", "deci", "deepseek", "granite", "granitehybrid", "granitemoe", "llada"),
    *("minicpm", "mistral3", "olmo", "smollm3", "xverse"),
)
"""llama.cpp rotates neighbouring pairs, Hugging Face halves. Cohere, GLM, Ernie and others rotate pairs in both."""
RENAMED = {"mistral": "llama", "mixtral": "llama", "cohere": "commandr", "phi": "phi2", "gemma3text": "gemma3"}
"""llama.cpp's names for others of Hugging Face, without dashes."""
ARCHITECTURES: dict[str, Any] = {name: architecture for architecture, name in gguf.MODEL_ARCH_NAMES.items()}


@dataclass(frozen=True)
class GgufNames:
    """llama.cpp's names for a base's tensors, and its order of rows.

    If it rotates pairs and Hugging Face row i with row i + d/2, the rows of q and k (weights, biases, a LoRA's B) are
    interleaved.
    """

    architecture: str
    """``general.architecture`` in the GGUF of base and adapters."""
    config: BaseConfig

    def module(self, module: str) -> str:
        """``model.layers.3.mlp.up_proj`` is ``blk.3.ffn_up``. Raises ``BaseModelError`` for modules that the
        architecture lacks."""
        name: str | None = _name_map(self.architecture, self.config.layers).get_name(module)
        if name is None:
            raise BaseModelError(
                f"llama.cpp's architecture {self.architecture} with {self.config.layers} layers has no {module}, but"
                " the base has.",
                "Configuration and weights may belong to different models: take both from where they came.",
            )
        return name

    def rotated_heads(self, module: str) -> int:
        heads = {"q_proj": self.config.heads, "k_proj": self.config.kv_heads}
        return heads.get(module.rpartition(".")[2], 0) if self.architecture in INTERLEAVED else 0

    def rows(self, module: str, array: NDArray[Scalar]) -> NDArray[Scalar]:
        """``array`` (outputs first) in llama.cpp's order: row i + d/2 after row i."""
        heads = self.rotated_heads(module)
        if not heads:
            return array
        halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
        return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))


class _NameMap(gguf.TensorNameMap):
    def __init__(self, architecture: Any, layers: int) -> None:
        # The parent changes a table that all instances share; so it is copied.
        self.block_mappings_cfg = dict(self.block_mappings_cfg)
        super().__init__(architecture, layers)


@cache
def _name_map(architecture: str, layers: int) -> _NameMap:
    return _NameMap(ARCHITECTURES[architecture], layers)


def names_of(config: BaseConfig) -> GgufNames:
    """Names for a base. Raises ``BaseModelError`` if our writer does not cover it, with what to do."""
    if config.architecture not in FAMILIES:
        lacking = f"the architecture {config.architecture!r}, only {', '.join(FAMILIES)}"
    elif config.sliding_window:
        lacking = "base models with sliding-window attention"
    elif positions := unreadable(config):
        lacking = f"rotary positions {positions}"
    else:
        return GgufNames(config.architecture, config)
    raise BaseModelError(f"marlaas writes no GGUF for {lacking}.", BRING)


def names_like(config: BaseConfig) -> GgufNames:
    """Names for a base without GGUF. Raises ``BaseModelError`` if its architecture does not determine them."""

    def plain(name: str) -> str:
        return name.replace("_", "").replace("-", "")

    name = plain(config.architecture)
    for architecture in ARCHITECTURES:
        if plain(architecture) == RENAMED.get(name, name):
            return GgufNames(architecture, config)
    raise BaseModelError(
        f"What llama.cpp calls the architecture {config.architecture!r} is not known.",
        "Name the base's GGUF: `[rollout] gguf = FILE` in marlaas.toml.",
    )


def brought_names(path: Path, config: BaseConfig) -> GgufNames:
    """Names for the user's GGUF at ``path``.

    Raises ``BaseModelError`` if it is incomplete, no model, or of other sizes. Comparing log-probabilities shows if
    weights agree (``engine/machine/routing/router.py``).
    """
    header = read_header(path)
    check_kind(header, path)
    architecture = str(header.fields.get("general.architecture", ""))
    if architecture not in ARCHITECTURES:
        cause = f"The architecture {architecture!r} of the base's GGUF is unknown to the gguf package."
        raise BaseModelError(cause, "Upgrade gguf.")
    extra = header.number(f"{architecture}.nextn_predict_layers")  # for speculation; Hugging Face does not count them
    vocabulary = (header.shapes.get(EMBEDDING) or (0,))[0]  # a file may have a tensor without dimensions
    sizes: list[tuple[str, int | str, int | str]] = [
        ("vocabulary", vocabulary, config.vocab_size),
        ("number of layers", header.number(f"{architecture}.block_count") - extra, config.layers),
        ("hidden size", header.number(f"{architecture}.embedding_length"), config.hidden_size),
    ]
    if config.architecture in FAMILIES:
        sizes.append(("architecture", architecture, config.architecture))
    for word, theirs, ours in sizes:
        if theirs != ours:
            raise BaseModelError(
                f"the GGUF file was made from another base: its {word} is {theirs}, config.json says {ours}.",
                "Make it again from the folder that `base` names.",
                where=str(path),
            )
    return GgufNames(architecture, config)


def check_kind(header: GgufHeader, path: Path) -> None:
    """Raise ``BaseModelError`` for a part of a split file, or no language model."""
    kind, architecture = (str(header.fields.get(f"general.{key}", "model")) for key in ("type", "architecture"))
    cause = hint = ""
    if architecture == "clip" or kind == "mmproj":
        cause = "the GGUF file holds the part of a model that reads pictures (mmproj)."
        hint = "Name the file of its language model."
    elif header.number("split.count") > 1:
        cause = f"is one of {header.number('split.count')} parts of a GGUF file."
        hint = "Merge them with `llama-gguf-split --merge FIRST-PART WHOLE.gguf` and name the whole file."
    elif kind != "model":
        cause = f"the GGUF file holds no model: its type is {kind}."
    if cause:
        raise BaseModelError(cause, hint, where=str(path))


def plain_layers(path: Path, names: GgufNames) -> bool:
    """True if every adaptable layer has its own matrix in the file.

    False for unknown architectures, fused layers and scaled matrices.
    """
    if names.config.architecture not in FAMILIES:
        return False
    tensors = read_header(path).shapes
    layers = [names.module(module) for module in linear_shapes(names.config)]
    return all(f"{layer}.weight" in tensors and f"{layer}.scale" not in tensors for layer in layers)


HEADER = 1 << 20


@dataclass(frozen=True)
class Entry:
    """One tensor to write."""

    name: str
    shape: tuple[int, ...]
    load: Callable[[], Array]
    """Called once, just before writing."""
    kind: str = "F32"
    """One of ``STORED``; for BF16 ``load`` returns the bits."""


def write_gguf(path: Path, architecture: str, fields: Fields, entries: Sequence[Entry]) -> None:
    """Write with one tensor in memory at a time."""
    writer = gguf.GGUFWriter(path, architecture)
    adders: dict[type, Callable[[str, Any], None]] = {
        str: writer.add_string,
        int: writer.add_uint32,
        float: writer.add_float32,
        bool: writer.add_bool,
        list: writer.add_array,
    }
    try:
        for key, value in fields.items():
            adders[type(value)](key, value)
        for entry in entries:
            kind, size = np.dtype(STORED[entry.kind]), prod(entry.shape) * BYTES[entry.kind]
            writer.add_tensor_info(entry.name, entry.shape, kind, size, gguf.GGMLQuantizationType[entry.kind])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for entry in entries:
            writer.write_tensor_data(np.ascontiguousarray(entry.load(), STORED[entry.kind]))
    finally:
        writer.close()


def path_of(base: BaseModel, folder: Path, weights: str) -> Path:
    """The base's file in ``folder``."""
    return folder / f"{base.fingerprint}-{weights}.gguf"


NO_TOKENIZER: Fields = {"tokenizer.ggml.model": "none"}
KINDS = {"F32": 0, "F16": 1, "BF16": 32}
"""Of matrices, with llama.h's number for such a file."""


def write_base(base: BaseModel, path: Path, weights: str = "f32", tokenizer: Fields = NO_TOKENIZER) -> None:
    """Write the base's GGUF; vectors are float32.

    ``weights``: the type of its matrices, "f32" or "f16"; empty: as they are stored. Raises ``BaseModelError`` for
    bases beyond our writer and damaged weights, and ``OSError``.
    """
    config, entries = base.config, _base_entries(base, weights)
    sizes: Fields = {
        "context_length": config.context_length,
        "embedding_length": config.hidden_size,
        "block_count": config.layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.heads,
        "attention.head_count_kv": config.kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
        "vocab_size": config.vocab_size,
        "rope.freq_base": config.rope_theta,
        "rope.dimension_count": config.head_dim,
    }
    fields: Fields = {
        "general.name": base.path.name,
        "general.file_type": max(KINDS[entry.kind] for entry in entries),
        **{f"{config.architecture}.{key}": value for key, value in sizes.items()},
        **tokenizer,
    }
    write_gguf(path, config.architecture, fields, entries)


def base_bytes(base: BaseModel, weights: str = "f32") -> int:
    """The size of ``write_base``'s file, at most 1 MB too large."""
    return HEADER + sum(prod(entry.shape) * BYTES[entry.kind] for entry in _base_entries(base, weights))


def _base_entries(base: BaseModel, kind: str) -> list[Entry]:
    config, weights, names, entries = base.config, Weights(base.weight_files), names_of(base.config), []
    divisors = llama3_divisors(config)
    if divisors is not None:
        entries.append(Entry("rope_freqs.weight", divisors.shape, lambda: divisors))

    def ordered(module: str, tensor: StoredTensor, kind: str) -> NDArray[Any]:
        return names.rows(module, tensor.read() if kind == "BF16" else tensor.load())

    for name in tensor_shapes(config):
        module, _, part = name.rpartition(".")
        if part == "bias" and config.architecture == "qwen3":
            raise BaseModelError(f"The base has {name}, but llama.cpp's architecture qwen3 has no biases.")
        tensor = weights[name]
        stored = kind.upper() or tensor.kind
        stored = stored if stored in KINDS and len(tensor.shape) > 1 else "F32"
        load = partial(ordered, module, tensor, stored)
        entries.append(Entry(f"{names.module(module)}.{part}", tensor.shape, load, stored))
    return entries


def write_adapter(names: GgufNames, adapter: dict[str, Array], alpha: float, path: Path) -> None:
    """Write the adapter's GGUF; llama.cpp scales it by ``alpha`` / rank, as PEFT does.

    Raises ``AdapterError`` if it does not fit or cannot be written; ``BaseModelError`` if llama.cpp's architecture
    lacks a module.
    """
    check_adapter(names.config, adapter)
    fields: Fields = {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": float(alpha)}
    entries = []
    for module, a, b in pairs(adapter):
        name = names.module(module)
        for part, array in (("a", a), ("b", names.rows(module, b))):
            entries.append(Entry(f"{name}.weight.lora_{part}", array.shape, partial(np.asarray, array)))
    try:
        write_gguf(path, names.architecture, fields, entries)
    except OSError as error:
        why = error.strerror or "the disk took a part of it only"
        raise AdapterError(f"the adapter file could not be written: {why}.", where=str(path)) from error


@contextlib.contextmanager
def adapter_in_memory(names: GgufNames, adapter: dict[str, Array], alpha: float) -> Iterator[Path]:
    """A path within the ``with`` block; on Linux in memory."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("adapter.gguf")
        path = Path(f"/proc/self/fd/{descriptor}")
    else:
        descriptor, name = tempfile.mkstemp(suffix=".gguf")
        path = Path(name)
    try:
        write_adapter(names, adapter, alpha, path)
        yield path
    finally:
        os.close(descriptor)
        if not str(path).startswith("/proc/"):
            path.unlink(missing_ok=True)


# --- rewritable large files ---
#
# Renamed when whole. If two processes write one, the last stays.

OURS = re.compile(r"\w+-(f32|f16|q8_0|q6_k|q5_k_m|q4_k_m)\.gguf")


def ensure(path: Path, needed: int, write: Callable[[Path], None]) -> Path:
    """Return ``path``; if missing, ``write`` it (``needed`` bytes).

    Raises ``BaseModelError`` if the disk is full or refuses, and what ``write`` raises, leaving nothing behind.
    """
    if path.exists():
        return path
    partial_path = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(path.parent, f".{path.name}.")
        check_space(path.parent, needed)
        write(partial_path)
        with open(partial_path, "rb+") as file:
            os.fsync(file.fileno())  # a power cut leaves no half file with a whole name
        os.replace(partial_path, path)
    except OSError as error:
        why = error.strerror or "the disk took a part of it only"  # numpy's errors have no reason
        raise BaseModelError(f"the file could not be written: {why}.", "Free some space.", where=str(path)) from error
    finally:
        with contextlib.suppress(OSError):
            partial_path.unlink()
    return path


def is_whole(path: Path) -> bool:
    """False if the file is missing or cut. Of its tensors only the sizes are checked."""
    try:
        read_header(path)
    except BaseModelError:
        return False
    return True


def forget_others(folder: Path, mine: str) -> int:
    """Remove our files except those that begin with ``mine``; returns freed bytes."""
    names = [path for path in folder.glob("*.gguf") if OURS.fullmatch(path.name)]
    return sum(remove(path) for path in names if not path.name.startswith(mine))


def remove(path: Path) -> int:
    """Remove a file, and ended processes' remains of it. Returns freed bytes."""
    remove_abandoned(path.parent, f".{path.name}.")
    with contextlib.suppress(OSError):
        size = path.stat().st_size
        path.unlink()
        return size
    return 0


def remove_abandoned(folder: Path, prefix: str = ".") -> None:
    """Remove ended processes' unfinished files; the process id follows the prefix."""
    for left in folder.glob(f"{prefix}*"):
        number = left.name.removeprefix(prefix).partition(".")[0]
        if number.isdecimal() and not psutil.pid_exists(int(number)):
            with contextlib.suppress(OSError):
                shutil.rmtree(left) if left.is_dir() else left.unlink()


def check_space(folder: Path, needed: int) -> None:
    """Raises ``BaseModelError`` if fewer than ``needed`` bytes are free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        cause = f"a file takes {needed / 1e9:.2g} GB to make, and {free / 1e9:.2g} GB are free there."
        raise BaseModelError(cause, "Free some space.", where=str(folder))

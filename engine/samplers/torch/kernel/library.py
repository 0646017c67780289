"""The compiled decoding kernel: built once, tested, loaded with ctypes."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from ctypes import POINTER, Structure, byref, c_float, c_long, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....devices.limits import processor_name

# The ctypes bindings of ``decode.c``. Independent of torch.
#
# Addresses are plain numbers; the caller keeps the arrays behind them alive.

Float32s = NDArray[np.float32]

LINEARS, MODULES = 4, 3
"""Linear layers of a block, and most modules of each, which share the input."""
ALIGNED = 64
"""Bytes: the widest vector, and a line of every usual cache."""


def _fields(*groups: tuple[Any, ...]) -> list[tuple[str, Any]]:
    return [(name, kind) for kind, *names in groups for name in names]


class Matrix(Structure):
    """A matrix in one of two types."""

    _fields_ = _fields((c_void_p, "whole", "halves"))


class Linear(Structure):
    """y = x Wᵀ + b."""

    _fields_ = _fields((c_long, "inputs", "outputs"), (Matrix, "weight"), (c_void_p, "bias"))


class Layer(Structure):
    """One block of the base."""

    _fields_ = _fields((c_void_p, "attention_norm", "head_norm", "mlp_norm"), (Linear * LINEARS, "linears"))


class Base(Structure):
    """The base, the cache of all sequences, and the room of a pass."""

    _fields_ = _fields(
        (c_long, "layers", "hidden", "inner", "queries", "keys", "size", "vocabulary", "length", "sequences"),
        (c_float, "eps", "scale"),
        (c_void_p, "embedding", "norm"),
        (Matrix, "head"),
        (c_void_p, "cosine", "sine"),
        (POINTER(Layer), "each"),
        (c_void_p, "memory", "room"),
    )


class Addition(Structure):
    """An adapter's part of one linear layer."""

    _fields_ = _fields(
        (c_long, "rank"),
        (c_void_p, "down"),
        (c_long * MODULES, "ranks", "columns", "outputs"),
        (c_void_p * MODULES, "ups"),
    )


class Rows(Structure):
    """The rows of a pass; ``additions`` (count,) are addresses of adapters."""

    _fields_ = _fields((c_long, "count"), (c_void_p, "tokens", "positions", "sequences", "wanted", "additions"))


class Library:
    """One compiled file. Raises ``OSError`` if it cannot be loaded, ``AttributeError`` if it is another library."""

    def __init__(self, path: Path) -> None:
        loaded = ctypes.CDLL(str(path))

        def function(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
            found = getattr(loaded, name)
            found.restype, found.argtypes = result, arguments
            called: Callable[..., Any] = found
            return called

        self.packed_size = function("packed_size", c_long, c_long, c_long)
        self._pack = function("pack", None, c_void_p, c_long, c_long, c_float, c_void_p)
        self._pack_halves = function("pack_halves", None, c_void_p, c_long, c_long, c_void_p)
        self.memory_size = function("memory_size", c_long, c_long)
        self.block: int = function("block_size", c_long)()
        """Tokens per block of the cache."""
        self.room_size = function("room_size", c_long, POINTER(Base), c_long)
        self.logits_size = function("logits_size", c_long, c_long)
        self.decode = function("decode", None, POINTER(Base), c_long, POINTER(Rows), c_void_p)
        self.draw = function("draw", None, c_void_p, c_long, c_long, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)

    def packed(self, weight: Float32s) -> Float32s:
        found = aligned(self.room_for(weight))
        self.pack(weight, 1.0, found.ctypes.data)
        return found

    def room_for(self, weight: Float32s) -> int:
        outputs, inputs = weight.shape
        line = ALIGNED // 4
        return -(-int(self.packed_size(inputs, outputs)) // line) * line

    def pack(self, weight: Float32s, factor: float, address: int) -> None:
        outputs, inputs = weight.shape
        whole = np.ascontiguousarray(weight, np.float32)
        self._pack(whole.ctypes.data, inputs, outputs, factor, address)

    def halved(self, weight: Float32s) -> Float32s | None:
        """As ``packed``, in half as many bytes; None if W is not exact in bfloat16."""
        outputs, inputs = weight.shape
        whole = np.ascontiguousarray(weight, np.float32)
        if np.any(whole.view(np.uint32) & 0xFFFF):
            return None
        found = aligned(-(-self.packed_size(inputs, outputs) // 2))
        self._pack_halves(whole.ctypes.data, inputs, outputs, found.ctypes.data)
        return found


def aligned(count: int) -> Float32s:
    """``count`` zeros that begin at a multiple of ``ALIGNED``."""
    whole = np.zeros(count + ALIGNED // 4, np.float32)
    first = -whole.ctypes.data % ALIGNED // 4
    return whole[first : first + count]


# Compiles ``decode.c`` for this processor with the installed C compiler, once for each user of a machine.
#
# A file's name contains its inputs and the digest of its bytes, so damage is recognised and concurrent compilations do
# not conflict. A file stays when the compiler changes, so that the bits of its results do.

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("decode.c")
COMPILERS = ("cc", "gcc", "clang")
"""Tried in this order, after the variable CC."""
FLAGS = ("-std=c11", "-O3", "-ffp-contract=fast", "-fPIC", "-shared")
NATIVE = (("-march=native",), ("-mcpu=native",), ())
"""Flags for all instructions of this processor; the first that the compiler accepts."""
SECONDS = 60.0
"""Timeout of one call of the compiler, which takes one or two seconds."""
CPUINFO = Path("/proc/cpuinfo")
INSTRUCTIONS = ("flags", "Features", "isa")
"""Linux's names of the line of instruction sets, on Intel and AMD, on ARM, and on RISC-V."""


class NotCompiled(Exception):
    """Why there is no library, in a sentence."""


def compiled(folder: Path) -> tuple[Library, str]:
    """The library for this processor, and its name, kept in ``folder``. Raises ``NotCompiled``.

    Files that are damaged or cannot be loaded are replaced.
    """
    key = key_of(SOURCE, FLAGS)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in sorted(folder.glob(f"{key}-*.so")):
            if path.stem == f"{key}-{digest(path)}":
                with contextlib.suppress(OSError, AttributeError):
                    return Library(path), path.stem
            log.warning("%s is damaged and is compiled again.", path)
            path.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix="compiling-") as unfinished:
            made = compile_to(Path(unfinished, "decode.so"), SOURCE)
            tried(made)
            path = made.replace(folder / f"{key}-{digest(made)}.so")
        return Library(path), path.stem
    except (OSError, AttributeError) as error:
        raise NotCompiled(f"What was compiled in {folder} cannot be used: {error}.") from error


def key_of(source: Path, flags: tuple[str, ...]) -> str:
    """A hash of everything that determines the file."""
    parts = (source.read_text("utf-8"), *flags, sys.platform, platform.machine(), *platform.libc_ver())
    told = hashlib.sha256("\0".join((*parts, processor_name(), instructions())).encode())
    return f"decode-{told.hexdigest()[:16]}"


def instructions() -> str:
    """The processor's instruction sets in the system's words; may be empty."""
    try:
        lines = CPUINFO.read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    found = (line.partition(":") for line in lines)
    return next((sets.strip() for name, _, sets in found if name.strip() in INSTRUCTIONS), "")


def digest(path: Path) -> str:
    """16 hex digits of SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def compile_to(target: Path, source: Path, natives: tuple[tuple[str, ...], ...] = NATIVE) -> Path:
    """Compile ``source`` to ``target`` and return it. Raises ``NotCompiled`` with the compiler's last line."""
    command = compiler()
    if not command:
        raise NotCompiled("There is no C compiler.")
    told = ""
    for native in natives:
        whole = [*command, *FLAGS, *native, "-o", str(target), str(source), "-lm"]
        try:
            done = subprocess.run(whole, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NotCompiled(f"The C compiler {command[0]} does not work: {error}.") from error
        if done.returncode == 0 and target.exists():
            return target
        told = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
    raise NotCompiled(f"The C compiler {command[0]} failed: {told[-200:] or 'it says nothing'}")


def compiler() -> list[str]:
    """The command of a C compiler; empty without one."""
    named = shlex.split(os.environ.get("CC", ""))
    found = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    return named or ([found] if found else [])


def tried(path: Path) -> None:
    """Test it in another process, which may crash. Raises ``NotCompiled``."""
    command = [sys.executable, "-P", "-m", __name__, str(path)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS)
    except subprocess.TimeoutExpired as error:
        raise NotCompiled("What the C compiler makes does not end.") from error
    if done.returncode:
        told = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise NotCompiled(f"What the C compiler makes ends with {done.returncode}: {told}")


# Test of a new library in its own process, which may crash. The results are checked elsewhere.

HIDDEN, VOCABULARY = 21, 45
MOST = 24
"""Rows of the largest product: all sizes up to it are tried."""


def main(path: Path) -> None:
    """Compute an embedding, a norm and an output matrix, and draw tokens. Raises ``ArithmeticError`` for a wrong
    sum.
    """
    compiled = Library(path)
    embedding = np.random.default_rng(0).random((VOCABULARY, HIDDEN), np.float32) + 1
    norm, head = np.ones(HIDDEN, np.float32), compiled.packed(embedding)
    base = Base(hidden=HIDDEN, inner=HIDDEN, queries=1, keys=1, size=2, vocabulary=VOCABULARY, length=compiled.block)
    base.embedding, base.norm, base.head.whole = embedding.ctypes.data, norm.ctypes.data, head.ctypes.data
    room, stride = aligned(compiled.room_size(base, 0)), compiled.logits_size(VOCABULARY)
    base.room = room.ctypes.data
    logits, weights = aligned(MOST * stride), aligned(stride)
    scaled = embedding / np.sqrt(np.square(embedding).mean(1, keepdims=True))
    for count in range(1, MOST + 1):
        tokens, zeros = np.arange(count, dtype=np.int32), np.zeros(count, np.int32)
        wanted, additions = np.ones(count, np.int8), np.zeros(count, np.uint64)
        given = (tokens, zeros, zeros, wanted, additions)
        rows = Rows(count, *(each.ctypes.data for each in given))
        compiled.decode(byref(base), 0, byref(rows), logits.ctypes.data)
        found = logits.reshape(MOST, stride)[:count, :VOCABULARY]
        if not np.allclose(found, scaled[:count] @ embedding.T, rtol=1e-4):
            raise ArithmeticError("a product is wrong")
        heats, noise, logprobs = np.ones(count), np.full(count, 0.5), np.empty(count, np.float32)
        arguments = (heats, noise, weights, tokens, logprobs)
        compiled.draw(logits.ctypes.data, count, VOCABULARY, *(each.ctypes.data for each in arguments))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""The compiled kernel: built once, loaded with ctypes. Independent of torch."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from ctypes import POINTER, Structure, c_float, c_long, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....devices.limits import processor_name

# Addresses are plain numbers; the caller keeps the arrays behind them alive.

Float32s = NDArray[np.float32]

LINEARS, MODULES = 4, 3
"""Of a block; modules that share an input."""
ALIGNED = 64
"""Bytes: the widest vector, a cache line."""


def _fields(*groups: tuple[Any, ...]) -> list[tuple[str, Any]]:
    return [(name, kind) for kind, *names in groups for name in names]


class Linear(Structure):
    """y = x Wᵀ + b."""

    _fields_ = _fields((c_long, "inputs", "outputs"), (c_void_p, "weight", "bias"))


class Layer(Structure):
    """One block of the base."""

    _fields_ = _fields((c_void_p, "attention_norm", "head_norm", "mlp_norm"), (Linear * LINEARS, "linears"))


class Base(Structure):
    """The base, the cache of all sequences, and a pass's room."""

    _fields_ = _fields(
        (c_long, "layers", "hidden", "inner", "queries", "keys", "size", "vocabulary", "length", "sequences"),
        (c_float, "eps", "scale"),
        (c_void_p, "embedding", "norm", "head", "cosine", "sine"),
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
    """The rows of a pass; ``additions`` (count,) are adapters' addresses."""

    _fields_ = _fields((c_long, "count"), (c_void_p, "tokens", "positions", "sequences", "wanted", "additions"))


class Library:
    """One compiled file. Raises ``OSError`` if it does not load, ``AttributeError`` if it is another library."""

    def __init__(self, path: Path) -> None:
        loaded = ctypes.CDLL(str(path))

        def function(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
            found = getattr(loaded, name)
            found.restype, found.argtypes = result, arguments
            called: Callable[..., Any] = found
            return called

        self._packed_size = function("packed_size", c_long, c_long, c_long)
        self._pack = function("pack", None, c_void_p, c_long, c_long, c_float, c_void_p)
        self.memory_size = function("memory_size", c_long, c_long)
        self.block: int = function("block_size", c_long)()
        """Tokens per block of the cache."""
        self.room_size = function("room_size", c_long, POINTER(Base), c_long)
        self.logits_size = function("logits_size", c_long, c_long)
        self.decode = function("decode", None, POINTER(Base), c_long, POINTER(Rows), c_void_p)
        self.draw = function("draw", None, c_void_p, c_long, c_long, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)

    def packed(self, weight: Float32s, factor: float = 1.0) -> Float32s:
        outputs, inputs = weight.shape
        result, whole = aligned(int(self._packed_size(inputs, outputs))), np.ascontiguousarray(weight, np.float32)
        self._pack(whole.ctypes.data, inputs, outputs, factor, result.ctypes.data)
        return result


def aligned(count: int) -> Float32s:
    """``count`` zeros that begin at a multiple of ``ALIGNED``."""
    whole = np.zeros(count + ALIGNED // 4, np.float32)
    first = -whole.ctypes.data % ALIGNED // 4
    return whole[first : first + count]


SOURCE = Path(__file__).with_name("decode.c")
COMPILERS = ("cc", "gcc", "clang")
"""After the variable CC."""
FLAGS = ("-std=c11", "-O3", "-ffp-contract=fast", "-fPIC", "-shared")
NATIVE = (("-march=native",), ("-mcpu=native",), ())
"""The first accepted; for all instructions."""
SECONDS = 60.0
"""A call takes one or two."""
CPUINFO = Path("/proc/cpuinfo")
INSTRUCTIONS = ("flags", "Features", "isa")
"""Linux's names, on Intel and AMD, ARM, RISC-V."""


class NotCompiled(Exception):
    """Why there is no library, in a sentence."""


def compiled(folder: Path) -> tuple[Path, Library]:
    """The library for this processor, in ``folder``.

    Its name hashes its bytes, too: loading a damaged file ends the process, so that is replaced. Raises
    ``NotCompiled``.
    """
    parts = (SOURCE.read_text("utf-8"), *FLAGS, sys.platform, *platform.libc_ver(), processor())
    key = f"decode-{digest(chr(0).join(parts).encode())}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in sorted(folder.glob(f"{key}-*.so")):
            if path.stem == f"{key}-{digest(path.read_bytes())}":
                with contextlib.suppress(OSError, AttributeError):
                    return path, Library(path)
            path.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix="compiling-") as unfinished:
            made = compile_to(Path(unfinished, "decode.so"), SOURCE)
            Library(made)
            path = made.replace(folder / f"{key}-{digest(made.read_bytes())}.so")
        return path, Library(path)
    except (OSError, AttributeError) as error:
        raise NotCompiled(f"What was compiled in {folder} cannot be used: {error}.") from error


def digest(data: bytes) -> str:
    """16 hex digits of SHA-256."""
    return hashlib.sha256(data).hexdigest()[:16]


def processor() -> str:
    """The processor's name and instruction sets, in the system's words."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = CPUINFO.read_text("utf-8", "replace").splitlines()
    sets = next((line for line in lines if line.startswith(INSTRUCTIONS)), "")
    return f"{platform.machine()} {processor_name()} {sets}"


def compile_to(target: Path, source: Path, natives: tuple[tuple[str, ...], ...] = NATIVE) -> Path:
    """Compile ``source``. Raises ``NotCompiled`` with the compiler's last line."""
    command = compiler()
    if not command:
        raise NotCompiled("There is no C compiler.")
    words = ""
    for native in natives:
        whole = [*command, *FLAGS, *native, "-o", str(target), str(source), "-lm"]
        try:
            done = subprocess.run(whole, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NotCompiled(f"The C compiler {command[0]} does not work: {error}.") from error
        if done.returncode == 0 and target.exists():
            return target
        words = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
    raise NotCompiled(f"The C compiler {command[0]} failed: {words[-200:] or 'it says nothing'}")


def compiler() -> list[str]:
    """The command of a C compiler; empty: none."""
    named = shlex.split(os.environ.get("CC", ""))
    found = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    return named or ([found] if found else [])

"""Imaginary machines with NVIDIA cards: ``driver.c``, compiled, stands in for the driver.

nvidia-ml-py and all of ours are the real ones; only what lies below them is imagined.
"""

from __future__ import annotations

import atexit
import shutil
import subprocess
import uuid
from collections.abc import Sequence
from ctypes import CDLL
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pynvml
import pytest

SOURCE = Path(__file__).with_name("driver.c")
GB, MB = 1000, 1
"""In the file, memory is in MB."""


@dataclass(frozen=True)
class Held:
    """A process with memory of a card, in MB; None: the driver does not say how much."""

    pid: int
    memory: int | None
    computes: bool = True


@dataclass(frozen=True)
class Part:
    """A part of a divided card."""

    total: int
    used: int = 0
    name: str = ""


@dataclass(frozen=True)
class Card:
    """One card; ``used`` includes what processes hold."""

    name: str = "Imaginary H1"
    total: int = 80 * GB
    used: int = 0
    capability: tuple[int, int] = (9, 0)
    utilisation: int = 0
    mode: int = 0
    code: int = 0
    """What it answers every question with."""
    old: bool = False
    held: tuple[Held, ...] = ()
    parts: tuple[Part, ...] = ()


def uuid_of(card: int, part: int | None = None) -> str:
    """The id of the imaginary card of that number."""
    return f"{'GPU' if part is None else 'MIG'}-{uuid.UUID(int=(card + 1) << 96 | (0 if part is None else part + 1))}"


class ImaginaryMachine:
    """What this process and its children find, once ``install`` was called."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "machine"

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Put the libraries in place of the real ones."""
        monkeypatch.setenv("LD_LIBRARY_PATH", str(libraries()))
        monkeypatch.setenv("IMAGINARY_MACHINE", str(self._file))
        monkeypatch.setattr(pynvml, "nvmlLib", CDLL(str(libraries() / "libnvidia-ml.so.1")))
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
            monkeypatch.delenv(name, raising=False)

    def have(
        self,
        *cards: Card,
        driver: str = "580.65.06",
        cuda: int = 13000,
        init: int = 0,
        order: Sequence[int] = (),
    ) -> None:
        """From now on, it is a machine with these cards."""
        lines = [f"init {init}", f"driver {driver} {cuda}"]
        lines += [
            f"card {uuid_of(number)} {card.total} {card.used} {card.capability[0]} {card.capability[1]} {card.mode}"
            f" {card.utilisation} {card.code} {int(card.old)} {card.name}"
            for number, card in enumerate(cards)
        ]
        for number, card in enumerate(cards):
            lines += [
                f"part {number} {uuid_of(number, place)} {part.total} {part.used} {part.name or card.name}"
                for place, part in enumerate(card.parts)
            ]
            lines += [
                f"process {number} {one.pid} {-1 if one.memory is None else one.memory} {'C' if one.computes else 'G'}"
                for one in card.held
            ]
        lines += [f"order {place}" for place in order]
        self._file.write_text("".join(f"{line}\n" for line in lines))


@cache
def libraries() -> Path:
    """The folder with the compiled libraries. Skips the test where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler to make an imaginary driver with")
    folder = Path(mkdtemp(prefix="imaginary-driver-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(SOURCE)], check=True)
    (folder / "libcuda.so.1").symlink_to(library.name)
    return folder


def imagine(monkeypatch: pytest.MonkeyPatch, folder: Path) -> ImaginaryMachine:
    """For fixtures: it has no card until it is told."""
    machine = ImaginaryMachine(folder)
    machine.have()
    machine.install(monkeypatch)
    return machine

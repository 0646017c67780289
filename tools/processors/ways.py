"""The ways in which this processor can compute: by library, instruction set and threads.

Each is an environment for a child process. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

ALL = "all instructions"
SETS = {
    "SSE4": ("default", "SSE41", "SSE4_2"),
    "AVX2": ("avx2", "AVX2", "AVX2"),
    "AVX-512": ("avx512", "AVX512_CORE", "AVX512"),
}
"""What makes PyTorch, oneDNN and MKL use nothing newer. MKL obeys on Intel's processors only."""
HELD = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
NEWER = {"SSE4": "avx2", "AVX2": "avx512f", "AVX-512": "avx512_bf16"}
"""The processor's flag for the next newer set: only with it does a limit to this set change anything."""
LIBRARIES = ("mkl", "onednn")


@dataclass(frozen=True)
class Way:
    """One combination of library, instructions and threads."""

    library: str
    instructions: str
    threads: int

    @property
    def title(self) -> str:
        """The combination in words."""
        return f"{self.library}, {self.instructions}, {self.threads} thread{'s'[: self.threads - 1]}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a process that computes so; its threads do not spin on cores that others want."""
        held = zip(HELD, SETS.get(self.instructions, ()), strict=False)
        threads = {"OMP_NUM_THREADS": str(self.threads), "OMP_WAIT_POLICY": "passive"}
        return {"MARLAAS_KERNELS": self.library, **threads, **dict(held)}


def ways(flags: str, cores: int) -> Iterator[Way]:
    """Every combination: each instruction set on one thread, and the newest on two where there are two cores."""
    older = [name for name, flag in NEWER.items() if flag in flags.split()]
    for instructions in (*older, ALL):
        for library in LIBRARIES:
            yield Way(library, instructions, 1)
    if cores > 1:
        for library in LIBRARIES:
            yield Way(library, ALL, 2)

"""TRL's own virtual environment, made on first use under ``.bench``; marlaas is not in it.

The pins of ``constraints/cpu.txt`` hold there too, so that both sides run the same torch, transformers and PEFT.
TORCH_INDEX names a further package index to take torch from, as for ``make install``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from .. import ROOT

VENV = ROOT / ".bench" / "trl"
CONSTRAINTS = ROOT / "constraints" / "cpu.txt"
TRL = "1.16.0"
REQUIREMENTS = ("torch", f"trl=={TRL}", "peft", "jmespath")


class TrlUnavailable(Exception):
    """TRL cannot be installed here; the text explains why, in a sentence."""


def ensure_trl() -> Path:
    """The Python that can import TRL, after making its environment if need be. Raises ``TrlUnavailable``."""
    python = VENV / "bin" / "python"
    stamp = VENV / ".installed"
    wanted = f"{sys.version}\n{REQUIREMENTS}\n{CONSTRAINTS.read_text(encoding='utf-8')}"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    print(f"  installing TRL {TRL} into {VENV}: a few minutes, once …", flush=True)
    index = os.environ.get("TORCH_INDEX", "")
    extra = ["--extra-index-url", index] if index else []
    _run([sys.executable, "-m", "venv", "--clear", str(VENV)])
    _run([str(python), "-m", "pip", "install", "-q", "-c", str(CONSTRAINTS), *extra, *REQUIREMENTS])
    _run([str(python), "-c", "from trl import GRPOTrainer"])
    stamp.write_text(wanted, encoding="utf-8")
    return python


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reasons = [line for line in lines if "error" in line.lower()] or lines or ["no reason was given."]
        raise TrlUnavailable(f"TRL's virtual environment cannot be made: {reasons[-1]}")

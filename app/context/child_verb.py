"""Runs verbs in processes of their own: those that take much processor time, or the whole terminal."""

from __future__ import annotations

import subprocess
import sys

from marlaas.engine.errors import MarlaasError
from marlaas.engine.home import Home


def verb_command(home: Home, *words: str) -> list[str]:
    """The command line of a verb on this home."""
    return [sys.executable, "-P", "-m", "marlaas.app.cli.main", *words, "--home", str(home.root)]


def verb_output(home: Home, *words: str, seconds: float) -> str:
    """What a verb prints; blocks. Raises ``MarlaasError`` with its complaint if it prints nothing, or takes long."""
    try:
        ended = subprocess.run(
            verb_command(home, *words), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired as error:
        raise MarlaasError(f"`marlaas {' '.join(words)}` took longer than {seconds:.0f} s and was ended.") from error
    if not ended.stdout.strip():
        complaint = ended.stderr.strip().removeprefix("marlaas: ").split("\n")
        raise MarlaasError(" ".join(part.strip() for part in complaint) or f"It ended with code {ended.returncode}.")
    return ended.stdout

"""Programs that are run to their end for what they print."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence


def run_program(
    command: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Its exit status, and all that it printed; ``environment`` is added to this process's.

    Raises ``TimeoutError`` if it takes longer than ``seconds``, and ``OSError`` where it cannot be run.
    """
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | dict(environment or {}),
            timeout=seconds,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    return done.returncode, done.stdout

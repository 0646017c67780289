"""How many examples the dear properties draw: few every day, as many as MARLAAS_EXAMPLES says in ``make test-slow``."""

from __future__ import annotations

import os


def examples(usual: int) -> int:
    """``usual``, or what the environment variable asks for."""
    return int(os.environ.get("MARLAAS_EXAMPLES", usual))

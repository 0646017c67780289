"""How many examples a property draws: MARLAAS_EXAMPLES times as many in ``make test-slow-properties`` as every day."""

from __future__ import annotations

import os

USUAL = 25
"""Of a property that says nothing else."""


def examples(usual: int = USUAL) -> int:
    """``usual``, as many times as the environment variable asks for."""
    return usual * int(os.environ.get("MARLAAS_EXAMPLES", "1"))

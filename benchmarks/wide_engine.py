"""The engine with every core for both workers: what runs one task after another synchronously would do with them.

The program itself gives each worker cores of its own, since pools that share a core spin against each other. Where only
one stage works at a time that would be a weak rival to compare with; nobody else starts this.

    python -m benchmarks.wide_engine HOME
"""

from __future__ import annotations

import sys
from pathlib import Path

from marlaas.engine.daemon.main import run
from marlaas.engine.orchestrator import worker_plan
from marlaas.engine.paths import Home

from .pinning import all_cores


def both_on_all_cores() -> None:
    """Let this process's engine give all cores to each worker."""
    worker_plan._halves = lambda: (all_cores(), all_cores())


if __name__ == "__main__":
    both_on_all_cores()
    sys.exit(run(Home(Path(sys.argv[1]))))

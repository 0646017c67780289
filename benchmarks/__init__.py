"""Measurements of marlaas next to what else there is; ``make bench`` runs them and writes ``BENCHMARKS.md``.

A package for each subject; ``report`` is what is kept and published, ``machinery`` what several of them run on.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""Of the repository."""
PLUGINS = ROOT / "benchmarks" / "plugins"
WORKLOADS = ROOT / "benchmarks" / "workloads"

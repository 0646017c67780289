"""Puts an environment of ``benchmarks/plugins`` that reads rows into a home, with rows of a seed."""

from __future__ import annotations

import shutil

from marlaas.engine.home.paths import Home

from ..beside_trl import workload as fixed
from ..beside_trl.workload import Workload


def install(home: Home, workload: Workload, name: str, steps: int, seed: int, held_out: int) -> None:
    """Make the plugin ``name``: a row for each group of ``steps``, and ``held_out`` more."""
    shutil.copytree(workload.plugin, home.plugins / name, ignore=shutil.ignore_patterns("__pycache__"))
    fixed.write_rows(workload, steps, seed, home.plugins / name, held_out)

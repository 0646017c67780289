"""The table [[eval.suite]] of a task file: another environment on which a trained policy is measured. Data alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .data import DataSpec
from .validation import between, one_of


@dataclass(frozen=True)
class SuiteSpec:
    """One suite of a training task."""

    name: str
    """What its scores are called."""
    environment: str
    """What it plays."""
    config: dict[str, Any] = field(default_factory=dict)
    """The environment's own parameters."""
    prompts: int = between(64, 1, 100000)
    """Instances of one evaluation."""
    samples: int = between(1, 1, 1024)
    """Episodes of each instance."""
    temperature: float = between(0.0, 0.0, 10.0)
    """Of sampling; 0 takes the likeliest token."""
    split: str = one_of("eval", "eval", "test")
    """Which instances of its environment are played."""
    every: int = between(0, 0, 1000000)
    """Steps between two evaluations; 0 measures only before and after."""
    decides: bool = False
    """Whether its score chooses the best version, and ends the task by ``target`` and ``patience``, instead of that on
    the task's own environment. At most one suite decides."""
    data: DataSpec = field(default_factory=DataSpec)
    """The rows that it draws from, in place of the environment's own: the keys of [data]. Without it, a suite on the
    task's own environment has the task's."""

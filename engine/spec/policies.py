"""The tables [policy] and [policies.NAME] of a task file. Data alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .validation import between, one_of


@dataclass(frozen=True)
class PolicySpec:
    """The adapter that is trained."""

    rank: int = between(16, 1, 512)
    """Of the two matrices on each linear layer."""
    alpha: float = between(32.0, 0.01, 4096)
    """The adapter counts ``alpha / rank`` times."""
    start: str = ""
    """The version that training begins from, with a new optimizer: "17" (the best of task 17, else its last),
    "17@12", "17@best", a version's name, or an exported adapter's folder (./DIR). It must have the same base, rank and
    alpha. Empty: an untrained adapter."""


@dataclass(frozen=True)
class NamedPolicySpec:
    """One of several policies: trained, frozen, or a pool of what a trained one was."""

    rank: int = between(16, 1, 512)
    """Of the two matrices on each linear layer."""
    alpha: float = between(32.0, 0.01, 4096)
    """The adapter counts ``alpha / rank`` times."""
    start: str = ""
    """The version that training begins from, as in [policy]."""
    learning_rate: float | Literal["auto"] | None = between(None, 0.0, 1.0)
    """Of this policy alone; absent: that of [train]. ``auto``: by the width of the base and ``alpha``."""
    groups_per_step: int | None = between(None, 1, 4096)
    """Groups that one optimizer step of this policy consumes; absent: as in [train]."""
    frozen: str = ""
    """A version that is never trained: "17@best", a version's name, "base" for the bare base, or "NAME@0" for what the
    policy NAME of this task began as."""
    pool: str = ""
    """The trained policy of this task whose earlier versions play under this name, one in each group."""
    pick: str = one_of("recent", "recent", "uniform", "score")
    """Which version of the pool plays: rather a young one, any, or rather one of a high held-out score."""
    size: int = between(8, 1, 256)
    """Versions that the pool holds; the oldest leaves."""
    every: int = between(5, 1, 1000000)
    """Steps between two versions that enter the pool."""

    @property
    def trained(self) -> bool:
        """Whether it has an adapter of its own that learns."""
        return not self.frozen and not self.pool


def start_folder(start: str) -> Path | None:
    """The folder that ``PolicySpec.start`` means; None if it means a version of the home, or nothing."""
    return Path(start).expanduser() if start.startswith((".", "/", "~")) else None

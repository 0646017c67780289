"""The table [data] of a task file: the rows that a task draws from, in place of the environment's own."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .validation import CONFLICT, RANGE, TYPE, UNKNOWN, between, nearest

if TYPE_CHECKING:
    from .task import TaskSpec

SPLITS = ("train", "eval", "test")


@dataclass(frozen=True)
class DataSpec:
    """The rows that the task draws from, in place of the environment's own."""

    path: str = ""
    """A file of JSON lines, Parquet or Arrow, or a folder that ``datasets`` has saved; relative to the task file. With
    ``{split}`` in its name it is a file for each split. Empty: the environment's own rows."""
    columns: dict[str, str] = field(default_factory=dict)
    """The columns of the file by the names that the environment knows them by: ``{question = "prompt"}``. Others keep
    their names."""
    split: dict[str, Any] = field(default_factory=dict)
    """For ``eval`` (and ``train``, ``test``): what the split is called in the data, or the share of the different rows
    that it gets. Empty: as the rows' own column ``split`` says; without one, a tenth of them is for evaluation."""
    limit: int = between(0, 0, 1_000_000_000)
    """The most rows to train on, chosen from all of the file, alike for every seed; 0: all."""

    @property
    def record(self) -> dict[str, Any] | None:
        """The rows as ``plugins.data.Source.record`` writes them; None where the environment's own count."""
        return asdict(self) if self.path else None


def check_data_rules(spec: TaskSpec, where: str) -> None:
    """Raise ``ConfigError`` where the keys of [data] contradict each other; ``where`` names the file."""
    data = spec.data
    if not data.path:
        for key in ("columns", "split", "limit"):
            if getattr(data, key):
                says = f"{where}: 'data.{key}' is set, but there is no 'data.path'."
                raise ConfigError(says, "Name the file with the rows.", path=f"data.{key}", code=CONFLICT)
    for name, value in data.split.items():
        key = f"data.split.{name}"
        if name not in SPLITS:
            raise ConfigError(f"{where}: unknown split {key!r}.", nearest(name, SPLITS), path=key, code=UNKNOWN)
        if not isinstance(value, str | int | float) or isinstance(value, bool) or value == "":
            says = f"{where}: {key!r} must be a name in quotes, or a share such as 0.1."
            raise ConfigError(says, path=key, code=TYPE)
        if isinstance(value, int | float) and (name == "train" or not 0 < value < 1):
            says = f"{where}: {key!r} is {value}; a share lies between 0 and 1, and 'train' gets what is left."
            raise ConfigError(says, path=key, code=RANGE)
    shares = [value for value in data.split.values() if not isinstance(value, str)]
    if shares and len(shares) < len(data.split):
        says = f"{where}: 'data.split' has names and shares."
        raise ConfigError(says, "Give either of them to all splits.", path="data.split", code=CONFLICT)
    if math.fsum(shares) >= 1:
        says = f"{where}: the shares in 'data.split' leave nothing to train on."
        raise ConfigError(says, path="data.split", code=RANGE)

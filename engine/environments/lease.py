"""A lease on one version of one plugin: all episodes of a group are played on the same version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from ..trajectories import Failure
from .process.wire import Described
from .served_version import ServedVersion, settings_of


@dataclass(eq=False)
class Lease:
    """Made by ``EnvironmentService.bind``. Release it when the group is over; a ``with`` block does."""

    environment: str
    """"plugin/environment"."""
    declared: Described
    serving: ServedVersion
    config: dict[str, Any] = field(default_factory=dict)
    """The parameters that it was bound for, typed and completed by this version."""
    by_version: bool = False
    """Bound by its version, not as the newest one: it is never cut off."""
    data: Mapping[str, Any] | None = None
    """The rows that the task names; None: the environment's own."""
    digest: str = ""
    """A hash of the evaluation rows that the task names (``DataFacts.digest``), where somebody asked for it."""
    released: bool = False

    def __post_init__(self) -> None:
        self._cuts = self.serving.cuts

    @property
    def environment_version(self) -> str:
        """The version with which the group's episodes are recorded."""
        return self.serving.version

    @property
    def code(self) -> str:
        """The key of what of the version decides how it plays: the same after an edited comment."""
        return self.serving.code

    @property
    def rows(self) -> tuple[str, str]:
        """The key of the rows that its episodes draw from: the version and, where the task names them, their stamp."""
        return self.environment_version, "" if self.data is None else str(self.data["stamp"])

    @property
    def cut(self) -> bool:
        """Whether the version was replaced and its process ended before the group did: fill it on the newer one.

        It stays True when the version is started again for others: this group's cancelled episodes are lost.
        """
        return self.serving.cut or self.serving.cuts > self._cuts

    @property
    def ends(self) -> str:
        """Where a newer version has replaced this one, what the task waits for, else empty.

        In words, without a full stop.
        """
        if self.by_version or not self.serving.retired:
            return ""
        return (
            f"waits for episodes on version {self.environment_version[:8]} of {self.environment}, which was replaced;"
            f" what takes longer than {self.serving.grace:.0f} s from then on is cut off"
        )

    @property
    def rest(self) -> Failure | None:
        """Why no task should play on it: with these parameters it only fails, so it rests; else None."""
        return self.serving.health.resting_with(settings_of(self.declared.name, self.config, self.data))

    def release(self) -> None:
        """Release the version; a second call does nothing."""
        if not self.released:
            self.released = True
            self.serving.release(self.by_version)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.release()

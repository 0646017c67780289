"""Errors for people, a flat family: place → cause → hint.

The place (file with line and column, task) is short: the cause is within 60 characters. The hint is a remedy. The
command line prints all three and exits with the class's code.
"""

from __future__ import annotations

import copyreg
from collections.abc import Sequence
from copy import copy
from typing import Self

LONGEST = 4000
"""Characters; a sentence may quote a file."""
LONGEST_PLACE = 40
"""Characters; a longer place keeps its end."""


class MarlaasError(Exception):
    """The root: ``where`` is the place, ``cause`` the error, ``hint`` the remedy.

    ``message``: place and cause.
    """

    exit_code = 1

    def __init__(self, cause: str, hint: str = "", *, where: str = "") -> None:
        self.cause = _readable(cause)
        self.where = where
        self.message = f"{short_place(where)}: {self.cause}" if where else self.cause
        self.hint = hint
        super().__init__(self.message)

    def __reduce__(self) -> tuple[object, ...]:
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()

    @property
    def mistakes(self) -> tuple[MarlaasError, ...]:
        return (self,)

    def at(self, where: str) -> Self:
        other = copy(self)
        MarlaasError.__init__(other, self.cause, self.hint, where=where)
        return other


class ConfigError(MarlaasError, ValueError):
    """A task file, ``marlaas.toml`` or command line has an impossible value.

    ``path``: the wrong key, such as ``train.learning_rate``; ``also``: clashing keys; ``code``: for programs
    (``spec/validation.py``). ``mistakes``: the file's others.
    """

    exit_code = 2

    def __init__(
        self,
        cause: str,
        hint: str = "",
        *,
        where: str = "",
        path: str = "",
        also: Sequence[str] = (),
        code: str = "",
    ) -> None:
        super().__init__(cause, hint, where=where)
        self.path = path
        self.also = tuple(also)
        self.code = code
        self.others: tuple[ConfigError, ...] = ()

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *map(str, self.others)])

    @property
    def mistakes(self) -> tuple[ConfigError, ...]:
        if not self.others:
            return (self,)
        alone = copy(self)
        alone.others = ()
        return (alone, *self.others)


class BaseModelError(ConfigError):
    """The base is missing, unreadable or of an unknown architecture."""


class EnvironmentMissing(ConfigError):
    """No environment of that name is served."""


class UnknownTask(ConfigError):
    """No task has that number."""


class AdapterError(MarlaasError, ValueError):
    """An adapter or state file is missing, damaged or unfit."""


class AdapterDamaged(AdapterError):
    """A checksum or the format proves a state file wrong."""


class AdapterMissing(AdapterError):
    """A state file is gone; others are in its folder."""


class AdapterUnreachable(AdapterError):
    """A state file or folder cannot be reached; it may be intact."""


class ReferenceMissing(ConfigError, AdapterError):
    """A task file names a missing or unfit version or folder."""


class HomeLocked(MarlaasError):
    """Another engine serves this home."""

    exit_code = 2


class EngineUnreachable(MarlaasError):
    """No engine answers for this home."""

    exit_code = 3


class ClusterUnreachable(MarlaasError):
    """No cluster answers, or it does not let this machine in."""

    exit_code = 3


class BackupError(MarlaasError):
    """A backup cannot be written or restored."""


class StoreError(MarlaasError):
    """The database fails: full disk, newer schema, damaged file."""


class DatabaseLocked(StoreError):
    """Another program holds the database's lock; nothing was written."""


class DatabaseUnwritable(StoreError):
    """The disk is full or read-only; all commits are safe."""


class WorkerDied(MarlaasError):
    """A worker process ended during a call; it may be repeated."""


class StateLost(WorkerDied):
    """A trainer died with a policy's training state; others continue."""


class OutOfMemory(WorkerDied):
    """A worker ran out of memory; its successor may need less."""


class CallFailed(MarlaasError):
    """A worker raised during a call and continues."""


class EnvironmentFailure(MarlaasError):
    """An environment broke its contract: recorded with file and line, never a reward."""


def as_one(mistakes: Sequence[ConfigError]) -> ConfigError:
    """The first one's class; the others as ``mistakes``."""
    first, *rest = mistakes
    whole = copy(first)
    whole.others = tuple(rest)
    return whole


class Mistakes:
    """``with mistakes:`` around each check, then ``refuse``."""

    def __init__(self) -> None:
        self.found: list[ConfigError] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, ConfigError):
            return False
        self.found += error.mistakes
        return True

    def refuse(self) -> None:
        if self.found:
            raise as_one(self.found) from None


def short_place(where: str) -> str:
    """At most ``LONGEST_PLACE`` characters; long paths begin with an ellipsis."""
    if len(where) <= LONGEST_PLACE:
        return where
    end = where[-LONGEST_PLACE + 1 :]
    folder = end.find("/")
    return f"…{end[folder:] if 0 <= folder < len(end) // 2 else end}"


def _readable(message: str) -> str:
    """Cuts the middle: the end has the allowed values."""
    return message if len(message) <= LONGEST else f"{message[: LONGEST // 2]} … {message[-LONGEST // 4 :]}"


class Blocked(MarlaasError):
    """The task waits for something outside (a repaired environment, disk space) and continues by itself."""


class Paused(MarlaasError):
    """The task pauses: continuing would waste the machine; tried again, or resumed by a person."""


class Fruitless(Paused):
    """The task pauses: further tries end the same way; a person must change something."""


class Replaced(Exception):
    """A newer environment version replaced an unscored one."""

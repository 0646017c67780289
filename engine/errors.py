"""All errors for people, in one flat family and one form: place → cause → hint.

The place (a file with line and column, a task) comes first and is short, so that the cause is in the first 60
characters. The hint gives a remedy. The command line prints all three and exits with the class's code.
"""

from __future__ import annotations

import copyreg
from collections.abc import Sequence
from copy import copy
from typing import Self

LONGEST = 4000
"""Characters of an error's sentence. It may quote a file of any length."""
LONGEST_PLACE = 40
"""Characters of the place; of a longer one the end is shown, with file, line and column."""


class MarlaasError(Exception):
    """The root of the family: ``where`` is the place, ``cause`` the error, ``hint`` the remedy.

    ``message`` is place and cause in one sentence. Most causes name their place themselves and have no ``where``.
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

    ``path`` is the wrong key, such as ``train.learning_rate``; ``also`` are further keys that it clashes with. ``code``
    is for programs; those of task files are in ``spec/validation.py``. The error of a whole file has the other mistakes
    in ``mistakes``.
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
    """The base model is missing, unreadable or of an unknown architecture."""


class EnvironmentMissing(ConfigError):
    """No environment of that name is served."""


class UnknownTask(ConfigError):
    """No task has that number."""


class AdapterError(MarlaasError, ValueError):
    """An adapter or state file is missing, damaged or does not fit the base."""


class AdapterDamaged(AdapterError):
    """The bytes of a state file are proven wrong, by a checksum or the format."""


class AdapterMissing(AdapterError):
    """A state file is not there, though others are in its folder: it is really gone."""


class AdapterUnreachable(AdapterError):
    """A state file or its folder cannot be reached, perhaps only for a moment; the file may be intact."""


class ReferenceMissing(ConfigError, AdapterError):
    """A task file refers to a version or a folder that is missing or does not fit."""


class HomeLocked(MarlaasError):
    """Another engine serves this home already."""

    exit_code = 2


class EngineUnreachable(MarlaasError):
    """No engine answers for this home."""

    exit_code = 3


class ClusterUnreachable(MarlaasError):
    """No cluster answers at an address, or it does not let this machine in."""

    exit_code = 3


class BackupError(MarlaasError):
    """A backup cannot be written, or is not one that can be restored."""


class StoreError(MarlaasError):
    """The database cannot be read or written: a full disk, a newer schema, a damaged file."""


class DatabaseLocked(StoreError):
    """Another program holds the database's lock; nothing was written, and a retry is safe."""


class DatabaseUnwritable(StoreError):
    """The disk takes nothing at the moment: it is full, or mounted read-only. All commits are safe."""


class WorkerDied(MarlaasError):
    """A worker process ended during a call; the call may be repeated."""


class StateLost(WorkerDied):
    """One of several trainers died, with the training state of a policy; all other workers continue."""


class OutOfMemory(WorkerDied):
    """A worker ran out of memory: its process ends, and its successor may continue with less."""


class CallFailed(MarlaasError):
    """A worker raised during a call; the worker itself continues."""


class EnvironmentFailure(MarlaasError):
    """An environment broke its own contract: recorded with file and line, never a reward."""


def as_one(mistakes: Sequence[ConfigError]) -> ConfigError:
    """One error for several, of the first one's class; it has the others as ``mistakes``."""
    first, *rest = mistakes
    whole = copy(first)
    whole.others = tuple(rest)
    return whole


class Mistakes:
    """Runs several checks and raises all their mistakes together: ``with mistakes:`` around each, then ``refuse``."""

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
    """A place in at most ``LONGEST_PLACE`` characters: a long path begins with an ellipsis, at a folder if possible."""
    if len(where) <= LONGEST_PLACE:
        return where
    end = where[-LONGEST_PLACE + 1 :]
    folder = end.find("/")
    return f"…{end[folder:] if 0 <= folder < len(end) // 2 else end}"


def _readable(message: str) -> str:
    """Cut the middle out of a message that is too long; its end, with the allowed values, stays."""
    return message if len(message) <= LONGEST else f"{message[: LONGEST // 2]} … {message[-LONGEST // 4 :]}"


class Blocked(MarlaasError):
    """The task waits for something outside itself (a repaired environment, room on the disk) and continues by
    itself.
    """


class Paused(MarlaasError):
    """The task pauses itself, because continuing would waste the machine; it is tried again, or a person resumes it."""


class Fruitless(Paused):
    """The task pauses because every further try would end the same way; a person has to change something."""


class Replaced(Exception):
    """A newer environment version replaced the one under evaluation before there was a score."""

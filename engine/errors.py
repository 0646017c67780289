"""Every error that a person may read, in one flat family.

An error carries one sentence of what is wrong and where, and optionally a hint of how to mend it; the command line
prints both and exits with the class's code. Nothing here knows who raises or prints it.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 4000
"""Characters of an error's sentence. It may quote a file, whose text can be of any length."""


class MarlaasError(Exception):
    """The root of the family: ``message`` says what and where, ``hint`` how to mend it."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        message = _readable(message)
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class ConfigError(MarlaasError, ValueError):
    """A task file, ``marlaas.toml`` or command line says something that cannot be.

    ``path`` is the key at fault, ``train.learning_rate``, where one is; ``also`` are further keys that it clashes with.
    ``code`` tells a program what is wrong with it; those of task files are in ``spec/validation.py``.
    """

    exit_code = 2

    def __init__(
        self, message: str, hint: str = "", *, path: str = "", also: Sequence[str] = (), code: str = ""
    ) -> None:
        super().__init__(message, hint)
        self.path = path
        self.also = tuple(also)
        self.code = code


class BaseModelError(ConfigError):
    """The base model is missing, unreadable or of an unknown architecture."""


class EnvironmentMissing(ConfigError):
    """No environment of that name is served."""


class UnknownTask(ConfigError):
    """No task has that number."""


class AdapterError(MarlaasError, ValueError):
    """An adapter or state file is missing, damaged or does not fit the base."""


class AdapterDamaged(AdapterError):
    """The bytes of a state file are proven not to be those of its version: a checksum or its format is wrong."""


class AdapterMissing(AdapterError):
    """A state file is not there, though others lie in its folder: it is really gone."""


class AdapterUnreachable(AdapterError):
    """A state file or its folder cannot be reached, perhaps only for a moment; the file may be sound."""


class HomeLocked(MarlaasError):
    """Another engine serves this home already."""

    exit_code = 2


class EngineUnreachable(MarlaasError):
    """No engine answers for this home."""

    exit_code = 3


class BackupError(MarlaasError):
    """A backup cannot be written, or is not one that can be restored."""


class StoreError(MarlaasError):
    """The database cannot be read or written: a full disk, a newer schema, a damaged file."""


class DatabaseLocked(StoreError):
    """Another program holds the database's lock; nothing was written, and the same may be tried again."""


class WorkerDied(MarlaasError):
    """A worker process ended while a call to it was under way; the call may be made again."""


class StateLost(WorkerDied):
    """One of several trainers died, and with it the training state of a policy; all other workers go on."""


class OutOfMemory(WorkerDied):
    """A worker ran out of memory: its process ends, and the one that replaces it may go on with less."""


class CallFailed(MarlaasError):
    """A worker raised while it served a call; the worker itself goes on."""


class EnvironmentFailure(MarlaasError):
    """An environment broke its own contract: recorded with file and line, never a reward."""


def _readable(message: str) -> str:
    """Cut the middle out of a message that is too long to read; its end, which says what is allowed, stays."""
    if len(message) <= LONGEST:
        return message
    return f"{message[: LONGEST // 2]} … {message[-LONGEST // 4 :]}"


class Blocked(MarlaasError):
    """The task waits for something outside itself (a repaired environment, room on the disk) and goes on by itself."""


class Paused(MarlaasError):
    """The task pauses itself, because going on would waste the machine; it is tried again, or a person resumes it."""


class Fruitless(Paused):
    """The task pauses because every further try would end the same way; a person has to change something."""


class Replaced(Exception):
    """A newer environment version replaced the one under evaluation before there was a score."""

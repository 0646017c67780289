"""Carries out *rollback*: a task that does not run goes on from an earlier version; the steps after it are void.

Nothing is copied: the version becomes the newest, and the task starts from it as it always does
(``recovery.open_policy``), with a new optimizer where only the adapter was kept.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from ..adapters import read_expected
from ..errors import AdapterError, ConfigError
from ..run import Retention, deciding
from ..store import Store, Version
from ..submission import next_state


async def roll_back(store: Store, task: int, number: object, policy: str | None = None) -> None:
    """Put a task back into the queue, to go on from its version with this number.

    ``policy`` says whose, and may be left out where the task trains one; its other policies stay where they are.

    Groups that the voided steps had consumed wait again where a version up to this one sampled them. Raises
    ``ConfigError`` for a task in a wrong state, of another base or with nothing left to train; ``AdapterError`` where
    the version is gone or damaged, or another task needs a later one.
    """
    state = next_state("rollback", store.tasks.state(task))
    if store.tasks.base(task) not in ("", store.fingerprint):
        raise ConfigError(f"Task {task} belongs to another base than the one that this home has.")
    if store.tasks.spec(task).kind == "eval":
        raise ConfigError("It is an evaluation, which makes no versions.")
    versions = store.versions.on_disk(task, policy)
    meant = [version for version in versions if version.number == number]
    if not meant:
        raise AdapterError(
            f"Task {task} has no version {number} on disk.", f"On disk: {_listed(versions)}." if versions else ""
        )
    if len(meant) > 1:
        raise ConfigError(f"Several policies of task {task} have a version {number}.", "Say which policy goes back.")
    version = meant[0]
    if version.number >= store.tasks.spec(task).steps:
        raise ConfigError(f"Version {number} of task {task} is its last: no step would be left to make.")
    _check_wanted(store, version)
    await asyncio.to_thread(_check_file, version)
    store.versions.void_after(version.policy, version.number)
    store.experience.drop_unusable(version.policy, version.number)
    Retention(store, task, version.policy, suite=deciding(store.tasks.spec(task))).label()
    how = "" if version.resumable else ", with a new optimizer: its moments had been given up for room"
    store.telemetry.event("task", f"The task is {state} again: it goes on from {version.name}{how}.", task)
    store.tasks.set_state(task, state, fresh=True)  # last: where the engine dies before, all is done again
    await asyncio.to_thread(store.barrier)  # else a power cut could bring back rows whose files are gone


def _check_wanted(store: Store, version: Version) -> None:
    """Raise ``AdapterError`` where another task needs a later version, or clients know it by a name: its file would
    go."""
    for wanted, waiting in store.versions.wanted(version.policy).items():
        if wanted > version.number:
            raise AdapterError(
                f"Task {waiting} is to begin from version {wanted}, or plays with it, and it would be void.",
                f"Wait until it is done, or `marlaas cancel {waiting}` first.",
            )
    for number, name in store.served.numbers(version.policy).items():
        if number > version.number:
            raise AdapterError(
                f"Version {number} is served to clients under the name {name!r}, and it would be void.",
                f"`marlaas adapters name {name} --remove` takes the name away.",
            )


def _check_file(version: Version) -> None:
    """Raise ``AdapterError`` for a damaged file; call it in a thread, for it waits for the disk."""
    read_expected(Path(version.path), version.checksum, moments=True)


def _listed(versions: list[Version]) -> str:
    return ", ".join(str(version.number) for version in versions)

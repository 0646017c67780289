"""Carries out *delete*: adapter versions of a finished task leave the disk, their rows stay."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence, Set
from pathlib import Path

from ..adapters import MARK
from ..errors import AdapterError, AdapterUnreachable, ConfigError
from ..store import FINISHED, Store


async def delete_versions(store: Store, task: int, number: int | None, policy: str | None = None) -> None:
    """Delete the versions of a task, or the one with this number; ``policy``: only those of the policy of this name.

    Raises ``ConfigError`` for a task that is not finished: it goes on from its newest version. Raises ``AdapterError``
    where there is no such version, and where a file cannot be removed.
    """
    state = store.tasks.state(task)
    if state not in FINISHED:
        raise ConfigError(
            f"Task {task} is {state}; it goes on from its adapters, so they cannot be deleted.",
            f"Wait for its end, or `marlaas cancel {task}` first.",
        )
    versions = [
        version for version in store.versions.on_disk(task, policy) if number is None or version.number == number
    ]
    if not versions:
        which = "adapter" if number is None else f"version {number}"
        raise AdapterError(f"Task {task} has no {which} on disk.", "`marlaas adapters list` shows what there is.")
    for version in versions:
        if waiting := store.versions.wanted(version.policy).get(version.number):
            raise ConfigError(
                f"Task {waiting} is to begin from version {version.number} of task {task}, or plays with it.",
                f"Wait until it is done, or `marlaas cancel {waiting}` first.",
            )
        if name := store.served.numbers(version.policy).get(version.number):
            raise ConfigError(
                f"Version {version.number} of task {task} is served to clients under the name {name!r}.",
                f"`marlaas adapters name {name} --remove` takes the name away.",
            )
    await asyncio.to_thread(_check, {Path(version.path).parent for version in versions})
    store.versions.prune(*(version.id for version in versions))
    store.telemetry.event("adapter", f"Deleted: {', '.join(version.name for version in versions)}.", task)
    files = [Path(version.path) for version in versions]
    if number is None and policy is None:  # also files of steps that were never committed
        own = {file.parent for file in files if file.parent.name == f"task-{task}"}
        files += [file for folder in own for file in (*folder.glob("*.safetensors"), folder / MARK)]
    await asyncio.to_thread(_remove, store, files)


def _check(folders: Set[Path]) -> None:
    """Raise ``AdapterUnreachable`` for a folder that is not there, such as one on a disk that is not mounted: its files
    would come back with it, and no row would name them."""
    for folder in folders:
        if not folder.is_dir():
            raise AdapterUnreachable(
                "the folder is not there, so nothing can be deleted in it.",
                "Bring it back, or mount its disk; where it is gone for good, make an empty one.",
                where=str(folder),
            )


def _remove(store: Store, files: Sequence[Path]) -> None:
    """Remove the files; call it in a thread, for it waits for the disk."""
    store.barrier()  # else a power cut could bring back rows whose files are gone
    for file in files:
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise AdapterError(
                f"cannot be removed: {error.strerror}.", "Remove it by hand.", where=str(file)
            ) from error
    for folder in {file.parent for file in files}:
        with contextlib.suppress(OSError):  # other versions lie in it
            folder.rmdir()

"""Where a policy goes on: the newest committed version whose file verifies, else where the task began.

Runs at every start of a task, after a crash as after a pause.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path

from ..adapters import begin, begin_from, holds_moments, read_expected, read_peft_folder, restart_moments, spare, sweep
from ..errors import AdapterDamaged, AdapterError, AdapterMissing, ConfigError
from ..faults import Point, reach
from ..fleet import Services
from ..spec import TaskSpec, start_folder
from ..store import NewVersion, Version
from ..training import PolicyConfig, StepResult
from .stage_settings import policy_config


async def set_leftovers_aside(services: Services, task: int) -> None:
    """Move files that no committed version names out of the task's folder."""
    store, home, name = services.store, services.home, f"task-{task}"
    known = {Path(version.path).name for version in store.versions.on_disk(task)}
    swept = await asyncio.to_thread(sweep, home.file(f"adapters/{name}"), known, home.lost / name)
    if swept.moved:
        files = ", ".join(path.name for path in swept.moved)
        said = f"Files that no version names lie in {home.lost / name} now: {files}."
        store.telemetry.event("recovery", said, task, "warning")
    for problem in swept.problems:
        store.telemetry.event("adapter", problem, task, "warning")


def version_path(services: Services, task: int, policy: str, number: int) -> Path:
    """Where to write the state file of a new version: its name is new, so no rerun overwrites a file."""
    name = f"task-{task}/{policy}-v{number}-i{services.store.incarnation}"
    return services.home.file(f"adapters/{services.store.versions.unused(name)}.safetensors")


def new_version(result: StepResult) -> NewVersion:
    """The row of a state file that is not committed yet; its name is unique for ever."""
    path = Path(result.path)
    return NewVersion(result.step, f"{path.parent.name}/{path.stem}", result.checksum, result.path, result.size)


async def open_policy(services: Services, task: int, policy: int, name: str, spec: TaskSpec) -> Version:
    """Open a policy in the trainer and return the version that it goes on from.

    Versions whose file is gone or proven damaged are voided, with their steps, and reported; their files, and all
    others without a row, then go to lost+found (``adapters.leftovers``). Where no version with its moments is sound,
    the newest that was kept without them is taken, with a new optimizer; else the version that the task is to begin
    from, or a fresh adapter. Raises ``AdapterUnreachable``, and voids nothing, where files cannot be read;
    ``AdapterError`` where the version to begin from cannot be used, or the trainer or the disk refuses.
    """
    versions, config, patiently = services.store.versions, policy_config(spec), services.store.patiently
    drop_unusable = services.store.experience.drop_unusable
    candidates = versions.candidates(policy)
    pulls = spec.train.kl_reference == "start" and bool(spec.policy.start)
    if pulls and any(version.number > 0 for version in candidates):
        config = replace(config, reference=await _start_of(candidates[-1]))
    reach(Point.RECOVER_READY)
    for version in candidates:
        if pulls and version.number == 0:
            config = replace(config, reference=version.path)
        problem = await _problem(services, task, name, config, version)
        if problem is None:
            # also voids later steps whose files are long gone
            await patiently(partial(versions.void_after, policy, version.number))
            reach(Point.RECOVER_VOIDED)
            await patiently(partial(drop_unusable, policy, version.number))
            reach(Point.RECOVER_DONE)
            return version
        await asyncio.to_thread(spare, Path(version.path).parent)
        message = f"Version {version.name} cannot be used and is void: {problem}"
        services.store.telemetry.event("recovery", message, task, "warning")
        await patiently(partial(versions.void_after, policy, version.number - 1))
    if candidates:
        services.store.telemetry.event("recovery", "No version verified; training begins anew.", task, "warning")
    await patiently(partial(versions.void_after, policy, -1))
    await patiently(partial(drop_unusable, policy, 0))
    path = version_path(services, task, name, 0)
    given = await _begin(services, task, name, spec, path)
    if pulls:
        config = replace(config, reference=str(path))
    result = await services.trainer.open(key(task, name), config, str(path), given)
    return await patiently(lambda: versions.commit_first(policy, new_version(result)))


async def _start_of(first: Version) -> str:
    """The state file that the KL term pulls to, which is that of version 0. Raises ``AdapterError`` without it.

    A trainer that met the damage would name the version that goes on, which would be void then.
    """
    try:
        if first.number:
            raise AdapterMissing("It is not on the disk any more.")
        await asyncio.to_thread(read_expected, Path(first.path), first.checksum)
    except (AdapterDamaged, AdapterMissing) as error:
        raise AdapterError(
            f"The version that the task started from cannot be read: {error.message}",
            'The KL term needs it. Submit the task again, or with `kl_reference = "base"`.',
        ) from error
    return first.path


async def _begin(services: Services, task: int, name: str, spec: TaskSpec, path: Path) -> bool:
    """Write version 0 where the task begins from given weights; returns whether it does."""
    start, folder = services.store.versions.start(task, spec.policy.start), start_folder(spec.policy.start)
    if folder is not None:
        what, write = str(folder), partial(_begin_from_folder, folder, path)
    elif start is not None:
        what, write = start.name, partial(begin_from, Path(start.path), start.checksum, path)
    elif spec.policy.start:  # an untrained adapter would be another run than the one that was asked for
        raise ConfigError(f"Nobody looked up the version {spec.policy.start!r} that this task is to begin from.")
    else:
        return False
    await asyncio.to_thread(write)
    services.store.telemetry.event("task", f"Training begins from {what}, with a new optimizer.", task)
    return True


def _begin_from_folder(folder: Path, path: Path) -> None:
    begin(read_peft_folder(folder), path)


def key(task: int, policy: str) -> str:
    """The name of a policy in the trainer, by its name in the task."""
    return f"task-{task}/{policy}"


async def _problem(services: Services, task: int, name: str, config: PolicyConfig, version: Version) -> str | None:
    """Why training cannot go on from a version, or None. Raises errors that are not about its file."""
    try:
        if not await asyncio.to_thread(holds_moments, Path(version.path)):
            await _restart_optimizer(services, task, version)
        opened = await services.trainer.open(key(task, name), config, version.path, True)
    except (AdapterDamaged, AdapterMissing) as error:
        return str(error)
    if opened.checksum != version.checksum or opened.step != version.number:
        return f"its file holds {opened.checksum} of step {opened.step}, not {version.checksum} of {version.number}."
    return None


async def _restart_optimizer(services: Services, task: int, version: Version) -> None:
    """Give a version of which only the adapter was kept a new optimizer."""
    size = await asyncio.to_thread(restart_moments, Path(version.path), version.checksum)
    services.store.versions.restart(version.id, size)
    message = f"Training goes on from {version.name} with a new optimizer: its moments had been given up for room."
    services.store.telemetry.event("recovery", message, task, "warning")

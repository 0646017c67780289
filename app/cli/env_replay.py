"""``env replay``: recorded episodes again on another version of an environment."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

from marlaas.engine.environments.dependencies import Interpreters
from marlaas.engine.environments.served_version import Lease
from marlaas.engine.environments.service import serve_alone
from marlaas.engine.errors import ConfigError, EnvironmentMissing
from marlaas.engine.home.paths import BUNDLED_PLUGINS, Home
from marlaas.engine.home.settings import load_settings
from marlaas.engine.models.find import load_base
from marlaas.engine.replay import Verdict, replay as replay_groups, summarise
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.spec.task import TaskSpec, components_of, parse
from marlaas.engine.spec.validation import nearest
from marlaas.engine.store.queries import episodes
from marlaas.engine.store.queries.episodes import RecordedGroup
from marlaas.engine.trajectories import Split

from .. import output
from ..text.format import line, number
from .parser import reading_task

SHOWN = 50
"""Rows of the table; ``--json`` has all."""
KINDS = ("changed", "failing", "not comparable")


def replay(home: Home, args: argparse.Namespace) -> int:
    """Replay, then print the differences."""
    with reading_task(home, args) as (reader, task):
        spec = parse(reader.task_config(task.id), f"task {task.id}")
        split: Split = args.split or (cast(Split, spec.eval.split) if spec.kind == "eval" else "train")
        component = _component(spec, args.component)
        groups = episodes.recorded_groups(reader, task.id, split, args.last, component)
    if not groups:
        output.talk(f"Task {task.id} has no {split} episodes yet.")
    lease, verdicts = asyncio.run(_replayed(home, components_of(spec)[component], split, groups, args.version))
    summary = summarise(verdicts)
    recorded = sorted({group.environment_version for group in groups})
    if args.json:
        return output.result_json(
            {
                "task": task.id,
                "split": split,
                "environment": lease.environment,
                "version": lease.environment_version,
                "recorded_versions": recorded,
                **asdict(summary),
                "verdicts": [asdict(verdict) for verdict in verdicts if verdict.kind != "unchanged"],
            }
        )
    rows = [verdict for kind in KINDS for verdict in verdicts if verdict.kind == kind]
    if rows:
        headers = ("STEP", "GROUP", "MEMBER", "AGENT", "OLD", "NEW", "WHAT", "REASON")
        cells = [
            (
                "-" if verdict.step is None else str(verdict.step),
                str(verdict.group),
                str(verdict.member),
                verdict.agent,
                number(verdict.old),
                number(verdict.new),
                verdict.kind,
                line(verdict.reason, 100),
            )
            for verdict in rows[:SHOWN]
        ]
        output.result_table(headers, cells, ("STEP", "GROUP", "MEMBER", "OLD", "NEW"))
    if len(rows) > SHOWN:
        output.talk(f"and {len(rows) - SHOWN:,} more; --json has them all.")
    version = f"{line(lease.environment)} {lease.environment_version}"
    output.result(f"{version}, beside what {', '.join(recorded) or 'nobody'} gave:")
    output.result(
        f"{summary.rewards:,} rewards: {summary.unchanged:,} unchanged, {summary.changed:,} changed,"
        f" {summary.not_comparable:,} not comparable, {summary.failing:,} failing."
    )
    if summary.mean_before is not None:
        means = f"{number(summary.mean_before)} before, {number(summary.mean_after)} after"
        output.result(f"Mean of those that can be compared: {means}.")
    return output.OK


def _component(spec: TaskSpec, wanted: str | None) -> str:
    """Name of the environment in the mixture; empty without one."""

    names = list(components_of(spec))
    if wanted is None and len(names) > 1:
        raise ConfigError(
            f"{spec.name} is trained on a mixture: {', '.join(names)}.", f"Say which one: --component {names[0]}"
        )
    if wanted is not None and wanted not in names:
        raise ConfigError(
            f"{spec.name} has no component {wanted!r}.", nearest(wanted, [name for name in names if name])
        )
    return wanted if wanted is not None else names[0]


async def _replayed(
    home: Home, spec: TaskSpec, split: Split, groups: Sequence[RecordedGroup], version: str | None
) -> tuple[Lease, Sequence[Verdict]]:
    settings = load_settings(home)
    calls = Renderer(load_base(settings.base).path).reread  # how the home's base writes tool calls
    folders, interpreters = _folders(home, spec, version), Interpreters(home.venvs, settings.environments)
    with TemporaryDirectory(prefix="marlaas-replay-", ignore_cleanup_errors=True) as scratch:
        async with serve_alone(spec.environment, folders, Path(scratch), interpreters) as (service, info):
            with await service.bind(info.name, data=spec.data.record) as lease:
                return lease, await replay_groups(service, lease, spec, split, calls, groups)


def _folders(home: Home, spec: TaskSpec, version: str | None) -> tuple[Path, ...]:
    if version is None:
        return (BUNDLED_PLUGINS, home.plugins)
    kept = sorted((home.scratch / "snapshots").glob(f"{version}*")) if version.isalnum() else []
    if len(kept) != 1:
        number = f"{len(kept)} versions begin" if kept else "No version that is kept begins"
        raise EnvironmentMissing(
            f"{number} with {version!r}.", f"`marlaas env list` shows the newest of {spec.environment!r}."
        )
    return (kept[0],)

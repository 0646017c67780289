"""``stats``: how busy the machine was, what waited, and who used how much of it. Reads the store only."""

from __future__ import annotations

import argparse
import re
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from ... import output
from ...words.format import count, duration, line, number, share, size
from ..verbs import Verbs, add_verb, home_of

if TYPE_CHECKING:
    from marlaas.engine.store import StageSample, TaskUse, TenantUse

UNITS = {"m": 60, "h": 3600, "d": 86400}
WORDS = {"rollout": "turns", "environment": "episodes", "training": "calls"}
"""What is counted in each stage."""


def register(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "stats",
        run,
        "show how busy each stage was, and what tenants and tasks used",
        json=True,
        epilog="Stages are kept by the second, what tasks used by the day (UTC): a time that begins within a day counts"
        " all of that day for them.",
    )
    parser.add_argument(
        "--since", type=begin, default="today", metavar="WHEN", help="30m, 1h, 2d, today or all (default: today)"
    )
    parser.add_argument("--tenant", metavar="NAME", help="only this tenant and its tasks")


def begin(text: str) -> float:
    """The moment that a text means, in seconds since 1970."""
    now = time.time()
    if text == "all":
        return 0.0
    if text == "today":
        return now // 86400 * 86400
    match = re.fullmatch(r"([0-9]{1,6})([mhd])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write 30m, 1h, 2d, today or all")
    return max(0.0, now - int(match[1]) * UNITS[match[2]])


def run(args: argparse.Namespace) -> int:
    """Print the tables."""
    from marlaas.engine.home import home_size
    from marlaas.engine.store import day_of, engine_cost, tenants_used

    from ...reading.opening import exists, opened

    home = home_of(args)
    if not exists(home):
        output.talk("Nothing has run here yet.")
        if args.json:
            output.result_json({})
        return output.OK
    with opened(home) as reader:
        stages, tasks = reader.stages(args.since), reader.tasks_used(day_of(args.since))
        tenants = tenants_used(tasks, reader.weights())
    if args.tenant is not None:
        tenants = [tenant for tenant in tenants if tenant.tenant == args.tenant]
        tasks = [task for task in tasks if task.tenant == args.tenant]
    cost, disk = engine_cost(stages), home_size(home)
    if args.json:
        output.result_json(
            {
                "since": args.since,
                "stages": [{**asdict(stage), "utilisation": stage.share} for stage in stages],
                "engine_seconds_per_episode": cost,
                "tenants": [asdict(tenant) for tenant in tenants],
                "tasks": [asdict(task) for task in tasks],
                "disk": {**asdict(disk), "total": disk.total},
            }
        )
        return output.OK
    _print(stages, tenants, tasks)
    if cost is not None:
        output.result(f"The engine itself took {number(1000 * cost)} ms of processor time an episode.")
    output.result(
        f"The home takes {size(disk.total)}: {size(disk.adapters)} of adapters, {size(disk.database)} of database,"
        f" {size(disk.base)} of bases."
    )
    return output.OK


def _print(stages: list[StageSample], tenants: list[TenantUse], tasks: list[TaskUse]) -> None:
    if not stages:
        output.talk("No engine has run in this time.")
    else:
        headers = ("STAGE", "DEVICE", "BUSY", "WAITING", "ACTIVE", "ENDED")
        output.result_table(headers, [_stage(stage) for stage in stages], right=headers[2:])
        output.result("")
    if tenants:
        who = ("TENANT", "WEIGHT", "SHARE", "TOKENS", "ROLLOUT", "TRAINING", "ENVIRONMENT")
        output.result_table(who, [_tenant(tenant) for tenant in tenants], right=who[1:])
        output.result("")
    if tasks:
        what = ("ID", "TENANT", "TASK", "TOKENS", "ROLLOUT", "TRAINING", "ENVIRONM.", "READY")
        output.result_table(what, [_task(task) for task in tasks], right=("ID", *what[3:]))
        output.result("")


def _stage(stage: StageSample) -> tuple[str, ...]:
    queued = stage.stage in ("rollout", "training")
    return (
        stage.stage,
        stage.device,
        share(stage.share),
        f"{stage.waiting:.1f}" if queued else "",
        f"{stage.active:.1f}" if stage.stage in WORDS else "",
        f"{count(stage.ended)} {WORDS[stage.stage]}" if stage.stage in WORDS else "",
    )


def _tenant(tenant: TenantUse) -> tuple[str, ...]:
    times = (duration(seconds) for seconds in (tenant.rollout, tenant.training, tenant.environment))
    return (line(tenant.tenant, 20), number(tenant.weight), share(tenant.share), count(tenant.tokens), *times)


def _task(task: TaskUse) -> tuple[str, ...]:
    times = (duration(seconds) for seconds in (task.rollout, task.training, task.environment))
    ready = str(task.ready) if task.state == "running" else ""
    return (str(task.id), line(task.tenant, 10), line(task.name, 14), count(task.tokens), *times, ready)

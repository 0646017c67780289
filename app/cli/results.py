"""Verbs for what training recorded: stats, metrics, matrix, rollouts, report, logs."""

from __future__ import annotations

import argparse
import getpass
import shutil
import sys
import time
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from marlaas.engine.errors import ConfigError, StoreError
from marlaas.engine.home.paths import Home
from marlaas.engine.spec.task import ONLY
from marlaas.engine.store.queries import episodes, learning, machine
from marlaas.engine.store.queries.episodes import GroupSummary
from marlaas.engine.store.queries.machine import EventFilter, StageSample, TaskUse, TenantUse, engine_cost
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import EventRow, ScoreBasis, TaskRow, day_of
from marlaas.engine.tables import add_to_table, read_table

from .. import output
from ..operations.results import Measured, as_csv, event_file
from ..reading import exists, find_task, opened, reading
from ..rollouts import exporting
from ..rollouts.answers import Prompts, age, answers, answers_within, marks, numbers
from ..rollouts.reading import search
from ..text.format import count, counted, duration, line, moment, number, score, share, size
from ..text.metrics import value_text, words
from ..text.scores import CELL, Matrix, cell_text, held_out, matrices
from .parser import (
    POLICY,
    Verbs,
    add_task,
    add_tasks,
    add_verb,
    arg,
    faces,
    one_of,
    policy_of,
    reading_task,
    reading_tasks,
    whole,
)

WORDS = {"rollout": "turns", "environment": "episodes", "training": "calls"}


def begin(text: str) -> float:
    """A moment in seconds since 1970. Raises ``ConfigError``."""
    now = time.time()
    words = {"all": 0.0, "today": now // 86400 * 86400}
    return words[text] if text in words else max(0.0, moment(text, now))


def run_stats(home: Home, args: argparse.Namespace) -> int:
    """Print the tables."""
    from marlaas.engine.home.disk import home_size

    since = begin(args.since)
    if not exists(home):
        output.talk("Nothing has run here yet.")
        return output.result_json({}) if args.json else output.OK
    with opened(home) as reader:
        stages, tasks = machine.stages(reader, since), machine.tasks_used(reader, day_of(since))
        tenants = machine.tenants_used(reader, day_of(since))
    if args.tenant is not None:
        tenants = [tenant for tenant in tenants if tenant.tenant == args.tenant]
        tasks = [task for task in tasks if task.tenant == args.tenant]
    cost, disk = engine_cost(stages), home_size(home)
    if args.json:
        return output.result_json(
            {
                "since": since,
                "stages": [{**asdict(stage), "utilisation": stage.share} for stage in stages],
                "engine_seconds_per_episode": cost,
                "tenants": [asdict(tenant) for tenant in tenants],
                "tasks": [asdict(task) for task in tasks],
                "disk": {**asdict(disk), "total": disk.total},
            }
        )
    if not stages:
        output.talk("No engine has run in this time.")
    of_stages = ("STAGE", "DEVICE", "BUSY", "WAITING", "ACTIVE", "ENDED")
    of_tenants = ("TENANT", "WEIGHT", "SHARE", "TOKENS", "ROLLOUT", "TRAINING", "ENVIRONMENT")
    of_tasks = ("ID", "TENANT", "TASK", "TOKENS", "ROLLOUT", "TRAINING", "ENVIRONM.", "READY")
    tenant_rows = [
        (line(use.tenant, 20), number(use.weight), share(use.share), count(use.tokens), *_times(use)) for use in tenants
    ]
    task_rows = [
        (
            str(use.id),
            line(use.tenant, 10),
            line(use.name, 14),
            count(use.tokens),
            *_times(use),
            str(use.ready) if use.state == "running" else "",
        )
        for use in tasks
    ]
    for headers, rows, right in (
        (of_stages, list(map(_stage, stages)), of_stages[2:]),
        (of_tenants, tenant_rows, of_tenants[1:]),
        (of_tasks, task_rows, ("ID", *of_tasks[3:])),
    ):
        if rows:
            output.result_table(headers, rows, right)
            output.result("")
    if cost is not None:
        output.result(f"The engine itself took {number(1000 * cost)} ms of processor time an episode.")
    return output.result(
        f"The home takes {size(disk.total)}: {size(disk.adapters)} of adapters, {size(disk.database)} of database,"
        f" {size(disk.base)} of bases."
    )


def _stage(stage: StageSample) -> tuple[str, ...]:
    counted_in = WORDS.get(stage.stage)
    return (
        stage.stage,
        stage.device,
        share(stage.share),
        f"{stage.waiting:.1f}" if stage.stage in ("rollout", "training") else "",
        f"{stage.active:.1f}" if counted_in else "",
        f"{count(stage.ended)} {counted_in}" if counted_in else "",
    )


def _times(use: TenantUse | TaskUse) -> tuple[str, ...]:
    return duration(use.rollout), duration(use.training), duration(use.environment)


COLUMNS = ("reward", "loss", "entropy", "kl", "grad_norm", "clipped", "gap_mean", "staleness", "length")


def run_metrics(home: Home, args: argparse.Namespace) -> int:
    """Print steps and evaluations, or write event files and print their paths."""
    with reading_tasks(home, args) as (reader, rows):
        tasks = [_measured(reader, row, policy_of(args, row)) for row in rows]
    measured = [row for task in tasks for row in task.rows()]
    if args.tensorboard is not None:
        for row, task in zip(rows, tasks, strict=True):
            name = f"{row.name} {task.policy}" if row.policies else row.name
            output.result(str(_write_events(task, name, args.tensorboard)))
    elif args.csv:
        print(as_csv(tasks), end="")
    elif args.jsonl:
        for one in measured:
            output.result(output.json_line(one))
    elif args.json:
        output.result_json(measured)
    elif not measured:
        output.talk("Nothing was measured yet; the first step does that.")
    else:
        columns = [name for name in COLUMNS if any(name in row["metrics"] for row in measured if row["kind"] == "step")]
        headers = ["STEP", *(words(name).title.upper() for name in columns), "TIME", "HELD-OUT"]
        headers = [*(["ID"] if len(tasks) > 1 else []), *headers]
        output.result_table(headers, [_cells(row, columns, len(tasks) > 1) for row in measured], right=headers)
        for row in rows if args.policy is None else ():
            if len(row.trained) > 1:
                output.talk(f"Of task {row.id} this is {row.trained[0]}; --policy shows {', '.join(row.trained[1:])}.")
    return output.OK


def _measured(reader: Reader, row: TaskRow, policy: str | None) -> Measured:
    steps, evals = reader.steps(row.id, policy=policy), reader.evals(row.id, policy=policy)
    return Measured(row.id, steps, evals, policy or next(iter(row.trained), ONLY))


def _cells(row: dict[str, Any], columns: list[str], many: bool) -> list[str]:
    first = [str(row["task"])] if many else []
    if row["kind"] == "eval":
        basis = ScoreBasis(**{one.name: row[one.name] for one in fields(ScoreBasis)})
        return [*first, str(row["step"]), *("" for _ in columns), "", held_out(row["score"], basis)]
    values = [value_text(name, row["metrics"].get(name)) for name in columns]
    return [*first, str(row["step"]), *values, duration(row["seconds"]), ""]


def _write_events(task: Measured, name: str, folder: Path) -> Path:
    """Replaces a file whole or not at all.

    TensorBoard's run name: the task's number and the characters of its name allowed in folders.
    """
    scalars = list(task.scalars())
    characters = "".join(c if c.isalnum() or c in "_.=," else " " for c in name[:60])
    run = "-".join([str(task.task), *characters.split()]).rstrip(".")
    path = folder / run / "events.out.tfevents.marlaas"
    part = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(event_file(scalars, min((row.created for row in scalars), default=0.0)))
        return part.replace(path)
    except OSError as error:
        raise StoreError(f"cannot be written: {error.strerror}.", where=str(path)) from error


def run_matrix(home: Home, args: argparse.Namespace) -> int:
    """Print a table of stored plays between versions for each opponent of the policy."""
    with reading_task(home, args) as (reader, task):
        policy = policy_of(args, task) or next(iter(task.trained), ONLY)
        tables = matrices(learning.matchups(reader, task.id), task.policies, policy)
    if args.json:
        return output.result_json([_json(matrix) for matrix in tables])
    if not tables:
        output.talk(f"No version of {policy} has met another one yet. `[eval] agents` in the task file has them play.")
    for place, matrix in enumerate(tables):
        if place:
            output.result("")
        _print_of_matrix(matrix)
    return output.OK


def _print_of_matrix(matrix: Matrix) -> None:
    columns = matrix.columns_for((shutil.get_terminal_size((120, 24)).columns - 8) // CELL)
    output.result(f"{matrix.title}: mean reward of the row, its standard error, n episodes")
    headers = ("", *(f"v{version}" for version in columns))
    rows = [
        (f"v{row}", *(cell_text(matrix.cells.get((row, column))) for column in columns))
        for row in matrix.rows
        if any((row, column) in matrix.cells for column in columns)
    ]
    output.result_table(headers, rows, right=headers)
    if len(columns) < len(matrix.columns):
        output.talk(f"{len(columns)} of {len(matrix.columns)} columns; --json has all.")


def _json(matrix: Matrix) -> dict[str, Any]:
    cells = [
        {"version": row, "against_version": column, **asdict(meeting)}
        for (row, column), meeting in sorted(matrix.cells.items())
    ]
    return {"policy": matrix.policy, "against": matrix.against, "cells": cells}


PROMPT, REPLIES = 30, 60


def run_rollouts(home: Home, args: argparse.Namespace) -> int:
    """Print, or write a file and print its path."""
    args.split = "eval" if args.eval else "train"
    with reading_task(home, args) as (reader, task):
        policy_of(args, task)
        args.task = task.id  # a number from here on
        if args.jsonl:
            exporting.write(exporting.read(reader, _in_order(reader, args)), sys.stdout)
        elif args.out is None:
            _show(reader, args)
        ids = _in_order(reader, args) if args.out is not None else ()
    if args.out is not None:
        written = exporting.export(home, ids, args.out)
        output.talk(f"{counted(written, 'conversation')} written.")
        output.result(str(args.out))
    return output.OK


def _show(reader: Reader, args: argparse.Namespace) -> None:
    if args.group is not None or args.finding or args.search or (args.failures and args.step is not None):
        ids = _ids(reader, args)
        if args.json:
            output.result_json([exporting.record(one) for one in exporting.read(reader, ids)])
        else:
            texts = (exporting.episode_text(one, output.is_plain()) for one in exporting.episodes(reader, ids))
            print("\n".join(texts), end="")
    elif args.step is not None:
        ids = episodes.group_ids(reader, args.task, args.split, args.step, policy=args.policy)
        rows = episodes.group_rows(reader, ids)
        groups = [rows[key] for key in ids if key in rows]
        if args.json:
            output.result_json([{**asdict(group), "staleness": group.staleness} for group in groups])
        else:
            _print_groups(args, groups)
    else:
        steps = episodes.rollout_steps(reader, args.task, policy=args.policy)
        steps = [step for step in steps if step.split == "eval" or not args.eval]
        output.show(
            steps,
            args.json,
            ("STEP", "KIND", "REWARD", "GROUPS", "FAILED"),
            lambda step: (
                "waiting" if step.step is None else str(step.step),
                "held-out" if step.split == "eval" else "training",
                score(step.reward),
                str(step.groups),
                str(step.failures or "-"),
            ),
            ("STEP", "REWARD", "GROUPS", "FAILED"),
            "There are no episodes yet.",
            f"`marlaas rollouts {args.task} --step N` shows the groups of one.",
        )


def _in_order(reader: Reader, args: argparse.Namespace) -> Sequence[int]:
    """Oldest first; within a group by episode."""
    ids = _ids(reader, args)
    return ids if args.group is not None else sorted(ids)


def _ids(reader: Reader, args: argparse.Namespace) -> array[int]:
    """Raises ``ConfigError`` for an unknown group."""
    ids = array("q", _in_scope(reader, args))
    if not args.search:
        return ids
    return array("q", (hit for found in search(reader, ids, args.search) for hit in found))


def _in_scope(reader: Reader, args: argparse.Namespace) -> Iterable[int]:
    if args.finding is not None:
        return _of_finding(reader, args)
    if args.group is not None:
        groups = episodes.group_ids_numbered(reader, args.task, args.split, args.group, args.step, args.policy)[:1]
        if not groups:
            hint = f"`marlaas rollouts {args.task} --step N` shows the groups of a step."
            raise ConfigError(f"Task {args.task} has no group {args.group}{_where(args)}.", hint)
        return episodes.conversation_ids(reader, args.task, group=groups[0], failures=args.failures)
    if args.step is None and not args.eval:
        return episodes.conversation_ids(reader, args.task, failures=args.failures, policy=args.policy)
    made = [step.step for step in episodes.rollout_steps(reader, args.task, policy=args.policy)]
    return chain.from_iterable(
        episodes.conversation_ids(reader, args.task, args.split, step, failures=args.failures, policy=args.policy)
        for step in dict.fromkeys(made if args.step is None else [args.step])
    )


def _of_finding(reader: Reader, args: argparse.Namespace) -> Sequence[int]:
    """Raises ``ConfigError`` for an unknown finding."""
    task = reader.task(args.task)
    findings = [one for one in (task.findings if task else ()) if args.policy in (None, one.policy)]
    for finding in findings:
        if finding.code == args.finding:
            return finding.rollouts
    known = ", ".join(dict.fromkeys(line(one.code, 40) for one in findings))
    hint = f"It has {known}." if known else "Nothing was found to go wrong in its learning."
    raise ConfigError(f"Task {args.task} has no finding {args.finding!r}.", hint)


def _where(args: argparse.Namespace) -> str:
    kind = " of an evaluation" if args.eval else ""
    return f"{kind} at step {args.step}" if args.step is not None else kind


def _print_groups(args: argparse.Namespace, groups: list[GroupSummary]) -> None:
    if not groups:
        output.talk(f"Task {args.task} has no groups{_where(args)}.")
        return
    prompts = Prompts()
    prompts.see(group.prompt for group in groups)
    rows = [
        (
            str(group.number),
            prompts.within(group.prompt, PROMPT),
            "".join(sign for sign, _ in marks(group.members)),
            numbers(group),
            "".join(text for text, _ in answers_within(answers(group.members), REPLIES, ", ")) or "-",
            age(group) or "-",
            str(group.instance),
            line(group.environment_version, 16),
        )
        for group in groups
    ]
    output.result_table(
        ("GROUP", "PROMPT", "MEMBERS", "REWARD", "REPLIES", "STALENESS", "INSTANCE", "ENVIRONMENT"),
        rows,
        right=("GROUP", "INSTANCE", "REWARD"),
    )
    more = "--eval " if args.eval else ""
    output.talk(f"`marlaas rollouts {args.task} {more}--step {args.step} --group G` shows what was said in one.")


VISITS = "visits.json"
"""Each account's last report time."""
DAY = 86_400.0
LINES = 5_000


def run_report(home: Home, args: argparse.Namespace) -> int:
    """Write the report and print its path."""
    from ..report import report_of_tasks, write

    if not args.tasks and not args.family:
        return _of_home(home, args)
    with reading_tasks(home, args) as (reader, rows):
        document = report_of_tasks(reader, [(row, faces(args, row)) for row in rows], time.time())
    numbers = [row.id for row in rows]
    folder = (args.out or Path(f"report-{'-'.join(map(str, numbers[:4]))}")).expanduser()
    files = list(map(str, write(document, folder)))
    if args.json:
        return output.result_json({"tasks": numbers, "files": files})
    return output.result("\n".join(files[:2]))


def _of_home(home: Home, args: argparse.Namespace) -> int:
    from ..report import Table, report_of_home, write

    now, account = time.time(), getpass.getuser()
    last = read_table(home.root / VISITS).get(account)
    since = moment(args.since, now) if args.since else last if isinstance(last, float) else now - DAY
    with reading(home) as reader:
        tasks, progress = (reader.tasks(), learning.progress(reader, since)) if reader else ([], [])
        warnings = EventFilter(level="warning", since=since)
        events = machine.newest_events(reader, warnings, limit=LINES) if reader else []
    document = report_of_home(str(home.root), since, now, tasks, progress, events)
    add_to_table(home.root / VISITS, {account: now})
    if args.out:
        return output.result("\n".join(map(str, write(document, args.out.expanduser())[:2])))
    if args.json:
        return output.result_json({"since": since, "progress": [asdict(one) for one in progress]})
    output.result(document.title)
    output.result(document.lead)
    for section in document.sections:
        output.result(f"\n{section.title}")
        for piece in section.pieces:
            if isinstance(piece, Table):
                output.result_table(piece.headers, piece.rows, right=piece.right)
            elif isinstance(piece, str):
                output.result(piece)
    return output.OK


def run_logs(home: Home, args: argparse.Namespace) -> int:
    """Print events; ``--follow``: also new ones."""
    since = moment(args.since, time.time()) if args.since else 0.0
    with reading(home) as reader:
        task = find_task(reader, args.task).id if args.task is not None else None
        events_of = EventFilter(tuple(args.grep), args.level, task, args.tenant or "", args.kind, since)
        events = machine.newest_events(reader, events_of, limit=max(0, args.lines)) if reader else []
        if args.json and not args.follow:
            return output.result_json([asdict(event) for event in events])
        if not events and (args.grep or args.level or args.tenant or args.kind or args.since):
            output.talk("No event matches yet.")
        elif not events:
            about = "" if task is None else f" to task {task}"
            output.talk(f"Nothing has happened{about} yet. The engine's log files are in {home.logs}.")
        last = 0
        while True:
            for event in events:
                output.result(output.json_line(asdict(event)) if args.json else event_line(event))
                last = event.id
            if not args.follow or reader is None:
                return output.OK
            time.sleep(1)
            events = machine.newest_events(reader, events_of, after=last, limit=10_000)


def event_line(event: EventRow) -> str:
    """An event in one line, in local time."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.created))
    task = f"task {event.task}  " if event.task is not None else ""
    return f"{when}  {event.level:<7}  {task}{line(event.message)}"


def register(verbs: Verbs) -> None:
    """Add the verbs."""
    add_verb(
        verbs,
        "stats",
        run_stats,
        "show how busy each stage was, and what tenants and tasks used",
        arg(
            "--since", default="today", metavar="WHEN", help="30m, 1h, 22:30, 2026-11-28, today or all (default: today)"
        ),
        arg("--tenant", metavar="NAME", help="only this tenant and its tasks"),
        json=True,
        epilog="Stages are kept by the second, what tasks used by the day (UTC): a time that begins within a day counts"
        " all of that day for them.",
    )
    add_verb(
        verbs,
        "metrics",
        run_metrics,
        "show all steps and evaluations of tasks, or write them for other programs",
        add_tasks,
        POLICY,
        one_of(
            arg("--csv", action="store_true", help="a table: a row for each step, and for each evaluation"),
            arg("--jsonl", action="store_true", help="the same rows, one JSON object per line"),
            arg("--json", action="store_true", help="the same rows as one JSON document"),
            arg("--tensorboard", type=Path, metavar="DIR", help="event files, in a folder of DIR for each task"),
        ),
    )
    add_verb(
        verbs,
        "matrix",
        run_matrix,
        "show what versions of a task's policies were paid against each other: the win-rate, where winning pays 1",
        add_task,
        POLICY,
        json=True,
        epilog="From all plays that are stored, of training and held-out; an episode counts where both had a turn.",
    )
    add_verb(
        verbs,
        "rollouts",
        run_rollouts,
        "show what the model writes: the steps of a task, the groups of a step, the conversations of a group",
        add_task,
        POLICY,
        arg("--step", type=whole(0, 10**18), metavar="N", help="the groups of this step"),
        arg("--group", type=whole(0, 10**18), metavar="G", help="the conversations of this group, by its number"),
        arg("--eval", action="store_true", help="the held-out evaluation at a step, instead of the step"),
        arg("--finding", metavar="NAME", help="the conversations that show what goes wrong, as `show` names it"),
        arg("--failures", action="store_true", help="only conversations that failed"),
        arg("--search", metavar="TEXT", help="only conversations in which somebody says this"),
        one_of(
            arg("--json", action="store_true", help="print JSON on standard output"),
            arg("--jsonl", action="store_true", help="print all conversations, one record per line"),
            arg("--out", type=Path, metavar="FILE", help="write all conversations into a new file"),
        ),
        epilog="With --json: what is shown, as one document. With --jsonl or --out: all conversations of the task, the"
        " step or the group, one record per line; --out FILE.txt writes them as plain text.",
    )
    add_verb(
        verbs,
        "report",
        run_report,
        "say what happened in the home; of tasks, write report.html with its plots in one file, and report.md",
        add_tasks,
        POLICY,
        arg("--out", type=Path, metavar="DIR", help="the folder (default: report-ID here)"),
        arg("--since", metavar="TIME", help="of the home: since 12h, 22:30, 2026-11-28 (default: the last)"),
        json=True,
        epilog="Without a task, what happened since the last such report is printed, and written where --out names a"
        " folder. Several tasks are compared. The page has no script, fetches nothing, and opens anywhere. An earlier"
        " report in the folder is replaced.",
    )
    add_verb(
        verbs,
        "logs",
        run_logs,
        "print what happened, newest last",
        partial(add_task, about="only of this task, by number or name", optional=True),
        arg("--tenant", metavar="NAME", help="only of tasks whose tenant has this in its name"),
        arg("--level", choices=("info", "warning", "error"), default="", help="only this level and worse"),
        arg("--kind", metavar="WORD", default="", help="only of this kind: task, environment, engine, …"),
        arg("--since", metavar="TIME", help="only what happened since then: 12h, 22:30, 2026-11-28"),
        arg("--grep", action="append", metavar="WORD", default=[], help="only with this in the message"),
        arg("-f", "--follow", action="store_true", help="go on until interrupted; with --json one object per line"),
        arg("-n", "--lines", type=int, default=200, metavar="N", help="at most the last N (default 200)"),
        json=True,
    )

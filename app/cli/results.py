"""Verbs for what training recorded: stats, metrics, matrix, rollouts, report, logs."""

from __future__ import annotations

import argparse
import getpass
import re
import shutil
import sys
import time
from array import array
from collections.abc import Sequence
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marlaas.engine.errors import ConfigError, StoreError
from marlaas.engine.spec.task import ONLY
from marlaas.engine.store.queries.episodes import GroupSummary, StepSummary
from marlaas.engine.store.queries.machine import EventFilter, StageSample, TaskUse, TenantUse, engine_cost, tenants_used
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import EventRow, ScoreBasis, day_of
from marlaas.engine.tables import add_to_table, read_table

from .. import output
from ..operations.results import Measured, as_csv, event_file
from ..reading import exists, find_task, opened, reading
from ..rollouts import exporting, exporting as records
from ..rollouts.answers import Prompts, age, answers, answers_within, marks, numbers
from ..rollouts.reading import search
from ..text.format import count, duration, line, moment, number, score, share, size
from ..text.metrics import value_text, words
from ..text.scores import CELL, Matrix, cell_text, held_out, matrices
from ..text.terms import with_new_names
from .parser import Verbs, add_policy, add_task, add_tasks, add_verb, arg, chosen, faces, home_of, one_of, policy_of

if TYPE_CHECKING:
    from ..report import Document


# ``stats``: how busy the machine was, what waited, and who used how much of it. Reads the store only.

UNITS = {"m": 60, "h": 3600, "d": 86400}
WORDS = {"rollout": "turns", "environment": "episodes", "training": "calls"}
"""What is counted in each stage."""


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


def run_stats(args: argparse.Namespace) -> int:
    """Print the tables."""
    from marlaas.engine.home.disk import home_size

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
        return output.result_json(
            {
                "since": args.since,
                "stages": [{**asdict(stage), "utilisation": stage.share} for stage in stages],
                "engine_seconds_per_episode": cost,
                "tenants": [asdict(tenant) for tenant in tenants],
                "tasks": [asdict(task) for task in tasks],
                "disk": {**asdict(disk), "total": disk.total},
            }
        )
    _print(stages, tenants, tasks)
    if cost is not None:
        output.result(f"The engine itself took {number(1000 * cost)} ms of processor time an episode.")
    return output.result(
        f"The home takes {size(disk.total)}: {size(disk.adapters)} of adapters, {size(disk.database)} of database,"
        f" {size(disk.base)} of bases."
    )


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


# ``metrics``: every step and every evaluation of tasks, to read or to take away.

COLUMNS = ("reward", "loss", "entropy", "kl", "grad_norm", "clipped", "gap_mean", "staleness", "length")
"""Columns of the table for people, as far as the tasks have such metrics."""


def run_metrics(args: argparse.Namespace) -> int:
    """Print, or write event files and print where they are."""

    with reading(home_of(args)) as reader:
        numbers = chosen(args, reader)
        assert reader is not None
        rows = [find_task(reader, number) for number in numbers]
        tasks, names = [], {}
        for row in rows:
            policy = policy_of(args, row)
            whose = policy or next(iter(row.trained), ONLY)
            steps, evals = reader.steps(row.id, policy=policy), reader.evals(row.id, policy=policy)
            tasks.append(Measured(row.id, steps, evals, whose))
            names[row.id] = " ".join([row.name, *([whose] if row.policies else [])])
    if args.tensorboard is not None:
        for task in tasks:
            output.result(str(_write_events(task, names[task.task], args.tensorboard)))
    elif args.csv:
        print(as_csv(tasks), end="")
    elif args.jsonl:
        for measured in (row for task in tasks for row in task.rows()):
            output.result(output.json_line(measured))
    elif args.json:
        output.result_json([row for task in tasks for row in task.rows()])
    elif not any(task.steps or task.evals for task in tasks):
        output.talk("Nothing was measured yet; the first step does that.")
    else:
        _print_of_metrics(tasks)
        for row in rows if args.policy is None else ():
            if len(row.trained) > 1:
                output.talk(f"Of task {row.id} this is {row.trained[0]}; --policy shows {', '.join(row.trained[1:])}.")
    return output.OK


def _print_of_metrics(tasks: list[Measured]) -> None:

    measured = [row for task in tasks for row in task.rows()]
    columns = [name for name in COLUMNS if any(name in row["metrics"] for row in measured if row["kind"] == "step")]
    headers = ["STEP", *(words(name).title.upper() for name in columns), "TIME", "HELD-OUT"]
    if len(tasks) > 1:
        headers = ["ID", *headers]
    output.result_table(headers, [_cells(row, columns, len(tasks) > 1) for row in measured], right=headers)


def _cells(row: dict[str, Any], columns: list[str], many: bool) -> list[str]:
    first = [str(row["task"])] if many else []
    if row["kind"] == "eval":
        basis = ScoreBasis(**{one.name: row[one.name] for one in fields(ScoreBasis)})
        return [*first, str(row["step"]), *("" for _ in columns), "", held_out(row["score"], basis)]

    measured = row["metrics"]
    values = [value_text(name, measured.get(name)) for name in columns]
    return [*first, str(row["step"]), *values, duration(row["seconds"]), ""]


def _write_events(task: Measured, name: str, folder: Path) -> Path:
    """Write a task's event file, whole or not at all, in place of the one that was written before."""

    scalars = list(task.scalars())
    begun = min((row.created for row in scalars), default=0.0)
    path = folder / _folder_name(task.task, name) / "events.out.tfevents.marlaas"
    part = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(event_file(scalars, begun))
        part.replace(path)
    except OSError as error:
        raise StoreError(f"cannot be written: {error.strerror}.", where=str(path)) from error
    return path


def _folder_name(task: int, name: str) -> str:
    """The run's name in TensorBoard: the task's number, and the characters of its name that a folder may have."""
    words = "".join(c if c.isalnum() or c in "_.=," else " " for c in name[:60]).split()
    return "-".join([str(task), *words]).rstrip(".")


# ``matrix``: how versions of a task's policies did against each other, in the plays that are stored.


def run_matrix(args: argparse.Namespace) -> int:
    """Print a table for each whom the policy met."""

    with reading(home_of(args)) as reader:
        task = find_task(reader, args.task)
        assert reader is not None
        policy = policy_of(args, task) or next(iter(task.trained), ONLY)
        found = matrices(reader.matchups(task.id), task.policies, policy)
    if args.json:
        return output.result_json([_json(matrix) for matrix in found])
    if not found:
        output.talk(f"No version of {policy} has met another one yet. `[eval] agents` in the task file has them play.")
    for place, matrix in enumerate(found):
        if place:
            output.result("")
        _print_of_matrix(matrix)
    return output.OK


def _print_of_matrix(matrix: Matrix) -> None:

    room = (shutil.get_terminal_size((120, 24)).columns - 8) // CELL
    columns = matrix.columns_for(room)
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


# ``rollouts``: what the model writes, from the trend over steps down to one group; to read, or to take away.

PROMPT, REPLIES = 30, 60
"""Cells of a group's prompt and of its replies in a table."""


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of a step or of a group")
    return int(text)


def run_rollouts(args: argparse.Namespace) -> int:
    """Print, or write a file and say where it is."""

    home = home_of(args)
    with reading(home) as reader:
        task = find_task(reader, args.task)
        policy_of(args, task)
        args.task = task.id  # a number from here on
        assert reader is not None
        if args.jsonl:
            exporting.write(exporting.read(reader, _in_order(reader, args)), sys.stdout)
        elif args.out is None:
            _show(reader, args)
    if args.out is not None:
        written = exporting.export(home, lambda reader: _in_order(reader, args), args.out)
        output.talk(f"{written} conversation{'' if written == 1 else 's'} written.")
        output.result(str(args.out))
    return output.OK


def _show(reader: Reader, args: argparse.Namespace) -> None:

    if args.group is not None or args.finding or args.search or (args.failures and args.step is not None):
        ids = _ids(reader, args)
        if args.json:
            output.result_json([records.record(one) for one in exporting.read(reader, ids)])
        else:
            print(
                "\n".join(records.episode_text(one, output.is_plain()) for one in exporting.episodes(reader, ids)),
                end="",
            )
    elif args.step is not None:
        ids = reader.group_ids(args.task, _split(args), args.step, policy=args.policy)
        found = reader.group_rows(ids)
        groups = [found[key] for key in ids if key in found]
        if args.json:
            output.result_json([{**asdict(group), "staleness": group.staleness} for group in groups])
        else:
            _print_groups(args, groups)
    else:
        steps = reader.rollout_steps(args.task, policy=args.policy)
        steps = [step for step in steps if step.split == "eval" or not args.eval]
        if args.json:
            output.result_json([with_new_names(asdict(step)) for step in steps])
        else:
            _print_steps(args, steps)


def _in_order(reader: Reader, args: argparse.Namespace) -> Sequence[int]:
    """The conversations in the order in which they are written: oldest first; of one group episode by episode."""
    found = _ids(reader, args)
    return found if args.group is not None else sorted(found)


def _ids(reader: Reader, args: argparse.Namespace) -> array[int]:
    """Conversations that the arguments mean. Raises ``ConfigError`` if there is no such group."""

    found = _in_scope(reader, args)
    if not args.search:
        return found
    return array("q", (hit for progress in search(reader, found, args.search) for hit in progress.hits))


def _in_scope(reader: Reader, args: argparse.Namespace) -> array[int]:

    split = _split(args)
    if args.finding is not None:
        return array("q", _of_finding(reader, args))
    if args.group is not None:
        groups = reader.group_ids_numbered(args.task, split, args.group, args.step, args.policy)[:1]
        found = [
            id for group in groups for id in reader.conversation_ids(args.task, group=group, failures=args.failures)
        ]
        if not groups:
            hint = f"`marlaas rollouts {args.task} --step N` shows the groups of a step."
            raise ConfigError(f"Task {args.task} has no group {args.group}{_where(args)}.", hint)
        return array("q", found)
    if args.step is None and not args.eval:
        return reader.conversation_ids(args.task, failures=args.failures, policy=args.policy)
    made = [step.step for step in reader.rollout_steps(args.task, policy=args.policy)]
    steps = [args.step] if args.step is not None else made
    everything = (
        reader.conversation_ids(args.task, split, step, failures=args.failures, policy=args.policy)
        for step in dict.fromkeys(steps)
    )
    return array("q", (id for ids in everything for id in ids))


def _of_finding(reader: Reader, args: argparse.Namespace) -> Sequence[int]:
    """The conversations that show a finding. Raises ``ConfigError`` if the task has none of that name."""

    task = reader.task(args.task)
    findings = [one for one in (task.findings if task else ()) if args.policy in (None, one.policy)]
    for finding in findings:
        if finding.code == args.finding:
            return finding.rollouts
    known = ", ".join(dict.fromkeys(line(one.code, 40) for one in findings))
    hint = f"It has {known}." if known else "Nothing was found to go wrong in its learning."
    raise ConfigError(f"Task {args.task} has no finding {args.finding!r}.", hint)


def _split(args: argparse.Namespace) -> str:
    return "eval" if args.eval else "train"


def _where(args: argparse.Namespace) -> str:
    kind = " of an evaluation" if args.eval else ""
    return f"{kind} at step {args.step}" if args.step is not None else kind


def _print_steps(args: argparse.Namespace, steps: list[StepSummary]) -> None:
    if not steps:
        output.talk("There are no episodes yet.")
        return
    rows = [
        (
            "waiting" if step.step is None else str(step.step),
            "held-out" if step.split == "eval" else "training",
            score(step.reward),
            str(step.groups),
            str(step.failures or "-"),
        )
        for step in steps
    ]
    output.result_table(
        ("STEP", "KIND", "REWARD", "GROUPS", "FAILED"), rows, right=("STEP", "REWARD", "GROUPS", "FAILED")
    )
    output.talk(f"`marlaas rollouts {args.task} --step N` shows the groups of one.")


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


# ``report``: tasks in one folder that opens anywhere: configuration, curves, scores, rollouts, cost.
#
# Without a task it is the home's report: what happened since somebody last asked.

VISITS = "visits.json"
"""In a home: when each account last asked what had happened there."""
DAY = 86_400.0
LINES = 5_000
"""Warnings and errors that are read at most."""


def run_report(args: argparse.Namespace) -> int:
    """Write it, and print where it is."""
    from ..report import facts_of, told, write

    if not args.tasks and not args.family:
        return _of_home(args)
    with reading(home_of(args)) as reader:
        numbers = chosen(args, reader)
        assert reader is not None
        rows = [find_task(reader, number) for number in numbers]
        tasks = [facts_of(reader, row, faces(args, row)) for row in rows]
    folder = (args.out or Path(f"report-{'-'.join(map(str, numbers[:4]))}")).expanduser()
    files = write(told(tasks, time.time()), folder)
    if args.json:
        return output.result_json({"tasks": numbers, "files": [str(path) for path in files]})
    for path in files[:2]:
        output.result(str(path))
    return output.OK


def _of_home(args: argparse.Namespace) -> int:
    """Print what happened since the last report, or the time that is given; write it, too, if a folder is named."""

    from ..report import HomeFacts, told_of_home, write

    home, now, account = home_of(args), time.time(), getpass.getuser()
    last = read_table(home.root / VISITS).get(account)
    before = last if isinstance(last, float) else now - DAY
    since = moment(args.since, now) if args.since else before
    with reading(home) as reader:
        wrong = reader.newest_events(EventFilter(level="warning", since=since), limit=LINES) if reader else []
        facts = HomeFacts(
            str(home.root),
            since,
            now,
            reader.tasks() if reader else [],
            reader.progress(since) if reader else [],
            wrong,
        )
    document = told_of_home(facts)
    add_to_table(home.root / VISITS, {account: now})
    if args.out:
        for path in write(document, args.out.expanduser())[:2]:
            output.result(str(path))
        return output.OK
    if args.json:
        return output.result_json({"since": since, "progress": [asdict(one) for one in facts.progress]})
    _print_of_report(document)
    return output.OK


def _print_of_report(document: Document) -> None:
    from ..report import Table, Text

    output.result(document.title)
    output.result(document.lead)
    for section in document.sections:
        output.result(f"\n{section.title}")
        for piece in section.pieces:
            if isinstance(piece, Table):
                output.result_table(piece.headers, piece.rows, right=piece.right)
            elif isinstance(piece, Text):
                output.result(piece.words)


# ``logs``: what happened, one event a line, all events or those of a filter.


def run_logs(args: argparse.Namespace) -> int:
    """Print events, and more as they come if that was asked for."""

    home = home_of(args)
    with reading(home) as reader:
        task = find_task(reader, args.task).id if args.task is not None else None
        wanted = _wanted(args, task)
        events = reader.newest_events(wanted, limit=max(0, args.lines)) if reader else []
        if args.json and not args.follow:
            return output.result_json([asdict(event) for event in events])
        if not events:
            _talk_of_nothing(args, task, str(home.logs))
        last = 0
        while True:
            for event in events:
                output.result(output.json_line(asdict(event)) if args.json else event_line(event))
                last = event.id
            if not args.follow or reader is None:
                return output.OK
            time.sleep(1)
            events = reader.newest_events(wanted, after=last, limit=10_000)


def _wanted(args: argparse.Namespace, task: int | None) -> EventFilter:

    since = moment(args.since, time.time()) if args.since else 0.0
    return EventFilter(tuple(args.grep), args.level, task, args.tenant or "", args.kind, since)


def _talk_of_nothing(args: argparse.Namespace, task: int | None, folder: str) -> None:
    if args.grep or args.level or args.tenant or args.kind or args.since:
        output.talk("No event matches yet.")
        return
    where = "" if task is None else f" to task {task}"
    output.talk(f"Nothing has happened{where} yet. The engine's log files are in {folder}.")


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
        arg("--since", type=begin, default="today", metavar="WHEN", help="30m, 1h, 2d, today or all (default: today)"),
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
        add_policy,
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
        add_policy,
        json=True,
        epilog="From all plays that are stored, of training and held-out; an episode counts where both had a turn.",
    )
    add_verb(
        verbs,
        "rollouts",
        run_rollouts,
        "show what the model writes: the steps of a task, the groups of a step, the conversations of a group",
        add_task,
        add_policy,
        arg("--step", type=_number, metavar="N", help="the groups of this step"),
        arg("--group", type=_number, metavar="G", help="the conversations of this group, by its number"),
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
        add_policy,
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

"""Verbs that look at tasks: list, show, compare, watch, wait."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from marlaas.engine.daemon import control
from marlaas.engine.errors import ConfigError
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import EvalRow, PolicyRow, StepRow, TaskRow

from .. import output
from ..lists.filters import check_state, in_order, matches, parse
from ..operations.commands import Follower, milestone, ways, without_steps, written
from ..operations.results import CHOSEN, NOTE, Scored, compared, difference_text, pairs_json, scored
from ..operations.settings_file import differences
from ..reading import find_task, reading
from ..text.format import cells, count, counted, duration, line, score, size, sparkline
from ..text.learning import fields as findings, findings_json, state_text, why
from ..text.metrics import all_in_order, newest_text, value_text, words
from ..text.scores import (
    component_lines,
    held_out,
    held_out_lines,
    measured_json,
    measured_table,
    rests_on,
    scored_at,
    shares_of,
    with_error,
)
from ..text.tasks import (
    MENDED,
    family_summaries,
    kind,
    limits,
    lost_words,
    measured_on,
    names,
    newest_key,
    newest_series,
    queue_order,
    short_name,
    shown_reason,
    task_detail_json,
    task_json,
)
from .parser import Verbs, add_policy, add_task, add_tasks, add_verb, arg, faces, policy_of, reading_task, reading_tasks

_FILTER = (
    'only those that match: state:running tenant:bio env:sums family:x name:"two words" id:17 reward>0.5 score>=0.3'
    " step<10; all must hold; ! or - before one negates it; a single word is searched for in name, tenant, environment"
)
_SCORES = 6
OF_ONE = ("policy", "shown", "held-out", "measured on", "best", "baseline")
REPEATED = ("policy", "warning", "component", "finding", "evidence", "what to do", "rollouts")
_LABEL = 24
"""Most cells of the label column; values align after the longest."""
NO_ENGINE = "No engine is alive; `marlaas engine start` goes on with the unfinished tasks."
REASON_CELLS = 160
"""Cells of a reason in the list; ``show`` has all of it."""


def list_tasks(home: Home, args: argparse.Namespace) -> int:
    """Print the queue."""

    with reading(home) as reader:
        everything = reader.tasks() if reader else []
    query = parse(args.filter)
    if args.state:
        check_state(args.state)
    options = {key: getattr(args, key) for key in ("tenant", "state", "family") if getattr(args, key) is not None}
    tasks = [
        task
        for task in everything
        if all(getattr(task, key) == value for key, value in options.items()) and matches(query, task)
    ]
    if args.sort:
        tasks = in_order(tasks, args.sort, args.reverse)
    elif not args.json:
        tasks = sorted(tasks, key=queue_order, reverse=args.reverse)
    serving = control.alive(home)
    if any(task.unfinished for task in tasks) and not serving:
        output.talk(NO_ENGINE)
    if args.json:
        return output.result_json([task_json(task) for task in tasks])
    if not tasks:
        none = "No tasks yet. `marlaas submit FILE` adds one, `marlaas demo` shows three."
        return output.done(f"None of the {len(everything)} tasks matches." if everything else none)
    output.result_table(
        ("ID", "TENANT", "TASK", "ENVIRONMENT", "STATE", "STEP", "REWARD", "HELD-OUT", "REASON"),
        [row for task in tasks for row in (_cells(task, serving), *_policies(task))],
        right=("ID", "STEP", "REWARD", "HELD-OUT"),
    )
    for text in family_summaries(tasks):
        output.talk(text)
    return output.OK


def _cells(task: TaskRow, serving: bool) -> tuple[str, ...]:
    return (
        str(task.id),
        line(task.tenant, 24),
        short_name(task, 32),
        line(task.environment, 24),
        state_text(task, serving),
        f"{task.step}/{task.steps}",
        score(task.reward),
        with_error(task.score, task.basis),
        line(why(task, serving), REASON_CELLS),
    )


def _policies(task: TaskRow) -> Iterator[tuple[str, ...]]:
    for policy in task.policies:
        made = f"{policy.step}/{1 if policy.measured else task.steps}" if policy.trained else ""
        scores = (score(policy.reward), with_error(policy.score, policy.basis)) if policy.trained else ("", "")
        who = f"policy {line(policy.name)} of task {task.id}" if output.is_plain() else f"  {line(policy.name, 30)}"
        yield ("", "", who, line(names(policy.agents), 24), kind(policy), made, *scores, "")


def show_task(home: Home, args: argparse.Namespace) -> int:
    """Print one task."""
    with reading_task(home, args) as (reader, task):
        if args.toml:
            print(written(without_steps(reader.task_config(task.id))), end="")
            return output.OK
        policy = policy_of(args, task)
        _, own = faces(args, task)[0]
        evals = reader.evals(task.id, policy)
        newest = next(iter(reader.steps(task.id, own.step - 1, policy)), None)
        config = reader.task_config(task.id)
        measured = {words: reader.evals(task.id, words) for words in config.get("versions", ())}
        if args.json:
            needs, warnings = reader.needs(task.id), reader.warnings(task.id)
            detail = task_detail_json(own, needs, evals, newest, config, warnings)
            of_versions = {"measured": measured_json(measured)} if task.kind == "eval" else {}
            return output.result_json({**detail, "findings": findings_json(own), **of_versions})
        output.result(f"task {task.id}: {line(task.name)}")
        _tell(_fields(home, reader, task, own, policy, evals, newest))
    if task.kind == "eval":
        output.result("")
        output.result_table(*measured_table(measured))
    if newest:
        output.talk("`marlaas explain WORD` says what a line means: `marlaas explain gap`.")
    return output.OK


def _fields(
    home: Home,
    reader: Reader,
    task: TaskRow,
    own: TaskRow,
    policy: str | None,
    evals: Sequence[EvalRow],
    newest: StepRow | None,
) -> list[tuple[str, str]]:
    """``own``: the task with the shown policy's progress."""

    serving, config, engine = control.alive(home), reader.task_config(task.id), reader.engine()
    kept = reader.versions(task.id, kept=True)
    measures = newest.metrics if newest else {}
    shares = shares_of(config)
    allowed = config.get("queue", {}).get("retries", 0)
    fields = [
        ("tenant", line(task.tenant)),
        ("sweep", line(task.family)),
        ("environment", line(task.environment)),
        ("state", state_text(task, serving)),
        ("reason", line(shown_reason(task, serving))),
        ("lost", lost_words(task)),
        ("remedy", MENDED if task.state == "blocked" else ""),
        *(("warning", line(warning)) for warning in reader.warnings(task.id)),
        *findings(task),
        ("depends on", ", ".join(f"{row.id} ({line(row.name)}), {row.state}" for row in reader.needs(task.id))),
        ("priority", str(task.priority) if task.priority else ""),
        ("retried", f"{task.retried} of {allowed} times" if allowed or task.retried else ""),
        *(("policy", _policy(each, task.steps)) for each in task.policies),
        ("shown", f"{policy or task.trained[0]}; --policy shows another" if len(task.trained) > 1 else ""),
        ("measured", f"{task.step} of {task.steps}") if task.kind == "eval" else ("step", f"{own.step} of {own.steps}"),
        ("precision", line(engine.precision) if engine and (newest or task.state == "running") else ""),
        ("epoch", newest_text("epoch", measures) if newest else ""),
        ("reward", f"{score(own.reward)}  {sparkline(reader.rewards(task.id, policy=policy), 40)}".rstrip()),
        ("held-out", scores_in_words(evals)),
        ("measured on", rests_on(own.basis) if own.basis else ""),
        *(("component", words) for words in component_lines(shares, evals)),
        *held_out_lines([row for row in evals if row.suite not in shares]),
        ("best", score(own.best)),
        ("baseline", f"{score(own.floor)} (best constant answer)" if own.floor is not None else ""),
        ("adapter", own.adapter_version),
        ("on disk", f"{counted(len(kept), 'version')}, {size(sum(v.size for v in kept))}" if kept else ""),
        ("staleness", value_text("staleness", own.staleness)),
        ("tokens", count(own.tokens)),
        ("limits", limits(config)),
        ("running time", duration(task.seconds)),
        *(
            (words(name).title if words(name).meaning else line(name), newest_text(name, measures))
            for name in all_in_order(measures)
        ),
    ]
    return [field for field in fields if task.kind != "eval" or field[0] not in OF_ONE]


def _tell(fields: Sequence[tuple[str, str]]) -> None:
    first = {name: place for place, (name, _) in reversed(list(enumerate(fields)))}
    shown = [
        (name, value)
        for place, (name, value) in enumerate(fields)
        if value and value != "-" and (first[name] == place or name in REPEATED)
    ]
    width = min(_LABEL, max((cells(name) for name, _ in shown), default=0))
    for name, value in shown:
        output.fact(name, value, width)


def _policy(policy: PolicyRow, steps: int) -> str:
    words = [f"{policy.name} ({names(policy.agents)}), {kind(policy)}"]
    if policy.measured:
        return f"{line(policy.name)}, " + (f"held-out {score(policy.score)}" if policy.step else "not measured yet")
    if policy.trained:
        words += [
            f"step {policy.step} of {steps}",
            f"reward {score(policy.reward)}",
            f"held-out {held_out(policy.score, policy.basis)}",
        ]
    return ", ".join(words)


def scores_in_words(evals: Sequence[EvalRow]) -> str:
    """Scores of the newest series, the only comparable ones: all, or first, best and last of many."""

    shown = newest_series(evals)
    earlier = sum(not measured_on(row) for row in evals) - len(shown)
    picked = [(row, "") for row in shown]
    if len(shown) > _SCORES:
        best = max(shown, key=lambda row: float("-inf") if row.score is None else row.score)
        last = "best and last " if best is shown[-1] else "last "
        between = [(best, "best ")] if best is not shown[0] and best is not shown[-1] else []
        picked = [(shown[0], "best " if best is shown[0] else ""), *between, (shown[-1], last)]
    scores = ", ".join(f"{label}{scored_at(row.score, row, row.step, 'step')}" for row, label in picked)
    left_out = f"; {len(shown)} in all" if len(picked) < len(shown) else ""
    return f"{scores}{left_out}" + (f"; {earlier} of earlier series" if earlier else "")


NAMED = ("tenant", "name", "environment")
CELLS = 28
"""Cells of one value; ``marlaas show ID --json`` has all of it."""


def run_compare(home: Home, args: argparse.Namespace) -> int:
    """Print results and differences of tasks side by side."""
    with reading_tasks(home, args) as (reader, rows):
        shown = [face for row in rows for face in faces(args, row)]
        if len(shown) < 2:
            raise ConfigError("One task cannot be compared.", "Give two or more numbers, or a sweep with --family.")
        labels = [f"{row.id} {policy}".rstrip() for policy, row in shown]
        configs = [reader.task_config(row.id) for _, row in shown]
        series = [newest_key(reader.evals(row.id, policy or None)) for policy, row in shown]
        scores = [
            scored(reader, label, row.id, policy, args.best) for label, (policy, row) in zip(labels, shown, strict=True)
        ]
    differing = differences(configs, args.all)
    if args.json:
        tasks = [
            {**task_json(row), "policy": policy, "measured_on": on}
            for (policy, row), on in zip(shown, series, strict=True)
        ]
        return output.result_json({"tasks": tasks, "paired": pairs_json(scores), "config": differing})
    headers = ("TASK", *labels)
    against = ["", *(difference_text(compared(one, scores[0])) for one in scores[1:])]
    columns = [
        _results(row, on, one, how) for (_, row), on, one, how in zip(shown, series, scores, against, strict=True)
    ]
    output.result_table(headers, [(name, *(column[name] for column in columns)) for name in columns[0]], headers[1:])
    if any(compared(one, scores[0]).difference for one in scores[1:]):
        output.talk(NOTE.format(first=labels[0]))
        if args.best:
            output.talk(CHOSEN)
    if len({one.row.series for one in scores if one.row}) > 1:
        output.talk("Held-out scores of different series do not compare: other prompts, or graded by other code.")
    output.result("")
    cells = [(line(key, 40), *map(_value, values)) for key, values in differing.items() if key not in NAMED]
    if not cells:
        return output.done("Their configurations are the same.")
    return output.result_table(("KEY", *labels), cells, right=labels)


def _results(row: TaskRow, on: str, one: Scored, difference: str) -> dict[str, str]:
    """``on``: the series of its newest held-out score."""
    return {
        "tenant": line(row.tenant, CELLS),
        "name": short_name(row, CELLS),
        "environment": line(row.environment, CELLS),
        "series": line(on, 12) or "-",
        "state": line(row.state),
        "step": f"{row.step}/{row.steps}",
        "reward": score(row.reward),
        "held-out": with_error(row.score, row.basis),
        "measured on": rests_on(row.basis) if row.basis else "-",
        "best": score(row.best),
        "baseline": score(row.floor),
        "staleness": value_text("staleness", row.staleness),
        "tokens": count(row.tokens),
        "running time": duration(row.seconds),
        "compared by": f"{score(one.row.score)} at {one.row.step}" if one.row else "-",
        "difference": difference,
    }


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "-" if value is None else line(str(value), CELLS)


def run_wait(home: Home, args: argparse.Namespace) -> int:
    """Wait until tasks end, with progress on standard error; exit 0 only if all finished well."""
    with reading_tasks(home, args) as (reader, chosen):
        for task in chosen:
            if task.state == "paused" and not task.stuck:  # it may be resumed while this waits
                output.talk(f"Task {task.id} is paused; `marlaas resume {task.id}` goes on with it.")
        numbers = [task.id for task in chosen]
        follower = Follower.of(home, lambda: [find_task(reader, n) for n in numbers], **ways(output.is_plain()))
        tasks = follower.follow(args.timeout)
    if args.json:
        output.result_json([task_json(task) for task in tasks])
    for task in tasks:
        if task.stuck:
            output.complain(f"Task {task.id} is paused: {task.reason}", f"`marlaas resume {task.id}` goes on with it.")
    unfinished = [str(task.id) for task in tasks if task.unfinished and not task.stuck]
    if unfinished and args.timeout is not None:
        output.complain(f"Unfinished after {args.timeout:g} s: {', '.join(unfinished)}.")
    return output.OK if all(task.state == "done" for task in tasks) else output.FAILED


def run_watch(home: Home, args: argparse.Namespace) -> int:
    """Print changes until the given tasks have ended, or until Ctrl-C."""
    how = {"words": lambda task: output.json_line(task_json(task))} if args.json else ways(output.is_plain())
    how |= {"say": output.quote if args.json else output.result, "differs_by": milestone if args.quiet else None}
    if not args.tasks and not args.family:
        with reading(home) as reader:
            if reader is None:
                return output.done("No tasks yet. `marlaas submit FILE` adds one.")
            follower = Follower.of(home, lambda: moving(follower, reader), **how)
            watch_all(follower)
    with reading_tasks(home, args) as (reader, chosen):
        numbers = [task.id for task in chosen]
        follower = Follower.of(home, lambda: [find_task(reader, number) for number in numbers], **how)
        if not follower.alive():
            output.talk(NO_ENGINE)
        tasks = follower.follow()
    return output.OK if all(task.state == "done" for task in tasks) else output.FAILED


def watch_all(follower: Follower, interval: float = 1.0) -> NoReturn:
    """Print changes, and the engine's state, until interrupted."""
    output.talk("Watching all tasks; Ctrl-C ends the watching and no task.")
    lived = True
    while True:
        alive = follower.alive()
        if alive != lived:
            output.talk("An engine is alive." if alive else NO_ENGINE)
        lived = alive
        follower.poll()
        follower.sleep(interval)


def moving(follower: Follower, reader: Reader) -> list[TaskRow]:
    """Unfinished tasks, and those unfinished at the last report."""
    return [task for task in reader.tasks() if task.unfinished or follower.said(task.id)]


def register(verbs: Verbs) -> None:
    """Add the verbs."""
    add_verb(
        verbs,
        "list",
        list_tasks,
        "list tasks: all, or those that match",
        arg("--tenant", metavar="NAME", help="only of this tenant"),
        arg("--state", metavar="STATE", help="only in this state: running, queued, blocked, …"),
        arg("--family", metavar="NAME", help="only of this sweep"),
        arg("--filter", metavar="QUERY", default="", help=_FILTER),
        arg("--sort", metavar="FIELD", help="words from A, numbers from the largest; fields of --filter"),
        arg("--reverse", action="store_true", help="reverse the order"),
        json=True,
    )
    add_verb(
        verbs,
        "show",
        show_task,
        "show one task",
        add_task,
        add_policy,
        arg("--toml", action="store_true", help="print its task file, with every default: to change and submit"),
        json=True,
    )
    add_verb(
        verbs,
        "compare",
        run_compare,
        "show results of tasks and what they differ in, side by side",
        add_tasks,
        add_policy,
        arg("--all", action="store_true", help="all keys, also those that are the same everywhere"),
        arg("--best", action="store_true", help="by the best held-out score of each, not by its last"),
        json=True,
    )
    add_verb(
        verbs,
        "wait",
        run_wait,
        "wait until tasks have ended; exit 0 only if all are done",
        add_tasks,
        arg("--timeout", type=float, metavar="SECONDS", help="give up after this time (exit code 1)"),
        json=True,
    )
    add_verb(
        verbs,
        "watch",
        run_watch,
        "print a line for each change of tasks; ends when those that are given have ended",
        add_tasks,
        arg("--quiet", action="store_true", help="only new states, reasons and held-out scores, not each step"),
        arg("--json", action="store_true", help="print one JSON object per line"),
        epilog="Without a number it goes on until Ctrl-C, with all that is unfinished or comes in; with numbers it has"
        " the exit codes of `marlaas wait`.",
    )

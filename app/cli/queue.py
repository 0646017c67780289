"""Verbs that change the queue: submit, eval, extend, pause, resume, retry, cancel, tenants."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marlaas.engine.daemon import control
from marlaas.engine.errors import ConfigError, EnvironmentMissing
from marlaas.engine.home.paths import Home
from marlaas.engine.queue.submission import taskfile
from marlaas.engine.queue.submission.queue import find_environment
from marlaas.engine.queue.submission.taskfile import ToPlay, environments_of
from marlaas.engine.queue.submission.transitions import PAST, TRANSITIONS
from marlaas.engine.spec.task import LIMITS, agent_map_of, tenant_change
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import TenantRow, day_of
from marlaas.engine.store.submissions import Submission

from .. import output
from ..operations.commands import Follower, ask, send, steer, ways, why_tasks_wait, written
from ..operations.submitting import checked, enqueue, environment_of, evaluation_table, loaded
from ..reading import find_task, opened, reading
from ..text.format import count, counted, duration, line
from ..text.scores import measured_json, measured_table
from ..text.tasks import agent_map_lines
from .parser import Verbs, add_family, add_tasks, add_verb, arg, reading_tasks, whole

if TYPE_CHECKING:
    from marlaas.engine.environments.service import Peek

    from ..operations.estimating import Estimates


NAMED = 5


def run_submit(home: Home, args: argparse.Namespace) -> int:
    """Check every file and environment, start an engine if needed, insert."""
    files = loaded(home, args.files)
    submissions = [submission for file in files for submission in file]
    if args.check:
        return show(home, submissions, args.json)
    with reading(home) as reader:
        texts = {submission.source for submission in submissions}
        before = {text: list(reader.tasks_from(text)) if reader else [] for text in texts}
    ids = enqueue(home, submissions, notice=output.talk)
    again, warnings = _again(ids, files, before)
    if args.json:
        return output.result_json({"ids": ids, "submitted_before": {str(number): old for number, old in again.items()}})
    pairs = zip(ids, submissions, strict=True)
    for (tenant, family), group in groupby(pairs, key=lambda pair: (pair[1].spec.tenant, pair[1].family)):
        tasks = list(group)
        if family:
            numbers = f"tasks {tasks[0][0]} to {tasks[-1][0]}"
            output.result(f"{numbers}: {line(tenant)}/{line(family)}, a sweep of {counted(len(tasks), 'task')}")
            continue
        for number, submission in tasks:
            spec = submission.spec
            work = (
                f"{counted(spec.steps, 'version')} to measure" if spec.kind == "eval" else counted(spec.steps, "step")
            )
            output.result(f"task {number}: {line(tenant)}/{line(spec.name)}, {work}")
    for words in (*warnings, *_troubles(home, submissions)):
        output.talk(words)
    return output.done(why_tasks_wait(home) or "`marlaas` shows them; they go on when it is closed.")


def _again(
    ids: Sequence[int], files: Sequence[Sequence[Submission]], before: dict[str, list[int]]
) -> tuple[dict[int, list[int]], list[str]]:
    """Earlier tasks' numbers for each new task with a file submitted before, or twice now; and a warning a file."""
    again: dict[int, list[int]] = {}
    warnings, new = [], iter(ids)
    for file in files:
        numbers, earlier = [next(new) for _ in file], before[file[0].source]
        if earlier:
            again |= {number: list(earlier) for number in numbers}
            back = f"--family {shlex.quote(file[0].family)}" if file[0].family else str(numbers[0])
            named = f"task{'s' * (len(earlier) > 1)} {', '.join(map(str, earlier[:NAMED]))}"
            more = f" and {len(earlier) - NAMED} more" if len(earlier) > NAMED else ""
            warnings.append(
                f"{line(file[0].file)}: the same file waits or runs already, as {named}{more}. Both are in the queue;"
                f" `marlaas cancel {line(back)}` takes this one back."
            )
        earlier += numbers
    return again, warnings


def _troubles(home: Home, submissions: Sequence[Submission]) -> Iterator[str]:
    """Environments that fail whatever a model replies."""
    from ..operations.environments.peeking import troubles

    with reading(home) as reader:
        known = reader.environments() if reader else []
    for name, finding in troubles(home, submissions, known).items():
        yield f"{finding.level}: {line(name)}: {line(finding.message)} `marlaas env check {line(name)}` says more."


LOOKED_AT = 3


def show(home: Home, submissions: Sequence[Submission], as_json: bool) -> int:
    """Print tasks, estimates and prompts. Raises as ``submit``; writes nothing, starts no engine."""
    from ..operations.environments.peeking import peeked, prompt_lines
    from ..operations.estimating import estimate_all

    linked = checked(home, submissions)
    estimates = estimate_all(home, linked)
    first: dict[str, ToPlay] = {}
    for each in (each for submission in linked for each in environments_of(submission)):
        first.setdefault(each.name, each)
    looked_at = list(first.values())[:LOOKED_AT]
    peeks = [(each.name, peeked(home, each.name, each.config, data=each.data)) for each in looked_at]
    if as_json:
        return output.result_json(_json(linked, estimates, peeks))
    _print(linked, estimates)
    for name, peek in peeks:
        for number, prompt in enumerate(peek.asks, 1):
            output.result(f"\nprompt {number} of {line(name)}")
            for text in prompt_lines(prompt):
                output.result(f"  {text}")
        if peek.problem:
            output.talk(f"Its prompts cannot be shown: {line(peek.problem)}")
    return output.done(f"{counted(len(linked), 'task')} would be queued; nothing was changed.")


def _print(linked: Sequence[Submission], estimates: Estimates) -> None:
    """Tasks with equal cost share their lines."""
    from ..operations.estimating import rough, told

    after = [[*map(str, each.needs), *(linked[place].spec.name for place in each.after)] for each in linked]
    output.result_table(
        ("TENANT", "TASK", "ENVIRONMENT", "STEPS", "PRIORITY", "TIME", "AFTER"),
        [
            (
                submission.spec.tenant,
                submission.spec.name,
                submission.spec.played,
                str(submission.spec.steps),
                str(submission.spec.queue.priority),
                "?" if estimate.time is None else f"~{rough(estimate.time.seconds)}",
                line(", ".join(names), 80),
            )
            for submission, estimate, names in zip(linked, estimates.tasks, after, strict=True)
        ],
        right=("STEPS", "PRIORITY", "TIME"),
    )
    output.result("")
    for what, how_much in told(estimates, [submission.spec.played for submission in linked]):
        output.fact(what, how_much, 8, "")
    maps: dict[tuple[str, ...], list[str]] = {}
    for submission in linked:
        spec = submission.spec
        lines = agent_map_lines(agent_map_of(spec), spec.eval.rotate, list(spec.eval.agents.items()))
        maps.setdefault(tuple(lines), []).append(spec.name)
    for lines_of_map, tasks in maps.items():
        if lines_of_map:
            more = f" and {len(tasks) - 1} more" if len(tasks) > 1 else ""
            output.result("\n  ".join([f"\npolicies of {line(tasks[0])}{more}", *lines_of_map]))


def _json(submissions: Sequence[Submission], estimates: Estimates, peeks: Sequence[tuple[str, Peek]]) -> dict[str, Any]:
    from ..operations.estimating import as_json, task_json

    return {
        "tasks": [
            {
                "tenant": submission.spec.tenant,
                "name": submission.spec.name,
                "family": submission.family,
                "environment": submission.spec.played,
                "steps": submission.spec.steps,
                "priority": submission.spec.queue.priority,
                "config": submission.spec.to_json(),
                "depends_on": list(submission.needs),
                "after": [submissions[place].spec.name for place in submission.after],
                "estimate": task_json(estimate),
            }
            for submission, estimate in zip(submissions, estimates.tasks, strict=True)
        ],
        "estimate": as_json(estimates),
        "prompts": [
            {
                "environment": environment,
                "version": peek.info.version,
                "problem": peek.problem,
                "prompts": [asdict(prompt) for prompt in peek.asks],
            }
            for environment, peek in peeks
        ],
    }


# ``eval``: measures versions on held-out prompts, as a queued task that trains nothing.


def run_evaluate(home: Home, args: argparse.Namespace) -> int:
    """Queue the task; with ``--wait`` print its scores at the end."""
    with reading(home) as reader:
        table = _evaluation(args, reader)
    text = written(table)
    submissions = taskfile.tasks_of(taskfile.table_of(text, "the evaluation"), "the evaluation", Path.cwd(), text)
    if args.toml:
        print(text, end="")
        return output.OK
    (number,) = enqueue(home, submissions, notice=output.talk)
    if args.wait:
        return _wait(home, args, number)
    if args.json:
        return output.result_json({"ids": [number]})
    output.result(f"task {number}: {counted(len(args.versions), 'version')} to measure on {table['environment']}")
    return output.done(f"`marlaas wait {number}` waits for the scores, `marlaas show {number}` shows them.")


def _evaluation(args: argparse.Namespace, reader: Reader | None) -> dict[str, Any]:
    """The task file; parameters get the environment's types."""
    from .env import typed

    def given(*keys: str) -> dict[str, Any]:
        return {key: getattr(args, key) for key in keys if getattr(args, key) is not None}

    try:
        rows = reader.environments() if reader and args.config else []
        declared = find_environment(args.environment or environment_of(args.versions, reader), rows).parameters
    except EnvironmentMissing:
        declared = ()
    config = typed(args.config, {str(each["name"]): str(each["type"]) for each in declared})
    measure = given("prompts", "samples", "split", "temperature")
    measure |= {key: value for key, value in (("agents", dict(args.agents)), ("rotate", args.rotate)) if value}
    return evaluation_table(
        reader,
        args.versions,
        args.environment,
        config,
        args.tenant,
        args.name,
        measure,
        sampling=given("max_tokens"),
        queue=given("priority"),
    )


def _wait(home: Home, args: argparse.Namespace, number: int) -> int:
    with reading(home) as reader:
        (task,) = Follower.of(home, lambda: [find_task(reader, number)], **ways(output.is_plain())).follow()
        assert reader is not None
        rows = {words: reader.evals(number, words) for words in task.trained}
    if args.json:
        output.result_json({"ids": [number], "state": task.state, "measured": measured_json(rows)})
    else:
        output.result_table(*measured_table(rows))
    if task.state == "done":
        return output.OK
    output.complain(f"Task {number} is {task.state}: {task.reason}")
    return output.FAILED


NAMED_STEER = 20
_SUMMARIES = {
    "pause": "pause tasks; nothing is lost",
    "resume": "go on with paused tasks",
    "retry": "put failed or cancelled tasks back into the queue; they go on from their last commit",
    "cancel": "end tasks; their adapters stay",
}


def run_extend(home: Home, args: argparse.Namespace) -> int:
    """Ask the engine for each task; report refusals, extend the others."""

    if args.steps is None and args.priority is None:
        raise ConfigError("Nothing is to change.", "Give --steps or --priority.")
    with reading_tasks(home, args) as (_, tasks):
        control.ensure_running(home, notice=output.talk)
    refused = False
    for task in tasks:
        if args.steps is not None:
            steps = task.steps + args.steps
            refused |= _report(task.id, send(home, "extend", task.id, steps=steps), f"has {steps:,} steps")
        if args.priority is not None:
            outcome = send(home, "priority", task.id, priority=args.priority)
            refused |= _report(task.id, outcome, f"has priority {args.priority}")
    return output.USAGE if refused else output.OK


def _report(task: int, outcome: str, done: str) -> bool:
    """Print a command's outcome; True if it was refused."""
    if outcome:
        output.complain(f"Task {task}: {outcome}")
    else:
        output.talk(f"Task {task} {done}.")
    return bool(outcome)


def run_steer(kind: str, home: Home, args: argparse.Namespace) -> int:
    """Send one command per task at once, and wait for the outcomes.

    Of a sweep, only tasks in a state that the verb accepts.
    """
    with reading_tasks(home, args) as (reader, tasks):
        if args.family:
            named = {find_task(reader, word).id for word in args.tasks}
            moves = TRANSITIONS[kind]
            able = [task for task in tasks if task.id in named or moves.get(task.state, task.state) != task.state]
            if not able:
                states = ", ".join(sorted({task.state for task in tasks}))
                raise ConfigError(f"None of these tasks can be {PAST[kind]}: they are {states}.")
            tasks = able
        outcomes = steer(home, reader, kind, [task.id for task in tasks])
    done = sum(not outcome for outcome in outcomes.values())
    for number, outcome in outcomes.items():
        if outcome or done <= NAMED_STEER:
            _report(number, outcome, PAST[kind])
    if done > NAMED_STEER:
        output.talk(f"{done:,} tasks {PAST[kind]}.")
    return output.USAGE if any(outcomes.values()) else output.OK


def run_tenants(home: Home, args: argparse.Namespace) -> int:
    """Print tenants with shares and quotas."""
    with reading(home) as reader:
        tenants = reader.tenants(day_of(time.time())) if reader else []
    headers = ("TENANT", "WEIGHT", "RUNNING", "WAITING", "BLOCKED", "PAUSED", "FINISHED", "TOKENS TODAY", "TIME")
    empty = "No tenants yet. Submitting a task makes one, `marlaas tenants set NAME` sets one up before."
    return output.show(tenants, args.json, headers, _row, headers[1:], empty)


def _row(tenant: TenantRow) -> tuple[str, ...]:
    return (
        line(tenant.name, 32),
        f"{tenant.weight:g}",
        f"{tenant.running} of {tenant.tasks}" if tenant.tasks else str(tenant.running),
        str(tenant.waiting),
        str(tenant.blocked),
        str(tenant.paused),
        str(tenant.finished),
        count(tenant.tokens_today) + (f" of {count(tenant.tokens_per_day)}" if tenant.tokens_per_day else ""),
        duration(tenant.seconds),
    )


def run_set(home: Home, args: argparse.Namespace) -> int:
    """Have the engine, the only writer of tenants, change one."""
    given = {key: getattr(args, key) for key in LIMITS if getattr(args, key) is not None}
    name, changes = tenant_change({"name": args.name, **given})

    with reading(home) as reader:
        before = {tenant.name for tenant in (reader.tenants("") if reader else ())}
    arguments: dict[str, Any] = {"name": name, **changes}
    ask(home, "tenant", **arguments)
    with opened(home) as reader:
        tenant = next(tenant for tenant in reader.tenants("") if tenant.name == name)
    tasks = f"{tenant.tasks} at most" if tenant.tasks else "any number"
    tokens = f"{tenant.tokens_per_day:,} tokens a day" if tenant.tokens_per_day else "no quota of tokens"
    words = f"weight {tenant.weight:g}, tasks at the same time: {tasks}, {tokens}"
    return output.done(f"{'Tenant' if name in before else 'New tenant'} {line(name)}: {words}.")


def acting(text: str) -> tuple[str, str]:
    """An agent and the version that acts as it."""
    agent, _, version = text.partition("=")
    if not agent or not version:
        raise argparse.ArgumentTypeError(f"{text!r} is no AGENT=VERSION; write, for example, second=base")
    return agent, version


def number(text: str) -> float:
    """A number, whole if written so. Limits are checked elsewhere."""
    plain = text.replace(",", "").replace("_", "")
    return int(plain) if plain.lstrip("-").isdigit() else float(plain)


def register(verbs: Verbs) -> None:
    """Add the verbs."""
    add_verb(
        verbs,
        "submit",
        run_submit,
        "add task files to the queue, all or none",
        arg("files", type=Path, nargs="+", metavar="FILE", help="task files, in TOML"),
        arg("--check", action="store_true", help="print what would be queued and change nothing"),
        json=True,
    )
    add_verb(
        verbs,
        "eval",
        run_evaluate,
        "measure versions, the base or exported adapters on any environment, as a task that trains nothing",
        arg(
            "versions", nargs="+", metavar="VERSION", help="17@best, 17@12, a version's name, base, or a folder (./DIR)"
        ),
        arg("--environment", metavar="NAME", default="", help="what to measure on"),
        arg(
            "--set",
            "--config",
            dest="config",
            action="extend",
            nargs="+",
            default=[],
            metavar="NAME=VALUE",
            help="parameters of the environment, as in digits=3",
        ),
        arg("--prompts", type=int, metavar="N", help="held-out instances (default 64)"),
        arg("--samples", type=int, metavar="K", help="episodes of each, for avg@k, pass@k and best@k"),
        arg("--split", choices=("eval", "test"), help="which instances (default eval)"),
        arg("--temperature", type=float, metavar="T", help="of sampling (default 0: the likeliest token)"),
        arg("--max-tokens", type=int, metavar="N", help="of one turn"),
        arg(
            "--agents",
            type=acting,
            action="extend",
            nargs="+",
            default=[],
            metavar="AGENT=VERSION",
            help="who acts as an agent instead of the measured version, as in second=base",
        ),
        arg("--rotate", action="store_true", help="let the agents change places from prompt to prompt"),
        arg("--tenant", metavar="NAME", default="", help="whose task it is (default: the version's tenant)"),
        arg("--name", metavar="NAME", default="", help="what the task is called"),
        arg("--priority", type=int, metavar="N", help="among the tenant's tasks"),
        arg("--wait", action="store_true", help="wait for the scores and print them"),
        arg("--toml", action="store_true", help="print the task file instead: to change and submit"),
        json=True,
        epilog="What you leave out is as in the task of the first version: environment, configuration, rows, lengths.",
    )
    add_verb(
        verbs,
        "extend",
        run_extend,
        "give tasks more steps, or another priority; one that runs or is done goes on from its last commit",
        add_tasks,
        arg("--steps", type=whole(1, 999_999_999), metavar="N", help="how many more"),
        arg("--priority", type=int, metavar="N", help="place among the tenant's tasks; higher goes first"),
        epilog="More steps for a task that has begun need a constant learning rate: one that falls would rise again.",
    )
    for kind, summary in _SUMMARIES.items():
        add_verb(verbs, kind, partial(run_steer, kind), summary, add_tasks)
    below = add_family(verbs, "tenants", "list tenants, or set one's weight and quotas", run_tenants, json=True)
    add_verb(
        below,
        "set",
        run_set,
        "set a tenant's weight and quotas",
        arg("name", metavar="NAME", help="the tenant's name, as in task files"),
        arg("--weight", type=number, metavar="W", help="its share, next to the others' weights (default: 1)"),
        arg("--tasks", type=number, metavar="N", help="tasks that may run at the same time; 0: no quota"),
        arg("--tokens-per-day", type=number, metavar="N", help="tokens a day (UTC); 0: no quota"),
        epilog="It takes effect at once; the tenant need not have tasks yet.",
    )

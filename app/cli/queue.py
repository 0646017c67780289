"""Verbs that change the queue: submit, eval, extend, pause, resume, retry, cancel, tenants."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marlaas.engine.errors import ConfigError, EnvironmentMissing
from marlaas.engine.home.paths import Home
from marlaas.engine.queue.submission import taskfile
from marlaas.engine.queue.submission.queue import find_environment
from marlaas.engine.queue.submission.taskfile import ToPlay, environments_of
from marlaas.engine.queue.submission.transitions import PAST, TRANSITIONS
from marlaas.engine.spec.task import LIMITS, agent_map_of, tenant_change
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import TenantRow, day_of
from marlaas.engine.store.submissions import Submission, command

from .. import output
from ..operations.commands import Follower, ask, steer, unanswered, wait_for_outcomes, ways, why_tasks_wait, written
from ..operations.submitting import Wish, checked, enqueue, environment_of, evaluation_table, loaded
from ..reading import find_task, reading
from ..text.format import count, duration, line
from ..text.scores import measured_json, measured_table
from ..text.tasks import agent_map_lines
from .parser import Verbs, add_family, add_tasks, add_verb, arg, chosen, home_of, named

if TYPE_CHECKING:
    from marlaas.engine.environments.alone import Peek

    from ..operations.estimating import Estimates


# ``submit``: task files into the queue, all or none; with ``--check`` it explains what would be queued.

NAMED = 5
"""Numbers of tasks that a warning names."""


def run_submit(args: argparse.Namespace) -> int:
    """Check every file and environment, start the engine if need be, then insert."""

    home = home_of(args)
    files = loaded(home, args.files)
    submissions = [submission for file in files for submission in file]
    if args.check:
        return show(home, submissions, as_json=args.json)
    before = _submitted_before(home, submissions)
    ids = enqueue(home, submissions, notice=output.talk)
    again = _again(ids, files, before)
    if args.json:
        return output.result_json({"ids": ids, "submitted_before": {str(number): old for number, old in again.items()}})
    for (tenant, family), group in groupby(zip(ids, submissions, strict=True), key=lambda one: _family(one[1])):
        tasks = list(group)
        if family:
            words = f"a sweep of {len(tasks)} {'task' if len(tasks) == 1 else 'tasks'}"
            output.result(f"tasks {tasks[0][0]} to {tasks[-1][0]}: {line(tenant)}/{line(family)}, {words}")
            continue
        for number, submission in tasks:
            output.result(f"task {number}: {line(tenant)}/{line(submission.spec.name)}, {_work(submission)}")
    for words in (*_warnings(ids, files, again), *_troubles(home, submissions)):
        output.talk(words)
    return output.done(why_tasks_wait(home) or "`marlaas` shows them; they go on when it is closed.")


def _submitted_before(home: Home, submissions: Sequence[Submission]) -> dict[str, list[int]]:
    """The numbers of the tasks that wait or run and were made from the same files, by the files' texts."""

    texts = {submission.source for submission in submissions}
    with reading(home) as reader:
        return {text: reader.tasks_from(text) for text in texts} if reader else {}


def _again(
    ids: Sequence[int], files: Sequence[Sequence[Submission]], before: Mapping[str, Sequence[int]]
) -> dict[int, list[int]]:
    """Of each new task whose file was submitted before, or twice now: the numbers of the tasks made from it before."""
    known = {text: list(numbers) for text, numbers in before.items()}
    again, left = {}, iter(ids)
    for file in files:
        numbers = [next(left) for _ in file]
        earlier = known.setdefault(file[0].source, [])
        if earlier:
            again.update({number: list(earlier) for number in numbers})
        earlier += numbers
    return again


def _warnings(
    ids: Sequence[int], files: Sequence[Sequence[Submission]], again: Mapping[int, Sequence[int]]
) -> Iterator[str]:
    """A sentence for each file that is in the queue twice now, and how to take it back."""
    place = 0
    for file in files:
        first, place = ids[place], place + len(file)
        if old := again.get(first):
            back = f"--family {shlex.quote(file[0].family)}" if file[0].family else str(first)
            yield (
                f"{line(file[0].file)}: the same file waits or runs already, as {_numbers(old)}. Both are in the queue;"
                f" `marlaas cancel {line(back)}` takes this one back."
            )


def _troubles(home: Home, submissions: Sequence[Submission]) -> Iterator[str]:
    """A sentence for each environment that goes wrong whatever a model says."""
    from ..operations.environments.peeking import troubles

    with reading(home) as reader:
        known = reader.environments() if reader else []
    for name, finding in troubles(home, submissions, known).items():
        yield f"{finding.level}: {line(name)}: {line(finding.message)} `marlaas env check {line(name)}` says more."


def _numbers(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:NAMED]))
    more = f" and {len(numbers) - NAMED} more" if len(numbers) > NAMED else ""
    return f"task{'' if len(numbers) == 1 else 's'} {shown}{more}"


def _work(submission: Submission) -> str:
    """How much it is to do."""
    if submission.spec.kind == "eval":
        return f"{submission.spec.steps} {'version' if submission.spec.steps == 1 else 'versions'} to measure"
    return f"{submission.spec.steps} {'step' if submission.spec.steps == 1 else 'steps'}"


def _family(submission: Submission) -> tuple[str, str]:
    return submission.spec.tenant, submission.family


# ``submit --check``: what task files would put into the queue, what that would take, what the model would be asked.
#
# Checks as far as it can without an engine; writes nothing. The processes that show the prompts end with it.

LOOKED_AT = 3
"""Environments whose prompts are shown, of the first task of each."""


def show(home: Home, submissions: Sequence[Submission], as_json: bool) -> int:
    """Print the tasks, estimates and prompts. Raises what ``submit`` would raise; writes nothing, starts no engine."""

    from ..operations.environments.peeking import peeked
    from ..operations.estimating import estimate_all

    linked = checked(home, submissions)
    estimates = estimate_all(home, linked, output.talk)
    first: dict[str, ToPlay] = {}
    for submission in linked:
        for one in environments_of(submission):
            first.setdefault(one.name, one)
    looked = list(first.values())[:LOOKED_AT]
    peeks = [(one.name, peeked(home, one.name, one.config, data=one.data)) for one in looked]
    if as_json:
        return output.result_json(_json(linked, estimates, peeks))
    _print(linked, estimates)
    _print_agent_maps(linked)
    for name, peek in peeks:
        _print_prompts(name, peek)
    number = "1 task" if len(linked) == 1 else f"{len(linked):,} tasks"
    return output.done(f"{number} would be queued; nothing was changed.")


def _print(linked: Sequence[Submission], estimates: Estimates) -> None:
    from ..operations.estimating import time_cell, told

    output.result_table(
        ("TENANT", "TASK", "ENVIRONMENT", "STEPS", "PRIORITY", "TIME", "AFTER"),
        [
            (
                submission.spec.tenant,
                submission.spec.name,
                submission.spec.played,
                str(submission.spec.steps),
                str(submission.spec.queue.priority),
                time_cell(estimate),
                line(", ".join(_after(submission, linked)), 80),
            )
            for submission, estimate in zip(linked, estimates.tasks, strict=True)
        ],
        right=("STEPS", "PRIORITY", "TIME"),
    )
    output.result("")
    for what, how_much in told(estimates, [submission.spec.played for submission in linked]):
        output.fact(what, how_much, 8, "")


def _print_agent_maps(linked: Sequence[Submission]) -> None:
    """Print who acts as whom, once for all tasks of which that is the same."""

    told: dict[tuple[str, ...], list[str]] = {}
    for submission in linked:
        spec = submission.spec
        said = tuple(agent_map_lines(agent_map_of(spec), spec.eval.rotate, list(spec.eval.agents.items())))
        told.setdefault(said, []).append(submission.spec.name)
    for said, tasks in told.items():
        if said:
            more = f" and {len(tasks) - 1} more" if len(tasks) > 1 else ""
            output.result(f"\npolicies of {line(tasks[0])}{more}")
        for sentence in said:
            output.result(f"  {sentence}")


def _print_prompts(environment: str, peek: Peek) -> None:
    from ..operations.environments.peeking import prompt_lines

    for number, prompt in enumerate(peek.asks, 1):
        output.result(f"\nprompt {number} of {line(environment)}")
        for text in prompt_lines(prompt):
            output.result(f"  {text}")
    if peek.problem:
        output.talk(f"Its prompts cannot be shown: {line(peek.problem)}")


def _after(submission: Submission, submissions: Sequence[Submission]) -> list[str]:
    """What the task depends on: numbers of existing tasks, names of tasks submitted with it."""
    return [*map(str, submission.needs), *(submissions[place].spec.name for place in submission.after)]


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
                "depends_on": list(submission.needs),
                "after": [submissions[place].spec.name for place in submission.after],
                "estimate": task_json(estimate),
                "config": submission.spec.to_json(),
            }
            for submission, estimate in zip(submissions, estimates.tasks, strict=True)
        ],
        "estimate": as_json(estimates),
        "prompts": [
            {
                "environment": environment,
                "version": peek.info.version,
                "problem": peek.problem,
                "prompts": [asdict(ask) for ask in peek.asks],
            }
            for environment, peek in peeks
        ],
    }


# ``eval``: measures versions on held-out prompts, as a task of the queue that trains nothing.


def run_evaluate(args: argparse.Namespace) -> int:
    """Put the task into the queue; with ``--wait`` print its scores when it has ended."""

    home = home_of(args)
    with reading(home) as reader:
        table = evaluation_table(_wish(args, reader), reader)
    text = written(table)
    submissions = taskfile.tasks_of(taskfile.table_of(text, "the evaluation"), "the evaluation", Path.cwd(), text)
    if args.toml:
        print(text, end="")
        return output.OK
    (number,) = enqueue(home, submissions, notice=output.talk)
    if args.wait:
        return _wait(args, number)
    if args.json:
        return output.result_json({"ids": [number]})
    output.result(f"task {number}: {_counted(len(args.versions))} to measure on {table['environment']}")
    return output.done(f"`marlaas wait {number}` waits for the scores, `marlaas show {number}` shows them.")


def _wish(args: argparse.Namespace, reader: Reader | None) -> Any:

    keys = ("prompts", "samples", "split", "temperature")
    measure = {key: getattr(args, key) for key in keys if getattr(args, key) is not None}
    agents = _pairs(args.agents, "--agents")
    measure |= {"agents": agents} if agents else {}
    measure |= {"rotate": True} if args.rotate else {}
    return Wish(
        args.versions,
        args.environment,
        _config(args, reader),
        args.tenant,
        args.name,
        measure,
        {"max_tokens": args.max_tokens} if args.max_tokens is not None else {},
        {"priority": args.priority} if args.priority is not None else {},
    )


def _config(args: argparse.Namespace, reader: Reader | None) -> dict[str, Any]:
    """The environment's parameters, each of the type that the environment declares."""
    from marlaas.plugins.parameters import Parameter

    from .env import typed

    rows = reader.environments() if reader and args.config else []
    try:
        known = find_environment(args.environment or environment_of(args.versions, reader), rows).parameters
    except EnvironmentMissing:
        known = ()
    return typed(args.config, [Parameter(**{**one, "choices": tuple(one.get("choices", ()))}) for one in known])


def _pairs(said: list[str], option: str) -> dict[str, str]:

    pairs = {}
    for pair in said:
        name, equals, value = pair.partition("=")
        if not name or not equals or not value:
            raise ConfigError(f"{option} {pair!r} is no AGENT=VERSION.", "Write, for example, second=base.")
        pairs[name] = value
    return pairs


def _counted(versions: int) -> str:
    return "1 version" if versions == 1 else f"{versions} versions"


def _wait(args: argparse.Namespace, number: int) -> int:
    from marlaas.engine.daemon import control

    home = home_of(args)
    with reading(home) as reader:
        follower = Follower(
            read=lambda: [find_task(reader, number)],
            alive=lambda: control.alive(home),
            say=output.talk,
            **ways(output.is_plain()),
        )
        (task,) = follower.follow()
        assert reader is not None
        rows = {words: reader.evals(number, words) for words in task.trained}
    if args.json:
        output.result_json({"ids": [number], "state": task.state, "measured": measured_json(rows)})
    else:
        output.result_table(*measured_table(rows))
    if task.state != "done":
        output.complain(f"Task {number} is {task.state}: {task.reason}")
    return output.OK if task.state == "done" else output.FAILED


# ``extend``: more steps, or another priority, for tasks; the engine is asked, and started if need be.


def more(text: str) -> int:
    """An argument that is a number of steps to add."""
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of steps to add")
    return int(text)


def run_extend(args: argparse.Namespace) -> int:
    """Ask the engine for each task; refusals are reported, and the other tasks are extended all the same."""

    if args.steps is None and args.priority is None:
        raise ConfigError("Nothing is to change.", "Give --steps or --priority.")
    home, refused = home_of(args), False
    with reading(home) as reader:
        for number in chosen(args, reader):
            assert reader is not None
            changes = []
            if args.steps is not None:
                steps = find_task(reader, number).steps + args.steps
                changes.append(("extend", {"steps": steps}, f"{steps:,} steps"))
            if args.priority is not None:
                changes.append(("priority", {"priority": args.priority}, f"priority {args.priority}"))
            for kind, arguments, has in changes:
                outcome = ask(home, reader, kind, number, **arguments)
                refused |= bool(outcome)
                if outcome:
                    output.complain(f"Task {number}: {outcome}")
                else:
                    output.talk(f"Task {number} has {has}.")
    return output.USAGE if refused else output.OK


# ``pause``, ``resume``, ``retry`` and ``cancel``: asks the engine, and reports what it answered.

NAMED_STEER = 20
"""Tasks named one by one in a message; of more only the number is given."""
_SUMMARIES = {
    "pause": "pause tasks; nothing is lost",
    "resume": "go on with paused tasks",
    "retry": "put failed or cancelled tasks back into the queue; they go on from their last commit",
    "cancel": "end tasks; their adapters stay",
}


def run_steer(kind: str, args: argparse.Namespace) -> int:
    """Send one command per task, all at once, and wait for the outcomes."""

    home = home_of(args)
    with reading(home) as reader:
        numbers = chosen(args, reader)
        assert reader is not None
        if args.family:
            numbers = _able(reader, kind, numbers, named(args, reader))
        outcomes = steer(home, reader, kind, numbers)
    for number, outcome in outcomes.items():
        if outcome:
            output.complain(f"Task {number}: {outcome}")
    done = [number for number, outcome in outcomes.items() if not outcome]
    if len(done) > NAMED_STEER:
        output.talk(f"{len(done):,} tasks {PAST[kind]}.")
    else:
        for number in done:
            output.talk(f"Task {number} {PAST[kind]}.")
    return output.USAGE if any(outcomes.values()) else output.OK


def _able(reader: Reader, kind: str, numbers: Sequence[int], alone: Sequence[int]) -> list[int]:
    """The tasks that were named, and of a sweep those in a state from which the verb works: its members differ."""

    states = {task.id: task.state for task in reader.tasks()}
    able = [
        number
        for number in numbers
        if number in alone or TRANSITIONS[kind].get(states[number], states[number]) != states[number]
    ]
    if not able:
        found = ", ".join(sorted({states[number] for number in numbers}))
        raise ConfigError(f"None of these tasks can be {PAST[kind]}: they are {found}.")
    return able


# ``tenants``: who uses this home, with which share and quotas; ``tenants set`` asks the engine to change them.


def run_tenants(args: argparse.Namespace) -> int:
    """Print the tenants."""

    with reading(home_of(args)) as reader:
        tenants = reader.tenants(day_of(time.time())) if reader else []
    if args.json:
        return output.result_json([asdict(tenant) for tenant in tenants])
    if not tenants:
        return output.done(
            "No tenants yet. Submitting a task makes one, `marlaas tenants set NAME` sets one up before."
        )
    headers = ("TENANT", "WEIGHT", "RUNNING", "WAITING", "BLOCKED", "PAUSED", "FINISHED", "TOKENS TODAY", "TIME")
    return output.result_table(headers, [_row(tenant) for tenant in tenants], right=headers[1:])


def run_set(args: argparse.Namespace) -> int:
    """Start the engine if need be, which alone writes tenants, and report what it answered."""
    from marlaas.engine.daemon import control

    home = home_of(args)
    given = {key: getattr(args, key) for key in LIMITS if getattr(args, key) is not None}
    name, changes = tenant_change({"name": args.name, **given})
    control.ensure_running(home, notice=output.talk)
    with reading(home) as reader:
        assert reader is not None
        known = any(tenant.name == name for tenant in reader.tenants(""))
        sent = command(home.database, "tenant", None, name=name, **changes)
        outcome = wait_for_outcomes(reader, [sent]).get(sent)
        tenant = next((tenant for tenant in reader.tenants("") if tenant.name == name), None)
    if outcome is None:
        raise unanswered()
    if outcome or tenant is None:
        return output.refuse(outcome)
    return output.done(f"{'Tenant' if known else 'New tenant'} {line(name)}: {_in_words(tenant)}.")


def number(text: str) -> float:
    """A number, kept whole if it was written so. Its limits are checked elsewhere."""
    plain = text.replace(",", "").replace("_", "")
    return int(plain) if plain.lstrip("-").isdigit() else float(plain)


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


def _in_words(tenant: TenantRow) -> str:
    tasks = f"{tenant.tasks} at most" if tenant.tasks else "any number"
    tokens = f"{tenant.tokens_per_day:,} tokens a day" if tenant.tokens_per_day else "no quota of tokens"
    return f"weight {tenant.weight:g}, tasks at the same time: {tasks}, {tokens}"


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
        arg("--steps", type=more, metavar="N", help="how many more"),
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

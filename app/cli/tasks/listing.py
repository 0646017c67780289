"""``list`` and ``show``: the queue and one task, as text or JSON."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ... import output
from ...words.format import cells, count, duration, line, score, size, sparkline
from ...words.held_out import held_out, rests_on, scored_at, with_error
from ..choosing import add_policy, add_task, faces, policy_of
from ..verbs import Verbs, add_verb, home_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from marlaas.engine.home import Home
    from marlaas.engine.store import EvalRow, PolicyRow, StepRow, TaskRow, VersionRow

_FILTER = (
    'only those that match: state:running tenant:bio env:sums family:x name:"two words" id:17 reward>0.5 score>=0.3'
    " step<10; all must hold; ! or - before one negates it; a single word is searched for in name, tenant, environment"
)
_SCORES = 6
"""Most held-out scores that are all printed."""
OF_ONE = ("policy", "shown", "held-out", "measured on", "best", "baseline")
"""Lines that the table of an evaluation's versions makes needless."""
REPEATED = ("policy", "warning", "component", "finding", "evidence", "what to do", "rollouts")
"""Lines of which there may be several."""
_LABEL = 24
"""Cells that the names of a task's lines take at most; values begin below each other behind the longest."""
REASON_CELLS = 160
"""Cells of a reason in the list; `show` has all of it."""


def register(verbs: Verbs) -> None:
    """Add both verbs."""
    listing = add_verb(verbs, "list", list_tasks, "list tasks: all, or those that match", json=True)
    listing.add_argument("--tenant", metavar="NAME", help="only of this tenant")
    listing.add_argument("--state", metavar="STATE", help="only in this state: running, queued, blocked, …")
    listing.add_argument("--family", metavar="NAME", help="only of this sweep")
    listing.add_argument("--filter", metavar="QUERY", default="", help=_FILTER)
    listing.add_argument("--sort", metavar="FIELD", help="words from A, numbers from the largest; fields of --filter")
    listing.add_argument("--reverse", action="store_true", help="reverse the order")
    show = add_verb(verbs, "show", show_task, "show one task", json=True)
    add_task(show)
    add_policy(show)
    show.add_argument(
        "--toml", action="store_true", help="print its task file, with every default: to change and submit"
    )


def list_tasks(args: argparse.Namespace) -> int:
    """Print the queue."""
    from marlaas.engine.daemon import control

    from ...lists.filters import check_state, in_order, matches, parse
    from ...reading.opening import reading
    from ...words.tasks import family_summaries, queue_order, task_json

    home = home_of(args)
    with reading(home) as reader:
        everything = reader.tasks() if reader else []
    query = parse(args.filter)
    if args.state:
        check_state(args.state)
    tasks = [task for task in everything if _fits(task, args) and matches(query, task)]
    if args.sort:
        tasks = in_order(tasks, args.sort, args.reverse)
    elif not args.json:
        tasks = sorted(tasks, key=queue_order, reverse=args.reverse)
    serving = control.alive(home)
    if any(task.unfinished for task in tasks) and not serving:
        output.talk("No engine is alive; `marlaas engine start` goes on with the unfinished tasks.")
    if args.json:
        output.result_json([task_json(task) for task in tasks])
        return output.OK
    if everything and not tasks:
        output.talk(f"None of the {len(everything)} tasks matches.")
        return output.OK
    if not tasks:
        output.talk("No tasks yet. `marlaas submit FILE` adds one, `marlaas demo` shows three.")
        return output.OK
    output.result_table(
        ("ID", "TENANT", "TASK", "ENVIRONMENT", "STATE", "STEP", "REWARD", "HELD-OUT", "REASON"),
        [row for task in tasks for row in (_cells(task, serving), *_policies(task))],
        right=("ID", "STEP", "REWARD", "HELD-OUT"),
    )
    for text in family_summaries(tasks):
        output.talk(text)
    return output.OK


def _cells(task: TaskRow, serving: bool) -> tuple[str, ...]:
    from ...words.learning import state_text, why
    from ...words.tasks import short_name

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
    """Lines under a task that has several policies, one for each: who it is, for whom it speaks, how far it is."""
    from ...words.policies import kind, names

    for policy in task.policies:
        made = f"{policy.step}/{1 if policy.measured else task.steps}" if policy.trained else ""
        scores = (score(policy.reward), with_error(policy.score, policy.basis)) if policy.trained else ("", "")
        who = f"policy {line(policy.name)} of task {task.id}" if output.is_plain() else f"  {line(policy.name, 30)}"
        yield ("", "", who, line(names(policy.agents), 24), kind(policy), made, *scores, "")


def _fits(task: TaskRow, args: argparse.Namespace) -> bool:
    wanted = ((args.tenant, task.tenant), (args.state, task.state), (args.family, task.family))
    return all(want in (None, has) for want, has in wanted)


def show_task(args: argparse.Namespace) -> int:
    """Print one task."""
    from marlaas.engine.daemon import control

    from ...words.learning import findings_json
    from ...words.scores import measured_json, measured_table
    from ...words.tasks import task_detail_json

    home = home_of(args)
    read = _read(home, args)
    task, own = read.task, read.own
    if args.toml:
        from ...home.task_text import without_steps, written

        print(written(without_steps(read.config)), end="")
        return output.OK
    if args.json:
        measured_too = {"measured": measured_json(read.measured)} if task.kind == "eval" else {}
        detail = task_detail_json(own, read.needs, read.evals, read.newest, read.config, read.warnings)
        output.result_json({**detail, "findings": findings_json(own), **measured_too})
        return output.OK
    fields = _fields(read, control.alive(home))
    output.result(f"task {task.id}: {line(task.name)}")
    if task.kind == "eval":
        fields = [field for field in fields if field[0] not in OF_ONE]
    _tell(fields)
    if task.kind == "eval":
        output.result("")
        output.result_table(*measured_table(read.measured))
    if read.newest:
        output.talk("`marlaas explain WORD` says what a line means: `marlaas explain gap`.")
    return output.OK


@dataclass(frozen=True)
class _Read:
    """What the database has of one task."""

    task: TaskRow
    policy: str | None
    """The policy that the command line names, if it does."""
    own: TaskRow
    """The task with the progress of the policy that is shown."""
    evals: Sequence[EvalRow]
    config: dict[str, Any]
    needs: Sequence[TaskRow]
    warnings: Sequence[str]
    newest: StepRow | None
    rewards: Sequence[float]
    kept: Sequence[VersionRow]
    measured: dict[str, Sequence[EvalRow]]
    """Of an evaluation: the rows of each version, by the words of the task file."""
    precision: str
    """In which precision the newest engine samples and trains, in words."""


def _read(home: Home, args: argparse.Namespace) -> _Read:
    """Read the task that the command line names."""
    from ...reading.opening import find_task, reading

    with reading(home) as reader:
        task = find_task(reader, args.task)
        assert reader is not None
        policy, (_, own) = policy_of(args, task), faces(args, task)[0]
        config = reader.task_config(task.id)
        return _Read(
            task,
            policy,
            own,
            reader.evals(task.id, policy),
            config,
            reader.needs(task.id),
            reader.warnings(task.id),
            next(iter(reader.steps(task.id, own.step - 1, policy)), None),
            reader.rewards(task.id, policy=policy),
            reader.versions(task.id, kept=True),
            {words: reader.evals(task.id, words) for words in config.get("versions", ())},
            engine.precision if (engine := reader.engine()) else "",
        )


def _fields(read: _Read, serving: bool) -> list[tuple[str, str]]:
    """The lines about a task: names and values, of which those without a value are not shown."""
    from ...words.learning import fields as findings, state_text
    from ...words.lost import lost_words
    from ...words.metrics import all_in_order, newest_text, value_text
    from ...words.scores import component_lines, held_out_lines, shares_of
    from ...words.tasks import MENDED, limits, shown_reason

    task, own, evals, kept = read.task, read.own, read.evals, read.kept
    measures = read.newest.metrics if read.newest else {}
    shares = shares_of(read.config)
    return [
        ("tenant", line(task.tenant)),
        ("sweep", line(task.family)),
        ("environment", line(task.environment)),
        ("state", state_text(task, serving)),
        ("reason", line(shown_reason(task, serving))),
        ("lost", lost_words(task)),
        ("remedy", MENDED if task.state == "blocked" else ""),
        *(("warning", line(warning)) for warning in read.warnings),
        *findings(task),
        ("depends on", ", ".join(f"{needed.id} ({line(needed.name)}), {needed.state}" for needed in read.needs)),
        ("priority", str(task.priority) if task.priority else ""),
        ("retried", _tries(task, read.config)),
        *(("policy", _policy(each, task.steps)) for each in task.policies),
        ("shown", f"{read.policy or task.trained[0]}; --policy shows another" if len(task.trained) > 1 else ""),
        _made(task, own),
        ("precision", line(read.precision) if read.newest or task.state == "running" else ""),
        ("epoch", newest_text("epoch", measures) if read.newest else ""),
        ("reward", f"{score(own.reward)}  {sparkline(read.rewards, 40)}".rstrip()),
        ("held-out", scores_in_words(evals)),
        ("measured on", rests_on(own.basis) if own.basis else ""),
        *(("component", words) for words in component_lines(shares, evals)),
        *held_out_lines([row for row in evals if row.suite not in shares]),
        ("best", score(own.best)),
        ("baseline", f"{score(own.floor)} (best constant answer)" if own.floor is not None else ""),
        ("adapter", own.adapter_version),
        ("on disk", f"{len(kept)} version{'s' * (len(kept) > 1)}, {size(sum(v.size for v in kept))}" if kept else ""),
        ("staleness", value_text("staleness", own.staleness)),
        ("tokens", count(own.tokens)),
        ("limits", limits(read.config)),
        ("running time", duration(task.seconds)),
        *((_metric(name), newest_text(name, measures)) for name in all_in_order(measures)),
    ]


def _tell(fields: Sequence[tuple[str, str]]) -> None:
    """Print the fields that have a value, each once, with all values below each other."""
    first = {name: place for place, (name, _) in reversed(list(enumerate(fields)))}
    shown = [
        (name, value)
        for place, (name, value) in enumerate(fields)
        if value and value != "-" and (first[name] == place or name in REPEATED)
    ]
    width = min(_LABEL, max((cells(name) for name, _ in shown), default=0))
    for name, value in shown:
        output.fact(name, value, width)


def _metric(name: str) -> str:
    """A metric's name in the catalogue; one that is not there is whole, where a list would cut it."""
    from ...words.metrics import words

    return words(name).title if words(name).meaning else line(name)


def _made(task: TaskRow, own: TaskRow) -> tuple[str, str]:
    """How far it is: versions that are measured, or steps of the policy that is shown."""
    if task.kind == "eval":
        return "measured", f"{task.step} of {task.steps}"
    return "step", f"{own.step} of {own.steps}"


def _policy(policy: PolicyRow, steps: int) -> str:
    """One of several policies in a line."""
    from ...words.policies import kind, names

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
    """The scores of the newest series, which alone compare: all, or the first, the best and the last of many."""
    from ...words.tasks import measured_on, newest_series

    shown = newest_series(evals)
    earlier = sum(not measured_on(row) for row in evals) - len(shown)
    picked = [(row, "") for row in shown]
    if len(shown) > _SCORES:
        best = max(shown, key=lambda row: float("-inf") if row.score is None else row.score)
        last = "best and last " if best is shown[-1] else "last "
        between = [(best, "best ")] if best is not shown[0] and best is not shown[-1] else []
        picked = [(shown[0], "best " if best is shown[0] else ""), *between, (shown[-1], last)]
    scores = ", ".join(f"{label}{scored_at(row.score, row.basis, row.step, 'step')}" for row, label in picked)
    left_out = f"; {len(shown)} in all" if len(picked) < len(shown) else ""
    return f"{scores}{left_out}" + (f"; {earlier} of earlier series" if earlier else "")


def _tries(task: TaskRow, config: dict[str, Any]) -> str:
    allowed = config.get("queue", {}).get("retries", 0)
    return f"{task.retried} of {allowed} times" if allowed or task.retried else ""

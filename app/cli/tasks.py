"""Verbs that look at tasks: list, show, compare, watch, wait."""

from __future__ import annotations

import argparse
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from marlaas.engine.errors import ConfigError
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import EvalRow, PolicyRow, StepRow, TaskRow, VersionRow

from .. import output
from ..lists.filters import check_state, in_order, matches, parse
from ..operations.commands import Follower, milestone, ways, without_steps, written
from ..operations.results import CHOSEN, NOTE, Scored, compared, difference_text, pairs_json, scored
from ..operations.settings_file import differences
from ..reading import find_task, reading
from ..text.format import cells, clip, count, duration, line, score, size, sparkline
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
from .parser import Verbs, add_policy, add_task, add_tasks, add_verb, arg, chosen, faces, home_of, policy_of

# ``list`` and ``show``: the queue and one task, as text or JSON.

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


def list_tasks(args: argparse.Namespace) -> int:
    """Print the queue."""
    from marlaas.engine.daemon import control

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
        return output.result_json([task_json(task) for task in tasks])
    if everything and not tasks:
        return output.done(f"None of the {len(everything)} tasks matches.")
    if not tasks:
        return output.done("No tasks yet. `marlaas submit FILE` adds one, `marlaas demo` shows three.")
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
    """Lines under a task that has several policies, one for each: who it is, for whom it speaks, how far it is."""

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

    home = home_of(args)
    read = _read(home, args)
    task, own = read.task, read.own
    if args.toml:
        print(written(without_steps(read.config)), end="")
        return output.OK
    if args.json:
        measured_too = {"measured": measured_json(read.measured)} if task.kind == "eval" else {}
        detail = task_detail_json(own, read.needs, read.evals, read.newest, read.config, read.warnings)
        return output.result_json({**detail, "findings": findings_json(own), **measured_too})
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
    """A metric's name in the catalogue; one that is not there is whole, if a list would cut it."""

    return words(name).title if words(name).meaning else line(name)


def _made(task: TaskRow, own: TaskRow) -> tuple[str, str]:
    """How far it is: versions that are measured, or steps of the policy that is shown."""
    if task.kind == "eval":
        return "measured", f"{task.step} of {task.steps}"
    return "step", f"{own.step} of {own.steps}"


def _policy(policy: PolicyRow, steps: int) -> str:
    """One of several policies in a line."""

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


# ``compare``: what tasks have come to, and in what they differ, side by side.

NAMED = ("tenant", "name", "environment")
"""Keys left out of the comparison: the table of results has them."""
CELLS = 28
"""Cells of one value; `marlaas show ID --json` has all of it."""


@dataclass(frozen=True)
class Compared:
    """One task of the comparison, or one of the policies that it trains."""

    row: TaskRow
    policy: str
    """Empty if the task has only one."""
    config: dict[str, Any]
    measured_on: str
    """The series of its newest held-out score; scores of different series do not compare."""


def run_compare(args: argparse.Namespace) -> int:
    """Print both tables."""

    with reading(home_of(args)) as reader:
        numbers = chosen(args, reader)
        assert reader is not None
        shown = [face for number in numbers for face in faces(args, find_task(reader, number))]
        if len(shown) < 2:
            raise ConfigError("One task cannot be compared.", "Give two or more numbers, or a sweep with --family.")
        tasks = [_compared(reader, policy, row) for policy, row in shown]
        scores = [scored(reader, _label(task), task.row.id, task.policy, args.best) for task in tasks]
    rows = differences([task.config for task in tasks], args.all)
    if args.json:
        return output.result_json(
            {"tasks": [_json(task) for task in tasks], "paired": pairs_json(scores), "config": rows}
        )
    headers = ("TASK", *map(_label, tasks))
    against = ["", *(difference_text(compared(one, scores[0])) for one in scores[1:])]
    cells = [
        [*_results(task), ("compared by", _step(one)), ("difference", how)]
        for task, one, how in zip(tasks, scores, against, strict=True)
    ]
    results = list(zip(*cells, strict=True))
    output.result_table(headers, [(cells[0][0], *(text for _, text in cells)) for cells in results], right=headers[1:])
    if any(compared(one, scores[0]).difference for one in scores[1:]):
        output.talk(NOTE.format(first=headers[1]))
        if args.best:
            output.talk(CHOSEN)
    if len({one.row.series for one in scores if one.row}) > 1:
        output.talk("Held-out scores of different series do not compare: other prompts, or graded by other code.")
    output.result("")
    if not rows.keys() - set(NAMED):
        return output.done("Their configurations are the same.")
    differing = [(line(key, 40), *map(_value, values)) for key, values in rows.items() if key not in NAMED]
    return output.result_table(("KEY", *headers[1:]), differing, right=headers[1:])


def _label(task: Compared) -> str:
    return f"{task.row.id} {task.policy}".rstrip()


def _step(one: Scored) -> str:
    """The score by which a task is compared, as the table shows it."""
    return f"{score(one.row.score)} at {one.row.step}" if one.row else "-"


def _compared(reader: Reader, policy: str, row: TaskRow) -> Compared:

    evals = reader.evals(row.id, policy or None)
    return Compared(row, policy, reader.task_config(row.id), newest_key(evals))


def _results(task: Compared) -> list[tuple[str, str]]:

    row = task.row
    return [
        ("tenant", line(row.tenant, CELLS)),
        ("name", short_name(row, CELLS)),
        ("environment", line(row.environment, CELLS)),
        ("series", line(task.measured_on, 12) or "-"),
        ("state", line(row.state)),
        ("step", f"{row.step}/{row.steps}"),
        ("reward", score(row.reward)),
        ("held-out", with_error(row.score, row.basis)),
        ("measured on", rests_on(row.basis) if row.basis else "-"),
        ("best", score(row.best)),
        ("baseline", score(row.floor)),
        ("staleness", value_text("staleness", row.staleness)),
        ("tokens", count(row.tokens)),
        ("running time", duration(row.seconds)),
    ]


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "-" if value is None else line(str(value), CELLS)


def _json(task: Compared) -> dict[str, Any]:

    return {**task_json(task.row), "policy": task.policy, "measured_on": task.measured_on}


# Tells a person at a terminal what is being loaded, and for how many seconds by now.
#
# One line of standard error, which is written over each second and is gone in the end. With ``--plain`` it is a line
# at the beginning and one every ten seconds. In a pipe or a file, if nobody watches, it is silent or a line.

_INTERVAL = 1.0
_HEARD = 10.0
"""Seconds between two lines for somebody who hears them."""


class Waiting:
    """Shows ``what`` from ``begin`` until ``end``, or while a block runs. ``what``: Loading arithmetic."""

    def __init__(self, what: str, piped: bool = False) -> None:
        """``piped``: whether a pipe gets a line as well."""
        self._what = line(what)
        self._piped = piped
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._began = 0.0
        self._drawn = 0
        """Cells of the line that is shown."""

    def __enter__(self) -> Waiting:
        self.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    def begin(self) -> None:
        """Show it at once, and go on in a thread that does not outlive the program."""
        self._began = time.monotonic()
        if not sys.stderr.isatty():
            self._ended.set()
            if self._piped:
                output.talk(f"{self._what} …")
            return
        self._draw()
        threading.Thread(target=self._run, name="waiting", daemon=True).start()

    def end(self) -> None:
        """Remove the line; may be called again."""
        with self._lock:
            self._ended.set()
            self._wipe()

    def say(self, text: str) -> None:
        """Print its own line above it."""
        with self._lock:
            self._wipe()
            output.talk(text)
        if not self._ended.is_set() and not output.is_plain():
            self._draw()

    def _run(self) -> None:
        while not self._ended.wait(_HEARD if output.is_plain() else _INTERVAL):
            self._draw()

    def _draw(self) -> None:
        if output.is_plain():
            self._tell()
            return
        seconds = int(time.monotonic() - self._began)
        room = shutil.get_terminal_size().columns - 1
        text = clip(f"{self._what} …{f' {seconds} s' if seconds else ''}", room)
        with self._lock:
            if self._ended.is_set():
                return
            self._wipe()
            self._drawn = cells(text)
            print(text, end="", file=sys.stderr, flush=True)

    def _tell(self) -> None:
        seconds = int(time.monotonic() - self._began)
        with self._lock:
            if not self._ended.is_set():
                output.talk(f"{self._what}: {seconds} seconds so far." if seconds else f"{self._what} ...")

    def _wipe(self) -> None:
        if self._drawn:
            print(f"\r{' ' * self._drawn}\r", end="", file=sys.stderr, flush=True)
            self._drawn = 0


# ``wait``: until tasks have ended; exit 0 only if all of them finished well.


def run_wait(args: argparse.Namespace) -> int:
    """Wait, with progress on standard error."""
    from marlaas.engine.daemon import control

    home = home_of(args)
    with reading(home) as reader:
        wanted = chosen(args, reader)
        for task in (find_task(reader, number) for number in wanted):
            if task.state == "paused" and not task.stuck:  # it may be resumed while this waits
                output.talk(f"Task {task.id} is paused; `marlaas resume {task.id}` goes on with it.")
        follower = Follower(
            read=lambda: [find_task(reader, number) for number in wanted],
            alive=lambda: control.alive(home),
            say=output.talk,
            **ways(output.is_plain()),
        )
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


# ``watch``: tasks as lines of text, one for each change; the way to follow them without a screen, or by ear.
#
# The lines go to standard output, because they are what was asked for.

NO_ENGINE = "No engine is alive; `marlaas engine start` goes on with the unfinished tasks."


def run_watch(args: argparse.Namespace) -> int:
    """Print changes until the given tasks have ended, or until Ctrl-C."""
    from marlaas.engine.daemon import control

    home = home_of(args)
    with reading(home) as reader:
        wanted = chosen(args, reader) if args.tasks or args.family else None
        if reader is None:
            return output.done("No tasks yet. `marlaas submit FILE` adds one.")
        follower = Follower(
            read=lambda: moving(follower, reader) if wanted is None else [find_task(reader, n) for n in wanted],
            alive=lambda: control.alive(home),
            say=output.quote if args.json else output.result,
            differs_by=milestone if args.quiet else None,
            **({"words": _json_of_watch} if args.json else ways(output.is_plain())),
        )
        if wanted is None:
            watch_all(follower)
        if not control.alive(home):
            output.talk(NO_ENGINE)
        tasks = follower.follow()
    return output.OK if all(task.state == "done" for task in tasks) else output.FAILED


def watch_all(follower: Follower, interval: float = 1.0) -> None:
    """Print what changes, and whether an engine is alive, until interrupted."""
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
    """The unfinished tasks, and those that were unfinished when last reported."""
    return [task for task in reader.tasks() if task.unfinished or follower.said(task.id)]


def _json_of_watch(task: TaskRow) -> str:

    return output.json_line(task_json(task))


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

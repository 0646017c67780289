"""``submit``: task files into the queue, all or none; with ``--check`` it says what would be queued."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from ... import output
from ...words.format import line
from ..verbs import Verbs, add_verb, home_of

if TYPE_CHECKING:
    from marlaas.engine.home import Home
    from marlaas.engine.store import Submission

NAMED = 5
"""Numbers of tasks that a warning names."""


def register(verbs: Verbs) -> None:
    """Add the verb."""
    submit = add_verb(verbs, "submit", run, "add task files to the queue, all or none", json=True)
    submit.add_argument("files", type=Path, nargs="+", metavar="FILE", help="task files, in TOML")
    submit.add_argument("--check", action="store_true", help="print what would be queued and change nothing")


def run(args: argparse.Namespace) -> int:
    """Check every file and environment, start the engine if need be, then insert."""
    from ...home.submitting import enqueue, loaded
    from ...home.yielding import why_tasks_wait

    home = home_of(args)
    files = loaded(home, args.files)
    submissions = [submission for file in files for submission in file]
    if args.check:
        from .submit_check import show

        return show(home, submissions, as_json=args.json)
    before = _submitted_before(home, submissions)
    ids = enqueue(home, submissions, notice=output.talk)
    again = _again(ids, files, before)
    if args.json:
        output.result_json({"ids": ids, "submitted_before": {str(number): old for number, old in again.items()}})
        return output.OK
    for (tenant, family), group in groupby(zip(ids, submissions, strict=True), key=lambda one: _family(one[1])):
        tasks = list(group)
        if family:
            words = f"a sweep of {len(tasks)} {'task' if len(tasks) == 1 else 'tasks'}"
            output.result(f"tasks {tasks[0][0]} to {tasks[-1][0]}: {line(tenant)}/{line(family)}, {words}")
            continue
        for number, submission in tasks:
            output.result(f"task {number}: {line(tenant)}/{line(submission.name)}, {_work(submission)}")
    for words in (*_warnings(ids, files, again), *_troubles(home, submissions)):
        output.talk(words)
    output.talk(why_tasks_wait(home) or "`marlaas` shows them; they go on when it is closed.")
    return output.OK


def _submitted_before(home: Home, submissions: Sequence[Submission]) -> dict[str, list[int]]:
    """The numbers of the tasks that wait or run and were made from the same files, by the files' texts."""
    from ...reading.opening import reading

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
    from ...home.environments.peeking import troubles
    from ...reading.opening import reading

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
    if submission.config["kind"] == "eval":
        return f"{submission.steps} {'version' if submission.steps == 1 else 'versions'} to measure"
    return f"{submission.steps} {'step' if submission.steps == 1 else 'steps'}"


def _family(submission: Submission) -> tuple[str, str]:
    return submission.tenant, submission.family

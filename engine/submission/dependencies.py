"""Resolves the names in ``depends_on`` to tasks, and refuses circular dependencies. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from ..errors import ConfigError, Mistakes, UnknownTask
from ..spec import nearest
from ..store import KnownTask, Submission
from .mistakes import of_submission

MOST = 10_000
"""The most dependencies of one submission: a sweep of m tasks that depends on one of n has m * n."""


@dataclass(frozen=True)
class Meaning:
    """The tasks that one entry of ``depends_on`` means."""

    needs: Sequence[int] = ()
    """Numbers of tasks of the home."""
    after: Sequence[int] = ()
    """Places of tasks in the same submission."""


def link(submissions: Sequence[Submission], known: Sequence[KnownTask]) -> list[Submission]:
    """Fill in the tasks that each submission depends on.

    A number is a task of the home. A name means every task or sweep of that name and of the same tenant among these
    submissions; if there is none, the newest in the home. Raises ``UnknownTask``, and ``ConfigError`` for circles and
    for more than ``MOST`` dependencies.
    """
    numbers = {task.id for task in known}
    meanings: dict[tuple[str, str | int], Meaning] = {}  # a cache: the members of a sweep all have the same entries
    linked = []
    mistakes = Mistakes()
    for submission in submissions:
        own = []
        for place, wanted in enumerate(submission.config["queue"]["depends_on"]):
            said = (submission.tenant, wanted)
            if said not in meanings:
                try:
                    meanings[said] = _meaning(submission, wanted, submissions, known, numbers)
                except UnknownTask as error:
                    error.path = f"queue.depends_on[{place}]"
                    mistakes.found += of_submission(error, submission)
                    meanings[said] = Meaning()
            own.append(meanings[said])
        needs = dict.fromkeys(number for meaning in own for number in meaning.needs)
        after = dict.fromkeys(place for meaning in own for place in meaning.after)
        linked.append(replace(submission, needs=tuple(needs), after=tuple(after)))
    mistakes.refuse()
    total = sum(len(submission.needs) + len(submission.after) for submission in linked)
    if total > MOST:
        raise ConfigError(f"These tasks have {total:,} dependencies; at most {MOST:,} are allowed.")
    _refuse_circles(linked)
    return linked


def family_of(tasks: Iterable[KnownTask], name: str) -> list[KnownTask]:
    """The members of the newest sweep of that name; a sweep's tasks enter the queue at the same moment."""
    members = [task for task in tasks if task.family == name]
    newest = max((task.created for task in members), default=0.0)
    return [task for task in members if task.created == newest]


def _meaning(
    submission: Submission,
    wanted: str | int,
    submissions: Sequence[Submission],
    known: Sequence[KnownTask],
    numbers: Set[int],
) -> Meaning:
    if isinstance(wanted, str):
        after = _beside(submission, wanted, submissions)
        return Meaning(after=after) if after else Meaning(needs=_newest(submission, wanted, known))
    if wanted not in numbers:
        raise UnknownTask(
            f"{submission.name!r} depends on task {wanted}, which does not exist.", "`marlaas list` shows the tasks."
        )
    return Meaning(needs=[wanted])


def _beside(submission: Submission, name: str, submissions: Sequence[Submission]) -> list[int]:
    """Places of the tasks of that name in this submission."""
    return [
        place
        for place, other in enumerate(submissions)
        if other.tenant == submission.tenant and name in (other.name, other.family)
    ]


def _newest(submission: Submission, name: str, known: Sequence[KnownTask]) -> list[int]:
    own = [task for task in known if task.tenant == submission.tenant]
    newest = max((task for task in own if name in (task.name, task.family)), key=lambda task: task.id, default=None)
    if newest is None:
        names = {word for task in own for word in (task.name, task.family) if word}
        raise UnknownTask(
            f"{submission.name!r} depends on {name!r}, but tenant {submission.tenant!r} has no task of that name.",
            nearest(name, sorted(names)) if names else "Give its file to the same `marlaas submit`.",
        )
    return [newest.id] if newest.name == name else [task.id for task in family_of(own, name)]


def _refuse_circles(submissions: Sequence[Submission]) -> None:
    """Raise where tasks wait for each other, naming them in the order in which they wait."""
    finished: set[int] = set()
    for start in range(len(submissions)):
        trail: dict[int, Iterator[int]] = {start: iter(submissions[start].after)}
        while trail:
            here = next(reversed(trail))
            following = next((place for place in trail[here] if place not in finished), None)
            if following is None:
                finished.add(here)
                trail.pop(here)
            elif following in trail:
                raise _circle([*_since(trail, following), following], submissions)
            else:
                trail[following] = iter(submissions[following].after)


def _since(trail: Mapping[int, object], place: int) -> list[int]:
    places = list(trail)
    return places[places.index(place) :]


def _circle(places: Sequence[int], submissions: Sequence[Submission]) -> ConfigError:
    names = [repr(submissions[place].name) for place in places]
    if len(names) == 2:
        return ConfigError(
            f"The task {names[0]} depends on itself.", "An earlier task of that name goes by its number."
        )
    return ConfigError(f"These tasks wait for each other: {' -> '.join(names)}.", "Leave one of the dependencies out.")

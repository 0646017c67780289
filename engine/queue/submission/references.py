"""References of a task file: tasks by number or name, versions, folders, and dependencies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import Any, Protocol

from ...errors import AdapterError, ConfigError, MarlaasError, Mistakes, ReferenceMissing, UnknownTask
from ...spec.rules import inside
from ...spec.task import BASE, TaskSpec, agent_map_of, parse, start_folder
from ...spec.validation import nearest
from ...store.rows import KnownTask, VersionRow
from ...store.submissions import Borrowed, Submission
from .taskfile import of_submission

# Finds a task by number or name. Pure.
#
# Numbers always mean tasks; a name means a task of any tenant, and TENANT/NAME one of that tenant.

NAMED = 10
SHOWS = "`marlaas list` shows the tasks."


def task_number(said: int | str, known: Sequence[KnownTask]) -> int:
    """The number of the task ``said``.

    Raises ``UnknownTask`` if there is none, and ``ConfigError`` with the numbers if there are several.
    """
    if isinstance(said, int):
        if any(task.id == said for task in known):
            return said
        raise UnknownTask(f"There is no task {said}.", SHOWS)
    found = [task for task in known if said in (task.name, f"{task.tenant}/{task.name}")]
    if len(found) == 1:
        return found[0].id
    if found:
        hint = f"Give a number: {max(task.id for task in found)} is the newest."
        raise ConfigError(f"Several tasks are named {said!r}: {_listed([task.id for task in found])}.", hint)
    sweep = [task.id for task in known if said in (task.family, f"{task.tenant}/{task.family}") and task.family]
    if sweep:
        hint = f"Give one of its tasks, {_listed(sweep)}; verbs that take several tasks have --family."
        raise UnknownTask(f"{said!r} is a sweep, not a task.", hint)
    meant = nearest(said, sorted({task.name for task in known}))
    raise UnknownTask(f"There is no task {said!r}.", f"{meant} {SHOWS}" if meant.startswith("Did you mean") else SHOWS)


def _listed(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:NAMED]))
    return f"{shown} and {len(numbers) - NAMED} more" if len(numbers) > NAMED else shown


# Finds a version by a task's number or name, by its own name, and by ``--version``.
#
# Pure. Raises ``AdapterError`` if there is none, and ``ConfigError`` if the words are ambiguous.

LONGEST_NUMBER = 18


def choose(versions: list[VersionRow], adapter: str, which: str | None) -> VersionRow:
    """The version for ``adapter``, a task's number or name or a version's name, and ``which`` (``--version``)."""
    named = named_by(versions, adapter)
    policies = list(dict.fromkeys(v.policy for v in named))
    if len(policies) > 1:
        raise ConfigError(
            f"The task {adapter!r} has the policies {', '.join(policies)}.", f"Say which: {adapter}/{policies[-1]}."
        )
    kept = sorted((v for v in named if v.state == "committed"), key=lambda v: v.number)
    wanted = _pick(kept, which)
    if wanted is None:
        numbers = ", ".join(str(v.number) for v in kept) or "none"
        version = f"version {which!r}" if which else "version"
        raise AdapterError(f"Adapter {adapter!r} has no {version} on disk.", f"On disk: {numbers}.")
    return wanted


def choose_at(versions: list[VersionRow], said: str) -> VersionRow:
    """The version for an adapter as in ``choose``, with or without @VERSION behind it."""
    adapter, _, which = said.partition("@")
    return choose(versions, adapter, which or None)


def named_by(versions: list[VersionRow], adapter: str) -> list[VersionRow]:
    """All versions of a task's number or name, or the one of that name; they belong to one task.

    /POLICY behind it selects one policy of the task.
    """
    found = [v for v in versions if v.name == adapter] or _of_task(versions, adapter)
    if not found:
        whose, _, policy = adapter.rpartition("/")
        found = [v for v in _of_task(versions, whose) if v.policy == policy]
    if not found:
        raise AdapterError(f"There is no adapter {adapter!r}.", "`marlaas adapters list` shows them.")
    if len({v.task for v in found}) > 1:
        numbers = ", ".join(str(number) for number in sorted({v.task for v in found}))
        raise ConfigError(f"Several tasks are named {adapter!r}: {numbers}.", "Give the task's number.")
    return found


def _of_task(versions: list[VersionRow], said: str) -> list[VersionRow]:
    if said.isascii() and said.isdigit():
        return [v for v in versions if v.task == int(said)] if len(said) <= LONGEST_NUMBER else []
    return [v for v in versions if said in (v.task_name, f"{v.tenant}/{v.task_name}")]


def _pick(kept: list[VersionRow], which: str | None) -> VersionRow | None:
    """One of the versions (oldest first) by number or label, or the newest; with None the best, else the last."""
    best, last = ([v for v in kept if label in v.label] for label in ("best", "last"))
    if which == "newest":
        return kept[-1] if kept else None
    if which in (None, "best", "last"):
        among = {None: best or last or kept, "best": best, "last": last or kept}[which]
        return among[-1] if among else None
    return next((v for v in kept if str(v.number) == which), None)


# Resolves the names in ``depends_on`` to tasks, and refuses circular dependencies. Pure.

MOST = 10_000
"""Most dependencies of one submission: a sweep of m tasks that depends on one of n has m * n."""


def link(submissions: Sequence[Submission], known: Sequence[KnownTask]) -> list[Submission]:
    """Fill in the dependencies of each submission.

    A number is a task of the home. A name means every task or sweep of that name and of the same tenant among these
    submissions; if there is none, the newest in the home. Raises ``UnknownTask``, and ``ConfigError`` for circles and
    for more than ``MOST`` dependencies.
    """
    numbers = {task.id for task in known}
    meanings: dict[tuple[str, str | int], tuple[Sequence[int], Sequence[int]]] = {}
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
                    meanings[said] = (), ()
            own.append(meanings[said])
        needs = dict.fromkeys(number for numbers_of, _ in own for number in numbers_of)
        after = dict.fromkeys(place for _, places in own for place in places)
        linked.append(replace(submission, needs=tuple(needs), after=tuple(after)))
    mistakes.refuse()
    total = sum(len(submission.needs) + len(submission.after) for submission in linked)
    if total > MOST:
        raise ConfigError(f"These tasks have {total:,} dependencies; at most {MOST:,} are allowed.")
    try:
        TopologicalSorter({place: submission.after for place, submission in enumerate(linked)}).prepare()
    except CycleError as error:
        places: list[int] = error.args[1][:0:-1]  # each depends on the next
        first = places.index(min(places))
        names = [repr(linked[place].name) for place in (*places[first:], *places[: first + 1])]
        if len(places) == 1:
            hint = "An earlier task of that name goes by its number."
            raise ConfigError(f"The task {names[0]} depends on itself.", hint) from None
        cause = f"These tasks wait for each other: {' -> '.join(names)}."
        raise ConfigError(cause, "Leave one of the dependencies out.") from None
    return linked


def family_of(tasks: Iterable[KnownTask], name: str) -> list[KnownTask]:
    """The tasks of the newest sweep of that name; they enter the queue at the same moment."""
    members = [task for task in tasks if task.family == name]
    newest = max((task.created for task in members), default=0.0)
    return [task for task in members if task.created == newest]


def _meaning(
    submission: Submission,
    wanted: str | int,
    submissions: Sequence[Submission],
    known: Sequence[KnownTask],
    numbers: Set[int],
) -> tuple[Sequence[int], Sequence[int]]:
    """One entry of ``depends_on``: (numbers of tasks of the home, places of tasks in the same submission)."""
    if isinstance(wanted, int):
        if wanted not in numbers:
            raise UnknownTask(f"{submission.name!r} depends on task {wanted}, which does not exist.", SHOWS)
        return [wanted], []
    after = [
        place
        for place, other in enumerate(submissions)
        if other.tenant == submission.tenant and wanted in (other.name, other.family)
    ]
    if after:
        return [], after
    own = [task for task in known if task.tenant == submission.tenant]
    newest = max((task for task in own if wanted in (task.name, task.family)), key=lambda task: task.id, default=None)
    if newest is None:
        names = sorted({word for task in own for word in (task.name, task.family) if word})
        raise UnknownTask(
            f"{submission.name!r} depends on {wanted!r}, but tenant {submission.tenant!r} has no task of that name.",
            nearest(wanted, names) if names else "Give its file to the same `marlaas submit`.",
        )
    return [newest.id] if newest.name == wanted else [task.id for task in family_of(own, wanted)], []


# Finds the versions and folders of a task file: starts, players, and measured versions.
#
# Versions are bound by id at submission: the best one may have changed at the start.


class Versions(Protocol):
    """The part of a store's reader that is used here."""

    def versions(self) -> list[VersionRow]:
        """All versions."""

    def task_config(self, task: int) -> dict[str, Any]:
        """The whole task file of a task with defaults filled."""


@dataclass(frozen=True)
class Reference:
    """Words in a task file for a version or folder, and their use."""

    words: str
    key: str
    rank: int = 0
    """Rank of the adapter that begins training from it; 0: it only plays."""
    alpha: float = 0.0


@dataclass(frozen=True)
class _Found:
    """A found reference; ``words`` describe it for an error."""

    words: str
    policy: Mapping[str, float]
    """Its rank and alpha."""
    version: int | None = None
    """Its id; None for a folder."""


def references(spec: TaskSpec) -> Iterator[Reference]:
    """All references of a specification to versions and folders outside of its own task."""
    yield from (Reference(words, f"versions[{place}]") for place, words in enumerate(spec.versions) if words != BASE)
    for name, policy in agent_map_of(spec).policies.items():
        table = f"policies.{name}" if spec.policies else "policy"
        if policy.start:
            yield Reference(policy.start, f"{table}.start", policy.rank, policy.alpha)
        if policy.frozen and policy.frozen != BASE and inside(policy.frozen, spec) is None:
            yield Reference(policy.frozen, f"{table}.frozen")
    for agent, words in spec.eval.agents.items():
        if words != BASE and words not in spec.policies and inside(words, spec) is None:
            yield Reference(words, f"eval.agents.{agent}")


def find_starts(submissions: Sequence[Submission], reader: Versions | None) -> list[Submission]:
    """Bind every reference; ``reader`` is None if the home has no database.

    Raises ``ReferenceMissing``, with all missing or unfitting ones. A version's base is not checked: all adapters of a
    home have the same. The trainer checks a folder's base.
    """
    wishes = [list(references(parse(submission.config, submission.name))) for submission in submissions]
    said = sorted({wish.words for own in wishes for wish in own})
    versions = reader.versions() if reader and any(start_folder(words) is None for words in said) else []
    meant: dict[str, _Found | MarlaasError] = {}
    for words in said:
        try:
            meant[words] = _look_up(words, versions, reader)
        except (AdapterError, ConfigError) as error:
            meant[words] = error
    mistakes, bound = Mistakes(), []
    for submission, own in zip(submissions, wishes, strict=True):
        borrowed: dict[str, Borrowed] = {}
        for wish in own:
            found = meant[wish.words]
            if fault := _fault(submission, wish, found):
                mistakes.found += of_submission(fault, submission)
            elif isinstance(found, _Found) and found.version is not None:
                plays = not wish.rank or (wish.words in borrowed and borrowed[wish.words].plays)
                borrowed[wish.words] = Borrowed(wish.words, found.version, plays)
        bound.append(replace(submission, borrowed=tuple(borrowed.values())))
    mistakes.refuse()
    return bound


def _fault(submission: Submission, wish: Reference, found: _Found | MarlaasError) -> ReferenceMissing | None:
    """Another rank does not fit the matrices; another alpha would make it another policy."""
    if isinstance(found, MarlaasError):
        return ReferenceMissing(found.cause, found.hint, path=wish.key)
    for key, own in (("rank", wish.rank), ("alpha", wish.alpha)):
        if wish.rank and own != found.policy[key]:
            return ReferenceMissing(
                f"{submission.name!r} begins from {found.words}, whose {key} is {found.policy[key]:g}, but its own is"
                f" {own:g}.",
                f"Write `{key} = {found.policy[key]:g}` under [{wish.key.rpartition('.')[0]}].",
                path=wish.key,
            )
    return None


def _look_up(wish: str, versions: list[VersionRow], reader: Versions | None) -> _Found:
    folder = start_folder(wish)
    if folder is not None:
        from ...adapters.export import read_peft_folder  # loads numpy, needed only for a start from a folder

        header = read_peft_folder(folder).header
        return _Found(str(folder), {"rank": header.rank, "alpha": header.alpha})
    version = choose_at(versions, wish)
    config = reader.task_config(version.task) if reader else {}
    policy = config.get("policies", {}).get(version.policy) or config.get("policy", {})
    return _Found(f"version {version.number} of task {version.task}", policy, version.id)

"""References of a task file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter

from ...errors import AdapterError, ConfigError, Mistakes, ReferenceMissing, UnknownTask
from ...models.find import load_base
from ...spec.rules import data_tables, inside
from ...spec.task import BASE, NamedPolicySpec, TaskSpec, agent_map_of, rollouts_of, start_folder
from ...spec.validation import nearest
from ...store.queries.reader import Reader
from ...store.rows import KnownTask, VersionRow
from ...store.submissions import Borrowed, Submission
from .taskfile import of_submission

# A number means a task; a name one of any tenant, TENANT/NAME one of that tenant.

NAMED = 10
SHOWS = "`marlaas list` shows the tasks."


def task_number(given: int | str, known: Sequence[KnownTask]) -> int:
    """Raises ``UnknownTask`` for none, ``ConfigError`` with the numbers for several."""
    if isinstance(given, int):
        if any(task.id == given for task in known):
            return given
        raise UnknownTask(f"There is no task {given}.", SHOWS)
    matches = [task.id for task in known if given in (task.name, f"{task.tenant}/{task.name}")]
    if len(matches) == 1:
        return matches[0]
    if matches:
        hint = f"Give a number: {max(matches)} is the newest."
        raise ConfigError(f"Several tasks are named {given!r}: {_listed(matches)}.", hint)
    sweep = [task.id for task in known if given in (task.family, f"{task.tenant}/{task.family}") and task.family]
    if sweep:
        hint = f"Give one of its tasks, {_listed(sweep)}; verbs that take several tasks have --family."
        raise UnknownTask(f"{given!r} is a sweep, not a task.", hint)
    meant = nearest(given, sorted({task.name for task in known}))
    raise UnknownTask(f"There is no task {given!r}.", f"{meant} {SHOWS}" if meant.startswith("Did you mean") else SHOWS)


def _listed(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:NAMED]))
    return f"{shown} and {len(numbers) - NAMED} more" if len(numbers) > NAMED else shown


def family_of(tasks: Iterable[KnownTask], name: str) -> list[KnownTask]:
    """Of the newest sweep of that name; its tasks have one ``created``."""
    members = [task for task in tasks if task.family == name]
    newest = max((task.created for task in members), default=0.0)
    return [task for task in members if task.created == newest]


# Raises ``AdapterError`` for no version, ``ConfigError`` for ambiguous words.

LONGEST_NUMBER = 18


def choose(versions: list[VersionRow], adapter: str, which: str | None) -> VersionRow:
    """The version of a task's number or name, or of that name.

    ``which``: a number, ``best``, ``last`` or ``newest``; by default the best, else the last.
    """
    named = named_by(versions, adapter)
    policies = list(dict.fromkeys(v.policy for v in named))
    if len(policies) > 1:
        says = f"The task {adapter!r} has the policies {', '.join(policies)}."
        raise ConfigError(says, f"Say which: {adapter}/{policies[-1]}.")
    on_disk = sorted((v for v in named if v.state == "committed"), key=lambda v: v.number)
    best, last = ([v for v in on_disk if label in v.label] for label in ("best", "last"))
    among = {None: best or last or on_disk, "best": best, "last": last or on_disk, "newest": on_disk}
    if matches := among.get(which, [v for v in on_disk if str(v.number) == which]):
        return matches[-1]
    version = f"version {which!r}" if which else "version"
    numbers = ", ".join(str(v.number) for v in on_disk) or "none"
    raise AdapterError(f"Adapter {adapter!r} has no {version} on disk.", f"On disk: {numbers}.")


def choose_at(versions: list[VersionRow], words: str) -> VersionRow:
    """``choose``, optionally with @VERSION behind the adapter."""
    adapter, _, which = words.partition("@")
    return choose(versions, adapter, which or None)


def named_by(versions: list[VersionRow], adapter: str) -> list[VersionRow]:
    """Of one task, by its number or name, or the one version of that name.

    /POLICY behind it selects one policy.
    """
    matches = [v for v in versions if v.name == adapter] or _of_task(versions, adapter)
    if not matches:
        task, _, policy = adapter.rpartition("/")
        matches = [v for v in _of_task(versions, task) if v.policy == policy]
    if not matches:
        raise AdapterError(f"There is no adapter {adapter!r}.", "`marlaas adapters list` shows them.")
    if len(numbers := sorted({v.task for v in matches})) > 1:
        says = f"Several tasks are named {adapter!r}: {', '.join(map(str, numbers))}."
        raise ConfigError(says, "Give the task's number.")
    return matches


def _of_task(versions: list[VersionRow], task: str) -> list[VersionRow]:
    if task.isascii() and task.isdigit():
        return [v for v in versions if v.task == int(task)] if len(task) <= LONGEST_NUMBER else []
    return [v for v in versions if task in (v.task_name, f"{v.tenant}/{v.task_name}")]


MOST = 10_000
"""A sweep of m tasks that depends on one of n has m * n."""


def link(submissions: Sequence[Submission], known: Sequence[KnownTask]) -> list[Submission]:
    """Fill in each submission's dependencies.

    A number is a task of the home. A name means every task or sweep of that name and tenant among these submissions,
    else the newest in the home. Raises ``UnknownTask``; ``ConfigError`` for circles and beyond ``MOST``.
    """
    meanings: dict[tuple[str, str | int], tuple[Sequence[int], Sequence[int]]] = {}
    linked = []
    mistakes = Mistakes()
    for submission in submissions:
        spec, needs, after = submission.spec, dict[int, None](), dict[int, None]()
        for place, wanted in enumerate(spec.queue.depends_on):
            key = (spec.tenant, wanted)
            if key not in meanings:
                try:
                    meanings[key] = _meaning(spec, wanted, submissions, known)
                except UnknownTask as error:
                    error.path = f"queue.depends_on[{place}]"
                    mistakes.found += of_submission(error, submission)
                    meanings[key] = (), ()
            needs |= dict.fromkeys(meanings[key][0])
            after |= dict.fromkeys(meanings[key][1])
        linked.append(replace(submission, needs=tuple(needs), after=tuple(after)))
    mistakes.refuse()
    total = sum(len(submission.needs) + len(submission.after) for submission in linked)
    if total > MOST:
        raise ConfigError(f"These tasks have {total:,} dependencies; at most {MOST:,} are allowed.")
    try:
        TopologicalSorter({place: submission.after for place, submission in enumerate(linked)}).prepare()
    except CycleError as error:
        names = [repr(linked[place].spec.name) for place in reversed(error.args[1])]  # each depends on the next
        itself = f"The task {names[0]} depends on itself."
        says = itself if len(names) == 2 else f"These tasks wait for each other: {' -> '.join(names)}."
        hint = "Leave one of the dependencies out. An earlier task of that name goes by its number."
        raise ConfigError(says, hint) from None
    return linked


def _meaning(
    spec: TaskSpec, wanted: str | int, submissions: Sequence[Submission], known: Sequence[KnownTask]
) -> tuple[Sequence[int], Sequence[int]]:
    """(task numbers of the home, places among the submissions)"""
    if isinstance(wanted, int):
        if all(task.id != wanted for task in known):
            raise UnknownTask(f"{spec.name!r} depends on task {wanted}, which does not exist.", SHOWS)
        return [wanted], []
    after = [
        place
        for place, other in enumerate(submissions)
        if other.spec.tenant == spec.tenant and wanted in (other.spec.name, other.family)
    ]
    if after:
        return [], after
    of_tenant = [task for task in known if task.tenant == spec.tenant]
    newest = max((task for task in of_tenant if wanted in (task.name, task.family)), key=lambda t: t.id, default=None)
    if newest is None:
        names = sorted({word for task in of_tenant for word in (task.name, task.family) if word})
        raise UnknownTask(
            f"{spec.name!r} depends on {wanted!r}, but tenant {spec.tenant!r} has no task of that name.",
            nearest(wanted, names) if names else "Give its file to the same `marlaas submit`.",
        )
    return [newest.id] if newest.name == wanted else [task.id for task in family_of(of_tenant, wanted)], []


# Bound by id at submission: the best version may change before the start. Those of a dependency that is not done are
# bound at the start.

TEACHER = "train.kl_reference"
Found = tuple[str, int, int | None]
"""Words for an error, its rank, version id; None for a folder."""


def check_rollouts(submissions: Sequence[Submission], known: Sequence[KnownTask]) -> None:
    """Raise ``UnknownTask`` or ``ConfigError`` for rows of a task that is neither known nor submitted here."""
    submitted, mistakes = {submission.spec.name for submission in submissions}, Mistakes()
    for submission in submissions:
        for table, data in data_tables(submission.spec):
            source = rollouts_of(data.path)
            if source is None or source in submitted:
                continue
            try:
                task_number(int(source) if source.isdigit() else source, known)
            except ConfigError as error:
                error.path = f"{table}.path"
                mistakes.found += of_submission(error, submission)
    mistakes.refuse()


def references(spec: TaskSpec) -> Iterator[tuple[str, str, NamedPolicySpec | None]]:
    """References outside of its own task.

    Words, key, and the policy that begins training from it; None: it only plays.
    """
    yield from ((words, f"versions[{place}]", None) for place, words in enumerate(spec.versions) if words != BASE)
    for name, policy in agent_map_of(spec).policies.items():
        table = f"policies.{name}" if spec.policies else "policy"
        if policy.start:
            yield policy.start, f"{table}.start", policy
        if policy.frozen and policy.frozen != BASE and inside(policy.frozen, spec) is None:
            yield policy.frozen, f"{table}.frozen", None
    if spec.train.kl_reference not in (BASE, "start") and start_folder(spec.train.kl_reference) is None:
        yield spec.train.kl_reference, TEACHER, None
    for agent, words in spec.eval.agents.items():
        if words != BASE and words not in spec.policies and inside(words, spec) is None:
            yield words, f"eval.agents.{agent}", None


def find_starts(submissions: Sequence[Submission], reader: Reader | None, base: str) -> list[Submission]:
    """Bind every reference; ``reader``: None without a database; ``base``: the home's, by name or folder.

    Raises ``ReferenceMissing``, with all missing or unfitting ones.
    """
    wishes = [list(references(submission.spec)) for submission in submissions]
    versions = reader.versions() if reader and any(wishes) else []
    meant: dict[str, Found] = {}
    mistakes, bound = Mistakes(), []
    for submission, wanted in zip(submissions, wishes, strict=True):
        borrowed: dict[str, Borrowed] = {}
        for words, key, policy in wanted:
            try:
                if (policy or key == TEACHER) and _awaited(words, key, policy, submission, submissions, reader):
                    continue
                meant[words] = about, rank, version = meant.get(words) or _look_up(words, versions, reader, base)
                _check_rank(submission.spec.name, key, policy, about, rank)
            except (AdapterError, ConfigError) as error:
                missing = ReferenceMissing(error.cause, error.hint, path=key)
                mistakes.found += of_submission(missing, submission)
                continue
            if version is not None:
                plays = policy is None or (words in borrowed and borrowed[words].plays)
                borrowed[words] = Borrowed(words, version, plays)
        bound.append(replace(submission, borrowed=tuple(borrowed.values())))
    mistakes.refuse()
    return bound


def _awaited(
    words: str,
    key: str,
    policy: NamedPolicySpec | None,
    submission: Submission,
    submissions: Sequence[Submission],
    reader: Reader | None,
) -> bool:
    """True for a version of a dependency that is not done. Raises as ``_check_fit``."""
    named, own = words.partition("@")[0], submission.spec
    for place in submission.after:
        other = submissions[place].spec
        if named in (other.name, f"{other.tenant}/{other.name}"):
            _check_rank(own.name, key, policy, f"the task {other.name!r}", other.policy.rank)
            return True
    for number in submission.needs if reader else ():
        row = reader.task(number) if reader else None
        if row is not None and row.state != "done" and named in (str(number), row.name, f"{row.tenant}/{row.name}"):
            config = reader.task_config(number) if reader else {}
            _check_rank(own.name, key, policy, f"task {number}", config.get("policy", {}).get("rank", 0))
            return True
    return False


def _check_rank(name: str, key: str, policy: NamedPolicySpec | None, about: str, rank: int) -> None:
    """A lower rank is filled up; alpha and targets are those of the policy."""
    if policy is not None and rank > policy.rank:
        raise ConfigError(
            f"{name!r} begins from {about}, whose rank is {rank}, but its own is only {policy.rank}.",
            f"Write `rank = {rank}` under [{key.rpartition('.')[0]}].",
        )


def _look_up(words: str, versions: list[VersionRow], reader: Reader | None, base: str) -> Found:
    folder = start_folder(words)
    if folder is not None:
        from ...adapters.peft_folder import read_adapter  # loads numpy, needed only for a start from a folder

        return str(folder), read_adapter(folder, load_base(base)).header.rank, None
    version = choose_at(versions, words)
    config = reader.task_config(version.task) if reader else {}
    policy = config.get("policies", {}).get(version.policy) or config.get("policy", {})
    return f"version {version.number} of task {version.task}", policy.get("rank", 0), version.id

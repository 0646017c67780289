"""What must hold of a policy's history, whatever was killed and when: numbers, names, files, staleness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from .record import Group, Policy, Record, Trajectory
from .report import Report
from .states import Unreadable, digest, read

STRIDE = 1_000_003
"""Distance between the instances of successive attempts at one group number (documented in the engine's producer)."""


def check_home(record: Record, report: Report) -> None:
    """Check what concerns all policies at once."""
    damage = record.damage()
    report.check(not damage, "the database is whole", "home", "; ".join(damage[:3]))
    doubled = record.doubled_names()
    report.check(not doubled, "version names are unique", "home", f"names stand for several versions: {doubled}")
    strangers = record.strangers()
    report.check(not strangers, "every row has its owner", "home", f"{strangers} rows belong to nothing")
    trained = record.trained_by_evaluations()
    report.check(not trained, "evaluations train nothing", "home", f"the evaluations {trained} have trained")


def check_steps(policy: Policy, report: Report) -> None:
    """Check that steps are gapless, that each made one version, and that nothing went back in time."""
    where = policy.task.where
    numbers = [step.number for step in policy.steps]
    whole = numbers == list(range(1, policy.step + 1))
    report.check(whole, "steps are gapless", where, f"its steps are {_short(numbers)}, it stands at {policy.step}")
    report.check(policy.step <= policy.task.steps, "no step too many", where, f"it made {policy.step} steps")
    living = Counter(version.number for version in policy.versions if version.state != "void")
    many = sorted(number for number, count in living.items() if count > 1)
    report.check(not many, "one version a step", where, f"several living versions have the numbers {many}")
    missing = sorted(set(range(policy.step + 1)) - set(living)) if policy.versions else []
    report.check(not missing, "no version is lost", where, f"there is no version {_short(missing)}")
    beyond = sorted(number for number in living if number > policy.step)
    report.check(not beyond, "no version without a step", where, f"versions {beyond} are above its step")
    _check_start(policy, report)
    ids = {version.id: version for version in policy.versions}
    for step in policy.steps:
        version = ids.get(step.version)
        agrees = version is not None and version.number == step.number and version.state != "void"
        report.check(agrees, "every step has its version", f"{where}, step {step.number}", "its version is another's")
    lost = sorted({version.number for version in policy.lost()})
    if lost:
        after = "training began anew" if 0 in lost else "training went on from what was before"
        report.lost.append(f"{where}: {_versions(lost)} could not be used; {after}.")
    order = [step.incarnation for step in sorted(policy.steps, key=lambda step: step.number)]
    report.check(order == sorted(order), "engines follow each other", where, "a later step has an earlier engine")
    for number, version_id in policy.evaluated:
        version = ids.get(version_id)
        agrees = version is not None and version.number == number and version.state != "void"
        report.check(agrees, "every score has its version", f"{where}, score at step {number}", "of another version")


def _check_start(policy: Policy, report: Report) -> None:
    """Check that version 0 is what the task file says that training begins from."""
    first = policy.living().get(0)
    if policy.task.start is not None and first is not None:
        agrees = first.checksum == policy.task.start
        problem = f"its version 0 is {first.checksum}, but it was to begin from {policy.task.start}"
        report.check(agrees, "tasks begin where they were told to", policy.task.where, problem)


def check_files(policy: Policy, home: Path, state_now: Callable[[int], str], report: Report) -> dict[int, Path]:
    """Check that every version that should have a file has the recorded one; returns the sound ones by number.

    ``state_now`` says what a version's row (its id) has become meanwhile: an engine gives files up while this runs.
    """
    found: dict[int, Path] = {}
    for version in policy.versions:
        where = f"{policy.task.where}, version {version.number}"
        if version.state != "committed":
            report.skip("state files", f"the version is {version.state}")
            continue
        path = home / version.path
        inside = path.resolve().is_relative_to(home.resolve())
        report.check(inside, "files lie in the home", where, f"its file is {path}")
        try:
            state = read(path)
        except Unreadable as error:
            if (now := state_now(version.id)) == "committed":
                report.check(False, "state files", where, str(error))
            else:
                report.skip("state files", f"the version is {now or 'gone'}")
            continue
        told = digest(state.adapter)
        sound = report.check(
            told == version.checksum, "state files", where, f"its file holds {told}, not {version.checksum}"
        )
        wanted = (version.number, policy.task.value("policy", "rank"), policy.task.value("policy", "alpha"))
        header = (state.step, state.rank, state.alpha)
        agrees = report.check(header == wanted, "headers agree", where, f"its header says {header}, not {wanted}")
        own = not policy.task.base or state.base == policy.task.base
        if report.check(own, "bases agree", where, f"it belongs to base {state.base}") and sound and agrees:
            found[version.number] = path
    return found


def files_of(home: Path) -> list[Path]:
    """The files in the places where state files are kept."""
    return sorted(path for path in (home / "adapters").rglob("[!.]*") if path.is_file())


def check_spare(policies: Sequence[Policy], home: Path, there: Sequence[Path], report: Report) -> None:
    """List files that no row names, of those ``there`` before rows were read: they only waste room."""
    named = {(home / v.path).resolve() for p in policies for v in p.versions if v.state == "committed"}
    spare = [path for path in there if path.resolve() not in named and path.exists()]
    if spare:
        shown = ", ".join(str(path.relative_to(home)) for path in spare[:3]) + (", …" if len(spare) > 3 else "")
        count = "1 file" if len(spare) == 1 else f"{len(spare)} files"
        report.spare.append(f"{count} that no version names, of a step under way or given up: {shown}")
    if lost := sum(path.is_file() for path in (home / "lost+found").rglob("*")):
        report.spare.append(f"{'1 file' if lost == 1 else f'{lost} files'} in lost+found, of versions that were void")


def check_groups(policy: Policy, report: Report) -> None:
    """Check that every group is consumed once, by the step of its number, and that those that wait may have begun.

    In order of arrival any step may consume a number, but each takes as many, and no number comes twice.
    """
    batch = policy.task.batch
    used = [group for group in policy.groups if group.state == "consumed"]
    numbers = [group.number for group in used]
    whole = numbers == list(range(policy.step * batch))
    if policy.task.by_arrival:
        sizes = Counter(group.step for group in used)
        whole = len(set(numbers)) == len(numbers) and sizes == {step: batch for step in range(1, policy.step + 1)}
    doubled = [number for number, count in Counter(numbers).items() if count > 1]
    lacking = sorted(set(range(policy.step * batch)) - set(numbers))
    problem = f"of {policy.step} steps of {batch} groups, {_short(doubled)} came twice and {_short(lacking)} never"
    report.check(whole, "every group is consumed once", policy.task.where, problem)
    played = Counter[str]()
    for place, group in enumerate(policy.groups):
        where = _where(policy, group)
        if group.state == "consumed":
            due = group.step if policy.task.by_arrival else group.number // batch + 1
            report.check(group.step == due, "in the step it is due", where, f"step {group.step} took it, not {due}")
        elif group.state == "complete":
            low = 0 if policy.task.by_arrival else policy.step * batch
            high = (policy.task.staleness + policy.step + 1) * batch
            report.check(low <= group.number < high, "waiting groups could be admitted", where, "it could not")
            free = group.step is None and group.version <= policy.step
            report.check(free, "waiting groups are free", where, f"step {group.step}, version {group.version}")
        if group.component:  # it numbers its own groups; some of those that are under way may be its, too
            first, under_way = played[group.component], max(0, group.number - place)
        else:
            first, under_way = group.number, 0
        played[group.component] += 1
        drawn = group.instance >= first
        if policy.task.value("train", "sampling", "uniform") == "uniform":  # else it follows from what was learned
            drawn = drawn and (group.instance - first) % STRIDE <= under_way
        report.check(drawn, "instances follow from numbers", where, f"its instance is {group.instance}")


def check_tokens(policy: Policy, group: Group, trajectories: list[Trajectory], report: Report) -> None:
    """Check the stored trajectories, and their staleness token by token, recomputed from the spans."""
    where = _where(policy, group)
    members = {trajectory.member for trajectory in trajectories}
    size = int(policy.task.value("train", "group_size"))
    skipped = bool(policy.task.policies) and not members
    whole = skipped or (len(members) == size and members <= set(range(policy.task.members)))
    report.check(whole, "groups are whole", where, f"its members are {sorted(members)}")
    due = group.number // policy.task.batch
    if policy.task.by_arrival:  # one that waits may have grown too old: it is played again, or the task has ended
        due = group.version if group.step is None else group.step - 1
    for trajectory in trajectories:
        for _, _, version in trajectory.spans:
            age = due - version
            fresh = 0 <= age <= policy.task.staleness and version == group.version
            report.check(fresh, "spans within the bound", where, f"tokens of version {version} in step {due + 1}")
        if trajectory.shrunk:
            report.skip("tokens", "they were given up for room")
            continue
        marked = [place for start, stop, _ in trajectory.spans for place in range(start, stop)]
        length = len(trajectory.tokens)
        fits = len(trajectory.mask) == len(trajectory.logprobs) == length
        fits = fits and marked == trajectory.mask.nonzero()[0].tolist()
        report.check(fits, "spans cover what was sampled", where, f"member {trajectory.member} has other spans")
        chances = trajectory.logprobs
        sane = bool((chances[trajectory.mask == 1] <= 1e-4).all() and (chances[trajectory.mask == 0] == 0).all())
        report.check(sane, "log-probabilities are such", where, f"member {trajectory.member} has impossible ones")


def _where(policy: Policy, group: Group) -> str:
    return f"{policy.task.where}, group {group.number}"


def _versions(numbers: list[int]) -> str:
    return f"version {numbers[0]}" if len(numbers) == 1 else f"the versions {_short(numbers)}"


def _short(numbers: list[int]) -> str:
    """A list of numbers, cut where it is long."""
    if not numbers:
        return "none"
    return ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")

"""What must hold of the history of policies and groups, of advantages and of metrics, all computed again."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from .record import Group, Policy, Record, Task, Trajectory, Version
from .report import Report
from .updates import Unreadable, digest, read

# What must hold of a policy's history, whatever was killed and when: numbers, names, files, staleness.

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
        own = chances[trajectory.mask == 1]
        sane = bool(np.isnan(own).all() if trajectory.given else (own <= 1e-4).all())
        sane = sane and bool((chances[trajectory.mask == 0] == 0).all())
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


# What must hold of tasks with several policies: who spoke for whom, which groups make a play, borrowed versions.

UNFINISHED = ("submitted", "queued", "running", "paused")
Plays = Mapping[int, Sequence[tuple[Policy, Group]]]
"""The groups of each play, with their policies."""


def plays_of(policies: Sequence[Policy]) -> Plays:
    """The groups of each play, by the play's first group."""
    found: defaultdict[int, list[tuple[Policy, Group]]] = defaultdict(list)
    for policy in policies:
        for group in policy.groups:
            found[group.play].append((policy, group))
    return found


def check_plays(record: Record, policies: Sequence[Policy], report: Report) -> None:
    """Check what concerns all policies of one task at once; nothing for a task that has only one."""
    task = policies[0].task
    if not task.policies:
        return
    check_borrowed(task, record.borrowed(task.id), report)
    for groups in plays_of(policies).values():
        number = groups[0][1].number
        where = f"task {task.id}, group {number}"
        alike = {(group.number, group.instance, group.environment) for _, group in groups}
        report.check(len(alike) == 1, "plays are one", where, "the groups of one play are of several instances")
        once = len({policy.id for policy, _ in groups}) == len(groups)
        report.check(once, "plays teach a policy once", where, "one policy has several groups of one play")
        _check_partners(record, policies, groups, where, report)
    _check_learned(policies, record, report)


def check_own(policy: Policy, group: Group, trajectories: Sequence[Trajectory], report: Report) -> None:
    """Check that a policy learns from its own agents alone; an episode in which nobody spoke names no agent."""
    others = {t.agent for t in trajectories if t.agent and policy.task.agents.get(t.agent) != policy.task.policy}
    if policy.task.agents:
        where = f"{policy.task.where}, group {group.number}"
        report.check(not others, "policies learn from their own agents", where, f"it learns from {sorted(others)}")


def check_borrowed(task: Task, borrowed: Mapping[str, Version], report: Report) -> None:
    """Check that versions of other tasks are kept for as long as the task may play with them."""
    for name, policy in task.policies.items():
        lent = borrowed.get(policy.get("frozen", ""))
        if lent is not None and task.state in UNFINISHED:
            there = lent.state == "committed"
            problem = f"the version {lent.name}, which its policy {name} is, is {lent.state}"
            report.check(there, "borrowed versions stay", f"task {task.id}", problem)


def _check_partners(
    record: Record, policies: Sequence[Policy], groups: Sequence[tuple[Policy, Group]], where: str, report: Report
) -> None:
    """Check who played without learning: no policy that learned, and only versions that the task file allows."""
    task = policies[0].task
    learned = {policy.task.policy for policy, _ in groups}
    for _, group in groups:
        for said in record.beside(group.id):
            right = said.speaker not in learned and task.agents.get(said.agent) == said.speaker
            report.check(right, "partners are named", where, f"{said.speaker!r} acts as {said.agent!r}")
            known = _play_versions(record, policies, said.speaker)
            report.check(
                said.versions <= known,
                "partners are who they should be",
                where,
                f"{said.speaker!r} is versions {sorted(said.versions - known)}",
            )


def _play_versions(record: Record, policies: Sequence[Policy], name: str) -> frozenset[int]:
    """Numbers of the versions that a policy of the task may have acted with."""
    task = policies[0].task
    own = task.policies.get(name, {})
    if own.get("frozen"):
        lent = record.borrowed(task.id).get(own["frozen"])
        return frozenset({0 if lent is None else lent.number})
    whose = own.get("pool") or name
    return frozenset(v.number for policy in policies if policy.task.policy == whose for v in policy.versions)


def _check_learned(policies: Sequence[Policy], record: Record, report: Report) -> None:
    """Check that some policy learned from each play that several are trained on.

    Which policies a play is for is decided when it begins, and each gets its group of it when its own agents are done;
    that none lacks a group of a number is checked for each policy by itself.
    """
    for groups in plays_of(policies).values():
        if len({policy.id for policy, _ in groups}) > 1:
            where = f"task {policies[0].task.id}, group {groups[0][1].number}"
            learned = any(record.trajectories(group.id) for _, group in groups)
            report.check(learned, "somebody learned from each play", where, "all of its policies skipped it")


def check_open(record: Record, policies: Sequence[Policy], report: Report) -> None:
    """Check the members of a task's plays that are still open: nothing of them is trained on, or left behind."""
    task = policies[0].task
    by_name = {policy.task.policy: policy for policy in policies}
    for play in record.open_plays(task.id):
        where = f"task {task.id}, open group {play.number}"
        left = task.state not in UNFINISHED
        report.check(not left, "open plays are of unfinished tasks", where, f"the task is {task.state}")
        known = set(play.policies) <= by_name.keys()
        if not report.check(known, "open plays are for policies", where, f"it is for {sorted(play.policies)}"):
            continue
        again = "complete" if task.by_arrival else ""  # one that grew too old may be there while it is played again
        stored = [
            name
            for name in play.policies
            if any(g.number == play.number and g.state != again for g in by_name[name].groups)
        ]
        report.check(len(stored) < len(play.policies), "open plays are open", where, "all of its groups are stored")
        for said in play.said:
            speaker = task.agents.get(said.agent, task.policy) if said.agent else ""
            right = said.versions <= {play.speaking.get(speaker)} and said.member < task.members
            problem = f"member {said.member} says for {said.agent!r} what versions {sorted(said.versions)} sampled"
            report.check(right, "open plays keep to their versions", where, problem)


# Advantages and metrics computed again from the stored rewards.
#
# The formulas, per agent: reward minus the group's mean (``mean``, Dr.GRPO), that divided by the sample deviation
# (``standard``, GRPO), reward minus the mean of the others (``leave_one_out``, RLOO). Where an agent has several
# trajectories in an episode, their mean enters the baseline. Where turns have advantages of their own, returns to go
# take the place of rewards.

ADVANTAGE_TOLERANCE = 1e-5
METRIC_TOLERANCE = 1e-6
OF_LOSS = {"dr_grpo": "mean", "reinforce": "leave_one_out", "distill": "mean"}
"""Which advantage a loss was published with, where it is not ``standard``."""
EPSILON = 1e-4
"""Added to a deviation before dividing by it."""


def advantages(rewards: Sequence[float], kind: str) -> list[float]:
    """The advantages of the members of one group, for one agent."""
    if min(rewards) == max(rewards):
        return [0.0] * len(rewards)
    count, mean = len(rewards), math.fsum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    if kind == "standard":
        deviation = math.sqrt(math.fsum(value * value for value in centred) / (count - 1))
        return [value / (deviation + EPSILON) for value in centred]
    if kind == "leave_one_out":
        return [value * count / (count - 1) for value in centred]
    return centred


def kind_of(policy: Policy) -> str:
    """Which of the three a task uses."""
    kind = str(policy.task.value("train", "advantage", "auto"))
    return OF_LOSS.get(str(policy.task.value("train", "loss")), "standard") if kind == "auto" else kind


def check_advantages(policy: Policy, group: Group, trajectories: Sequence[Trajectory], report: Report) -> None:
    """Check that every stored advantage follows from the stored rewards of its group."""
    where = f"{policy.task.where}, group {group.number}"
    for agent in sorted({trajectory.agent for trajectory in trajectories}):
        episodes = _episodes([t for t in trajectories if t.agent == agent and t.reward is not None])
        scores = {
            member: _mean_reward(own) + penalty(policy, own)
            for member, own in episodes.items()
            if not (policy.task.value("train", "overlong", "keep") == "mask" and any(t.cut for t in own))
        }
        given = {t.member for own in episodes.values() for t in own if t.given}
        compared = {member: score for member, score in scores.items() if member not in given}
        found = advantages(list(compared.values()), kind_of(policy)) if compared else []
        expected = dict(zip(compared, found, strict=True)) | {member: scores[member] for member in given}
        for member, own in episodes.items():
            for trajectory in own:
                difference = abs(trajectory.advantage - expected.get(member, 0.0))
                report.close(difference, ADVANTAGE_TOLERANCE, "advantages and rewards", where)
        if policy.task.value("train", "advantage_level", "episode") == "turn":
            _check_turns(policy, episodes, scores, report, where)


def _check_turns(
    policy: Policy,
    episodes: Mapping[int, Sequence[Trajectory]],
    scores: Mapping[int, float],
    report: Report,
    where: str,
) -> None:
    """Check each turn's advantage: the discounted sum of what was paid after its reply, against the group's.

    Whoever ended before a turn counts with its last one. Replies in forks without a name have none of their own.
    """
    discount = float(policy.task.value("train", "discount", 1.0))
    returns = {member: _returns(episodes[member], score, discount) for member, score in scores.items()}
    for member, own in episodes.items():
        stored = [advantage for t in own for fork, advantage in t.turns if not fork]
        for turn, value in enumerate(stored):
            if member not in returns:
                report.check(
                    value is None, "turns and payments", where, f"member {member} is left out, but has {value}"
                )
                continue
            field = {other: values[min(turn, len(values) - 1)] for other, values in returns.items()}
            wanted = dict(zip(field, advantages(list(field.values()), kind_of(policy)), strict=True))[member]
            difference = math.inf if value is None else abs(value - wanted)
            report.close(difference, ADVANTAGE_TOLERANCE, "turns and payments", where)
        for value in [advantage for t in own for fork, advantage in t.turns if fork]:
            report.check(
                value is None, "turns and payments", where, f"a fork of member {member} has {value} of its own"
            )


def _returns(own: Sequence[Trajectory], score: float, discount: float) -> list[float]:
    """What was paid after each of an agent's replies, from the last one back."""
    turns = max(1, sum(not fork for t in own for fork, _ in t.turns))
    paid = [0.0] * turns
    for replies, amount in (one for t in own for one in t.paid):
        paid[max(0, min(replies, turns) - 1)] += amount
    final = score - math.fsum(paid)
    result = [paid[-1] + final]
    for amount in reversed(paid[:-1]):
        result.append(amount + discount * result[-1])
    return result[::-1]


def check_members(policy: Policy, group: Group, trajectories: Sequence[Trajectory], report: Report) -> None:
    """Check that enough members of a consumed group ended well; older tasks have no such rule in their task file."""
    if group.state != "consumed" or not trajectories or "min_members" not in policy.task.tables.get("train", {}):
        return
    if any(trajectory.given for trajectory in trajectories):  # one demonstration is enough
        return
    size = int(policy.task.value("train", "group_size"))
    wanted = int(policy.task.value("train", "min_members", size - size // 8))
    well = len({trajectory.member for trajectory in trajectories if trajectory.status == "ok"})
    where = f"{policy.task.where}, group {group.number}"
    report.check(well >= wanted, "groups have enough members", where, f"{well} of {size} ended well, not {wanted}")


def penalty(policy: Policy, own: Sequence[Trajectory]) -> float:
    """DAPO's soft punishment of one agent's episode (arXiv 2503.14476, equation 13): from -1 to 0."""
    if policy.task.value("train", "overlong", "keep") != "penalty":
        return 0.0
    if any(trajectory.cut for trajectory in own):
        return -1.0
    spans = [span for trajectory in own for span in trajectory.spans]
    last = spans[-1][1] - spans[-1][0] if spans else 0
    left_of_episode = int(policy.task.value("sampling", "max_episode_tokens")) - sum(t.sampled for t in own)
    left_of_turn = int(policy.task.value("sampling", "max_tokens")) - last
    room = min(left_of_episode, left_of_turn)
    return min(0.0, room / int(policy.task.value("train", "overlong_buffer", 0)) - 1.0)


def _episodes(own: Sequence[Trajectory]) -> dict[int, list[Trajectory]]:
    """One agent's rewarded trajectories by member."""
    episodes: defaultdict[int, list[Trajectory]] = defaultdict(list)
    for trajectory in own:
        episodes[trajectory.member].append(trajectory)
    return episodes


def _mean_reward(own: Sequence[Trajectory]) -> float:
    rewards = [trajectory.reward for trajectory in own if trajectory.reward is not None]
    return math.fsum(rewards) / len(rewards)


def check_metrics(policy: Policy, step: int, groups: Sequence[tuple[Group, list[Trajectory]]], report: Report) -> None:
    """Check that reward, tokens, errors and staleness of a step follow from its groups."""
    where = f"{policy.task.where}, step {step}"
    rewards = [
        _mean_reward(own)
        for _, trajectories in groups
        for agent in sorted({t.agent for t in trajectories})
        for own in _episodes([t for t in trajectories if t.agent == agent and t.reward is not None]).values()
    ]
    ages = [step - 1 - group.version for group, _ in groups]
    failed = {(g.number, t.member) for g, trajectories in groups for t in trajectories if t.status != "ok"}
    expected = {
        "reward": math.fsum(rewards) / max(1, len(rewards)),
        "tokens": float(sum(t.sampled for _, trajectories in groups for t in trajectories)),
        "errors": float(len(failed)),
        "staleness": math.fsum(ages) / len(ages),
        "staleness_max": float(max(ages)),
    }
    for name, value in expected.items():
        stored = policy.metrics.get((step, name))
        if report.check(stored is not None, "metrics are there", where, f"its metric {name} is missing"):
            assert stored is not None
            scale = max(1.0, abs(value))
            report.close(abs(stored - value) / scale, METRIC_TOLERANCE, f"metric {name} and trajectories", where)

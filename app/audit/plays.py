"""What must hold of tasks with several policies: who spoke for whom, which groups make a play, borrowed versions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from .record import Group, Policy, Record, Task, Trajectory, Version
from .report import Report

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
            known = _versions(record, policies, said.speaker)
            report.check(
                said.versions <= known,
                "partners are who they should be",
                where,
                f"{said.speaker!r} is versions {sorted(said.versions - known)}",
            )


def _versions(record: Record, policies: Sequence[Policy], name: str) -> frozenset[int]:
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

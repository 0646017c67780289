"""Whether [policies], [agents] and [eval.agents] of a task file fit each other.

Each value has been checked by itself before. Versions of other tasks are looked up when the task is submitted
(``submission/starts.py``), and agents when the environment is known (``check_declared``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .validation import Fault, nearest

if TYPE_CHECKING:
    from .task import TaskSpec

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
"""What a policy may be called: its name becomes part of file names and rows."""
TAKEN = ("base", "policy")
"""Names that a policy may not have, because they mean the bare base and a task's only policy."""


def inside(reference: str, spec: TaskSpec) -> str | None:
    """The policy of this very task that ``NAME@0`` means; None where a reference means something else."""
    name, at, number = reference.partition("@")
    return name if at and number == "0" and name in spec.policies else None


def agent_faults(spec: TaskSpec) -> Iterator[Fault]:
    """What is wrong with policies and agents, beside each other."""
    if not spec.policies:
        if spec.agents:
            says = "[agents] maps agents to policies, but there is no [policies.NAME]."
            yield Fault("agents", says, "Add one, or remove [agents].", ("policies",))
        return
    if spec.policy != type(spec.policy)():
        hint = "Keep [policies.…] for several policies, [policy] for one."
        yield Fault("policy", "[policy] and [policies.…] both stand there.", hint)
    for name in spec.policies:
        if not NAME.fullmatch(name) or name in TAKEN:
            hint = f"Use 1 to 40 letters, digits, - and _, a letter first; not {' or '.join(TAKEN)}."
            yield Fault(f"policies.{name}", f"a policy cannot be called {name!r}.", hint)
    if not any(policy.trained for policy in spec.policies.values()):
        yield Fault("policies", "no policy is trained.", "Give one of them neither `frozen` nor `pool`.")
    yield from _unmapped(spec)
    yield from _references(spec)
    if spec.train.deterministic and any(policy.pool for policy in spec.policies.values()):
        says = "'train.deterministic' cannot repeat a pool, which fills by the clock."
        yield Fault("train.deterministic", says, "Use a frozen version instead.", ("policies",))
    yield from _undecided(spec)


def _unmapped(spec: TaskSpec) -> Iterator[Fault]:
    """Agents without a policy, and policies without an agent."""
    if not spec.agents:
        hint = f'Write for each agent of the environment: `AGENT = "{next(iter(spec.policies))}"`.'
        yield Fault("agents", "[agents] is missing.", hint)
        return
    unknown = {agent: policy for agent, policy in spec.agents.items() if policy not in spec.policies}
    for agent, policy in unknown.items():
        says = f"'agents.{agent}' names the policy {policy!r}, which there is not."
        yield Fault(f"agents.{agent}", says, nearest(policy, list(spec.policies)))
    for name in spec.policies:
        if name not in spec.agents.values() and not unknown:  # a policy that is not known may be this one
            hint = f"Name it under [agents], or remove [policies.{name}]."
            yield Fault(f"policies.{name}", f"no agent is played by the policy {name!r}.", hint, ("agents",))


def _undecided(spec: TaskSpec) -> Iterator[Fault]:
    """Faults of a deterministic task that a score ends: a partner trained beside has a version that timing decides."""
    decisive = spec.eval.target is not None or spec.eval.patience > 0
    if not (spec.train.deterministic and decisive):
        return
    for name, policy in spec.policies.items():
        others = {agent: spec.eval.agents.get(agent, own) for agent, own in spec.agents.items() if own != name}
        moving = [agent for agent, words in others.items() if words != name and _trained(words, spec)]
        if policy.trained and moving:
            yield Fault(
                "train.deterministic",
                f"'train.deterministic' cannot repeat when a score ends the task: {name!r} is measured with"
                f" {others[moving[0]]!r}, which is trained beside it.",
                f'Name a fixed version: `[eval]` `agents = {{{moving[0]} = "{others[moving[0]]}@0"}}`,'
                " or remove target and patience.",
                ("agents", "policies", "eval"),
            )


def _trained(words: str, spec: TaskSpec) -> bool:
    return words in spec.policies and spec.policies[words].trained


def _references(spec: TaskSpec) -> Iterator[Fault]:
    """Faults of ``frozen``, ``pool`` and ``start``: each must lead to a version that exists, without a cycle."""
    for name, policy in spec.policies.items():
        key = f"policies.{name}"
        if policy.frozen and policy.pool:
            yield Fault(key, f"{key!r} is frozen and a pool.", "Keep one of the two.")
        if policy.start and not policy.trained:
            says = f"'{key}.start' begins a training, but the policy is not trained."
            yield Fault(f"{key}.start", says, "Remove it.")
        if policy.frozen:
            own = policy.frozen.partition("@")[0]
            if own in spec.policies and inside(policy.frozen, spec) is None:
                yield Fault(
                    f"{key}.frozen",
                    f"'{key}.frozen' is {policy.frozen!r}.",
                    f"Of a policy of this task only `{own}@0` stands still.",
                )
            if own in spec.policies and not spec.policies[own].trained:
                yield Fault(
                    f"{key}.frozen",
                    f"'{key}.frozen' refers to {own!r}, which is not trained, either.",
                    "Name a version, or a trained policy.",
                )
        if policy.pool and policy.pool not in spec.policies:
            yield Fault(
                f"{key}.pool",
                f"'{key}.pool' names {policy.pool!r}, which there is not.",
                nearest(policy.pool, list(spec.policies)),
            )
        elif policy.pool and not spec.policies[policy.pool].trained:
            yield Fault(
                f"{key}.pool",
                f"'{key}.pool' is of {policy.pool!r}, which is not trained.",
                "A pool holds versions of a trained policy.",
            )
    for agent, reference in spec.eval.agents.items():
        if agent not in spec.agents:
            yield Fault(
                f"eval.agents.{agent}",
                f"'eval.agents.{agent}' is no agent of [agents].",
                nearest(agent, list(spec.agents)),
            )
        own = reference.partition("@")[0]
        if own in spec.policies and reference != own and inside(reference, spec) is None:
            yield Fault(
                f"eval.agents.{agent}",
                f"'eval.agents.{agent}' is {reference!r}.",
                f"Of a policy of this task write `{own}` or `{own}@0`.",
            )

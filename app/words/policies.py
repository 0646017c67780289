"""The policies of a task in words: who each of them is, and who spoke for an agent.

The text is safe, though plugins name agents and references name files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from marlaas.engine.spec import BASE, ONLY
from marlaas.engine.store import PolicyRow

from .format import line

if TYPE_CHECKING:
    from marlaas.engine.spec import AgentMap, NamedPolicySpec

PLAIN = ("", "agent", "policy")
"""Names that are not shown, because their agent is the only one."""
LONGEST = 40
"""Cells of an agent's name, or of a version in words."""


def kind(policy: PolicyRow | NamedPolicySpec) -> str:
    """What a policy is: trained, measured, frozen at something, or a pool of earlier versions."""
    if policy.frozen:
        return "frozen: the bare base" if policy.frozen == BASE else f"frozen: {line(policy.frozen, LONGEST)}"
    if policy.pool:
        return f"pool of {line(policy.pool, LONGEST)}"
    return "measured" if isinstance(policy, PolicyRow) and policy.measured else "trained"


def names(agents: Sequence[str]) -> str:
    """The agents' names in a row."""
    return ", ".join(line(agent, LONGEST) for agent in agents)


def policy_and_version(policy: str, version: int, speaker: str = "", spoke: int | None = None) -> str:
    """Who spoke in a trajectory: the group's policy, or a ``speaker`` that learns nothing and its version, if known."""
    if not speaker:
        return f"{line(policy, LONGEST)} v{version}"
    said = line(speaker, LONGEST)
    known = spoke is None or speaker == BASE or speaker.endswith(f"@{spoke}")
    return said if known else f"{said} v{spoke}"


def who(agent: str, policy: str, version: int, speaker: str = "", spoke: int | None = None) -> str:
    """An agent and who spoke for it; empty for the only agent of a task's only policy."""
    name = line(agent, 20) if agent not in PLAIN else ""
    if policy in ("", ONLY) and not speaker:
        return name
    said = policy_and_version(policy, version, speaker, spoke)
    return f"{name}: {said}" if name and (speaker or agent != policy) else said


def agent_map_lines(
    agent_map: AgentMap, rotate: bool = False, measured_with: Sequence[tuple[str, str]] = ()
) -> list[str]:
    """A sentence for each policy, and how they are measured; empty for a task with one policy."""
    if not agent_map.agents:
        return []
    lines = []
    for name, policy in agent_map.policies.items():
        agents = [agent for agent, own in agent_map.agents.items() if own == name]
        if policy.pool:
            who = f"one of up to {policy.size} earlier versions of {policy.pool}, every {policy.every} steps one"
        elif policy.frozen:
            who = kind(policy)
        else:
            who = f"trained, rank {policy.rank}" + (f", from {line(policy.start, LONGEST)}" if policy.start else "")
        lines.append(f"{name} acts as {names(agents)}: {who}")
    if measured_with or rotate:
        held_out = ", ".join(f"{line(words, LONGEST)} for {line(agent, LONGEST)}" for agent, words in measured_with)
        turns = "the agents change places from prompt to prompt" if rotate else ""
        lines.append("held-out: " + "; ".join(part for part in (held_out, turns) if part))
    return lines

"""The policies of a task by name, and which policy speaks for which agent. Pure.

In a task with [policy] alone, its only policy, called ``policy``, speaks for every agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..errors import ConfigError
from .policies import NamedPolicySpec, PolicySpec
from .validation import CHOICE, MISSING, nearest

if TYPE_CHECKING:
    from .task import TaskSpec

ONLY = "policy"
"""The name of a task's only policy."""
BASE = "base"
"""What ``frozen`` and ``[eval.agents]`` call the bare base."""


@dataclass(frozen=True)
class AgentMap:
    """The policies of a task, and which of them speaks for which agent."""

    policies: Mapping[str, NamedPolicySpec]
    """In the order of the task file."""
    agents: Mapping[str, str]
    """The policy of each agent; empty: the only policy speaks for all."""

    @property
    def trained(self) -> tuple[str, ...]:
        """The names of the policies that are trained."""
        return tuple(name for name, policy in self.policies.items() if policy.trained)


def agent_map_of(spec: TaskSpec) -> AgentMap:
    """The agent map of a task."""
    if not spec.policies:
        own = spec.policy
        return AgentMap({ONLY: NamedPolicySpec(rank=own.rank, alpha=own.alpha, start=own.start)}, {})
    return AgentMap(spec.policies, spec.agents)


def spec_of(spec: TaskSpec, policy: str) -> TaskSpec:
    """The specification as one of its trained policies sees it: its own adapter, learning rate and batch."""
    if not spec.policies:
        return spec
    named = spec.policies[policy]
    train = spec.train
    if named.learning_rate is not None:
        train = replace(train, learning_rate=named.learning_rate)
    if named.groups_per_step is not None:
        train = replace(train, groups_per_step=named.groups_per_step)
    return replace(spec, policy=PolicySpec(named.rank, named.alpha, named.start), train=train)


def check_declared(spec: TaskSpec, declared: tuple[str, ...]) -> None:
    """Raise ``ConfigError`` where ``[agents]`` and the agents that an environment declares do not fit.

    An environment that declares no agents is not checked here, but for an evaluation that gives some of them to others:
    else its agents are known only when it plays.
    """
    if spec.kind == "eval":
        _check_measured(spec, declared)
        return
    if not declared or not spec.policies:
        return
    for agent in declared:
        if agent not in spec.agents:
            raise ConfigError(
                f"No policy speaks for the agent {agent!r} of {spec.environment}.",
                f"Write `{agent} = POLICY` under [agents]; policies are {', '.join(spec.policies)}.",
                path="agents",
                code=MISSING,
            )
    for agent in (*spec.agents, *spec.eval.agents):
        if agent not in declared:
            where = "agents" if agent in spec.agents else "eval.agents"
            raise ConfigError(
                f"{spec.environment} has no agent {agent!r}.",
                nearest(agent, declared),
                path=f"{where}.{agent}",
                code=CHOICE,
            )


def _check_measured(spec: TaskSpec, declared: tuple[str, ...]) -> None:
    """Raise ``ConfigError`` where ``[eval.agents]`` of an evaluation does not fit: a measured version speaks for every
    agent that is not named there, so they must be known."""
    others = spec.eval.agents
    if not declared and (others or spec.eval.rotate):
        raise ConfigError(
            f"{spec.environment} does not declare its agents, so 'eval.agents' and 'eval.rotate' mean nothing.",
            'Write `@env(agents=("first", "second"))` in the environment.',
            path="eval.agents",
            code=CHOICE,
        )
    for agent in others:
        if agent not in declared:
            says = f"{spec.environment} has no agent {agent!r}."
            raise ConfigError(says, nearest(agent, declared), path=f"eval.agents.{agent}", code=CHOICE)
    if declared and set(others) >= set(declared):
        raise ConfigError(
            "'eval.agents' leaves no agent to the versions that are measured.",
            "Leave one of them out.",
            path="eval.agents",
            code=MISSING,
        )

"""The policies of a task by name, and which policy acts as which agent. Pure.

In a task with [policy] alone, its only policy, called ``policy``, acts as every agent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .policies import NamedPolicySpec, PolicySpec
from .validation import CHOICE, MISSING, Fault, nearest, refuse

if TYPE_CHECKING:
    from .task import TaskSpec

ONLY = "policy"
"""The name of a task's only policy."""
BASE = "base"
"""What ``frozen`` and ``[eval.agents]`` call the bare base."""


@dataclass(frozen=True)
class AgentMap:
    """The policies of a task, and which of them acts as which agent."""

    policies: Mapping[str, NamedPolicySpec]
    """In the order of the task file."""
    agents: Mapping[str, str]
    """The policy of each agent; empty: the only policy acts as all."""

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
    refuse(_misjudged(spec, declared) if spec.kind == "eval" else _unfit(spec, declared), "")


def _unfit(spec: TaskSpec, declared: tuple[str, ...]) -> Iterator[Fault]:
    """Agents of an environment without a policy, and agents of a task that the environment has not."""
    if not declared or not spec.policies:
        return
    for agent in declared:
        if agent not in spec.agents:
            says = f"No policy acts as the agent {agent!r} of {spec.environment}."
            hint = f"Write `{agent} = POLICY` under [agents]; policies are {', '.join(spec.policies)}."
            yield Fault("agents", says, hint, code=MISSING)
    for table, agents in (("agents", spec.agents), ("eval.agents", spec.eval.agents)):
        for agent in agents:
            if agent not in declared and not (table == "eval.agents" and agent in spec.agents):
                says = f"{spec.environment} has no agent {agent!r}."
                yield Fault(f"{table}.{agent}", says, nearest(agent, declared), code=CHOICE)


def _misjudged(spec: TaskSpec, declared: tuple[str, ...]) -> Iterator[Fault]:
    """Where ``[eval.agents]`` of an evaluation does not fit.

    A measured version acts as every agent that is not named there, so they must be known.
    """
    others = spec.eval.agents
    if not declared and (others or spec.eval.rotate):
        says = f"{spec.environment} does not declare its agents, so 'eval.agents' and 'eval.rotate' mean nothing."
        hint = 'Write `@env(agents=("first", "second"))` in the environment.'
        yield Fault("eval.agents", says, hint, code=CHOICE)
        return
    for agent in others:
        if agent not in declared:
            says = f"{spec.environment} has no agent {agent!r}."
            yield Fault(f"eval.agents.{agent}", says, nearest(agent, declared), code=CHOICE)
    if declared and set(others) >= set(declared):
        says = "'eval.agents' leaves no agent to the versions that are measured."
        yield Fault("eval.agents", says, "Leave one of them out.", code=MISSING)

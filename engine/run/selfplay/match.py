"""Which version acts as which agent in one play: fixed before its first episode begins, the same for all. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...errors import ConfigError
from ...rollout import WHOLE, Replicas, Role, Roles, SamplingParameters, Truncation
from ...spec import ONLY, SamplingSpec, as_number
from ...store import Version


@dataclass(frozen=True)
class Match:
    """The agent map of one play, and the version of each policy in it."""

    agents: Mapping[str, str]
    """Who acts as each agent, a key of ``versions``; empty: the only policy acts as all."""
    versions: Mapping[str, Version]
    """By the policy's name, or by the words that stand for a version, such as those of ``[eval.agents]``."""

    def policy_of(self, agent: str) -> str:
        """The policy that acts as an agent. Raises ``ConfigError`` for an agent that the task file does not name."""
        if not self.agents:
            return ONLY
        if agent not in self.agents:
            raise ConfigError(
                f"no policy acts as its agent {agent!r}",
                f"Write `{agent} = POLICY` under [agents]; named there are {', '.join(self.agents)}.",
            )
        return self.agents[agent]

    def agents_of(self, policy: str) -> frozenset[str] | None:
        """The agents that a policy acts as; None: all."""
        return frozenset(agent for agent, name in self.agents.items() if name == policy) if self.agents else None

    def roles(
        self,
        replicas: Mapping[str, Replicas],
        sampling: SamplingSpec,
        temperature: float,
        seed: int,
        truncation: Truncation = WHOLE,
    ) -> Roles:
        """How the agents speak in one episode; ``replicas`` are by policy. Training draws from all tokens."""

        def role(agent: str) -> Role:
            policy = self.policy_of(agent)
            version = self.versions[policy]
            parameters = SamplingParameters(
                version=version.name,
                number=version.number,
                temperature=temperature,
                max_tokens=as_number(sampling.max_tokens),
                max_episode_tokens=as_number(sampling.max_episode_tokens),
                seed=seed,
                thinking=sampling.thinking,
                truncation=truncation,
            )
            return Role(parameters, replicas[policy], policy)

        return role

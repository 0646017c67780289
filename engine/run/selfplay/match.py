"""Which version speaks for which agent in one play: fixed before the first member begins, the same for all of them.

The task's cast and versions flow in; for each agent a policy, its version and a voice flow out. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...errors import ConfigError
from ...rollout import Role, Roles, SamplerEndpoint, SamplingParameters
from ...spec import ONLY, SamplingSpec
from ...store import Version


@dataclass(frozen=True)
class Match:
    """The parts of one play."""

    agents: Mapping[str, str]
    """Who speaks for each agent, a key of ``versions``; empty: the only policy speaks for all."""
    versions: Mapping[str, Version]
    """By the policy's name, or by the words that mean a version of another policy."""

    def speaker(self, agent: str) -> str:
        """Who speaks for an agent. Raises ``ConfigError`` for one that the task file does not name."""
        if not self.agents:
            return ONLY
        if agent not in self.agents:
            raise ConfigError(
                f"no policy speaks for its agent {agent!r}",
                f"Write `{agent} = POLICY` under [agents]; named there are {', '.join(self.agents)}.",
            )
        return self.agents[agent]

    def agents_of(self, speaker: str) -> frozenset[str] | None:
        """The agents that somebody speaks for; None: all that there are."""
        return frozenset(a for a, s in self.agents.items() if s == speaker) if self.agents else None

    def roles(
        self, endpoints: Mapping[str, SamplerEndpoint], sampling: SamplingSpec, temperature: float, seed: int
    ) -> Roles:
        """How the agents speak in one episode; ``endpoints`` says where, by speaker."""

        def role(agent: str) -> Role:
            speaker = self.speaker(agent)
            version = self.versions[speaker]
            parameters = SamplingParameters(
                version=version.name,
                number=version.number,
                temperature=temperature,
                max_tokens=sampling.max_tokens,
                max_episode_tokens=sampling.max_episode_tokens,
                seed=seed,
                thinking=sampling.thinking,
            )
            return Role(parameters, endpoints[speaker], speaker)

        return role

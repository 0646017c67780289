"""A listener to one episode that tests make of functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from marlaas.engine.environments.protocol import FinishedEpisode
from marlaas.engine.rollout.episodes import EpisodeListener, FinishedAgent, PromptHash


@dataclass
class Listening(EpisodeListener):
    """Remembers what it hears."""

    held_out: Callable[[PromptHash], bool] = lambda _: False
    on_end: Callable[[], None] = lambda: None
    agents: list[FinishedAgent] = field(default_factory=list)
    cancelled: list[FinishedEpisode] = field(default_factory=list)

    def refuses(self, prompt: PromptHash) -> bool:
        return self.held_out(prompt)

    def on_agent_done(self, agent: FinishedAgent) -> None:
        self.agents.append(agent)

    def on_last_turn(self) -> None:
        self.on_end()

    def on_cancelled(self, episode: FinishedEpisode) -> None:
        self.cancelled.append(episode)

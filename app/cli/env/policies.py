"""The policies that play: versions of adapters, or the bare base, on one sampler."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from marlaas.engine.fleet import BARE, open_lone_sampler, plan_alone
from marlaas.engine.home import Home, load_settings
from marlaas.engine.rollout import Replicas, Role, Roles, Rollout, SamplerEndpoint, SamplingParameters, noise_seed
from marlaas.engine.spec import as_number

from ...words.format import line
from ..waiting import Waiting
from .players import Player, Players


@dataclass(frozen=True)
class Policies:
    """Policies that are loaded."""

    rollout: Rollout
    endpoint: SamplerEndpoint
    players: Players

    def roles(self, *episode: int) -> Roles:
        """Who acts as which agent in an episode; other numbers give other noise."""
        seed = noise_seed("play", *episode)
        return lambda agent: Role(_sampling_parameters(self.players.of(agent), seed), Replicas((self.endpoint,)))


def _sampling_parameters(player: Player, seed: int) -> SamplingParameters:
    version, sampling = player.version, player.sampling
    return SamplingParameters(
        version=BARE if version is None else version.name,
        number=0 if version is None else version.number,
        temperature=sampling.temperature,
        max_tokens=as_number(sampling.max_tokens),
        max_episode_tokens=as_number(sampling.max_episode_tokens),
        seed=seed,
        thinking=sampling.thinking,
        truncation=player.truncation,
    )


@asynccontextmanager
async def loaded(home: Home, players: Players, scratch: Path) -> AsyncIterator[Policies]:
    """Start a sampler with all who play for as long as the block runs.

    Raises ``AdapterError`` for a version whose file is damaged, ``ConfigError`` and what the sampler raises.
    """
    settings = load_settings(home.create())
    async with AsyncExitStack() as stack:
        with Waiting(f"Starting a sampler for the base {line(settings.base)}", piped=True):
            lone = await stack.enter_async_context(open_lone_sampler(home, plan_alone(settings)))
            for player in players.all:
                lone.rollout.check_thinking(player.sampling.thinking)
            versions = {player.version.name: player.version for player in players.all if player.version is not None}
            for row in versions.values():
                await lone.load(row.name, home.file(row.path), row.checksum)
            if any(player.version is None for player in players.all):
                await lone.load_bare(scratch)
        yield Policies(lone.rollout, lone.endpoint, players)

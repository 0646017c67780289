"""The policy that plays: a version of a task's adapter, or the bare base, and how it speaks.

What a person asked for flows in, a sampler that has it loaded flows out. A policy speaks as in its training: with its
task's temperature, lengths and thinking, unless the command line says otherwise.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from marlaas.engine.adapter_names import choose
from marlaas.engine.config import load_settings
from marlaas.engine.orchestrator.alone import BARE, lone_sampler, plan_alone
from marlaas.engine.paths import Home
from marlaas.engine.rollout.conversation import Voice
from marlaas.engine.rollout.episodes import Rollout
from marlaas.engine.rollout.seeds import noise_seed
from marlaas.engine.rollout.station import Station
from marlaas.engine.spec import SamplingSpec, parse
from marlaas.engine.store.rows import VersionRow

from .. import output
from ..home.reading import reading
from ..words.format import line

ROOMY = SamplingSpec(max_tokens=256, max_episode_tokens=2048)
"""How the bare base speaks: no task says how long it may."""


@dataclass(frozen=True)
class Speaking:
    """What the command line wants of the policy."""

    policy: str = ""
    """A task's number or name, or a version's name, perhaps with @VERSION; empty: the bare base."""
    temperature: float | None = None
    """None: as the task says."""
    max_tokens: int | None = None
    """Of a turn; likewise."""


@dataclass(frozen=True)
class Policy:
    """A policy that is loaded."""

    rollout: Rollout
    station: Station
    version: str
    number: int
    sampling: SamplingSpec
    title: str

    def voice(self, *episode: int) -> Voice:
        """How it speaks in an episode; other numbers give other noise."""
        sampling = self.sampling
        return Voice(
            version=self.version,
            number=self.number,
            temperature=sampling.temperature,
            max_tokens=sampling.max_tokens,
            max_episode_tokens=sampling.max_episode_tokens,
            seed=noise_seed("play", *episode),
            thinking=sampling.thinking,
        )


@asynccontextmanager
async def loaded(home: Home, wanted: Speaking, scratch: Path) -> AsyncIterator[Policy]:
    """Start a sampler with the policy for as long as the block runs.

    Raises ``AdapterError`` where there is no such version, ``ConfigError`` and what the sampler raises.
    """
    row, sampling = _version(home, wanted.policy) if wanted.policy else (None, ROOMY)
    sampling = _said(sampling, wanted)
    settings = load_settings(home.create())
    output.talk(f"Starting a sampler for the base {line(settings.base)} …")
    async with lone_sampler(home, plan_alone(settings)) as lone:
        lone.rollout.check_thinking(sampling.thinking)
        if row is None:
            await lone.load_bare(scratch)
            yield Policy(lone.rollout, lone.station, BARE, 0, sampling, f"The base {line(settings.base)}")
        else:
            await lone.load(row.name, home.root / row.path, row.checksum)
            title = f"Version {row.number} of task {row.task} ({line(row.task_name)})"
            yield Policy(lone.rollout, lone.station, row.name, row.number, sampling, title)


def _version(home: Home, policy: str) -> tuple[VersionRow, SamplingSpec]:
    adapter, _, which = policy.partition("@")
    with reading(home) as reader:
        row = choose(reader.versions() if reader else [], adapter, which or "last")
        assert reader is not None  # it had the version
        return row, parse(reader.task_config(row.task), f"task {row.task}").sampling


def _said(sampling: SamplingSpec, wanted: Speaking) -> SamplingSpec:
    """The same, but for what the command line says."""
    if wanted.temperature is not None:
        sampling = replace(sampling, temperature=wanted.temperature)
    if wanted.max_tokens is not None:
        room = max(sampling.max_episode_tokens, wanted.max_tokens)
        sampling = replace(sampling, max_tokens=wanted.max_tokens, max_episode_tokens=room)
    return sampling

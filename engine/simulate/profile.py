"""A profile: what a home has recorded of its episodes and devices, as distributions to draw from.

It is a JSON file that holds no text: lengths, times, rewards and failures alone. ``recording`` makes one of a home.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ..errors import ConfigError

VERSION = 1
"""Of the format; a file of another one is refused."""


@dataclass(frozen=True)
class RecordedTurn:
    """One ask and its reply."""

    agent: str
    after: int
    """Place of the turn whose reply it followed; -1: the beginning of the episode."""
    delay: float
    """Seconds that the environment took between that reply and the ask."""
    given: int
    """Tokens that were added to what the agent had seen."""
    said: int
    """Tokens of the reply."""


@dataclass(frozen=True)
class RecordedEpisode:
    """One episode of a group."""

    turns: tuple[RecordedTurn, ...]
    tail: float
    """Seconds that the environment went on after the last reply."""
    scoring: float
    """Seconds until its reward was there after that."""
    rewards: dict[str, float]
    """By agent."""


@dataclass(frozen=True)
class RecordedFailures:
    """How often episodes fail, and after how long."""

    share: float = 0.0
    """Of all episodes that ended."""
    timeouts: float = 0.0
    """Of those that failed, the share that ran out of time; others raised an error."""
    seconds: tuple[float, ...] = ()
    """Some of them."""


@dataclass(frozen=True)
class RecordedEnvironment:
    """What episodes of an environment with some parameters do."""

    environment: str
    config: str
    """The parameters, as JSON with sorted keys."""
    groups: tuple[tuple[RecordedEpisode, ...], ...]
    """Groups of training: members of one instance have much in common, so they are drawn from one of these."""
    held_out: tuple[tuple[RecordedEpisode, ...], ...] = ()
    """Groups of evaluations, which may take another time; empty: as in training."""
    failures: RecordedFailures = RecordedFailures()
    held_out_failures: RecordedFailures = RecordedFailures()
    """Those of evaluations."""


@dataclass(frozen=True)
class SamplerRates:
    """What a sampler takes: a pass over n conversations ``a_pass + n * row`` seconds, after which each is one token
    further, each token that is read ``read``, and each turn that begins ``turn``."""

    a_pass: float
    row: float
    read: float
    around: tuple[float, ...] = (0.0,)
    """Seconds that a turn takes beside that, as they were: for the way to the sampler and back, and the engine."""
    kind: str = "torch"
    sequences: int = 64
    context: int = 4096
    cores: int = 1
    """Cores that it had; 0: it was on a card."""
    turn: float = 0.0


@dataclass(frozen=True)
class TrainerRates:
    """What a trainer takes: a call with groups whose rewards differ ``a_pass + groups * group + tokens * token``
    seconds, times a draw of ``noise``; those of several policies may be in one call."""

    group: float
    token: float
    noise: tuple[float, ...] = (1.0,)
    update: tuple[float, ...] = (0.0,)
    """Seconds of optimizer updates, as they were."""
    cores: int = 1
    """Cores that it had; 0: it was on cards."""
    a_pass: float = 0.0
    """0 where calls were not recorded: what is fixed is then in ``group``."""


@dataclass(frozen=True)
class EngineRates:
    """Processor seconds of the engine's own process, in which its loop does nothing else."""

    turn: float = 0.0
    """For each turn."""
    episode: float = 0.0
    """For each episode beside its turns, the part of its group that is stored included."""
    call: float = 0.0
    """For each call of a trainer, the commits that follow included."""
    beat: float = 0.0
    """Once a second."""


@dataclass(frozen=True)
class HostRates:
    """Processor seconds of a process that plays an environment's episodes, one thing after the other."""

    turn: float = 0.0
    episode: float = 0.0
    """Beside its turns."""


@dataclass(frozen=True)
class Profile:
    """All that is drawn from."""

    source: str
    """Where it was recorded, in words: the base, the devices."""
    environments: tuple[RecordedEnvironment, ...]
    sampler: SamplerRates
    trainer: TrainerRates
    publish: tuple[float, ...] = (0.0,)
    """Seconds that a sampler took to load a version, as they were."""
    state_bytes: int = 0
    """Bytes of a version's state file, the median."""
    start: float = 10.0
    """Seconds in which workers start."""
    base: str = ""
    """The base's name, as the home had it; empty: the shipped one."""
    engine: EngineRates = EngineRates()
    hosts: HostRates = HostRates()
    cards: bool = False
    """Whether samplers and trainers computed on cards."""
    format: int = field(default=VERSION)

    def names(self) -> list[str]:
        """The environments that it knows, sorted."""
        return sorted({one.environment for one in self.environments})

    def find(self, environment: str, config: str) -> RecordedEnvironment | None:
        """What is known of an environment: with these parameters if it was played with them, else with any.

        It may be called by its last part alone.
        """
        own = [one for one in self.environments if environment in (one.environment, one.environment.rpartition("/")[2])]
        exact = [one for one in own if one.config == config]
        if exact or len(own) < 2:
            return next(iter(exact or own), None)
        merged = tuple(group for one in own for group in one.groups)
        held_out = tuple(group for one in own for group in one.held_out)
        return RecordedEnvironment(environment, config, merged, held_out, own[0].failures, own[0].held_out_failures)


def config_key(config: dict[str, Any]) -> str:
    """Parameters as one text, the same for the same ones."""
    return json.dumps(config, sort_keys=True)


def write_profile(profile: Profile, path: Path) -> None:
    """Write a profile as JSON. Raises ``ConfigError`` where the file cannot be written."""
    try:
        path.write_bytes(msgspec.json.encode(asdict(profile)) + b"\n")
    except OSError as error:
        raise ConfigError(f"the profile cannot be written: {error.strerror}.", where=str(path)) from error


def read_profile(path: Path) -> Profile:
    """Read a profile. Raises ``ConfigError`` for a file that is none, or of another format."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"the profile cannot be read: {error.strerror}.", where=str(path)) from error
    hint = "`marlaas simulate --record HOME --out FILE` writes one."
    try:
        table = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ConfigError("is no profile: it is not JSON.", hint, where=str(path)) from error
    version = table.get("format") if isinstance(table, dict) else None
    if version != VERSION:
        found = "it says of no format that it has" if version is None else f"its format is {version!r}"
        raise ConfigError(f"is no profile of format {VERSION}: {found}.", hint, where=str(path))
    try:
        return msgspec.convert(table, Profile)
    except msgspec.ValidationError as error:
        raise ConfigError(f"is no sound profile: {error}.", hint, where=str(path)) from error

"""Who plays which agent in ``env play``: versions of adapters, or the bare base, as the command line names them.

For each agent: a version, and how it samples. Only the store is read, nothing is started. A policy speaks as in its
training: with its task's temperature, lengths and thinking, unless the command line says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from marlaas.engine.errors import ConfigError
from marlaas.engine.home import Home
from marlaas.engine.rollout import WHOLE, Truncation
from marlaas.engine.spec import BASE, SamplingSpec, TaskSpec, as_number, for_talk, inside, parse
from marlaas.engine.store import VersionRow
from marlaas.engine.submission import choose, named_by

from ...reading.opening import reading
from ...words.format import line

ROOMY = for_talk(SamplingSpec())
"""How the bare base speaks, as no task says how long it may."""


@dataclass(frozen=True)
class Speaking:
    """What the command line asks for."""

    others: str = ""
    """Who plays the agents that nobody is named for: a task's number or name, or a version's name, perhaps with /POLICY
    and @VERSION; the policies of a task that has several play as in its training. "base": the bare base. Empty:
    nobody."""
    agents: Mapping[str, str] = field(default_factory=dict)
    """Likewise for single agents, by name."""
    temperature: float | None = None
    """None: the temperature of the task."""
    max_tokens: int | None = None
    """Tokens of a turn; None: as the task says."""
    truncation: Truncation = WHOLE
    """Which tokens may be drawn."""


@dataclass(frozen=True)
class Player:
    """Somebody who plays."""

    version: VersionRow | None
    """None: the bare base."""
    sampling: SamplingSpec
    truncation: Truncation = WHOLE
    """Which tokens may be drawn."""

    @property
    def title(self) -> str:
        """The player in words that are safe to print."""
        if self.version is None:
            return "the base"
        policy = f", {line(self.version.policy)}" if self.version.policy != "policy" else ""
        return f"version {self.version.number} of task {self.version.task} ({line(self.version.task_name)}{policy})"


@dataclass(frozen=True)
class Players:
    """Everybody who plays."""

    by_agent: Mapping[str, Player]
    others: Player | None
    """Plays agents that nobody is named for; None where nobody does."""

    def of(self, agent: str) -> Player:
        """Who plays an agent. Raises ``ConfigError`` where nobody does."""
        found = self.by_agent.get(agent, self.others)
        if found is None:
            raise ConfigError(f"Nobody plays the agent {agent!r}.", f"Say who: --as {agent} or --agent {agent} POLICY.")
        return found

    @property
    def all(self) -> tuple[Player, ...]:
        """Every player once."""
        found = [*self.by_agent.values(), *([self.others] if self.others else [])]
        return tuple(player for place, player in enumerate(found) if player not in found[:place])


def players(home: Home, wanted: Speaking, mine: Sequence[str] = ()) -> Players:
    """Find the players; ``mine`` are the agents that the person plays.

    Raises ``AdapterError`` where there is no such version, ``ConfigError`` where the words mean several.
    """
    with reading(home) as reader:
        versions = reader.versions() if reader else []

        def spec_of(task: int) -> TaskSpec:
            if reader is None:
                raise ConfigError("No engine has run in this home yet.")
            return parse(reader.task_config(task), f"task {task}")

        def player(words: str) -> Player:
            return _said(_player(words, versions, spec_of), wanted)

        said = dict(wanted.agents)
        several = _several(wanted.others, versions, spec_of)
        for agent, words in several.items():
            if agent not in mine:
                said.setdefault(agent, words)
        others = None if several or not wanted.others else player(wanted.others)
        return Players({agent: player(words) for agent, words in said.items()}, others)


def _player(words: str, versions: list[VersionRow], spec_of: Callable[[int], TaskSpec]) -> Player:
    if words == BASE:
        return Player(None, ROOMY)
    adapter, _, which = words.partition("@")
    row = choose(versions, adapter, which or "last")
    return Player(row, for_talk(spec_of(row.task).sampling))


def _several(words: str, versions: list[VersionRow], spec_of: Callable[[int], TaskSpec]) -> dict[str, str]:
    """For a task of several policies, who plays each of its agents, in words; for anything else empty."""
    adapter, _, which = words.partition("@")
    if not words or words == BASE:
        return {}
    named = named_by(versions, adapter)[0]
    if adapter not in (str(named.task), named.task_name):
        return {}  # one version, or one policy
    spec, task = spec_of(named.task), named.task

    def playing(name: str) -> str:
        policy = spec.policies[name]
        own = inside(policy.frozen, spec) if policy.frozen else None
        if own is not None:  # what it began as; an untrained beginning is the bare base
            return f"{task}/{own}@0" if spec.policies[own].start else BASE
        return policy.frozen or f"{task}/{policy.pool or name}@{which or 'last'}"

    return {agent: playing(name) for agent, name in spec.agents.items()}


def _said(player: Player, wanted: Speaking) -> Player:
    """The player, with the sampling parameters that the command line gives."""
    sampling = player.sampling
    if wanted.temperature is not None:
        sampling = replace(sampling, temperature=wanted.temperature)
    if wanted.max_tokens is not None:
        room = max(as_number(sampling.max_episode_tokens), wanted.max_tokens)
        sampling = replace(sampling, max_tokens=wanted.max_tokens, max_episode_tokens=room)
    return replace(player, sampling=sampling, truncation=wanted.truncation)

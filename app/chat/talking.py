"""Whom a person talks with, how they speak unless told otherwise, and the sampler that has them loaded.

A version is named in words like ``17@best``. Knows no terminal and no screen.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from marlaas.engine.fleet import BARE, LonePlan, LoneSampler, open_lone_sampler
from marlaas.engine.home import Home
from marlaas.engine.rollout import Manner, Talk
from marlaas.engine.spec import as_number, for_talk, parse
from marlaas.engine.store import VersionRow
from marlaas.engine.submission import choose_at

from ..home.references import owner, reference
from ..reading.home_reader import HomeReader
from ..words.format import line, size

ROOMY = Manner()
"""How the bare base speaks, as no task says how."""


@dataclass(frozen=True)
class Side:
    """Somebody to talk with: a version, or the base without an adapter."""

    version: VersionRow | None = None

    @property
    def name(self) -> str:
        """The name by which the sampler knows it."""
        return self.version.name if self.version else BARE

    @property
    def label(self) -> str:
        """Short: 17@12, 17/player@12, or base."""
        return reference(self.version) if self.version else BARE

    @property
    def title(self) -> str:
        """A longer label, in a few safe words."""
        if self.version is None:
            return "the base without an adapter"
        label = f", {self.version.label}" if self.version.label else ""
        return (
            f"version {self.version.number} of task {owner(self.version)} ({line(self.version.task_name, 40)}{label})"
        )

    def talk(self, lone: LoneSampler, place: str) -> Talk:
        """A conversation with it; the same ``place`` gives the same noise on all sides."""
        return lone.talk(self.name, self.version.number if self.version else 0, place)


def side_of(versions: list[VersionRow], said: str) -> Side:
    """Whom ``said`` means: ``base``, or what ``choose_at`` takes. Raises ``MarlaasError``."""
    return Side() if said == BARE else Side(choose_at(versions, said))


def manner_of(reader: HomeReader, side: Side) -> Manner:
    """How a side speaks: with the temperature, turn length and thinking of its training."""
    if side.version is None:
        return ROOMY
    sampling = for_talk(parse(reader.task_config(side.version.task), f"task {side.version.task}").sampling)
    return Manner(sampling.temperature, as_number(sampling.max_tokens), sampling.thinking)


def cost_of(plan: LonePlan) -> str:
    """What a sampler takes, in a sentence."""
    return f"A sampler of its own takes about {size(plan.memory.total)} of the {size(plan.free)} that are free."


@asynccontextmanager
async def talking(home: Home, plan: LonePlan, sides: Sequence[Side]) -> AsyncIterator[LoneSampler]:
    """A sampler that serves all sides until the block ends.

    Raises ``AdapterError`` for a state file that is gone or damaged, and what the base or the worker raises.
    """
    with TemporaryDirectory(prefix="marlaas-chat-", ignore_cleanup_errors=True) as scratch:
        async with open_lone_sampler(home.create(), plan) as lone:
            for side in sides:
                if side.version is None:
                    await lone.load_bare(Path(scratch))
                else:
                    await lone.load(side.name, home.file(side.version.path), side.version.checksum)
            yield lone

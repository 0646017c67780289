"""A few whole episodes without a model: how an environment asks, and how long it takes itself, before anybody trains.

Replies are the canned ones of ``conformance``, each in another episode: how many turns there are may depend on them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marlaas.plugins.messages import Ask, Reply

from ..errors import EnvironmentFailure
from .alone import serve_alone
from .conformance.replies import CONSTANTS, Canned
from .dependencies.interpreters import Interpreters
from .probe import PATIENCE
from .protocol import EpisodeSpec

MOST_ASKS = 200
"""Asks after which an episode is ended; a real one has used up its context by then."""
SECONDS = 6.0
"""Time after which no further episode begins."""


@dataclass(frozen=True)
class BlindEpisode:
    """One episode to its end, or to its last allowed ask."""

    asks: tuple[Ask, ...]
    seconds: float
    """Time that the environment itself took, scoring included."""


class _Enough(Exception):
    """The episode has had as many asks as it may."""


async def play_blind(
    name: str,
    config: Mapping[str, Any],
    count: int,
    folders: Sequence[Path],
    scratch: Path,
    interpreters: Interpreters | None = None,
    data: Mapping[str, Any] | None = None,
) -> tuple[BlindEpisode, ...]:
    """Play up to ``count`` training instances in processes that end afterwards, at least one; arguments as for
    ``first_prompts``. Episodes that fail are left out.

    Raises ``EnvironmentMissing``, ``ConfigError`` where the parameters do not fit, and ``EnvironmentFailure``.
    """
    played: list[BlindEpisode] = []
    async with serve_alone(name, folders, scratch, interpreters) as (service, info):
        with await service.bind(info.name, config=config, data=data) as lease:
            began = time.monotonic()
            for index in range(count):
                if index and time.monotonic() - began > SECONDS:
                    break
                spec = EpisodeSpec("train", index, seed=0, member=0, config=lease.config, timeout=PATIENCE)
                answers = _Answers(CONSTANTS[index % len(CONSTANTS)])
                start = time.monotonic()
                try:
                    outcome = await service.play(lease, spec, answers.reply)
                except _Enough:
                    outcome = None
                except EnvironmentFailure:
                    continue
                if answers.asks and (outcome is None or outcome.failure is None):
                    played.append(BlindEpisode(tuple(answers.asks), time.monotonic() - start))
    return tuple(played)


class _Answers:
    """Gives one canned reply to every ask, and keeps what was asked."""

    def __init__(self, canned: Canned) -> None:
        self.asks: list[Ask] = []
        self._canned = canned

    async def reply(self, ask: Ask) -> Reply:
        if len(self.asks) >= MOST_ASKS:
            raise _Enough
        self.asks.append(ask)
        before = sum(one.agent == ask.agent and one.branch == ask.branch for one in self.asks) - 1
        return self._canned.reply(ask, before + (ask.fork.turns if ask.fork else 0))

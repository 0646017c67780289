"""Which stations serve which task: what a task's turns ask for against what each sampler takes for it.

Mixes of tokens and measured costs flow in, each task's shares flow out, for its next version: a policy changes its
homes at the border between two versions alone. A deterministic task has one home for ever, of one kind of sampler, and
takes the same after a restart. Knows no worker's process and no text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic

from ..devices.routing import Demand, Share, TokenCosts, guess, route
from ..fairness.mixes import Mix
from ..rollout.episodes import EPISODES
from ..rollout.station import Station
from ..spec import TaskSpec
from .endings import Fruitless

AGAIN = 2.0
"""Seconds after which the routes are looked at again."""
PROMPT = 64
"""Tokens of a first prompt, until something was measured."""


@dataclass(frozen=True)
class _Routed:
    """A task that is being trained."""

    spec: TaskSpec
    only: tuple[str, ...]
    """Its only home, where it must have one."""


class Router:
    """The routes of one incarnation's tasks."""

    def __init__(
        self,
        stations: Sequence[Station],
        costs: Callable[[], Sequence[TokenCosts]],
        mixes: Mapping[int, Mix],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """``costs`` tells what a token takes at each station by now; ``mixes`` grows as turns end, by task."""
        self._stations = stations
        self._costs = costs
        self._mixes = mixes
        self._clock = clock
        self._tasks: dict[int, _Routed] = {}
        self._routes: dict[str, tuple[Share, ...]] = {}
        self._looked = -math.inf

    def join(self, task: int, spec: TaskSpec, kind: str = "") -> str:
        """A task begins to train; one that must repeat itself goes on at a sampler of ``kind``, if it was at one.

        Returns the kind of its only sampler, empty where it may be at any. Raises ``Fruitless`` where there is none.
        """
        home = only_home(self._stations, kind) if spec.train.deterministic else None
        self._tasks[task] = _Routed(spec, (home.name,) if home else ())
        self._looked = -math.inf
        return home.kind if home else ""

    def leave(self, task: int) -> None:
        """A task does not train any more; one that never did is fine."""
        if self._tasks.pop(task, None) is not None:
            self._routes.pop(str(task), None)

    def shares(self, task: int) -> tuple[Share, ...]:
        """Where the next version of a task that has joined is to be served."""
        if len(self._stations) == 1:
            return (Share(self._stations[0].name, 1.0),)
        now = self._clock()
        if str(task) not in self._routes or now - self._looked >= AGAIN:
            self._looked = now
            self._routes = route(self._costs(), self._demands(), self._routes)
        return self._routes[str(task)]

    def _demands(self) -> list[Demand]:
        """Of every task what it keeps under way, measured where an episode of it has ended."""
        known: dict[int, Demand] = {}
        for task, routed in self._tasks.items():
            mix = self._mixes.get(task)
            if mix is not None and mix.of_one is not None:
                prefilled, sampled = (tokens * under_way(routed.spec) for tokens in mix.of_one)
                known[task] = Demand(str(task), prefilled, sampled, routed.only, bool(routed.only))
        others = tuple(known.values())
        return [known.get(task) or _guessed(task, routed, others) for task, routed in self._tasks.items()]


def only_home(stations: Sequence[Station], kind: str) -> Station:
    """Where a task is sampled that must repeat itself: always at the first that can, and of the same kind as before,
    for two kinds do not say the same to the last bit. Raises ``Fruitless`` where there is none."""
    able = [station for station in stations if station.repeatable and station.kind == (kind or station.kind)]
    if not able:
        raise Fruitless(
            f"The task is deterministic and was sampled with {kind or 'another sampler'} so far, which this home does"
            " not have any more.",
            f'Set `sampler = "{kind}"` under [rollout] in marlaas.toml, or submit the task anew.',
        )
    return able[0]


def _guessed(task: int, routed: _Routed, others: Sequence[Demand]) -> Demand:
    return guess(str(task), PROMPT, routed.spec.sampling.max_tokens, others, routed.only, bool(routed.only))


def under_way(spec: TaskSpec) -> int:
    """Episodes that a task keeps under way, if nothing holds it up."""
    train = spec.train
    return min(EPISODES, (train.max_staleness + 1) * train.groups_per_step * train.group_size)

"""Which endpoints serve which policy: what its turns ask for against what each sampler takes for it.

Mixes of tokens and measured costs flow in, each policy's shares flow out, for its next version: it changes its homes at
the border between two versions alone. Policies of one task may ask for very different amounts. A deterministic task has
one home for ever, of one kind of sampler, and takes the same after a restart. Knows no worker's process and no text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic

from ...errors import Fruitless
from ...fairness import Mix
from ...rollout import EPISODES, SamplerEndpoint
from ...spec import TaskSpec, agent_map_of, spec_of
from .assignment import Demand, Share, TokenCosts, guess, route

AGAIN = 2.0
"""Seconds after which the routes are looked at again."""
PROMPT = 64
"""Tokens of a first prompt, until something was measured."""


@dataclass(frozen=True)
class _Routed:
    """A task that is being trained."""

    spec: TaskSpec
    policies: Mapping[str, tuple[str, ...]]
    """Those that are served, each with all who speak at its homes: itself, and pools of its own versions."""
    only: tuple[str, ...]
    """Its only home, where it must have one."""

    @property
    def under_way(self) -> int:
        """Episodes that it keeps under way, if nothing holds it up: as many as all of its policies allow."""
        return min(under_way(spec_of(self.spec, name)) for name in agent_map_of(self.spec).trained)


class Router:
    """The routes of the policies of one incarnation's tasks."""

    def __init__(
        self,
        endpoints: Sequence[SamplerEndpoint],
        costs: Callable[[], Sequence[TokenCosts]],
        mixes: Mapping[int, Mapping[str, Mix]],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """``costs`` tells what a token takes at each endpoint by now; ``mixes`` grows as turns end, by task and by who
        spoke."""
        self._endpoints = endpoints
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
        home = only_home(self._endpoints, kind) if spec.train.deterministic else None
        self._tasks[task] = _Routed(spec, served(spec), (home.name,) if home else ())
        self._looked = -math.inf
        return home.kind if home else ""

    def leave(self, task: int) -> None:
        """A task does not train any more; one that never did is fine."""
        routed = self._tasks.pop(task, None)
        for policy in routed.policies if routed is not None else ():
            self._routes.pop(_key(task, policy), None)

    def shares(self, task: int, policy: str) -> tuple[Share, ...]:
        """Where the next version of a policy of a task that has joined is to be served.

        Who only takes part in measurements is served where the first policy is.
        """
        if len(self._endpoints) == 1:
            return (Share(self._endpoints[0].name, 1.0),)
        policies = self._tasks[task].policies
        key = _key(task, policy if policy in policies else next(iter(policies)))
        now = self._clock()
        if key not in self._routes or now - self._looked >= AGAIN:
            self._looked = now
            self._routes = route(self._costs(), self.demands(), self._routes)
        return self._routes[key]

    def demands(self) -> list[Demand]:
        """Of every policy what its task keeps under way, measured where an episode of that has ended."""
        known = {task: self._measured(task, routed) for task, routed in self._tasks.items()}
        others = tuple(demand for demands in known.values() for demand in demands)
        return [
            demand
            for task, routed in self._tasks.items()
            for demand in known[task] or [_guessed(_key(task, policy), routed, others) for policy in routed.policies]
        ]

    def _measured(self, task: int, routed: _Routed) -> list[Demand]:
        """None as long as nothing is known of the task; a policy that has not spoken by then asks for nothing."""
        mixes = self._mixes.get(task, {})
        heard = {speaker: mix.of_one for speaker, mix in mixes.items() if mix.of_one is not None}
        if not heard:
            return []
        demands = []
        for policy, speakers in routed.policies.items():
            said = [heard[speaker] for speaker in speakers if speaker in heard]
            read, written = (routed.under_way * math.fsum(tokens) for tokens in zip((0.0, 0.0), *said, strict=True))
            demands.append(Demand(_key(task, policy), read, written, routed.only, bool(routed.only)))
        return demands


def only_home(endpoints: Sequence[SamplerEndpoint], kind: str) -> SamplerEndpoint:
    """Where a task is sampled that must repeat itself: always at the first that can, and of the same kind as before,
    for two kinds do not say the same to the last bit. Raises ``Fruitless`` where there is none."""
    able = [endpoint for endpoint in endpoints if endpoint.repeatable and endpoint.kind == (kind or endpoint.kind)]
    if not able:
        raise Fruitless(
            f"The task is deterministic and was sampled with {kind or 'another sampler'} so far, which this home does"
            " not have any more.",
            f'Set `sampler = "{kind}"` under [rollout] in marlaas.toml, or submit the task anew.',
        )
    return able[0]


def served(spec: TaskSpec) -> dict[str, tuple[str, ...]]:
    """The policies of a task that have homes, each with itself and the pools of its own versions, which are served
    there, too."""
    policies = agent_map_of(spec).policies
    return {
        name: (name, *(pool for pool, other in policies.items() if other.pool == name))
        for name, policy in policies.items()
        if not policy.pool
    }


def _key(task: int, policy: str) -> str:
    return f"{task}/{policy}"


def _guessed(key: str, routed: _Routed, others: Sequence[Demand]) -> Demand:
    return guess(key, PROMPT, routed.spec.sampling.max_tokens, others, routed.only, bool(routed.only))


def under_way(spec: TaskSpec) -> int:
    """Episodes that a task keeps under way, if nothing holds it up."""
    train = spec.train
    return min(EPISODES, (train.max_staleness + 1) * train.groups_per_step * train.group_size)

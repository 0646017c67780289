"""Sampler endpoints, and the policies sampled at each."""

from __future__ import annotations

import asyncio
import contextlib
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from marlaas.plugins.messages import Message

from ...adapters.statefile import PolicyState, read_state, write_state
from ...clock import monotonic
from ...devices.machine import Link, Machine, Rates, SamplerAssignment, TrainerAssignment
from ...errors import BaseModelError, Fruitless, WorkerDied
from ...fairness.line import FairClock, Mix
from ...home.settings import RolloutSettings, Settings
from ...models.config import GGUF, REPEATABLE, SAMPLERS
from ...models.find import BaseModel
from ...models.memory import FLOAT, MemoryPlan
from ...models.weights import parameters
from ...rollout.episodes import EPISODES
from ...rollout.renderer import Renderer
from ...rollout.slots import SamplerEndpoint
from ...samplers.protocol import Sampler, SamplerStats
from ...spec.automatic import as_number
from ...spec.task import ONLY, TaskSpec, agent_map_of, spec_of
from ...trainer.protocol import PolicyConfig, Trainer
from ...trajectories import Logprobs, Tokens
from ..placement.capacity import REFERENCE, rates_of_cores
from ..plan import of_assignment, stored_as
from .assignment import CostMeter, Demand, Share, TokenCosts, busy_seconds, guess, guessed, mean_of, place, route

# Gaps: absolute differences of log-probabilities, nats.


@dataclass(frozen=True)
class Tolerance:
    """The largest gap bounds exact computation, the mean quantised matrices: unlikely tokens may differ by nats."""

    largest: float = math.inf
    mean: float = math.inf
    rounding: float = 1e-2
    """Least root mean square change of a log-probability by rounding."""
    trainer_rounds: bool = False
    """The trainer's log-probabilities are rounded, too."""

    def holds(self, largest: float, mean: float) -> bool:
        """NaN never holds."""
        return largest <= self.largest and mean <= self.mean


EXACT = Tolerance(largest=0.002, rounding=1e-5)
FAST = Tolerance(largest=0.15, rounding=1e-3)
ROUNDED = {
    "f32": FAST,
    "f16": FAST,
    "bf16": Tolerance(mean=0.1),
    "q8_0": Tolerance(mean=0.2),
    "q6_k": Tolerance(mean=0.5),
    "q5_k_m": Tolerance(mean=0.8),
    "q4_k_m": Tolerance(mean=1.5),
}
"""Two or three times the mean gap on random weights; another base: several nats. Mean, largest: random base of
Qwen2.5-0.5B's shape, bf16 0.02, 0.10, q8_0 0.09, 0.36; shipped base 0.008, 0.033, q8_0 0.039, 0.15."""

HALF = Tolerance(mean=0.1, trainer_rounds=True)
"""Four times the mean gap on random weights. Mean, largest (bfloat16 trainer on a processor), random base of
Qwen2.5-0.5B's shape, then shipped base: float32 sampler 0.025, 0.09, 0.011, 0.06; bfloat16 0.026, 0.09, 0.014, 0.09;
q8_0 0.10, 0.30, 0.035, 0.15. Not measured on a card."""


def tolerance_of(rollout: RolloutSettings, stored: str, exact: bool = True) -> Tolerance:
    """``stored``: of ``precision.PRECISIONS``, or ``HALF``.

    ``exact``: False on a card, or with a trainer's base not in float32.
    """
    if not exact:
        return HALF if stored in ("f32", "f16", "bf16") else replace(ROUNDED[stored], trainer_rounds=True)
    if not SAMPLERS[rollout.sampler].gguf and stored == "f32":
        return EXACT
    foreign = rollout.gguf or rollout.weights == GGUF
    return EXACT if rollout.exact and stored == "f32" and not foreign else ROUNDED[stored]


# Other weights show under the bare base, reordered rows under a random adapter.

POLICY = "agreement"
CONFIG = PolicyConfig(rank=4, alpha=4.0)
STRENGTH = 0.1
"""Of the random B; layers' outputs change by tens of per cent."""
TALK = (
    "A lighthouse keeper counts ships: 3 in the morning, 14 at noon and 159 by night. He writes each number into a"
    " book, beside the weather, the tide and a remark such as 'fog' or 'clear'. How many ships did he see?"
)
SHARE = 0.3
"""Share of the adapter's change, if rounding is large."""


@dataclass(frozen=True)
class Agreement:
    """Differences in nats."""

    gap_mean: float
    gap_max: float
    moved: float
    moved_gap: float

    def check(self, tolerance: Tolerance, what: str) -> None:
        """Raises ``BaseModelError`` beginning with ``what``, unless it is rounding."""
        if not tolerance.holds(self.gap_max, self.gap_mean):
            raise BaseModelError(
                f"{what} does not hold the weights of the base model: its log-probabilities are {self.gap_mean:.2g}"
                f" nats away from the trainer's on average, {self.gap_max:.2g} at most.",
                "Make it anew from the very folder that `base` names, in a higher precision if it is quantised.",
            )
        if not self.moved_gap <= max(SHARE * self.moved, 2 * self.gap_mean):
            raise BaseModelError(
                f"{what} takes adapters in another order than the trainer: what a random one changes differs by"
                f" {self.moved_gap:.2g} nats, of {self.moved:.2g}.",
                "This architecture cannot be sampled with llama.cpp by marlaas.",
            )


def comparison_tokens(renderer: Renderer, most: int) -> Tokens:
    """A conversation, int32 (T,), T at most ``most``."""
    return np.array(renderer.open([Message("user", TALK)])[:most], np.int32)


async def compare(sampler: Sampler, trainer: Trainer, tokens: Tokens, scratch: Path) -> Agreement:
    """Score ``tokens`` (T,), T > 1, four times. Raises the workers' errors."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        plain, adapted = Path(folder, "plain.safetensors"), Path(folder, "adapted.safetensors")
        try:
            await trainer.open(POLICY, CONFIG, str(plain), False)
            write_state(adapted, _with_random_b(read_state(plain)), sync=False)
            base = await _both(sampler, trainer, plain, tokens)
            await trainer.open(POLICY, CONFIG, str(adapted), True)
            changed = await _both(sampler, trainer, adapted, tokens)
        finally:
            await trainer.close(POLICY)
    gaps = np.abs(base[0] - base[1])
    moved = changed[1] - base[1]
    moved_gap = np.abs((changed[0] - base[0]) - moved)
    return Agreement(float(gaps.mean()), float(gaps.max()), float(np.abs(moved).mean()), float(moved_gap.mean()))


async def _both(sampler: Sampler, trainer: Trainer, state: Path, tokens: Tokens) -> tuple[Logprobs, Logprobs]:
    name = f"{POLICY}/{state.parent.name}/{state.stem}"
    await sampler.load(name, str(state))
    try:
        return (
            await sampler.score(name, tokens, 1, CONFIG.temperature),
            await trainer.score(POLICY, tokens, 1, CONFIG.temperature),
        )
    finally:
        await sampler.retire(name)


def _with_random_b(state: PolicyState) -> PolicyState:
    random = np.random.default_rng(0)
    adapter = {
        name: random.normal(0.0, STRENGTH, array.shape).astype(np.float32) if name.endswith(".lora_B") else array
        for name, array in state.adapter.items()
    }
    return replace(state, adapter=adapter)


PROMPT_BYTES, REPLY_BYTES = 4, 8
"""Bytes of a token to a sampler, and back with its log-probability."""


class SamplerEndpoints:
    """One incarnation's endpoints, in placement order."""

    def __init__(
        self,
        endpoints: Sequence[SamplerEndpoint],
        tolerances: Mapping[str, Tolerance],
        base: BaseModel,
        rates: Mapping[str, Rates] | None = None,
        links: Mapping[str, Link] | None = None,
        clock: FairClock[str] | None = None,
    ) -> None:
        """``rates``, by endpoint, if devices differ; ``links`` to their nodes."""
        self.by_name = {endpoint.name: endpoint for endpoint in endpoints}
        self.clock = clock or FairClock()
        self.tolerances = tolerances
        size = parameters(base)
        self._links = dict(links or {})
        self._known: dict[str, SamplerStats] = {}
        self._classes = {endpoint.name: endpoint.alike or endpoint.name for endpoint in endpoints}
        known = {self._classes[name]: found for name, found in (rates or {}).items()}
        self._meters = {
            name: CostMeter(guessed(name, size, FLOAT * size, known.get(name))) for name in self._classes.values()
        }
        """One meter for all alike endpoints. One with few requests has small passes, would look slow, and would get
        even fewer."""
        self._tell()

    def costs(self) -> list[TokenCosts]:
        return [
            behind(replace(self._meters[alike].costs, name=name), self._links.get(name), self.by_name[name].slots.count)
            for name, alike in self._classes.items()
        ]

    @property
    def alive(self) -> bool:
        return any(not endpoint.lost for endpoint in self.by_name.values())

    def lose(self, name: str) -> None:
        self.by_name[name].lost = True

    def take_in(self, endpoint: SamplerEndpoint) -> None:
        self.by_name[endpoint.name] = endpoint
        self._known.pop(endpoint.name, None)
        self._tell()

    @property
    def conversations(self) -> dict[str, int]:
        return {name: endpoint.slots.count for name, endpoint in self.by_name.items()}

    async def stats(self, patience: float) -> dict[str, SamplerStats]:
        asked = await asyncio.gather(*(self._ask(endpoint, patience) for endpoint in self.by_name.values()))
        answers = dict(answer for answer in asked if answer is not None)
        self._known |= answers
        for alike, meter in self._meters.items():
            known = [stats for name, stats in self._known.items() if self._classes[name] == alike]
            read, sampled = sum(one.prefilled_tokens for one in known), sum(one.sampled_tokens for one in known)
            self._meters[alike] = meter.seen(read, sampled, sum(one.busy_seconds for one in known))
        self._tell()
        return answers

    def _tell(self) -> None:
        for costs in self.costs():
            backlog = self.by_name[costs.name].backlog
            backlog.read, backlog.written = costs.prefilled, costs.sampled
            backlog.way = self._links.get(costs.name, Link()).call

    async def _ask(self, endpoint: SamplerEndpoint, patience: float) -> tuple[str, SamplerStats] | None:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(patience):  # Python 3.11's wait_for may swallow the caller's cancellation
                return endpoint.name, await endpoint.sampler.stats()
        return None


def behind(costs: TokenCosts, link: Link | None, slots: int) -> TokenCosts:
    """Costs with ``slots``, one waiting on the ``link`` per turn."""
    if link is None or not (link.call or link.byte):
        return costs
    return replace(
        costs,
        prefilled=costs.prefilled + PROMPT_BYTES * link.byte,
        sampled=costs.sampled + REPLY_BYTES * link.byte,
        turn=link.call / max(1, slots),
    )


def device_of(assignment: SamplerAssignment, machine: Machine | None) -> str:
    """In words, the same for alike devices; empty: unknown."""
    if not assignment.place.gpus:
        cores = f"{len(assignment.place.cores)} cores"
        return f"{cores} of {machine.cpu.name or assignment.node}" if machine and assignment.node else cores
    names = {gpu.uuid: gpu.name for gpu in machine.gpus} if machine else {}
    return (
        " + ".join(sorted(names[uuid] for uuid in assignment.place.gpus))
        if names.keys() >= set(assignment.place.gpus)
        else ""
    )


def rates_at(samplers: Sequence[SamplerAssignment], machine_at: Callable[[str], Machine | None]) -> dict[str, Rates]:
    """By sampler.

    Empty if all compute on one machine's processor.
    """
    cards = any(assignment.place.gpus for assignment in samplers)
    if not cards and len({assignment.node for assignment in samplers}) < 2:
        return {}
    found = {}
    for assignment in samplers:
        machine = machine_at(assignment.node)
        if machine is None:
            return {}
        gpus = {gpu.uuid: gpu.rates or REFERENCE for gpu in machine.gpus}
        own = assignment.place
        found[assignment.name] = gpus[own.gpus[0]] if own.gpus else rates_of_cores(machine.cpu, len(own.cores))
    return found


def repeats(assignment: SamplerAssignment, stored: str) -> bool:
    """Bits repeat under any load: not on cards, not with vLLM."""
    return SAMPLERS[assignment.kind].repeats and not assignment.place.gpus and stored in REPEATABLE


def precision(
    base: BaseModel,
    settings: Settings,
    assignment: SamplerAssignment,
    memory: MemoryPlan,
    trainer: TrainerAssignment | None = None,
) -> tuple[str, Tolerance]:
    """A sampler's form of matrices, and tolerance."""
    own = of_assignment(settings, assignment)
    stored = stored_as(base, own, memory)
    exact = not assignment.place.gpus and (trainer is None or (trainer.precision == "f32" and not trainer.place.gpus))
    return stored, tolerance_of(own.rollout, stored, exact)


AGAIN = 2.0
MANY = 100
"""From so many tasks on, a new one takes present routes until the next update, whose time grows with tasks and
samplers."""
PROMPT = 64


@dataclass(frozen=True)
class _Routed:
    spec: TaskSpec
    policies: Mapping[str, tuple[str, ...]]
    only: tuple[str, ...]

    @property
    def under_way(self) -> int:
        return min(under_way(spec_of(self.spec, name)) for name in agent_map_of(self.spec).trained)


class Router:
    """Routes policies to endpoints by tokens and costs.

    They change only between versions; a deterministic task keeps one.
    """

    def __init__(
        self,
        endpoints: Sequence[SamplerEndpoint],
        costs: Callable[[], Sequence[TokenCosts]],
        mixes: Mapping[int, Mapping[str, Mix]],
        clock: Callable[[], float] = monotonic,
        tell: Callable[[int, str], None] = lambda task, sentence: None,
    ) -> None:
        """``costs`` by endpoint; ``mixes`` grow as turns end; ``tell`` gets changed samplers."""
        self._endpoints = {endpoint.name: endpoint for endpoint in endpoints}
        self._arrived = asyncio.Event()
        self._costs = costs
        self._mixes = mixes
        self._clock = clock
        self._tell = tell
        self._told: dict[str, frozenset[str]] = {}
        self._tasks: dict[int, _Routed] = {}
        self._routes: dict[str, tuple[Share, ...]] = {}
        self._busy: dict[str, float] = {}
        self._usual: Demand | None = None
        self._looked = -math.inf

    def join(self, task: int, spec: TaskSpec, kind: str = "") -> str:
        """A deterministic task continues at ``kind``, if given.

        Returns its only sampler's kind; empty: any. Raises ``Fruitless`` without one.
        """
        only = repeatable_endpoint(tuple(self._endpoints.values()), kind) if spec.train.deterministic else None
        self._tasks[task] = _Routed(spec, served(spec), (only.name,) if only else ())
        if len(self._tasks) < MANY:
            self._looked = -math.inf
        return only.kind if only else ""

    async def served(self, task: int) -> None:
        only = self._tasks[task].only
        while not any(not endpoint.lost for name, endpoint in self._endpoints.items() if name in (only or (name,))):
            await self._arrived.wait()

    def take_in(self, endpoint: SamplerEndpoint) -> None:
        self._endpoints[endpoint.name] = endpoint
        self._looked = -math.inf
        arrived, self._arrived = self._arrived, asyncio.Event()
        arrived.set()

    def leave(self, task: int) -> None:
        routed = self._tasks.pop(task, None)
        for policy in routed.policies if routed is not None else ():
            self._routes.pop(_key(task, policy), None)
            self._told.pop(_key(task, policy), None)

    def shares(self, task: int, policy: str) -> tuple[Share, ...]:
        """For a policy's next version.

        Versions only evaluated go with the first policy. Raises ``WorkerDied`` if none lives.
        """
        if len(self._endpoints) == 1:
            (endpoint,) = self._endpoints.values()
            return self._living((Share(endpoint.name, 1.0),))
        policies = self._tasks[task].policies
        name = policy if policy in policies else next(iter(policies))
        key = _key(task, name)
        now = self._clock()
        lost = {name for name, endpoint in self._endpoints.items() if endpoint.lost}
        routes = self._routes.get(key, ())
        if any(share.sampler in lost for share in routes) or now - self._looked >= AGAIN:
            self._looked = now
            self._look(lost)
        elif not routes:
            self._add(task, lost)
        samplers = frozenset(share.sampler for share in self._living(self._routes.get(key, ())))
        if self._told.get(key) != samplers:
            self._told[key] = samplers
            self._tell(task, self._sentence(name, samplers))
        return self._routes[key]

    def _look(self, lost: Set[str]) -> None:
        costs = [one for one in self._costs() if one.name not in lost]
        demands = [one for one in self.demands() if not one.only or set(one.only) - lost]
        self._routes = route(costs, demands, self._routes) if costs else {}
        self._busy = busy_seconds(costs, demands, self._routes) if costs else {}

    def _add(self, task: int, lost: Set[str]) -> None:
        costs = [one for one in self._costs() if one.name in self._busy and one.name not in lost]
        routed = self._tasks[task]
        demands = self._measured(task, routed) or _guessed(task, routed, self._usual)
        able = [one for one in demands if any(not one.only or cost.name in one.only for cost in costs)]
        place(costs, able, self._busy, self._routes)

    def _living(self, shares: tuple[Share, ...]) -> tuple[Share, ...]:
        if not shares or any(self._endpoints[share.sampler].lost for share in shares):
            raise WorkerDied("No sampler lives that may serve this policy.")
        return shares

    def _sentence(self, policy: str, samplers: frozenset[str]) -> str:
        every = self._endpoints.values()
        named = [f"{endpoint.kind} ({endpoint.name})" for endpoint in every if endpoint.name in samplers]
        whose = "The task" if policy == ONLY else f"The policy {policy}"
        return f"{whose} is sampled by {' and '.join(named)}."

    def demands(self) -> list[Demand]:
        """Guessed until an episode has ended."""
        known = {task: self._measured(task, routed) for task, routed in self._tasks.items()}
        self._usual = mean_of([demand for demands in known.values() for demand in demands])
        return [
            demand
            for task, routed in self._tasks.items()
            for demand in known[task] or _guessed(task, routed, self._usual)
        ]

    def _measured(self, task: int, routed: _Routed) -> list[Demand]:
        mixes = self._mixes.get(task, {})
        seen = {name: mix.of_one for name, mix in mixes.items() if mix.of_one is not None}
        if not seen:
            return []
        demands = []
        for policy, names in routed.policies.items():
            said = [seen[name] for name in names if name in seen]
            read, written = (routed.under_way * math.fsum(tokens) for tokens in zip((0.0, 0.0), *said, strict=True))
            turns = routed.under_way * math.fsum(mixes[name].turns_of_one for name in names if name in mixes)
            demands.append(Demand(_key(task, policy), read, written, routed.only, bool(routed.only), turns))
        return demands


def repeatable_endpoint(endpoints: Sequence[SamplerEndpoint], kind: str) -> SamplerEndpoint:
    """The first of ``kind``: two kinds differ in the last bits. Raises ``Fruitless`` without one."""
    able = [endpoint for endpoint in endpoints if endpoint.repeatable and endpoint.kind == (kind or endpoint.kind)]
    if not able:
        raise Fruitless(
            f"The task is deterministic and was sampled with {kind or 'another sampler'} so far, which this home does"
            " not have any more.",
            f'Set `sampler = "{kind}"` under [rollout] in marlaas.toml, or submit the task anew.',
        )
    return able[0]


def served(spec: TaskSpec) -> dict[str, tuple[str, ...]]:
    """A task's policies, each with itself and pools of its versions."""
    policies = agent_map_of(spec).policies
    return {
        name: (name, *(pool for pool, other in policies.items() if other.pool == name))
        for name, policy in policies.items()
        if not policy.pool
    }


def _key(task: int, policy: str) -> str:
    return f"{task}/{policy}"


def _guessed(task: int, routed: _Routed, usual: Demand | None) -> list[Demand]:
    reply, only = as_number(routed.spec.sampling.max_tokens), routed.only
    return [guess(_key(task, policy), PROMPT, reply, usual, only, bool(only)) for policy in routed.policies]


def under_way(spec: TaskSpec) -> int:
    """The strictest policy's limit of episodes in progress."""
    if spec.kind == "eval":
        return min(EPISODES, spec.eval.prompts * spec.eval.samples)
    train = spec.train
    return min(EPISODES, (train.max_staleness + 1) * train.groups_per_step * train.begun_members)

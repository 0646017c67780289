"""Makes the sampler endpoints of tasks from live workers, and measures token costs at each."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ...base import FLOAT, REPEATABLE, SAMPLERS, BaseModel, MemoryPlan, parameters
from ...devices import Link, Machine, Rates, SamplerAssignment, TrainerAssignment
from ...fairness import Line, SharedClock
from ...home import Settings
from ...rollout import Sampler, SamplerEndpoint, SamplerLimits, SamplerSlots, SamplerStats, Waiter
from ..agreement import Tolerance, tolerance_of
from ..placement.capacity import rates_of, rates_of_cores
from ..worker_specs import of_assignment, stored_as
from .assignment import CostMeter, TokenCosts, guessed

PROMPT_BYTES, REPLY_BYTES = 4, 8
"""Bytes of a token on the way to a sampler, and on the way back with its log-probability."""


class SamplerEndpoints:
    """The endpoints of one incarnation of the workers, in the order of the placement."""

    def __init__(
        self,
        endpoints: Sequence[SamplerEndpoint],
        tolerances: Mapping[str, Tolerance],
        base: BaseModel,
        rates: Mapping[str, Rates] | None = None,
        links: Mapping[str, Link] | None = None,
        clock: SharedClock[str] | None = None,
    ) -> None:
        """``rates`` are those of each endpoint's device, if devices differ; costs begin with them.

        ``links`` are the ways to the endpoints' nodes; the default takes no time. ``clock`` is that of their lines.
        """
        self.by_name = {endpoint.name: endpoint for endpoint in endpoints}
        self.clock = clock or SharedClock()
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
    """Token costs at a sampler with this many slots, one of which waits while a turn is on the ``link``."""
    if link is None or not (link.call or link.byte):
        return costs
    return replace(
        costs,
        prefilled=costs.prefilled + PROMPT_BYTES * link.byte,
        sampled=costs.sampled + REPLY_BYTES * link.byte,
        turn=link.call / max(1, slots),
    )


def open_endpoint(
    sampler: Sampler,
    limits: SamplerLimits,
    assignment: SamplerAssignment,
    stored: str,
    line: Line[Waiter],
    machine: Machine | None = None,
) -> SamplerEndpoint:
    """An endpoint over a live worker, with matrices as ``stored``; turns wait for its slots in ``line``.

    ``machine`` has the cards that the assignment names.
    """
    slots, device = SamplerSlots(limits.sequences, line), device_of(assignment, machine)
    alike = f"{assignment.kind}, {stored}, {device}" if device else ""
    return SamplerEndpoint(
        assignment.name, assignment.kind, sampler, limits.context, slots, repeats(assignment, stored), alike
    )


def device_of(assignment: SamplerAssignment, machine: Machine | None) -> str:
    """The device in words, the same for alike devices; empty if unknown."""
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
    """The rates of each sampler's device, by the sampler's name; ``machine_at`` gives the machine of a node.

    Empty if all compute on the processor of one machine: there kinds of samplers differ, not devices.
    """
    cards = any(assignment.place.gpus for assignment in samplers)
    if not cards and len({assignment.node for assignment in samplers}) < 2:
        return {}
    found = {}
    for assignment in samplers:
        machine = machine_at(assignment.node)
        if machine is None:
            return {}
        gpus = {gpu.uuid: rates_of(gpu, machine.gpus) for gpu in machine.gpus}
        own = assignment.place
        found[assignment.name] = gpus[own.gpus[0]] if own.gpus else rates_of_cores(machine.cpu, len(own.cores))
    return found


def repeats(assignment: SamplerAssignment, stored: str) -> bool:
    """True if a sampler repeats a result to the last bit under any load: not on a card, and not vLLM."""
    return SAMPLERS[assignment.kind].repeats and not assignment.place.gpus and stored in REPEATABLE


def precision(
    base: BaseModel,
    settings: Settings,
    assignment: SamplerAssignment,
    memory: MemoryPlan,
    trainer: TrainerAssignment | None = None,
) -> tuple[str, Tolerance]:
    """How a sampler keeps the base's matrices, and its tolerance against the trainer."""
    own = of_assignment(settings, assignment)
    stored = stored_as(base, own, memory)
    exact = not assignment.place.gpus and (trainer is None or (trainer.precision == "f32" and not trainer.place.gpus))
    return stored, tolerance_of(own.rollout, stored, exact)

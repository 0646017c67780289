"""Once a minute: moves cards from one stage to the other where the ledger's busy seconds and tokens show that it pays.

``fleet/placement/balance.py`` decides when a move is worth its cost; the placement decides where everything goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from ..devices import Machine
from ..fairness import TRAINING, Ledger, stage_of
from ..fleet import Balance, PlacementPlan, Times, Window, card_seconds, modelled

INTERVAL = 60.0
"""Seconds of a window."""
LOOK = 1.0
"""Seconds between looks at whether workers that move have started."""
RESTART = 60.0
"""Seconds that a move is assumed to take until one was measured: vLLM takes about as long to start."""


class Movable(Protocol):
    """The part of the supervisor that is used here."""

    placement_plan: PlacementPlan
    """The present plan."""

    @property
    def ready(self) -> bool:
        """Whether the workers are alive."""

    def move(self, placement_plan: PlacementPlan) -> None:
        """Change to another plan."""


class Rebalancing:
    """Decides every minute. ``plan`` makes a plan for a machine and for times of the stages."""

    def __init__(
        self,
        supervisor: Movable,
        ledger: Ledger,
        plan: Callable[[Machine, Times], PlacementPlan],
        log: Callable[[str, str, str], None],
        now: float,
    ) -> None:
        self._supervisor = supervisor
        self._ledger = ledger
        self._plan = plan
        self._log = log
        self._balance = Balance(restart=RESTART, moved=now)
        self._busy: dict[str, float] = dict(ledger.busy)
        self._made = _trained(ledger)

    @property
    def times(self) -> Times | None:
        """The stages' times as measured; None until enough was seen."""
        return self._balance.times

    async def run(self) -> None:
        """Look until cancelled; where a stage is on no card there is nothing to move."""
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            await asyncio.sleep(INTERVAL)
            moved = loop.time()
            if self.look(moved, moved - begun):
                await asyncio.sleep(LOOK)
                while not self._supervisor.ready:
                    await asyncio.sleep(LOOK)
                self._balance = self._balance.begun(loop.time(), loop.time() - moved)

    def look(self, now: float, seconds: float) -> bool:
        """Take in the last ``seconds``; returns whether the workers move. ``now`` is in seconds of any clock."""
        machine, present = self._supervisor.placement_plan.machine, self._supervisor.placement_plan.placement
        before, self._busy = self._busy, dict(self._ledger.busy)
        made = _trained(self._ledger)
        tokens, self._made = made - self._made, made
        if machine is None or modelled(present, machine, Times()) <= 0:
            return False
        busy = {name: total - before.get(name, 0.0) for name, total in self._busy.items()}
        sampling = sum(
            card_seconds(assignment.place, machine, busy.get(assignment.name, 0.0), "rollout")
            for assignment in present.samplers
        )
        training = sum(
            card_seconds(assignment.place, machine, busy.get(assignment.name, 0.0), TRAINING)
            for assignment in present.trainers
        )
        window = Window(seconds, tokens, sampling, training)
        self._balance, better = self._balance.after(
            window, now, present, machine, lambda times: self._plan(machine, times).placement
        )
        times = self._balance.times
        if better is None or times is None:
            return False
        self._log("placement", "Cards move between the stages, for their work was measured.", "info")
        self._supervisor.move(self._plan(machine, times))
        self._balance = self._balance.begun(now)
        return True


def _trained(ledger: Ledger) -> int:
    """Tokens that all trainers together have trained on so far."""
    return sum(tokens for worker, tokens in ledger.made.items() if stage_of(worker) == TRAINING)

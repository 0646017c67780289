"""Once a minute: what both stages did with their cards, and now and then workers that begin anew on others.

The ledger's busy seconds and trained tokens flow in, a move to another placement flows out. When a move is worth its
cost is ``devices/balance.py``'s business; where everything goes then, the placement's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from ..devices import Machine
from ..fairness import TRAINING, Ledger
from ..fleet import Balance, PlacementPlan, Times, Window, card_seconds, modelled

INTERVAL = 60.0
"""Seconds of a window."""
LOOK = 1.0
"""Seconds between looks at whether workers that move have started."""
RESTART = 60.0
"""Seconds that a move takes until one was measured: vLLM takes about as long to start."""


class Movable(Protocol):
    """The supervisor, as far as this is about it."""

    placement_plan: PlacementPlan
    """Who works where."""

    @property
    def ready(self) -> bool:
        """Whether the workers live."""

    def move(self, placement_plan: PlacementPlan) -> None:
        """Go over to another one."""


class Rebalancing:
    """Looks again and again. ``plan`` says who would work where on a machine at such times of the stages."""

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
        self._made = ledger.made[TRAINING]

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
        """Take in what was done in the last ``seconds``; whether the workers move for it. ``now`` is by any clock."""
        machine, present = self._supervisor.placement_plan.machine, self._supervisor.placement_plan.placement
        before, self._busy = self._busy, dict(self._ledger.busy)
        tokens, self._made = self._ledger.made[TRAINING] - self._made, self._ledger.made[TRAINING]
        if machine is None or modelled(present, machine, Times()) <= 0:
            return False
        busy = {name: total - before.get(name, 0.0) for name, total in self._busy.items()}
        sampling = sum(
            card_seconds(assignment.place, machine, busy.get(assignment.name, 0.0), "rollout")
            for assignment in present.samplers
        )
        training = card_seconds(present.trainer.place, machine, busy.get(TRAINING, 0.0), TRAINING)
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

"""The trainer on a large base: forward and backward of one group flow in, seconds and operations flow out.

Each precision has its turn, again and again, so that all see the same machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from marlaas.engine.base.model import BaseModel
from marlaas.engine.devices import Precision
from marlaas.engine.training.decoder.decoder import Decoder, compute_on
from marlaas.engine.training.group_pass import add_gradient
from marlaas.engine.training.inputs import PolicyConfig
from marlaas.engine.training.memory.policy_memory import PolicyMemory, fresh

from ..machinery.operations import operations
from ..trainer.cases import MEMBERS, Case

CASE = Case("one group of 8, a prompt of 256 tokens, answers of 60", "", 256, 60, groups=1)
CONFIG = PolicyConfig(rank=16, alpha=32.0, denominator=64.0)


@dataclass(frozen=True)
class Trained:
    """One group, several times."""

    what: str
    precision: Precision
    seconds: tuple[float, ...]
    tokens: int
    """Sampled ones, which are trained on."""
    operations: float
    """Of matrix products that ran."""


class Side:
    """A trainer with the base in one precision."""

    def __init__(self, base: BaseModel, precision: Precision, case: Case) -> None:
        self.precision = precision
        self._model = Decoder.of(base, compute_on("cpu", precision))
        layout = self._model.layout(CONFIG.rank)
        self._memory = PolicyMemory.of(CONFIG, layout, fresh(CONFIG, layout))
        self._groups = case.draw(self._model.vocabulary)

    def run(self) -> float:
        """Seconds of a pass over the group, forward and backward."""
        self._model.unmount()
        started = perf_counter()
        add_gradient(self._model, self._memory, self._groups)
        return perf_counter() - started


def train(base: BaseModel, repetitions: int, precisions: Sequence[Precision], case: Case = CASE) -> tuple[Trained, ...]:
    """Run the group ``repetitions`` times in each precision, after one run that is counted and not timed."""
    sides = [Side(base, precision, case) for precision in precisions]
    executed = [operations(side.run) for side in sides]
    seconds = [[side.run() for side in sides] for _ in range(repetitions)]
    tokens = case.groups * MEMBERS * case.answer
    return tuple(
        Trained(case.title, side.precision, own, tokens, count)
        for side, own, count in zip(sides, zip(*seconds, strict=True), executed, strict=True)
    )

"""The trainer on a large base: forward and backward of one group flow in, seconds and operations flow out."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from marlaas.engine.base.model import BaseModel
from marlaas.engine.training.decoder.decoder import Decoder
from marlaas.engine.training.group_pass import add_gradient
from marlaas.engine.training.policy_memory import PolicyMemory, fresh
from marlaas.engine.training.protocol import PolicyConfig

from ..machinery.operations import operations
from ..trainer.cases import MEMBERS, Case

CASE = Case("one group of 8, a prompt of 256 tokens, answers of 60", "", 256, 60, groups=1)
CONFIG = PolicyConfig(rank=16, alpha=32.0, denominator=64.0)


@dataclass(frozen=True)
class Trained:
    """One group, several times."""

    what: str
    seconds: tuple[float, ...]
    tokens: int
    """Sampled ones, which are trained on."""
    operations: float
    """Of matrix products that ran."""


def train(base: BaseModel, repetitions: int) -> Trained:
    """Run the group ``repetitions`` times, after one that is counted and not timed."""
    model = Decoder.of(base)
    layout = model.layout(CONFIG.rank)
    memory = PolicyMemory.of(CONFIG, layout, fresh(CONFIG, layout))
    groups = CASE.draw(model.vocabulary)

    def run() -> float:
        model.unmount()
        started = perf_counter()
        add_gradient(model, memory, groups)
        return perf_counter() - started

    executed = operations(run)
    seconds = tuple(run() for _ in range(repetitions))
    return Trained(CASE.title, seconds, CASE.groups * MEMBERS * CASE.answer, executed)

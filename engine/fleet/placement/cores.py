"""A placement of workers on the processor alone, from kinds of samplers and the numbers of the cores. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ...devices import Place, Placement, SamplerAssignment, SamplerKind, TrainerAssignment

SAMPLER, TRAINER = "rollout", "training"
"""Names of the workers; further samplers have a number behind theirs."""


def on_cores(kinds: Sequence[SamplerKind], cores: Sequence[int]) -> Placement:
    """Half of the cores for the samplers, half for the trainer, one thread for each core.

    Spinning threads that share a core are ten times slower and more. Where there are fewer cores than workers, each
    sampler has one, and the trainer's only thread is not pinned; on a single core no worker is.
    """
    assignments = [(SAMPLER if number == 1 else f"{SAMPLER}-{number}", kind) for number, kind in enumerate(kinds, 1)]
    many, own = len(cores), len(assignments)
    parts: list[tuple[int, ...]] = [()] * own
    rest: tuple[int, ...] = ()
    if many < 2:
        how = "the system shares out the only core"
    elif many > own:
        half = max(own, many // 2)
        bounds = [half * place // own for place in range(own + 1)]
        parts, rest = [tuple(cores[a:b]) for a, b in pairwise(bounds)], tuple(cores[half:])
        how = "each has cores of its own"
    else:
        parts = [(cores[place % many],) for place in range(own)]
        how = "each sampler has a core, which the trainer shares: there are fewer cores than workers"
    samplers = tuple(
        SamplerAssignment(name, kind, Place(part)) for (name, kind), part in zip(assignments, parts, strict=True)
    )
    words = " and ".join(assignment.kind for assignment in samplers)
    reason = f"{words} sample{'s' if own == 1 else ''} and torch trains on the processor: {how}."
    return Placement(samplers, TrainerAssignment(TRAINER, Place(rest)), (reason,))

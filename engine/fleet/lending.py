"""Which workers lend each other their cores while they have nothing to compute. Pure.

Sampler and trainer of a base of ``LEAST`` parameters and more on a processor of two cores do. Where workers have
several cores each, lending has not been measured: their threads spin there, which would keep a lent core busy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..devices import SLEEPING, Loan, Placement
from .worker_specs import WorkerSpec

LENDERS = ("torch", "llama.cpp")
"""Samplers that lend their cores."""


LEAST = 32_000_000
"""Parameters from which on operations are so large that a second thread pays. It makes decoding 1.4 to 1.6 times as
fast for bases of 39 and 494 million parameters, and training 1.3 and 1.9 times; for one of 26 million, twelve layers of
width 384, decoding is hardly faster, and takes half as much processor time again."""


def lending(specs: Sequence[WorkerSpec], placement: Placement, parameters: int, scratch: Path) -> list[WorkerSpec]:
    """The specs, those of two workers that lend each other their cores with a loan; ``parameters`` are the base's."""
    names = [own.name for own in placement.samplers] + [own.name for own in placement.trainers]
    pair = [spec for spec in specs if spec.name in names and not spec.gpus and len(spec.cores) == 1]
    kinds = {assignment.kind for assignment in placement.samplers}
    able = parameters >= LEAST and kinds <= set(LENDERS)
    if not able or len(names) != 2 or len(pair) != 2 or pair[0].cores == pair[1].cores:
        return list(specs)
    path = str(scratch / ".cores")
    loans = {spec.name: Loan(path, place, spec.cores, pair[1 - place].cores) for place, spec in enumerate(pair)}
    return [_with(spec, loans.get(spec.name)) for spec in specs]


def _with(spec: WorkerSpec, loan: Loan | None) -> WorkerSpec:
    if loan is None:
        return spec
    return replace(spec, kwargs=spec.kwargs | {"loan": loan}, environment={**spec.environment, **SLEEPING})

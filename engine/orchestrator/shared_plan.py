"""One worker in place of two: a sampler and a trainer that share a card flow in, what to start for both flows out."""

from __future__ import annotations

from dataclasses import replace

from ..devices.plan import Sharing
from .worker_plan import WorkerSpec

COLOCATED = "marlaas.engine.colocated.worker:ColocatedWorker"
SAMPLER, TRAINER = "sampler", "trainer"
"""Its parts, as ``WorkerHandle.proxy`` names them."""
IN_ONE_PROCESS: tuple[Sharing, ...] = ("base", "sleep")
"""Ways of sharing a card that need it."""


def shared_spec(sampler: WorkerSpec, trainer: WorkerSpec, sharing: Sharing) -> WorkerSpec:
    """The worker that does what both specs say, under the sampler's name, on the cores of both.

    Raises ``ValueError`` where ``sharing`` needs two processes.
    """
    if sharing not in IN_ONE_PROCESS:
        raise ValueError(f"Sampler and trainer are no single process where they share a card by {sharing!r}.")
    kwargs = {"sharing": sharing, SAMPLER: sampler.kwargs, TRAINER: trainer.kwargs}
    cores = tuple(sorted({*sampler.cores, *trainer.cores}))
    return replace(sampler, factory=COLOCATED, kwargs=kwargs, cores=cores)

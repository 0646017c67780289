"""One task's view of the trainers: what a learner calls, charged to the task."""

from __future__ import annotations

from ..fairness import Payer
from ..training import GroupStats, Job, PolicyConfig, Probe, StepResult, TrainGroup, pass_tokens
from .fusing import Piece, Shape
from .trainer import Call
from .trainer_pool import TrainerPool


class TaskTrainer:
    """Implements ``training.protocol.PolicyTrainer``.

    ``alone``: its groups never share a pass with other policies', and its policies stay on alike processors, to
    have the same bits in every run.
    """

    def __init__(self, pool: TrainerPool, payer: Payer, alone: bool) -> None:
        self._pool = pool
        self._payer = payer
        self._alone = alone

    async def open(self, policy: str, config: PolicyConfig, path: str, resume: bool) -> StepResult:
        """See the protocol."""
        call = Call(self._payer, "open", policy, lambda trainer: trainer.open(policy, config, path, resume))
        result: StepResult = await self._pool.open(call, config, self._alone)
        return result

    async def accumulate(
        self, policy: str, groups: tuple[TrainGroup, ...], probe: Probe | None = None, path: str = ""
    ) -> GroupStats:
        """See the protocol."""
        config = self._pool.config(policy)
        probed = sum(len(tokens) for tokens, _ in probe.sequences) if probe else 0
        piece = Piece(Shape.of(config), pass_tokens(groups, config) + probed) if config else None
        job = None if self._alone else Job(policy, groups, probe, path)
        call = Call(
            self._payer,
            "accumulate",
            policy,
            lambda trainer: trainer.accumulate(policy, groups, probe, path),
            job,
            piece,
        )
        stats: GroupStats = await self._pool.call(call)
        return stats

    async def step(self, policy: str, path: str) -> StepResult:
        """See the protocol."""
        call = Call(self._payer, "step", policy, lambda trainer: trainer.step(policy, path))
        result: StepResult = await self._pool.call(call)
        return result

    async def close(self, policy: str) -> None:
        """See the protocol; at once, for it costs nothing and frees memory."""
        await self._pool.close(policy)

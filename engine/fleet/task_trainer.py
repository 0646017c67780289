"""One task's view of the trainers: what a learner calls, charged to the task."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ..fairness import Payer
from ..training import GroupStats, Job, PolicyConfig, StepResult, Trainer, TrainGroup, pass_tokens
from ..trajectories import Logprobs, Tokens
from .fusing import Piece, Shape
from .trainer import Call
from .trainer_pool import TrainerPool


class TaskTrainer:
    """Implements ``training.protocol.PolicyTrainer``. ``alone``: its groups never share a pass with other policies'."""

    def __init__(self, pool: TrainerPool, payer: Payer, alone: bool) -> None:
        self._pool = pool
        self._payer = payer
        self._alone = alone

    async def open(self, policy: str, config: PolicyConfig, path: str, resume: bool) -> StepResult:
        """See the protocol."""
        call = Call(self._payer, "open", policy, lambda trainer: trainer.open(policy, config, path, resume))
        result: StepResult = await self._pool.open(call, config)
        return result

    async def accumulate(self, policy: str, groups: tuple[TrainGroup, ...]) -> GroupStats:
        """See the protocol."""
        config = self._pool.config(policy)
        piece = Piece(Shape.of(config), pass_tokens(groups, config)) if config else None
        job = None if self._alone else Job(policy, groups)
        call = Call(self._payer, "accumulate", policy, lambda trainer: trainer.accumulate(policy, groups), job, piece)
        stats: GroupStats = await self._pool.call(call)
        return stats

    async def step(self, policy: str, path: str) -> StepResult:
        """See the protocol."""
        result: StepResult = await self._call("step", policy, lambda trainer: trainer.step(policy, path))
        return result

    async def score(self, policy: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        """See the protocol."""
        scores: Logprobs = await self._call(
            "score", policy, lambda trainer: trainer.score(policy, tokens, start, temperature)
        )
        return scores

    async def close(self, policy: str) -> None:
        """See the protocol; at once, for it costs nothing and frees memory."""
        await self._pool.close(policy)

    async def _call(self, kind: str, policy: str, make: Callable[[Trainer], Awaitable[Any]]) -> Any:
        return await self._pool.call(Call(self._payer, kind, policy, make))

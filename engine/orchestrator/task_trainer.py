"""The trainer as one task sees it: each call made when it is the task's turn, on its account."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from ..fairness.line import Payer
from ..training.protocol import GroupStats, Job, PolicyConfig, StepResult, TrainGroup
from ..types import Logprobs, Tokens
from .shared_trainer import Call, SharedTrainer


class TaskTrainer:
    """Implements ``training.protocol.PolicyTrainer``. ``alone``: its groups never share a pass with other policies'."""

    def __init__(self, shared: SharedTrainer, payer: Payer, alone: bool) -> None:
        self._shared = shared
        self._trainer = shared.trainer
        self._payer = payer
        self._alone = alone

    async def open(self, policy: str, config: PolicyConfig, path: str, resume: bool) -> StepResult:
        """See the protocol."""
        result: StepResult = await self._call("open", partial(self._trainer.open, policy, config, path, resume))
        return result

    async def accumulate(self, policy: str, groups: tuple[TrainGroup, ...]) -> GroupStats:
        """See the protocol."""
        job = None if self._alone else Job(policy, groups)
        stats: GroupStats = await self._call("accumulate", partial(self._trainer.accumulate, policy, groups), job)
        return stats

    async def step(self, policy: str, path: str) -> StepResult:
        """See the protocol."""
        result: StepResult = await self._call("step", partial(self._trainer.step, policy, path))
        return result

    async def score(self, policy: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        """See the protocol."""
        scores: Logprobs = await self._call("score", partial(self._trainer.score, policy, tokens, start, temperature))
        return scores

    async def close(self, policy: str) -> None:
        """See the protocol; at once, for it costs nothing and frees memory."""
        await self._trainer.close(policy)

    async def _call(self, kind: str, make: Callable[[], Awaitable[Any]], job: Job | None = None) -> Any:
        return await self._shared.call(Call(self._payer, kind, make, job))

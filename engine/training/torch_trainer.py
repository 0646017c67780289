"""The trainer on torch: one base in memory, one LoRA adapter with its own AdamW per policy.

Groups flow in, gradients accumulate, state files flow out (see ``protocol``). All work runs in one thread of its own,
in call order, so that the process can answer others meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch

from ..adapters.statefile import checksum, read_state, write_state
from ..base.sizes import PASS_BYTES
from ..errors import AdapterError
from ..faults import Point, reach
from ..types import Logprobs, Tokens
from .adamw import AdamState, adamw, clip
from .bank import PolicyMemory, fresh, from_state, to_state
from .config_check import check_config
from .group_check import check_group
from .group_pass import add_gradient, sequence_logprobs
from .load import load_model
from .memory import keep_freed_memory
from .model import Model
from .normaliser import divisor
from .protocol import GroupStats, PolicyConfig, StepResult, TrainGroup
from .schedule import learning_rate

P = ParamSpec("P")
R = TypeVar("R")


class TorchTrainer:
    """Implements ``protocol.Trainer``.

    ``base`` is a Hugging Face folder in any precision, ``fingerprint`` the name of its contents that state files carry,
    ``threads`` how many cores torch may use, ``sync`` whether state files are flushed to the disk, ``device`` where
    torch computes, ``room`` how many bytes a pass may take. Raises ``BaseModelError`` if the folder cannot be loaded.
    Call ``shutdown`` to end its thread.
    """

    def __init__(
        self,
        base: str,
        fingerprint: str,
        threads: int = 1,
        sync: bool = True,
        device: str = "cpu",
        room: int = PASS_BYTES,
    ) -> None:
        keep_freed_memory()
        self._fingerprint = fingerprint
        self._sync = sync
        self._device = device
        # OpenMP counts threads per calling thread, hence the initializer; a second thread that computes in parallel would
        # make it see more threads than cores and put them to sleep at every barrier, hence the loading in there, too
        self._thread = ThreadPoolExecutor(1, "trainer", initializer=torch.set_num_threads, initargs=(threads,))
        self._model: Model[Any] = self._thread.submit(load_model, base, device, room).result()
        self._policies: dict[str, PolicyMemory] = {}

    async def open(self, policy: str, config: PolicyConfig, path: str, resume: bool) -> StepResult:
        """Bring a policy into memory, from its state file or fresh; raises ``AdapterError`` or ``ValueError``.

        What was in memory under that name is forgotten first, so that after a failure the policy is not open.
        """
        return await self._run(self._open, policy, config, Path(path), resume)

    async def accumulate(self, policy: str, groups: tuple[TrainGroup, ...]) -> GroupStats:
        """Add the groups' gradients; raises ``ValueError`` on bad input, which leaves the policy as it was.

        A group whose advantages are all zero is skipped unless there is a KL term: its tokens count, the rest is 0.
        """
        return await self._run(self._accumulate, policy, groups)

    async def step(self, policy: str, path: str) -> StepResult:
        """Make one optimizer step and write its state file.

        With nothing but skipped groups the gradient is zero: the step counts, and moves by momentum alone. Raises
        ``AdapterError`` where the gradient is not finite or the disk refuses; the step has then not happened, and the
        call may be made again.
        """
        return await self._run(self._step, policy, Path(path))

    async def score(self, policy: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        """Log-probabilities, float32 (T-start,), of ``tokens[start:]``; raises ``ValueError`` on bad input."""
        return await self._run(self._score, policy, tokens, start, temperature)

    async def close(self, policy: str) -> None:
        """Forget a policy; unknown names are fine."""
        await self._run(self._close, policy)

    def shutdown(self) -> None:
        """Wait for calls under way and end the thread."""
        self._thread.shutdown()

    async def _run(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: work(*args, **kwargs))

    def _open(self, policy: str, config: PolicyConfig, path: Path, resume: bool) -> StepResult:
        begun = perf_counter()
        self._close(policy)
        check_config(config)
        layout = self._model.layout(config.rank)
        if resume:
            optimised = from_state(read_state(path), config, layout, self._fingerprint)
            size = path.stat().st_size
        else:
            optimised = fresh(config, layout)
            size = write_state(path, to_state(optimised, config, layout, self._fingerprint), self._sync)
        memory = PolicyMemory.of(config, layout, optimised, self._device)
        self._policies[policy] = memory
        return self._result(memory, optimised, path, size, 0.0, begun)

    def _accumulate(self, policy: str, groups: tuple[TrainGroup, ...]) -> GroupStats:
        memory = self._find(policy)
        for group in groups:
            check_group(group, self._model.vocabulary)
        try:
            reach(Point.ACCUMULATE_BEGUN)
            stats = add_gradient(self._model, memory, groups)
            reach(Point.ACCUMULATE_DONE)
            return stats
        except BaseException:
            self._close(policy)  # its gradient is in doubt: half of the groups may be in it
            raise

    def _step(self, policy: str, path: Path) -> StepResult:
        begun = perf_counter()
        memory = self._find(policy)
        reach(Point.STEP_READY)
        config = memory.config
        shared = divisor(config, memory.tokens)
        gradient, norm = clip(memory.gradient / shared, config.clip_norm)
        if not np.isfinite(norm):
            raise AdapterError(
                f"The gradient of policy {policy} is not finite, so step {memory.optimised.step + 1} was not made.",
                "A smaller learning rate usually helps; resume from the last committed step.",
            )
        rate = learning_rate(config, memory.optimised.step)
        stepped = adamw(memory.optimised, gradient, rate, config.betas, config.weight_decay)
        size = write_state(path, to_state(stepped, config, memory.layout, self._fingerprint), self._sync)
        memory.adopt(stepped)
        reach(Point.STEP_MADE)
        result = self._result(memory, stepped, path, size, norm, begun)
        return replace(result, divisor=shared, learning_rate=rate)

    def _score(self, policy: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        return sequence_logprobs(self._model, self._find(policy), tokens, start, temperature)

    def _close(self, policy: str) -> None:
        if self._policies.pop(policy, None) is not None:
            self._model.unmount()

    def _find(self, policy: str) -> PolicyMemory:
        try:
            return self._policies[policy]
        except KeyError:
            raise AdapterError(f"Policy {policy} is not open in this trainer.") from None

    @staticmethod
    def _result(
        memory: PolicyMemory, optimised: AdamState, path: Path, size: int, norm: float, begun: float
    ) -> StepResult:
        digest = checksum(memory.layout.views(optimised.weights.cpu().numpy()))
        return StepResult(optimised.step, str(path), digest, size, norm, perf_counter() - begun)

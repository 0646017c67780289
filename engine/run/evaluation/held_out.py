"""The held-out prompts of one task: what its policies are measured on, and what they are never trained on.

They follow from the environment's version and the task's parameters, so a task that goes over to a newer version has
others to keep out of training from its first group on. No model is asked.
"""

from __future__ import annotations

import asyncio
import contextlib

from marlaas.plugins.messages import Ask

from ...environments import EpisodeSpec, Lease
from ...fleet import Services
from ...rollout import PromptHash, Unplayable

EVAL_SEED = 0
"""Seed of every evaluation: all runs and tenants are measured on the same instances."""


def held_out_specs(lease: Lease, prompts: int) -> list[EpisodeSpec]:
    """The episodes of an evaluation."""
    return [EpisodeSpec("eval", index, EVAL_SEED, 0, lease.config) for index in range(prompts)]


class HeldOutPrompts:
    """The hashes of one task's held-out prompts, computed once for each environment version."""

    def __init__(self, services: Services, task: int, prompts: int) -> None:
        self._services = services
        self._task = task
        self._prompts = prompts
        self._known: dict[str, frozenset[PromptHash]] = {}
        self._looking = asyncio.Lock()

    async def of(self, lease: Lease) -> frozenset[PromptHash]:
        """Hashes of all held-out first prompts.

        Where most of them are the same (a game that always opens alike), a prompt does not tell one instance from
        another: nothing is held out then, and the log says so.
        """
        version = lease.environment_version
        async with self._looking:
            if version not in self._known:
                found = await self._look(lease)
                if lease.cut:
                    return found  # incomplete, but nothing that is played on a cut lease is kept
                self._known[version] = found
        return self._known[version]

    async def _look(self, lease: Lease) -> frozenset[PromptHash]:
        environments = self._services.environments
        peeks = (environments.peek(lease, spec) for spec in held_out_specs(lease, self._prompts))
        asks = await asyncio.gather(*peeks, return_exceptions=True)
        room = max(endpoint.context for endpoint in self._services.endpoints.values())
        hashes = []
        for ask in asks:
            with contextlib.suppress(Unplayable):  # its evaluation will say so
                if isinstance(ask, Ask):
                    hashes.append(await self._services.rollout.prompt_hash(ask, room))
        distinct = frozenset(hashes)
        if len(distinct) * 2 >= len(hashes):
            return distinct
        self._services.store.telemetry.event(
            "evaluation",
            f"Only {len(distinct)} of {len(hashes)} held-out prompts differ: training may meet them too.",
            self._task,
            "warning",
        )
        return frozenset()

"""A task of ``kind = "eval"`` while it runs: its versions are measured one after another, and nothing is trained.

Each version is a policy of the task, named by the words of the task file, so that scores and replies are found where
those of a training task are. All are measured on the environment version of the first, whatever is edited meanwhile,
on the same instances with the same noise. What is stored is not measured again: the task goes on with the next prompt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

from ...errors import Replaced
from ...fleet import Services
from ...spec import ONLY, AgentMap, NamedPolicySpec, TaskSpec, by_base
from ...store import Version
from ...trajectories import Split
from ..environment import History, TaskEnvironment
from ..first_replies import keep_numbers
from ..preflight import check_room, check_servable, join_router
from ..recovery import set_leftovers_aside
from ..selfplay import FrozenPolicies, Opponents, Participants
from ..serving.published import PublishedVersions
from .evaluator import Evaluator
from .held_out import HeldOutPrompts


class EvalRun:
    """Measures one task's versions with one incarnation of the workers."""

    def __init__(self, services: Services, task: int, spec: TaskSpec, started: Callable[[EvalRun], None]) -> None:
        self._services = services
        self._task = task
        self._submitted = spec
        self._spec = spec = by_base(spec, services.traits)
        self._started = started
        versions = services.store.versions
        self._policies = {
            words: versions.policy(task, words, {}, cast(Split, spec.eval.split)) for words in spec.versions
        }
        pinned = replace(spec, environment_version="pin")
        self._environment = TaskEnvironment(services.environments, pinned, self._history())
        self._opponents = FrozenPolicies(services, task, spec, ())
        self._versions = FrozenPolicies(services, task, spec, (), "measured")
        self._published = PublishedVersions(services.endpoints)
        self._held_out = HeldOutPrompts(services, task, spec.eval.prompts, cast(Split, spec.eval.split))
        self.remark = ""
        """What there is to say of a task that is done."""
        self.drained = False
        """Whether it ended between two versions because the engine drains; the next engine goes on."""

    @property
    def progress(self) -> int:
        """Versions that are measured."""
        return sum(map(self._measured, self._policies.values()))

    @property
    def waits_for(self) -> str:
        """What holds the task up though it runs, in words; empty where nothing does."""
        return self._environment.waits_for

    async def run(self) -> None:
        """Measure what is not measured yet. Raises ``Blocked``, ``Paused``, ``ConfigError``, ``WorkerDied``, …"""
        services = self._services
        check_room(services.shortage)
        await self._environment.check()
        check_servable(self._spec, services)
        await keep_numbers(services, self._task, self._submitted, self._spec, "by its base")
        try:
            await join_router(services, self._task, self._spec, list(self._policies.values()))
            if self._folder.is_dir():  # there is one while files are served that are written for that
                await set_leftovers_aside(services, self._task)
            async with AsyncExitStack() as stack:
                participants = await self._participants(await self._opponents.enter(stack))
                await services.store.patiently(lambda: self._started(self))
                for words, policy in self._policies.items():
                    if not self._measured(policy):
                        if services.draining.is_set():
                            self.drained = True
                            return
                        check_room(services.shortage)
                        await self._measure(words, policy, participants)
                    await services.store.patiently(partial(services.store.versions.mark_measured, policy))
                self.remark = self._said()
        finally:
            services.router.leave(self._task)
            leaving = (self._published.clear(), self._versions.leave(), self._opponents.leave())
            await asyncio.shield(asyncio.gather(*leaving, return_exceptions=True))
            with suppress(OSError):
                self._folder.rmdir()

    @property
    def _folder(self) -> Path:
        return self._services.home.adapters / f"task-{self._task}"

    def _measured(self, policy: int) -> bool:
        return self._services.store.evaluations.has(policy)

    def _said(self) -> str:
        """Which versions have no score; empty where all have one."""
        evaluations = self._services.store.evaluations.of("", self._held_out.split)
        without = [words for words, policy in self._policies.items() if not evaluations.scores(policy)]
        has = "has" if len(without) == 1 else "have"
        return f"{', '.join(without)} {has} no score: too many episodes failed." if without else ""

    async def _measure(self, words: str, policy: int, participants: Participants) -> None:
        """Serve a version and measure it; again where its environment's process was replaced meanwhile."""
        version = await self._versions.version(words)
        await self._published.publish(version, self._services.router.shares(self._task, ONLY))
        evaluator = Evaluator(
            self._services,
            self._spec,
            policy,
            ONLY,
            self._environment,
            participants,
            self._held_out,
            keeps=True,
        )
        while not await self._tried(evaluator, version):
            pass

    async def _tried(self, evaluator: Evaluator, version: Version) -> bool:
        try:
            async with self._environment.bound() as lease:
                await evaluator.evaluate(version, lease)
        except Replaced:
            return False
        return True

    async def _participants(self, opponents: Opponents) -> Participants:
        """Who plays: the measured version acts as every agent that ``[eval.agents]`` gives to nobody else."""
        agents = {}
        if self._spec.eval.agents or self._spec.eval.rotate:
            async with self._environment.bound() as lease:
                agents = dict.fromkeys(lease.declared.agents, ONLY)
        return Participants(AgentMap({ONLY: NamedPolicySpec()}, agents), {ONLY: self._published}, opponents)

    def _history(self) -> History:
        first = next(iter(self._policies.values()))
        experience = self._services.store.experience
        return History(experience.first_environment(first), experience.last_environment(first))

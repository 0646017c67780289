"""Held-out evaluation: the same prompts for every version."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from contextlib import AsyncExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from typing import cast

from ..adapters.statefile import is_there, write_blank
from ..environments.protocol import EpisodeOutcome, FinishedEpisode
from ..environments.served_version import Lease
from ..errors import Paused, Replaced
from ..machine.services import Services
from ..samplers.sampling import Truncation
from ..samplers.seeds import noise_seed
from ..spec.automatic import by_base
from ..spec.task import ONLY, AgentMap, DataSpec, EvalSpec, NamedPolicySpec, SuiteSpec, TaskSpec
from ..store.experience import PolicyGroup
from ..store.versions import Evaluation, Version, best
from ..trainer.advantages import demonstrates
from ..trajectories import Group, Split
from .admission import Background
from .drawing import TaskPrompts
from .environment import Component, Mixture, TaskEnvironment, history_of, series_of
from .failures import first_failure, never_spoke
from .groups import RUNS, episode_of, runs_again, texts, texts_of, untrained
from .held_out import (
    EVAL_SEED,
    HeldOutEpisode,
    HeldOutPrompts,
    Sampled,
    averages,
    constant_baseline,
    held_out_spec,
    reached,
    remark,
    score,
    stalled,
)
from .opening import TrainedPolicy, check_room, check_servable, join_router, keep_numbers, set_leftovers_aside
from .publishing import PublishedVersions, Retention
from .selfplay import FrozenPolicies, Match, Participant, Participants

MOST_OVERLOADED = 21
"""Runs ended by an overloaded machine: a lost score costs more than a lost sample."""
ENDED = ("ok", "skip")


@dataclass(frozen=True)
class _Prompt:
    """One prompt's episodes."""

    index: int
    match: Match
    episodes: tuple[FinishedEpisode, ...]
    own: tuple[FinishedEpisode, ...]
    """The same, of the measured policy's agents only."""

    @property
    def skipped(self) -> int:
        return sum(one.outcome.status == "skip" and not one.episode.trajectories for one in self.own)

    @property
    def sampled(self) -> Sampled:
        paid = [one.outcome.rewards for one in self.own if one.outcome.status == "ok" and one.outcome.rewards]
        means = tuple(fmean(rewards.values()) for rewards in paid)
        return Sampled(means, len(self.own) - self.skipped - len(means))


class Evaluator:
    """Measures one policy on one environment's held-out prompts."""

    def __init__(
        self,
        services: Services,
        policy: int,
        name: str,
        component: Component,
        participants: Participants,
        held_out: HeldOutPrompts,
        suite: str = "",
        required: bool = False,
    ) -> None:
        """``suite``: empty: the task's own environment. ``required``: without a score the task ends."""
        self.component, self.tell = component, held_out.tell
        self._services, self._policy, self._name = services, policy, name
        self._spec, self._environment = component.spec, component.environment
        self._participants, self._held_out, self._required = participants, held_out, required
        self._suite, self._split = suite or component.name, held_out.split
        self._decides = required or not (suite or held_out.split == "test")
        """True if the task cannot continue without a score."""
        self._baselines: dict[str, float | None] = {}

    async def evaluate(self, version: Version, lease: Lease) -> Evaluation:
        """Run every held-out prompt with ``version``, held by the caller.

        Raises ``Replaced`` if the lease ended, ``Blocked`` if not all prompts can be seen. Without any reward raises
        ``Replaced`` if a newer environment version serves, ``Blocked`` if none serves, else ``Paused`` (only logged for
        a suite or split test).
        """
        instances, measure = (await self._held_out.division(lease)).instances, self._spec.eval
        matches = [
            self._participants.examination(self._name, version, measure.agents, index if measure.rotate else 0)
            for index in instances
        ]
        series = series_of(lease, measure)
        async with self._participants.playing(matches[0]):  # all matches have the same versions
            samples = [self._samples(lease, index, match) for index, match in zip(instances, matches, strict=True)]
            prompts = await self._run(version, lease, samples)
            own = [one for prompt in prompts for one in prompt.own]
            if all(t.reward is None for one in own for t in one.episode.trajectories):
                await self._without_reward(lease, [one for prompt in prompts for one in prompt.episodes], own)
            elif series not in self._baselines and not demonstrates(one.episode for one in own):
                usable = [each[0] for each, prompt in zip(samples, prompts, strict=True) if prompt.skipped < len(each)]
                texts = (transcript.turns for one in own for transcript in one.transcripts.values())
                replies = (text for turns in texts for role, text in turns if role == "assistant")
                self._baselines[series] = await constant_baseline(self._services, self._name, lease, usable, replies)
        evaluation = self._summary(version.number, lease, series, prompts)
        store = self._services.store
        table = store.evaluations.of(self._suite, self._split)
        await store.patiently(lambda: table.add(self._policy, version.id, evaluation))
        return evaluation

    async def _run(self, version: Version, lease: Lease, prompts: Sequence[Sequence[HeldOutEpisode]]) -> list[_Prompt]:
        """Run all episodes. Failed ones have a second go if they leave no score."""
        known = self._stored(version, lease) if self._required else {}
        written = set(known)

        async def run(samples: Sequence[HeldOutEpisode]) -> _Prompt:
            index = samples[0].spec.index
            earlier = known.get(index, [None] * len(samples))
            pairs = zip(samples, earlier, strict=True)
            known[index] = await asyncio.gather(*(self._episode(version, lease, *pair) for pair in pairs))
            prompt = self._prompt(samples[0].match, index, known[index])
            complete = all(one.outcome.status in ENDED for one in prompt.episodes)
            if self._required and index not in written and complete:
                written.add(index)
                await self._store(version, lease, prompt)
            return prompt

        for _ in range(2):
            found = await asyncio.gather(*map(run, prompts))
            if lease.cut and any(one.episode.status == "cancelled" for prompt in found for one in prompt.episodes):
                raise Replaced
            scored = score([one.sampled for one in found], self._spec.eval)
            if scored.score is not None or not scored.n:
                break
        for prompt in found:
            if prompt.index not in written:
                await self._store(version, lease, prompt)
        return found

    def _stored(self, version: Version, lease: Lease) -> dict[int, Sequence[FinishedEpisode]]:
        where = self._policy, self._split, self._suite, version.number, lease.environment_version
        return {
            index: episodes
            for index, episodes in self._services.store.experience.measured(*where).items()
            if len(episodes) == self._spec.eval.samples and all(one.outcome.status in ENDED for one in episodes)
        }

    def _prompt(self, match: Match, index: int, episodes: Sequence[FinishedEpisode]) -> _Prompt:
        agents, own = match.agents_of(self._name), []
        for one in episodes:
            rewards = {a: reward for a, reward in one.outcome.rewards.items() if agents is None or a in agents}
            part = replace(
                one,
                episode=episode_of(one.episode, agents),
                transcripts=texts_of(one.transcripts, agents),
                outcome=replace(one.outcome, rewards=rewards),
            )
            own.append(part)
        return _Prompt(index, match, tuple(episodes), tuple(own))

    async def _store(self, version: Version, lease: Lease, prompt: _Prompt) -> None:
        store = self._services.store
        episodes, serving = tuple(one.episode for one in prompt.own), lease.environment_version
        group = Group(prompt.index, prompt.index, version.number, serving, episodes, component=self.component.name)
        others = untrained([one.episode for one in prompt.episodes], texts(prompt.episodes), prompt.match, {self._name})
        part = PolicyGroup(self._policy, group, texts(prompt.own))
        rewards = [one.outcome.rewards for one in prompt.own]
        add = partial(store.experience.add_play, self._split, [part], others, version.number, self._suite)
        await store.patiently(partial(add, rewards=rewards))

    def _summary(self, step: int, lease: Lease, series: str, prompts: Sequence[_Prompt]) -> Evaluation:
        own = [one for prompt in prompts for one in prompt.own]
        scored = score([one.sampled for one in prompts], self._spec.eval)
        if scored.score is None:
            failed = f"{scored.failures} of {scored.n + scored.failures} episodes failed"
            policy = f" of {self._name}" if len(self._participants.agent_map.trained) > 1 else ""
            where = policy + self._on
            self.tell(f"No held-out score{where} at step {step}: {failed}. The first: {first_failure(own)}.")
        return replace(
            scored,
            step=step,
            environment_version=lease.environment_version,
            floor=self._baselines.get(series),
            metrics=averages([{**one.episode.parts, **one.episode.metrics} for one in own]),
            series=series,
            suite=self._suite,
            split=self._split,
        )

    async def _without_reward(
        self, lease: Lease, episodes: Sequence[FinishedEpisode], own: Sequence[FinishedEpisode]
    ) -> None:
        async with self._environment.bound() as serving:
            if serving.environment_version != lease.environment_version:
                raise Replaced
        if any(one.episode.trajectories for one in episodes) and not any(one.episode.trajectories for one in own):
            agents = [agent for agent, policy in self._participants.agent_map.agents.items() if policy == self._name]
            error: Paused = never_spoke(agents, self._name, f"{len(episodes)} held-out episodes")
        else:
            error = Paused(f"No held-out episode{self._on} has a reward: {first_failure(episodes)}.")
        if self._decides:
            raise error
        self.tell(f"Nothing could be measured on {self._suite or 'the split test'}: {error.message}")

    @property
    def _on(self) -> str:
        return f" on {self.component.name}" if self.component.name else ""

    def _samples(self, lease: Lease, index: int, match: Match) -> list[HeldOutEpisode]:
        replicas, measure, sampling = self._participants.replicas(match), self._spec.eval, self._spec.sampling
        truncation, episodes = Truncation(measure.top_k, measure.top_p, measure.min_p), []
        for member in range(measure.samples):
            noise = noise_seed(EVAL_SEED, self._split, index, *([member] if member else []))
            roles = match.roles(replicas, sampling, measure.temperature, noise, truncation)
            episodes.append(HeldOutEpisode(held_out_spec(lease, index, member, self._split), match, roles))
        return episodes

    async def _episode(
        self, version: Version, lease: Lease, sample: HeldOutEpisode, earlier: FinishedEpisode | None
    ) -> FinishedEpisode:
        if earlier is not None and earlier.outcome.status in ENDED:
            return earlier
        place = "" if (self._suite, self._split) == ("", "eval") else f"-{self._suite}-{self._split}-"
        begin = 0 if earlier is None else RUNS + MOST_OVERLOADED
        outcomes: list[EpisodeOutcome] = []
        while True:
            name = f"{version.name}/e{place}{sample.spec.index}.{sample.spec.member}.{begin + len(outcomes)}"
            player = self._environment.player(lease)
            ended = await self._services.rollout.run_episode(player, sample.spec, sample.roles, name)
            outcomes.append(ended.outcome)
            if lease.cut or not runs_again(outcomes, MOST_OVERLOADED):
                return ended


class EvalRun:
    """Measures the versions of a task of ``kind = "eval"``.

    All use one environment version and the same noise. Stored results are kept.
    """

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
        history = history_of(services.store.experience, next(iter(self._policies.values())))
        self._environment = TaskEnvironment(services.environments, pinned, history)
        self._opponents = FrozenPolicies(services, task, spec, ())
        self._versions = FrozenPolicies(services, task, spec, (), "measured")
        self._published = PublishedVersions(services.endpoints)
        self._held_out = HeldOutPrompts(services, task, spec.eval.prompts, cast(Split, spec.eval.split))
        self.remark = ""
        self.drained = False
        """True if it ended between two versions because the engine drains; the next engine continues."""

    @property
    def progress(self) -> int:
        return sum(map(self._services.store.evaluations.has, self._policies.values()))

    @property
    def waits_for(self) -> str:
        return self._environment.waits_for

    async def run(self) -> None:
        """Raises ``Blocked``, ``Paused``, ``ConfigError``, ``WorkerDied``, …"""
        services, evaluations = self._services, self._services.store.evaluations
        folder = services.home.adapters / f"task-{self._task}"
        check_room(services.shortage)
        await self._environment.check()
        check_servable(self._spec, services)
        await keep_numbers(services, self._task, self._submitted, self._spec, "by its base")
        try:
            await join_router(services, self._task, self._spec, list(self._policies.values()))
            if folder.is_dir():  # it exists while files written for this task are served
                await set_leftovers_aside(services, self._task)
            async with AsyncExitStack() as stack:
                participants = await self._participants(await self._opponents.enter(stack))
                await services.store.patiently(lambda: self._started(self))
                for words, policy in self._policies.items():
                    if not evaluations.has(policy):
                        if services.draining.is_set():
                            self.drained = True
                            return
                        check_room(services.shortage)
                        await self._measure(words, policy, participants)
                    await services.store.patiently(partial(services.store.versions.mark_measured, policy))
                scores = evaluations.of("", self._held_out.split).scores
                without = [words for words, policy in self._policies.items() if not scores(policy)]
                has = "has" if len(without) == 1 else "have"
                if without:
                    self.remark = f"{', '.join(without)} {has} no score: too many episodes failed."
        finally:
            services.router.leave(self._task)
            leaving = (self._published.clear(), self._versions.leave(), self._opponents.leave())
            await asyncio.shield(asyncio.gather(*leaving, return_exceptions=True))
            with suppress(OSError):
                folder.rmdir()

    async def _measure(self, words: str, policy: int, participants: Participants) -> None:
        version = await self._versions.version(words)
        await self._published.publish(version, self._services.router.shares(self._task, ONLY))
        whole = Component("", 1.0, self._spec, self._environment)
        evaluator = Evaluator(self._services, policy, ONLY, whole, participants, self._held_out, required=True)
        while True:
            with suppress(Replaced):
                async with self._environment.bound() as lease:
                    await evaluator.evaluate(version, lease)
                return

    async def _participants(self, opponents: Mapping[str, Participant]) -> Participants:
        agents = {}
        if self._spec.eval.agents or self._spec.eval.rotate:
            async with self._environment.bound() as lease:
                agents = dict.fromkeys(lease.declared.agents, ONLY)
        policies = {**opponents, ONLY: Participant(self._published)}
        return Participants(AgentMap({ONLY: NamedPolicySpec()}, agents), policies)


# Training continues during a measurement, unless deterministic; at most one waits, the newest wins. Scores compare only
# within a series: an edited environment begins a new one, with the untrained policy.
#
# A suite is another environment; the policy acts as all its agents. The task's prompts, or one suite, decide the best
# version and an early end.


TOO_OFTEN = (
    "Evaluations take longer than the steps between them, so some are left out: raise 'eval.every', or lower"
    " 'eval.prompts' or 'eval.samples'."
)

AfterEvaluation = Callable[[], Awaitable[None]]
"""What it raises ends training."""


def mean_score(shares: Mapping[str, float], parts: Sequence[Evaluation]) -> Evaluation:
    """Mean of components' evaluations, weighted by ``shares``.

    Standard error: root of the sum of (share · standard error)², for independent parts. No score if a part has none.
    """
    weights = list(shares.values())

    def mean(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        return math.fsum(weight * value for weight, value in zip(weights, known, strict=True))

    score = mean([part.score for part in parts])
    errors = [weight * part.stderr for weight, part in zip(weights, parts, strict=True)]
    return replace(
        parts[0],
        score=score,
        stderr=0.0 if score is None else math.hypot(*errors),
        n=sum(part.n for part in parts),
        floor=mean([part.floor for part in parts]),
        metrics={
            f"{name}: {key}": value
            for name, part in zip(shares, parts, strict=True)
            for key, value in part.metrics.items()
        },
        failures=sum(part.failures for part in parts),
        prompts=sum(part.prompts for part in parts),
        best_of=None if score is None else mean([part.best_of for part in parts]),
        pass_at=None if score is None else mean([part.pass_at for part in parts]),
        suite="",
    )


class Measuring:
    """One policy's evaluations on one environment or mixture."""

    def __init__(
        self,
        services: Services,
        trained: TrainedPolicy,
        spec: TaskSpec,
        evaluators: Sequence[Evaluator],
        retention: Retention,
        after_each: AfterEvaluation | None = None,
        split: Split = "eval",
        suite: str = "",
    ) -> None:
        self._store, self._spec, self._evaluators, self._retention = services.store, spec.eval, evaluators, retention
        self._evaluations = services.store.evaluations.of(suite, split)
        self._leaves_out = not spec.train.deterministic
        self._policy, self._published = trained.number, trained.published
        self._suite, self._after_each = suite, after_each
        self._final = split == "test" and not suite
        """True for the split test: it is measured once, without the untrained policy."""
        self._one_at_a_time = asyncio.Lock()
        self.pending: set[int] = set()
        """Numbers of the versions that are being measured."""
        self._running: dict[asyncio.Task[None], Version] = {}
        """Measurements while training continues, including waiting ones."""
        self._now: Version | None = None
        """The version that is being measured, not waiting."""

    @property
    def decisive(self) -> bool:
        return self._spec.target is not None or self._spec.patience > 0

    @property
    def enough(self) -> bool:
        if not self.decisive:
            return False
        scores = self._evaluations.scores(self._policy)
        return reached(scores, self._spec) or stalled(scores, self._spec)

    def remark(self, early: bool) -> str:
        return remark(self._evaluations.scores(self._policy), self._spec, early)

    async def settled(self, but: int) -> None:
        while len(self._running) > but:
            await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)  # lets a failure cancel the training loop before it continues

    def begin(self, version: Version, background: Background) -> None:
        """A version waits, unless measured; it replaces a waiting one and is held before the next can replace it."""
        self._leave_out()
        task = background.start(self._measure(version))
        self._running[task] = version
        task.add_done_callback(self._running.pop)

    def due(self, version: Version) -> bool:
        return bool(self._spec.every) and (version.number % self._spec.every == 0 or self._switched)

    async def last(self, version: Version) -> None:
        self._leave_out()
        await self._measure(version)

    def _leave_out(self) -> None:
        for task, version in self._running.items() if self._leaves_out else ():
            if version is not self._now:
                task.cancel()
                if version.number > 0:
                    self._evaluators[0].tell(TOO_OFTEN)

    @property
    def _switched(self) -> bool:
        """False during a measurement: many edits in a row cost one series."""
        newest = self._evaluations.series(self._policy)
        keys = [one.component.environment.series for one in self._evaluators]
        return not self._running and newest not in (None, self._joined(keys) if all(keys) else "")

    def _joined(self, keys: Sequence[str]) -> str:
        if not self._evaluators[0].component.name:
            return keys[0]
        content = json.dumps([[(one.component.name, one.component.share) for one in self._evaluators], keys])
        return sha256(content.encode()).hexdigest()[:12]

    async def _measure(self, version: Version) -> None:
        self.pending.add(version.number)
        try:
            with self._published.hold(version):
                async with self._one_at_a_time:
                    self._now = version
                    await self.measure(version)
        finally:
            if self._now is version:
                self._now = None
            self.pending.discard(version.number)
        self._retention.label()
        if self._after_each is not None:
            await self._after_each()

    async def measure(self, version: Version) -> None:
        """Measure after the untrained policy, unless done.

        Begins again if the environment is replaced.
        """
        while True:
            with suppress(Replaced):
                async with AsyncExitStack() as stack:
                    parts = [one.component for one in self._evaluators]
                    leases = [await stack.enter_async_context(part.environment.bound()) for part in parts]
                    pairs = zip(parts, leases, strict=True)
                    series = self._joined([series_of(lease, part.spec.eval) for part, lease in pairs])
                    known = self._evaluations.measured(self._policy, series)
                    if version.number > 0 and 0 not in known and not self._final:
                        await self._measure_first(version, leases, series)
                    if version.number not in known or series != self._evaluations.series(self._policy):
                        async with self._published.lent(version) if self._final else nullcontext():
                            await self._evaluate(version, leases, series)
                return

    async def _evaluate(self, version: Version, leases: Sequence[Lease], series: str) -> None:
        """Raises as ``Evaluator.evaluate``."""
        pairs = zip(self._evaluators, leases, strict=True)
        scores = [await one.evaluate(version, lease) for one, lease in pairs]
        if self._evaluators[0].component.name:
            mean = replace(
                mean_score({one.component.name: one.component.share for one in self._evaluators}, scores),
                environment_version="+".join(lease.environment_version for lease in leases),
                series=series,
            )
            await self._store.patiently(partial(self._evaluations.add, self._policy, version.id, mean))

    async def _measure_first(self, like: Version, leases: Sequence[Lease], series: str) -> None:
        first = self._store.versions.first(self._policy)
        if self._retention.given:
            if is_there(Path(first.path)):
                async with self._published.lent(first):
                    await self._evaluate(first, leases, series)
            return
        place = f"blank-{self._suite}-" if self._suite else "blank-"
        path = Path(like.path).with_name(f"{place}{Path(like.path).name}")
        try:
            checksum = await asyncio.to_thread(write_blank, Path(like.path), path)
            blank = replace(first, name=f"{first.name}-{place.rstrip('-')}", path=str(path), checksum=checksum)
            async with self._published.lent(blank):
                await self._evaluate(blank, leases, series)
        finally:
            with suppress(OSError):  # the task's next start removes it
                path.unlink()


def deciding(spec: TaskSpec) -> str:
    """Name of the deciding suite; empty: the task's environment."""
    return next((suite.name for suite in spec.eval.suite if suite.decides), "")


def on_suite(spec: TaskSpec, suite: SuiteSpec) -> TaskSpec:
    """The task measured on a suite only."""
    measure = replace(
        spec.eval,
        every=suite.every,
        prompts=suite.prompts,
        samples=suite.samples,
        temperature=suite.temperature,
        split=suite.split,
        agents={},
        rotate=False,
        target=spec.eval.target if suite.decides else None,
        patience=spec.eval.patience if suite.decides else 0,
    )
    as_task = (
        spec.data if suite.environment == spec.environment else DataSpec()
    )  # other environments have their own rows
    data = suite.data if suite.data.path else as_task
    plain = replace(spec, environment=suite.environment, environment_config=suite.config, policies={}, agents={})
    return replace(plain, eval=measure, data=data)


class Evaluations:
    """One policy's evaluations."""

    def __init__(
        self,
        services: Services,
        trained: TrainedPolicy,
        mixture: Mixture,
        prompts: TaskPrompts,
        participants: Participants,
        retention: Retention,
        after_deciding: AfterEvaluation,
    ) -> None:
        spec, decides = trained.spec, deciding(trained.spec)
        self._services = services
        self._trained = trained

        def evaluators(measure: EvalSpec, split: Split) -> list[Evaluator]:
            made = []
            for component in mixture.components:
                measured = replace(component.spec, train=spec.train, policy=spec.policy, eval=measure)
                part, held_out = replace(component, spec=measured), prompts.of(component, split)
                made.append(Evaluator(services, trained.number, trained.name, part, participants, held_out))
            return made

        measured = replace(spec, eval=replace(spec.eval, target=None, patience=0)) if decides else spec
        after = None if decides else after_deciding
        self.deciding = Measuring(services, trained, measured, evaluators(spec.eval, "eval"), retention, after)
        self._all = [self.deciding]
        for suite in spec.eval.suite:
            on, after = on_suite(spec, suite), after_deciding if suite.name == decides else None
            evaluator, split = suite_evaluator(services, trained, on, suite), cast(Split, suite.split)
            self._all.append(Measuring(services, trained, on, [evaluator], retention, after, split, suite.name))
            if suite.name == decides:
                self.deciding = self._all[-1]
        tested = evaluators(replace(spec.eval, prompts=spec.eval.test_prompts, split="test"), "test")
        self._test = Measuring(services, trained, spec, tested, retention, None, "test")

    @property
    def pending(self) -> Set[int]:
        return frozenset().union(*(measuring.pending for measuring in self._all))

    async def settled(self, but: int = 0) -> None:
        for measuring in self._all:
            await measuring.settled(but)

    def first(self, version: Version, background: Background) -> None:
        """Call when the first step has its groups."""
        for measuring in self._all if version.number == 0 else ():
            measuring.begin(version, background)

    def during(self, version: Version, background: Background) -> None:
        for measuring in self._all:
            if version.number > 0 and measuring.due(version):
                measuring.begin(version, background)

    async def last(self, version: Version) -> None:
        """Last version, unless done; then best and last on the split test."""
        for measuring in self._all:
            await measuring.last(version)
        for chosen in self._tested(version) if self._trained.spec.eval.test_prompts else ():
            await self._test.measure(chosen)

    def _tested(self, last: Version) -> list[Version]:
        versions, policy = self._services.store.versions, self._trained.number
        scores = self._services.store.evaluations.of(deciding(self._trained.spec)).scores(policy)
        there = {version.number: version for version in reversed(versions.candidates(policy)) if version.number > 0}
        known = {number: score for number, score in scores.items() if number in there}
        chosen = {last.number: last} | ({best(known): there[best(known)]} if known else {})
        return [chosen[number] for number in sorted(chosen)]


def suite_evaluator(services: Services, trained: TrainedPolicy, spec: TaskSpec, suite: SuiteSpec) -> Evaluator:
    """A suite's evaluator; ``spec`` is from ``on_suite``."""
    history = history_of(services.store.experience, trained.number, suite.name)
    environment = TaskEnvironment(services.environments, spec, history)
    participants = Participants(AgentMap({ONLY: NamedPolicySpec()}, {}), {ONLY: Participant(trained.published)})
    held_out = HeldOutPrompts(services, trained.task, suite.prompts, cast(Split, suite.split))
    whole = Component("", 1.0, spec, environment)
    return Evaluator(services, trained.number, ONLY, whole, participants, held_out, suite.name)

"""Held-out evaluation: the same prompts for every version; training never uses them."""

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
from typing import NamedTuple, cast

from ..adapters.statefile import is_there, write_blank
from ..environments.protocol import FinishedEpisode
from ..environments.served_version import Lease
from ..errors import Paused, Replaced
from ..machine.services import Services
from ..rollout.episodes import Roles
from ..rollout.slots import Replicas
from ..samplers.sampling import Truncation
from ..samplers.seeds import noise_seed
from ..spec.automatic import by_base
from ..spec.task import ONLY, AgentMap, DataSpec, EvalSpec, NamedPolicySpec, SuiteSpec, TaskSpec
from ..store.experience import PolicyGroup
from ..store.versions import Evaluation, Version, best
from ..trajectories import Group, Split
from .admission import Background
from .drawing import TaskPrompts
from .environment import History, Mixture, TaskEnvironment, series_of
from .failures import first_failure, never_spoke
from .groups import DEATHS, episode_of, texts_of, untrained
from .held_out import (
    EVAL_SEED,
    ConstantAnswers,
    HeldOutEpisode,
    HeldOutPrompts,
    Sampled,
    averages,
    held_out_spec,
    reached,
    remark,
    score,
    stalled,
)
from .opening import TrainedPolicy, check_room, check_servable, join_router, keep_numbers, set_leftovers_aside
from .publishing import PublishedVersions, Retention
from .selfplay import FrozenPolicies, Match, Opponents, Participants

EVAL_ATTEMPTS = 3
"""Runs of one held-out episode."""
MOST_OVERLOADED = 20
"""Additional runs that the load of the machine may end."""
AGAIN = 1
"""Repetitions of failed episodes if there is no score."""


@dataclass(frozen=True)
class _Prompt:
    number: int
    match: Match
    played: tuple[FinishedEpisode, ...]
    own: tuple[FinishedEpisode, ...]

    @property
    def sampled(self) -> Sampled:
        rewards = [tuple(one.outcome.rewards.values()) for one in self.own if one.outcome.status == "ok"]
        means = tuple(sum(found) / len(found) for found in rewards if found)
        return Sampled(means, sum(not one for one in self._unusable) - len(means))

    @property
    def skipped(self) -> bool:
        return all(self._unusable)

    @property
    def _unusable(self) -> list[bool]:
        return [one.outcome.status == "skip" and not one.episode.trajectories for one in self.own]


class Evaluator:
    """Measures the versions of one policy."""

    def __init__(
        self,
        services: Services,
        spec: TaskSpec,
        policy: int,
        name: str,
        environment: TaskEnvironment,
        participants: Participants,
        held_out: HeldOutPrompts,
        suite: str = "",
        required: bool = False,
        component: str = "",
    ) -> None:
        """``suite``: name of the measured suite; empty: the task's own environment. ``required``: without a score
        the task ends, and a restart does not repeat finished prompts. ``component``: the measured environment of
        a mixture, stored like a suite.
        """
        self._required = required
        self._beside_training = bool(suite or held_out.split == "test") and not required
        """True if training continues without a measurement, because another environment or split is measured."""
        self._services = services
        self._spec = spec
        self._policy = policy
        self._name = name
        self._environment = environment
        self._participants = participants
        self._held_out = held_out
        self._component = component
        self._suite, self._split = suite or component, held_out.split
        self._place = "" if (self._suite, self._split) == ("", "eval") else f"-{self._suite}-{self._split}-"
        self.tell = held_out.tell
        self._constants = ConstantAnswers(services, name)
        self._evaluations = services.store.evaluations.of(self._suite, held_out.split)
        self._baselines: dict[str, float | None] = {}

    def series(self, lease: Lease) -> str:
        return series_of(lease, self._spec.eval)

    async def evaluate(self, version: Version, lease: Lease) -> Evaluation:
        """Run every held-out prompt with ``version``, which the caller holds; record and return the score.

        Raises ``Replaced`` if the lease ended, ``Blocked`` if not all prompts can be seen. If no episode has a reward,
        raises ``Replaced`` if a newer environment version serves, ``Blocked`` if none serves, else ``Paused`` (only
        logged for a suite or the split test of a training task).
        """
        instances, measure = (await self._held_out.division(lease)).instances, self._spec.eval
        matches = [
            self._participants.examination(self._name, version, measure.agents, index if measure.rotate else 0)
            for index in instances
        ]
        series = self.series(lease)
        async with self._participants.playing(matches[0]):  # all matches have the same versions
            episodes = [self._samples(lease, index, match) for index, match in zip(instances, matches, strict=True)]
            prompts = await self._run(version, lease, episodes)
            own = [one for prompt in prompts for one in prompt.own]
            if all(t.reward is None for one in own for t in one.episode.trajectories):
                async with self._environment.bound() as serving:
                    if serving.environment_version != lease.environment_version:
                        raise Replaced
                worthless = self._worthless([one for prompt in prompts for one in prompt.played], own)
                if not self._beside_training:
                    raise worthless
                self.tell(f"Nothing could be measured on {self._suite or 'the split test'}: {worthless.message}")
            elif series not in self._baselines:
                usable = [one[0] for one, prompt in zip(episodes, prompts, strict=True) if not prompt.skipped]
                self._baselines[series] = await self._baseline(lease, series, usable, own)
        evaluation = self._summary(version.number, lease, series, prompts)
        store = self._services.store
        await store.patiently(lambda: self._evaluations.add(self._policy, version.id, evaluation))
        return evaluation

    async def _run(self, version: Version, lease: Lease, episodes: Sequence[Sequence[HeldOutEpisode]]) -> list[_Prompt]:
        """Run and store all episodes. If there is no score, failed ones are repeated."""
        results = self._stored(version, lease) if self._required else {}
        stored = {index for index, _ in results}
        prompt_of = {prompt[0].spec.index: prompt for prompt in episodes}

        async def run(episode: HeldOutEpisode, again: int) -> FinishedEpisode:
            results[episode.key] = result = await self._episode(version, lease, episode, again)
            prompt = prompt_of[episode.spec.index]
            if self._required and not any(_failed(results.get(each.key)) for each in prompt):
                stored.add(episode.spec.index)
                await self._store(version, lease, self._prompt(prompt, [results[each.key] for each in prompt]))
            return result

        for again in range(AGAIN + 1):
            missing = [one for prompt in episodes for one in prompt if _failed(results.get(one.key))]
            finished = await asyncio.gather(*(run(episode, again) for episode in missing))
            if lease.cut and any(one.episode.status == "cancelled" for one in finished):
                raise Replaced
            prompts = [self._prompt(prompt, [results[one.key] for one in prompt]) for prompt in episodes]
            scored = score([one.sampled for one in prompts], self._spec.eval.samples, self._spec.eval.pass_at_least)
            if scored.score is not None or not scored.n:
                break
        for prompt in prompts:
            if prompt.number not in stored:
                await self._store(version, lease, prompt)
        return prompts

    def _stored(self, version: Version, lease: Lease) -> dict[tuple[int, int], FinishedEpisode]:
        """The episodes of prompts that an earlier engine finished."""
        where = self._policy, self._split, self._suite, version.number, lease.environment_version
        return {
            (index, episode.episode.member): episode
            for index, episodes in self._services.store.experience.measured(*where).items()
            if len(episodes) == self._spec.eval.samples and not any(map(_failed, episodes))
            for episode in episodes
        }

    def _prompt(self, episodes: Sequence[HeldOutEpisode], played: Sequence[FinishedEpisode]) -> _Prompt:
        match = episodes[0].match
        agents, own = match.agents_of(self._name), []
        for one in played:
            rewards = {a: reward for a, reward in one.outcome.rewards.items() if agents is None or a in agents}
            part = replace(
                one,
                episode=episode_of(one.episode, agents),
                transcripts=texts_of(one.transcripts, agents),
                outcome=replace(one.outcome, rewards=rewards),
            )
            own.append(part)
        return _Prompt(episodes[0].spec.index, match, tuple(played), tuple(own))

    async def _store(self, version: Version, lease: Lease, prompt: _Prompt) -> None:
        store = self._services.store
        episodes, serving = tuple(one.episode for one in prompt.own), lease.environment_version
        group = Group(prompt.number, prompt.number, version.number, serving, episodes, component=self._component)
        texts = {key: text for one in prompt.played for key, text in one.transcripts.items()}
        beside = untrained([one.episode for one in prompt.played], texts, prompt.match, {self._name})
        part = PolicyGroup(self._policy, group, {k: text for one in prompt.own for k, text in one.transcripts.items()})
        rewards = [one.outcome.rewards for one in prompt.own]
        play = partial(store.experience.add_play, self._split, [part], beside, version.number, self._suite)
        await store.patiently(partial(play, rewards=rewards))

    def _summary(self, step: int, lease: Lease, series: str, prompts: Sequence[_Prompt]) -> Evaluation:
        measure, own = self._spec.eval, [one for prompt in prompts for one in prompt.own]
        scored = score([one.sampled for one in prompts], measure.samples, measure.pass_at_least)
        if scored.score is None:
            failed = f"{scored.failures} of {scored.n + scored.failures} episodes failed"
            whose = f" of {self._name}" if len(self._participants.agent_map.trained) > 1 else ""
            whose += f" on {self._component}" if self._component else ""
            self.tell(f"No held-out score{whose} at step {step}: {failed}. The first: {first_failure(own)}.")
        return Evaluation(
            step,
            lease.environment_version,
            scored.score,
            scored.stderr,
            scored.n,
            self._baselines.get(series),
            averages([{**one.episode.parts, **one.episode.metrics} for one in own]),
            failures=scored.failures,
            prompts=scored.prompts,
            samples=measure.samples,
            series=series,
            suite=self._suite,
            split=self._split,
            best_of=scored.best_of,
            pass_at=scored.pass_at,
        )

    def _worthless(self, played: Sequence[FinishedEpisode], own: Sequence[FinishedEpisode]) -> Paused:
        if any(one.episode.trajectories for one in played) and not any(one.episode.trajectories for one in own):
            agents = [agent for agent, policy in self._participants.agent_map.agents.items() if policy == self._name]
            return never_spoke(agents, self._name, f"{len(played)} held-out episodes")
        on = f" on {self._component}" if self._component else ""
        return Paused(f"No held-out episode{on} has a reward: {first_failure(played)}.")

    def _samples(self, lease: Lease, index: int, match: Match) -> list[HeldOutEpisode]:
        replicas = self._participants.replicas(match)
        return [
            HeldOutEpisode(
                held_out_spec(lease, index, member, self._split), match, self._roles(index, member, match, replicas)
            )
            for member in range(self._spec.eval.samples)
        ]

    def _roles(self, index: int, member: int, match: Match, replicas: Mapping[str, Replicas]) -> Roles:
        noise = noise_seed(EVAL_SEED, self._split, index, *([member] if member else []))
        measure = self._spec.eval
        truncation = Truncation(measure.top_k, measure.top_p, measure.min_p)
        return match.roles(replicas, self._spec.sampling, measure.temperature, noise, truncation)

    async def _episode(self, version: Version, lease: Lease, episode: HeldOutEpisode, again: int) -> FinishedEpisode:
        """Run one episode, again if it fails; after a death of the process only once (see ``groups.DEATHS``)."""
        player = self._environment.player(lease)
        tries = overloaded = died = 0
        while True:
            number = again * (EVAL_ATTEMPTS + MOST_OVERLOADED) + tries + overloaded
            name = f"{version.name}/e{self._place}{episode.spec.index}.{episode.spec.member}.{number}"
            played = await self._services.rollout.run_episode(player, episode.spec, episode.roles, name)
            if played.outcome.overloaded and overloaded < MOST_OVERLOADED:
                overloaded += 1
                continue
            tries += 1
            died += played.outcome.died
            if played.episode.status not in ("error", "timeout") or tries == EVAL_ATTEMPTS or died == DEATHS:
                return played

    async def _baseline(
        self, lease: Lease, series: str, episodes: Sequence[HeldOutEpisode], own: Sequence[FinishedEpisode]
    ) -> float | None:
        """With other speakers, the one from the beginning of the series, because they may have learned since."""
        others = any(set(episode.match.agents.values()) - {self._name} for episode in episodes)
        known = self._evaluations.baseline(self._policy, series) if others else None
        if known is not None:
            return known
        transcripts = (transcript for one in own for transcript in one.transcripts.values())
        said = (text for transcript in transcripts for role, text in transcript.turns if role == "assistant")
        return await self._constants.baseline(lease, episodes, said)


def _failed(episode: FinishedEpisode | None) -> bool:
    return episode is None or episode.outcome.status not in ("ok", "skip")


# A running task of ``kind = "eval"``: each version is a policy of the task, and nothing is trained.
#
# All are measured on the environment version of the first, with the same noise. Stored results are not measured again.


class EvalRun:
    """Measures one task's versions with one generation of the workers."""

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
        self.drained = False
        """True if it ended between two versions because the engine drains; the next engine continues."""

    @property
    def progress(self) -> int:
        return sum(map(self._measured, self._policies.values()))

    @property
    def waits_for(self) -> str:
        return self._environment.waits_for

    async def run(self) -> None:
        """Measure the remaining versions. Raises ``Blocked``, ``Paused``, ``ConfigError``, ``WorkerDied``, …"""
        services = self._services
        check_room(services.shortage)
        await self._environment.check()
        check_servable(self._spec, services)
        await keep_numbers(services, self._task, self._submitted, self._spec, "by its base")
        try:
            await join_router(services, self._task, self._spec, list(self._policies.values()))
            if self._folder.is_dir():  # it exists while files written for this task are served
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
        evaluations = self._services.store.evaluations.of("", self._held_out.split)
        without = [words for words, policy in self._policies.items() if not evaluations.scores(policy)]
        has = "has" if len(without) == 1 else "have"
        return f"{', '.join(without)} {has} no score: too many episodes failed." if without else ""

    async def _measure(self, words: str, policy: int, participants: Participants) -> None:
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
            required=True,
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
        agents = {}
        if self._spec.eval.agents or self._spec.eval.rotate:
            async with self._environment.bound() as lease:
                agents = dict.fromkeys(lease.declared.agents, ONLY)
        return Participants(AgentMap({ONLY: NamedPolicySpec()}, agents), {ONLY: self._published}, opponents)

    def _history(self) -> History:
        first = next(iter(self._policies.values()))
        experience = self._services.store.experience
        return experience.first_environment(first), experience.last_environment(first)


# When and on what a policy is measured: held-out prompts, components of a mixture, suites, the split test.
#
# Training continues during measurements, except in a deterministic task; at most one waits, and the newest wins.
# Scores compare only within a series. If training follows an edited environment, a new series begins with the untrained
# policy.
#
# A suite is another environment, on which the policy acts as every agent. The task's prompts, or one suite, decide
# which version is the best and if the scores end the task.
#


TOO_OFTEN = (
    "Evaluations take longer than the steps between them, so some are left out: raise 'eval.every', or lower"
    " 'eval.prompts' or 'eval.samples'."
)

AfterEvaluation = Callable[[], Awaitable[None]]
"""Called after an evaluation; what it raises ends the training."""


class Part(NamedTuple):
    """One measured environment."""

    name: str
    """Of the component of a mixture; empty if it is the only one."""
    share: float
    """Of the score; the shares of a mixture sum to 1."""
    environment: TaskEnvironment
    evaluator: Evaluator


def mean_score(shares: Mapping[str, float], parts: Sequence[Evaluation]) -> Evaluation:
    """The mean of the components' evaluations ``parts``, in the order of ``shares``, which sum to 1.

    Its standard error is the root of the sum of (share · standard error)², for independent parts. It has no score if a
    part has none.
    """
    first, weights = parts[0], list(shares.values())

    def mean(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        return math.fsum(weight * value for weight, value in zip(weights, known, strict=True))

    metrics: dict[str, float] = {}
    for name, part in zip(shares, parts, strict=True):
        metrics |= {f"{name}: {key}": value for key, value in part.metrics.items()}
    score = mean([part.score for part in parts])
    error = math.sqrt(math.fsum((w * part.stderr) ** 2 for w, part in zip(weights, parts, strict=True)))
    return Evaluation(
        first.step,
        first.environment_version,
        score,
        error if score is not None else 0.0,
        sum(part.n for part in parts),
        mean([part.floor for part in parts]),
        metrics,
        failures=sum(part.failures for part in parts),
        prompts=sum(part.prompts for part in parts),
        samples=first.samples,
        best_of=mean([part.best_of for part in parts]) if score is not None else None,
        pass_at=mean([part.pass_at for part in parts]) if score is not None else None,
    )


class Measuring:
    """The evaluations of one policy on one set of prompts: of one environment, or of all components of a mixture.

    The score of a mixture is the mean by share.
    """

    def __init__(
        self,
        services: Services,
        trained: TrainedPolicy,
        spec: TaskSpec,
        parts: Sequence[Part],
        retention: Retention,
        after_each: AfterEvaluation | None = None,
        split: Split = "eval",
        suite: str = "",
    ) -> None:
        self._store = services.store
        self._evaluations = services.store.evaluations.of(suite, split)
        self._spec = spec.eval
        self._leaves_out = not spec.train.deterministic
        self._policy = trained.number
        self._published = trained.published
        self._parts = parts
        self._split: Split = split
        self._suite = suite
        self._final = split == "test" and not suite
        """True for the split test: it is measured once, without the untrained policy."""
        self._retention = retention
        self._after_each = after_each
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
        """Measure a version while training continues, unless that was done. It replaces a waiting version.

        The version is held before the next one can replace it.
        """
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
                    self._parts[0].evaluator.tell(TOO_OFTEN)

    @property
    def _switched(self) -> bool:
        """True if training uses an environment of another series than the newest.

        False during a measurement: many edits in a row cost one series.
        """
        newest, keys = self._evaluations.series(self._policy), [part.environment.series for part in self._parts]
        return not self._running and newest not in (None, self._joined(keys) if all(keys) else "")

    def _joined(self, keys: Sequence[str]) -> str:
        if not self._parts[0].name:
            return keys[0]
        content = json.dumps([[(part.name, part.share) for part in self._parts], keys])
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
        """Put a version into the current series, after the untrained policy, unless that was done.

        Begins again if the environment is replaced before the version has a score.
        """
        while True:
            with suppress(Replaced):
                async with AsyncExitStack() as stack:
                    leases = [await stack.enter_async_context(part.environment.bound()) for part in self._parts]
                    pairs = zip(self._parts, leases, strict=True)
                    series = self._joined([part.evaluator.series(lease) for part, lease in pairs])
                    known = self._evaluations.measured(self._policy, series)
                    if version.number > 0 and 0 not in known and not self._final:
                        await self._measure_first(version, leases, series)
                    if version.number not in known or series != self._evaluations.series(self._policy):
                        async with self._published.lent(version) if self._final else nullcontext():
                            await self._evaluate(version, leases, series)
                return

    async def _evaluate(self, version: Version, leases: Sequence[Lease], series: str) -> None:
        """Measure a version on every part, and record the scores and their mean. Raises as ``Evaluator.evaluate``."""
        pairs = zip(self._parts, leases, strict=True)
        scores = [await part.evaluator.evaluate(version, lease) for part, lease in pairs]
        if self._parts[0].name:
            mean = replace(
                mean_score({part.name: part.share for part in self._parts}, scores),
                environment_version="+".join(lease.environment_version for lease in leases),
                series=series,
                split=self._split,
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
    """The name of the suite with the deciding score; empty if the task's environment decides."""
    return next((suite.name for suite in spec.eval.suite if suite.decides), "")


def on_suite(spec: TaskSpec, suite: SuiteSpec) -> TaskSpec:
    """The task as if it were measured on a suite only."""
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
    """All evaluations of one policy: on the task's prompts, on suites, and at the end on the split test."""

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
        """``after_deciding`` is called after each evaluation that decides."""
        spec, decides = trained.spec, deciding(trained.spec)
        self._services = services
        self._trained = trained

        def parts(measure: EvalSpec, split: Split) -> list[Part]:
            return [
                Part(
                    component.name,
                    component.share,
                    component.environment,
                    Evaluator(
                        services,
                        replace(component.spec, train=spec.train, policy=spec.policy, eval=measure),
                        trained.number,
                        trained.name,
                        component.environment,
                        participants,
                        prompts.of(component, split),
                        component=component.name,
                    ),
                )
                for component in mixture.components
            ]

        measured = replace(spec, eval=replace(spec.eval, target=None, patience=0)) if decides else spec
        after = None if decides else after_deciding
        self.deciding = Measuring(services, trained, measured, parts(spec.eval, "eval"), retention, after)
        self._all = [self.deciding]
        for suite in spec.eval.suite:
            on, after = on_suite(spec, suite), after_deciding if suite.name == decides else None
            part, split = suite_part(services, trained, on, suite), cast(Split, suite.split)
            self._all.append(Measuring(services, trained, on, [part], retention, after, split, suite.name))
            if suite.name == decides:
                self.deciding = self._all[-1]
        tested = parts(replace(spec.eval, prompts=spec.eval.test_prompts, split="test"), "test")
        self._test = Measuring(services, trained, spec, tested, retention, None, "test")

    @property
    def pending(self) -> Set[int]:
        return frozenset().union(*(measuring.pending for measuring in self._all))

    async def settled(self, but: int = 0) -> None:
        for measuring in self._all:
            await measuring.settled(but)

    def first(self, version: Version, background: Background) -> None:
        """Measure the untrained policy, unless that was done. Call this when the first step has its groups."""
        for measuring in self._all if version.number == 0 else ():
            measuring.begin(version, background)

    def during(self, version: Version, background: Background) -> None:
        for measuring in self._all:
            if version.number > 0 and measuring.due(version):
                measuring.begin(version, background)

    async def last(self, version: Version) -> None:
        """Measure the last version, unless that was done; then the best and the last on the split test."""
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


def suite_part(services: Services, trained: TrainedPolicy, spec: TaskSpec, suite: SuiteSpec) -> Part:
    """The environment of a suite and its evaluator; ``spec`` is from ``on_suite``."""
    experience, split = services.store.experience, cast(Split, suite.split)
    first = experience.first_environment(trained.number, suite.name)
    history = first, experience.last_environment(trained.number, suite.name)
    environment = TaskEnvironment(services.environments, spec, history)
    participants = Participants(AgentMap({ONLY: NamedPolicySpec()}, {}), {ONLY: trained.published}, Opponents())
    held_out = HeldOutPrompts(services, trained.task, suite.prompts, split)
    evaluator = Evaluator(services, spec, trained.number, ONLY, environment, participants, held_out, suite.name)
    return Part("", 1.0, environment, evaluator)

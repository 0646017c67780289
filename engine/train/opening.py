"""Before a policy's first step: options, state, place at the samplers, limits."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from marlaas.plugins.messages import Answer, Ask, Reply

from ..adapters.peft_folder import fitted, read_adapter
from ..adapters.statefile import begin, holds_moments, is_there, read_expected, restart_moments, spare, sweep
from ..environments.protocol import Answering, EpisodeOutcome, EpisodeSpec
from ..environments.served_version import Lease
from ..environments.service import EnvironmentService
from ..errors import AdapterDamaged, AdapterError, AdapterMissing, Blocked, ConfigError
from ..faults import Point, reach
from ..machine.services import Services
from ..models.config import SAMPLERS
from ..samplers.seeds import noise_seed
from ..spec.automatic import FirstReplies, as_number, replaced
from ..spec.losses import AdvantageKind, constant_denominator, published
from ..spec.task import TaskSpec, agent_map_of, start_folder
from ..store.store import Store
from ..store.versions import NewVersion, Version
from ..trainer.advantages import ClosingRules, Credit, Overlong
from ..trainer.protocol import PolicyConfig, StepResult
from ..trajectories import Split
from .environment import Component, Mixture
from .publishing import PublishedVersions

if TYPE_CHECKING:
    from .selfplay import Participants


def closing_rules(spec: TaskSpec) -> ClosingRules:
    """Rules by which rewards become advantages."""
    train, sampling = spec.train, spec.sampling
    kind = published(train.loss).advantage if train.advantage == "auto" else cast(AdvantageKind, train.advantage)
    limits = as_number(sampling.max_tokens), as_number(sampling.max_episode_tokens)
    overlong = Overlong(train.overlong, train.overlong_buffer, *limits)
    credit = Credit(train.discount) if train.advantage_level == "turn" else None
    return ClosingRules(kind, overlong, credit, train.fewest_members)


def replacements(spec: TaskSpec) -> int:
    """Refills per group number with equal rewards (DAPO, arXiv 2503.14476, section 3.2).

    A common allowance would depend on the order of ends, and runs would not repeat.
    """
    train = spec.train
    wanted = published(train.loss).dynamic_sampling if train.dynamic_sampling is None else train.dynamic_sampling
    return train.dynamic_limit if wanted else 0


def policy_config(spec: TaskSpec) -> PolicyConfig:
    """The trainer's view of a task."""
    train, longest = spec.train, as_number(spec.sampling.max_episode_tokens)
    return PolicyConfig(
        rank=spec.policy.rank,
        alpha=spec.policy.lora_alpha,
        targets=spec.policy.target_names,
        loss=train.loss,
        learning_rate=as_number(train.learning_rate),
        schedule=train.schedule,
        min_rate=train.min_rate,
        decay=train.decay,
        betas=(train.adam_beta1, train.adam_beta2),
        warmup=train.warmup,
        steps=spec.steps,
        epochs=train.epochs,
        epsilon=train.epsilon,
        weight_decay=train.weight_decay,
        clip_norm=train.clip_norm,
        clip_low=train.clip_low,
        clip_high=train.clip_high,
        clip_dual=train.clip_dual,
        importance=train.importance,
        importance_cap=train.importance_cap,
        importance_floor=train.importance_floor,
        geometric_cap=train.geometric_cap,
        kl=train.kl,
        kl_in_reward=train.kl_in == "reward",
        rewards=train.rewards,
        beta=train.beta,
        entropy=train.entropy,
        entropy_target=train.entropy_target,
        denominator=constant_denominator(train.loss, spec.group_episodes, longest),
        temperature=spec.sampling.temperature,
        seed=train.seed,
        repeats=train.deterministic,
    )


async def set_leftovers_aside(services: Services, task: int) -> None:
    """Move files without a committed version away."""
    store, home, name = services.store, services.home, f"task-{task}"
    known = {Path(version.path).name for version in store.versions.on_disk(task)}
    swept = await asyncio.to_thread(sweep, home.file(f"adapters/{name}"), known, home.lost / name)
    if swept.moved:
        files = ", ".join(path.name for path in swept.moved)
        said = f"Files that no version names lie in {home.lost / name} now: {files}."
        store.telemetry.event("recovery", said, task, "warning")
    for problem in swept.problems:
        store.telemetry.event("adapter", problem, task, "warning")


def version_path(services: Services, task: int, policy: str, number: int) -> Path:
    """A new state file's path, never used before."""
    name = f"task-{task}/{policy}-v{number}-i{services.store.incarnation}"
    return services.home.file(f"adapters/{services.store.versions.unused(name)}.safetensors")


def new_version(result: StepResult) -> NewVersion:
    """The row of an uncommitted state file; its name is unique for ever."""
    path = Path(result.path)
    return NewVersion(result.step, f"{path.parent.name}/{path.stem}", result.checksum, result.path, result.size)


async def open_policy(services: Services, task: int, policy: int, name: str, spec: TaskSpec) -> Version:
    """Open a policy; return the version that it continues from.

    Versions with a damaged file are voided, with their steps. Files without a row go to lost+found. Without sound
    moments the newest version gets a new optimizer, else the task begins again. Raises ``AdapterUnreachable``, and
    voids nothing, if files cannot be read; ``AdapterError`` if the given version cannot be used.
    """
    versions, config, patiently = services.store.versions, policy_config(spec), services.store.patiently
    drop_unusable = services.store.experience.drop_unusable
    candidates = versions.candidates(policy)
    words = spec.train.kl_reference
    pulls = words == "start" and bool(spec.policy.start)
    if start_folder(words) is not None:
        config = replace(config, teacher=words)
    elif words not in ("base", "start"):
        teacher = versions.start(task, words)
        if teacher is None:
            raise ConfigError(f"Nobody looked up the version {words!r}, which 'train.kl_reference' names.")
        config = replace(config, reference=await _readable(teacher))
    if pulls and any(version.number > 0 for version in candidates):
        if candidates[-1].number:
            raise AdapterError(_UNREADABLE.format("It is not on the disk any more."), _UNREADABLE_HINT)
        config = replace(config, reference=await _readable(candidates[-1]))
    reach(Point.RECOVER_READY)
    for version in candidates:
        if pulls and version.number == 0:
            config = replace(config, reference=version.path)
        problem = await _problem(services, task, name, config, version)
        if problem is None:
            # also voids later steps without files
            await patiently(partial(versions.void_after, policy, version.number))
            reach(Point.RECOVER_VOIDED)
            await patiently(partial(drop_unusable, policy, version.number))
            reach(Point.RECOVER_DONE)
            return version
        await asyncio.to_thread(spare, Path(version.path).parent)
        message = f"Version {version.name} cannot be used and is void: {problem}"
        services.store.telemetry.event("recovery", message, task, "warning")
        await patiently(partial(versions.void_after, policy, version.number - 1))
    if candidates:
        services.store.telemetry.event("recovery", "No version verified; training begins anew.", task, "warning")
    await patiently(partial(versions.void_after, policy, -1))
    await patiently(partial(drop_unusable, policy, 0))
    path = version_path(services, task, name, 0)
    given = await _begin(services, task, spec, path)
    if pulls:
        config = replace(config, reference=str(path))
    result = await services.trainer.open(key(task, name), config, str(path), given)
    return await patiently(lambda: versions.commit_first(policy, new_version(result)))


_UNREADABLE = "The version that the KL term pulls to cannot be read: {}"
_UNREADABLE_HINT = 'Submit the task again, or with `kl_reference = "base"`.'


async def _readable(version: Version) -> str:
    """Raises ``AdapterError`` if missing: the trainer would blame the current version, and that would be voided."""
    try:
        await asyncio.to_thread(read_expected, Path(version.path), version.checksum)
    except (AdapterDamaged, AdapterMissing) as error:
        raise AdapterError(_UNREADABLE.format(error.message), _UNREADABLE_HINT) from error
    return version.path


async def _begin(services: Services, task: int, spec: TaskSpec, path: Path) -> bool:
    start, folder = services.store.versions.start(task, spec.policy.start), start_folder(spec.policy.start)
    if folder is not None:
        what, read = str(folder), partial(read_adapter, folder, services.base)
    elif start is not None:
        what, read = start.name, partial(read_expected, Path(start.path), start.checksum)
    elif spec.policy.start:  # an untrained adapter would be a different run
        raise ConfigError(f"Nobody looked up the version {spec.policy.start!r} that this task is to begin from.")
    else:
        return False
    await asyncio.to_thread(lambda: begin(fitted(read(), spec.policy, services.base.config), path))
    services.store.telemetry.event("task", f"Training begins from {what}, with a new optimizer.", task)
    return True


def key(task: int, policy: str) -> str:
    """A policy's name in the trainer."""
    return f"task-{task}/{policy}"


async def _problem(services: Services, task: int, name: str, config: PolicyConfig, version: Version) -> str | None:
    """Why training cannot continue. Raises errors that are not about its file."""
    try:
        if not await asyncio.to_thread(holds_moments, Path(version.path)):
            await _restart_optimizer(services, task, version)
        opened = await services.trainer.open(key(task, name), config, version.path, True)
    except (AdapterDamaged, AdapterMissing) as error:
        return str(error)
    if opened.checksum != version.checksum or opened.step != version.number:
        return f"its file holds {opened.checksum} of step {opened.step}, not {version.checksum} of {version.number}."
    return None


async def _restart_optimizer(services: Services, task: int, version: Version) -> None:
    size = await asyncio.to_thread(restart_moments, Path(version.path), version.checksum)
    services.store.versions.restart(version.id, size)
    message = f"Training goes on from {version.name} with a new optimizer: its moments had been given up for room."
    services.store.telemetry.event("recovery", message, task, "warning")


@dataclass(frozen=True)
class TrainedPolicy:
    """A policy with one generation of the workers."""

    task: int
    name: str
    number: int
    spec: TaskSpec
    published: PublishedVersions

    @classmethod
    def of(cls, services: Services, task: int, name: str, spec: TaskSpec) -> TrainedPolicy:
        number = services.store.versions.policy(task, name, {})
        return cls(task, name, number, spec, PublishedVersions(services.endpoints))

    @property
    def key(self) -> str:
        return key(self.task, self.name)

    @property
    def given(self) -> bool:
        """True if version 0 holds weights trained elsewhere."""
        return bool(self.spec.policy.start)

    def kept(self, services: Services) -> list[Version]:
        """Its versions with files."""
        candidates = services.store.versions.candidates(self.number)
        return [version for version in candidates if is_there(Path(version.path))]

    async def open(self, services: Services) -> Version:
        """Raises as ``open_policy`` and ``PublishedVersions.publish`` do."""
        version = await open_policy(services, self.task, self.number, self.name, self.spec)
        await self.published.publish(version, services.router.shares(self.task, self.name))
        return version

    async def leave(self, services: Services) -> None:
        await asyncio.gather(services.trainer.close(self.key), self.published.clear(), return_exceptions=True)


async def check_ready(
    task: int, spec: TaskSpec, store: Store, environments: EnvironmentService, shortage: Callable[[], str]
) -> None:
    """Raise ``Blocked`` without disk room or environment."""
    check_room(shortage)
    first = agent_map_of(spec).trained[0] if spec.kind != "eval" else spec.versions[0]
    policy = store.versions.policy(task, first, {}, cast(Split, spec.eval.split))
    tell = partial(store.telemetry.event, "environment", task=task)
    mixture = Mixture(environments, spec, store.experience, policy, tell)
    await mixture.check()
    for component in mixture.components:
        async with component.environment.bound():
            pass


def check_room(shortage: Callable[[], str]) -> None:
    """Raise ``Blocked`` before the disk is full."""
    if short := shortage():
        raise Blocked(short)


def check_servable(spec: TaskSpec, services: Services) -> None:
    """Raise ``ConfigError`` for thinking unknown to the base's template, and unrepeatable options."""
    services.rollout.check_thinking(spec.sampling.thinking)
    endpoints = services.endpoints.values()
    if not spec.train.deterministic or any(endpoint.repeatable for endpoint in endpoints):
        return
    if any(SAMPLERS[endpoint.kind].repeats for endpoint in endpoints):  # of these only llama.cpp may not
        raise ConfigError(
            "The task asks for 'train.deterministic', but llama.cpp's arithmetic in this precision is not repeatable.",
            'Set `weights` under [rollout] in marlaas.toml to "q8_0", "f16" or "f32", or leave `deterministic` out.',
        )
    raise ConfigError(
        "The task asks for 'train.deterministic', but the last bits of what vLLM says depend on what else it is asked.",
        'Set `sampler = "llama.cpp"` or "torch" under [rollout] in marlaas.toml, or leave `deterministic` out.',
    )


async def join_router(services: Services, task: int, spec: TaskSpec, policies: Sequence[int]) -> None:
    """Register, and wait for a usable living sampler.

    A deterministic task keeps its kind of sampler. ``policies``: the task's own, in the store.
    """
    versions = services.store.versions
    kind = services.router.join(task, spec, versions.sampler(policies[0]))
    for policy in policies:
        versions.keep_sampler(policy, kind)
    await services.router.served(task)


# Untrained first replies set the limits that are ``auto``.


EPISODES = 16
"""Two groups of the default size."""


async def first_replies(
    services: Services, spec: TaskSpec, mixture: Mixture, participants: Participants
) -> FirstReplies:
    """Sample within ``spec``'s limits. Failed episodes count with their text.

    Raises ``WorkerDied``; ``Blocked`` if an environment cannot serve.
    """
    match, seed = participants.match(0, 0), spec.train.seed
    turns: list[tuple[list[int], bool]] = []
    """Of one agent in one episode: tokens of its replies, and True if it was asked once, without tools."""

    async def episode(component: Component, lease: Lease, index: int) -> None:
        asks: dict[str, list[Ask]] = {}
        play = component.environment.player(lease)

        async def noted(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
            assert isinstance(answer, Answering)

            async def answered(ask: Ask) -> Reply:
                asks.setdefault(ask.agent, []).append(ask)
                return await answer(ask)

            return await play(spec, replace(answer, answer=answered))

        noise = noise_seed(seed, "first", component.name, index)
        roles = match.roles(participants.replicas(match), spec.sampling, spec.sampling.temperature, noise)
        name = f"{next(iter(match.versions.values())).name}/first-{component.name}.{index}"
        shown = EpisodeSpec("train", index, seed, 0, lease.config)
        result = await services.rollout.run_episode(noted, shown, roles, name)
        lengths: dict[str, list[int]] = {}
        for one in result.episode.trajectories:
            if match.policy_of(one.agent) in participants.agent_map.trained:
                lengths.setdefault(one.agent, []).extend(span.stop - span.start for span in one.spans)
        for agent, tokens in lengths.items():
            # a program's number of requests is unknown
            if tokens:
                own = asks.get(agent, [])
                turns.append((tokens, len(own) == 1 and not own[0].tools))

    async def of_component(component: Component) -> None:
        async with component.environment.bound() as lease:
            count = math.ceil(EPISODES / len(mixture.components))
            await asyncio.gather(*(episode(component, lease, index) for index in range(count)))

    async with participants.playing(match):
        await asyncio.gather(*map(of_component, mixture.components))
    return FirstReplies(
        tuple(tokens for lengths, _ in turns for tokens in lengths),
        tuple(sum(lengths) for lengths, _ in turns),
        all(single for _, single in turns),
    )


async def keep_numbers(services: Services, task: int, before: TaskSpec, after: TaskSpec, why: str) -> None:
    """Store and log the numbers that replace ``auto``."""
    if not (numbers := replaced(before, after)):
        return
    store = services.store
    await store.patiently(partial(store.tasks.replace_auto, task, numbers))
    listed = ", ".join(f"{key} = {str(value).lower()}" for key, value in numbers.items())
    store.telemetry.event("auto", f"Chosen for this task {why}: {listed}.", task)

"""The first replies of a task, sampled before its first step to set the limits that are ``auto`` in its file.

Nothing is trained on them. The limits are stored with the task.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from marlaas.plugins.messages import Answer, Ask, Reply

from ..environments import Answering, EpisodeOutcome, EpisodeSpec, Lease
from ..fleet import Services
from ..rollout import Roles, noise_seed
from ..spec import FirstReplies, TaskSpec, replaced
from .environment import Component, Mixture
from .selfplay import Match, Participants

EPISODES = 16
"""Two groups of the default size."""


async def first_replies(
    services: Services, spec: TaskSpec, mixture: Mixture, participants: Participants
) -> FirstReplies:
    """Run them with the limits of ``spec``. Failed episodes count with their text so far.

    Raises ``WorkerDied`` and, if an environment cannot serve, ``Blocked``.
    """
    match = participants.match(0, 0)
    each = math.ceil(EPISODES / len(mixture.components))
    async with participants.playing(match):
        episodes = await asyncio.gather(
            *(_of_component(services, spec, one, each, match, participants) for one in mixture.components)
        )
    turns = [said for part in episodes for episode in part for said in episode]
    return FirstReplies(
        tuple(tokens for lengths, _ in turns for tokens in lengths),
        tuple(sum(lengths) for lengths, _ in turns),
        all(single for _, single in turns),
    )


Said = tuple[list[int], bool]
"""Of one agent in one episode: tokens of its replies, and True if it was asked once, without tools."""


async def _of_component(
    services: Services, spec: TaskSpec, component: Component, episodes: int, match: Match, participants: Participants
) -> Sequence[Sequence[Said]]:
    seed, replicas = spec.train.seed, participants.replicas(match)
    async with component.environment.bound() as lease:

        async def one(index: int) -> Sequence[Said]:
            noise = noise_seed(seed, "first", component.name, index)
            roles = match.roles(replicas, spec.sampling, spec.sampling.temperature, noise)
            name = f"{next(iter(match.versions.values())).name}/first-{component.name}.{index}"
            return await _episode(services, component, lease, index, seed, roles, name, match, participants)

        return await asyncio.gather(*map(one, range(episodes)))


async def _episode(
    services: Services,
    component: Component,
    lease: Lease,
    index: int,
    seed: int,
    roles: Roles,
    name: str,
    match: Match,
    participants: Participants,
) -> Sequence[Said]:
    asks: dict[str, list[Ask]] = {}
    play = component.environment.player(lease)

    async def noted(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        assert isinstance(answer, Answering)

        async def answered(ask: Ask) -> Reply:
            asks.setdefault(ask.agent, []).append(ask)
            return await answer(ask)

        return await play(spec, replace(answer, answer=answered))

    played = await services.rollout.run_episode(noted, EpisodeSpec("train", index, seed, 0, lease.config), roles, name)
    said: dict[str, list[int]] = {}
    for one in played.episode.trajectories:
        if match.policy_of(one.agent) in participants.agent_map.trained:
            said.setdefault(one.agent, []).extend(span.stop - span.start for span in one.spans)
    # a program bypasses ``answered``, so its number of requests is unknown
    single = {agent: len(own := asks.get(agent, [])) == 1 and not own[0].tools for agent in said}
    return [(lengths, single[agent]) for agent, lengths in said.items() if lengths]


async def keep_numbers(services: Services, task: int, before: TaskSpec, after: TaskSpec, why: str) -> None:
    """Store the numbers that replace ``auto`` with the task, and log them."""
    if not (numbers := replaced(before, after)):
        return
    store = services.store
    await store.patiently(partial(store.tasks.replace_auto, task, numbers))
    listed = ", ".join(f"{key} = {str(value).lower()}" for key, value in numbers.items())
    store.telemetry.event("auto", f"Chosen for this task {why}: {listed}.", task)

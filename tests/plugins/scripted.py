"""Plays environments without a process and without a model: a function answers."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marlaas.plugins import Environment, Episode, Invalid, Reply
from marlaas.plugins.blocking import BlockingEpisode, wait_on
from marlaas.plugins.data import row_at, rows_of
from marlaas.plugins.host.meter import in_thread
from marlaas.plugins.messages import Ask
from marlaas.plugins.parameters import complete
from marlaas.plugins.rewards import Rewards, rewards_of

Policy = Callable[[Ask], str | Reply]


@dataclass(frozen=True)
class Played:
    """An episode that has ended."""

    rewards: Rewards
    episode: Episode
    asks: list[Ask]
    invalid: bool

    @property
    def reward(self) -> float:
        (reward,) = self.rewards.by_agent.values()
        return reward


class Model:
    """Answers from a list, and keeps what it was asked."""

    def __init__(self, *replies: Reply | str) -> None:
        self.replies = list(replies)
        self.asks: list[Ask] = []

    async def __call__(self, ask: Ask) -> Reply:
        self.asks.append(ask)
        reply = self.replies.pop(0)
        return Reply(reply, "stop", len(self.asks) - 1) if isinstance(reply, str) else reply


async def play(
    environment: Environment, policy: Policy, *, split: str = "train", index: int = 0, member: int = 0, **config: Any
) -> Played:
    """One episode, in which ``policy`` makes a reply of each ask."""
    asks: list[Ask] = []

    async def answer(ask: Ask) -> Reply:
        asks.append(ask)
        said = policy(ask)
        return Reply(said, "stop", len(asks) - 1) if isinstance(said, str) else said

    settings = complete(environment.parameters, config, environment.name)
    episode = Episode(answer, split=split, index=index, member=member, config=settings, declared=environment.agents)
    if environment.data is not None:
        rows = rows_of(environment.data, split, Path())
        episode.task = rows[row_at(split, 0, index, len(rows))]
    if environment.takes_task:
        settings["task"] = episode.task
    instance: Any = environment() if environment.form is not None else None
    if hasattr(instance, "setup"):
        await _done(instance.setup())
    play = environment.function if instance is None else functools.partial(environment.function, instance)
    try:
        result, invalid = await _result(environment, play, episode, settings), False
    except Invalid as error:
        result, invalid = error.reward, True
    if hasattr(instance, "close"):
        await _done(instance.close())
    return Played(rewards_of(result, episode.payees, episode.earned), episode, asks, invalid)


async def _result(
    environment: Environment, play: Callable[..., Any], episode: Episode, settings: dict[str, Any]
) -> object:
    if not environment.blocking:
        return await play(episode, **settings)
    blocking = BlockingEpisode(episode, wait_on(asyncio.get_running_loop()))
    return await in_thread(functools.partial(play, blocking, **settings))


async def _done(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result

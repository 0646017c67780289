"""Runs an environment up to its first ask, without a model: to show a prompt, and to prove a new version."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from marlaas.plugins.messages import Answer, Ask, Endpoint, Reply
from marlaas.plugins.rewards import DEFAULT_AGENT

from ..racing import until_first
from ..trajectories import Failure
from .process.child import BrokenPlugin, Child
from .process.wire import Described
from .protocol import Answering, EpisodeOutcome, EpisodeSpec, Listener, Opens, Unscored

PATIENCE = 10.0

Ended = TypeVar("Ended", EpisodeOutcome, EpisodeOutcome | Unscored)


async def first_ask(
    play: Callable[[EpisodeSpec, Answer], Awaitable[Ended]], spec: EpisodeSpec, opens: Opens | None = None
) -> Ask | Ended:
    """The episode's first ask, or its end without one.

    ``opens`` gives it an address for its programs; the first ask there counts. Without it, asking for an address counts
    as an empty ask.
    """
    asked: asyncio.Future[Ask] = asyncio.get_running_loop().create_future()

    async def listen(ask: Ask) -> Reply:
        if not asked.done():
            asked.set_result(ask)
        return await asyncio.Future()  # open until the episode is cancelled

    async def unopened(listener: Listener) -> Endpoint:
        await listen(Ask(next(iter(listener.agents), DEFAULT_AGENT), ()))
        raise AssertionError("an ask is never answered here")

    episode = asyncio.ensure_future(play(spec, Answering(listen, endpoint=opens or unopened)))
    return asked.result() if 0 in await until_first(asked, episode) else episode.result()


async def probe(child: Child, each: bool = False) -> dict[str, Failure]:
    """Try every environment that runs on defaults and its own rows; ``BrokenPlugin`` names the first that fails.

    ``each``: the environments are independent. Failing ones are returned with the reason, unless all fail.
    """
    own = [found for found in child.environments.values() if found.rows != "task"]
    ready = [found for found in own if not any(parameter.required for parameter in found.parameters)]
    tried = zip(ready, await asyncio.gather(*(_tried(child, found) for found in ready)), strict=True)
    failures = {found.name: failure for found, failure in tried if failure is not None}
    if failures and (child.dead is not None or not each or len(failures) == len(child.environments)):
        raise BrokenPlugin(next(iter(failures.values())))
    return failures


async def _tried(child: Child, found: Described) -> Failure | None:
    config = {parameter.name: parameter.default for parameter in found.parameters}
    patience = min(PATIENCE, found.timeout)
    spec = EpisodeSpec("train", index=0, seed=0, member=0, config=config, timeout=patience)
    reached = await first_ask(lambda spec, answer: child.play(found.name, spec, answer), spec)
    if isinstance(reached, Ask | Unscored) or reached.status in ("ok", "skip"):
        return None
    return reached.failure or Failure(f"{found.name} ended as {reached.status} before its first ask")

"""Where tools run: plain ones in a thread, one at a time for an episode; others where the episode runs."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
from collections.abc import Callable
from typing import Any

import pytest

from marlaas.plugins import Episode, Invalid, Reply
from marlaas.plugins.adapters.declaring import own_random
from marlaas.plugins.host.threads import in_thread
from marlaas.plugins.messages import ToolCall

from .scripted import Model


def calling(*names: str) -> Model:
    """A model that calls tools, and then is done."""
    return Model(Reply("", "tool", 0, tuple(ToolCall(name, {}) for name in names)), "done")


async def told(*tools: Callable[..., Any]) -> list[str]:
    """What a model is told that calls each of some tools once."""
    model = calling(*(tool.__name__ for tool in tools))
    await Episode(model, apart=in_thread).agent(tools=tools).act("x")
    return [message.content for message in model.asks[1].messages]


async def test_a_plain_tool_has_a_thread_and_others_the_loop() -> None:
    def plain() -> str:
        """Plain."""
        return "the loop" if threading.current_thread() is threading.main_thread() else "a thread"

    async def awaits() -> str:
        """Awaits."""
        return plain()

    assert await told(plain, awaits) == ["a thread", "the loop"]


async def test_tools_of_one_episode_take_turns() -> None:
    under_way, most, asked = 0, 0, 0
    seen = threading.Lock()

    def counts() -> None:
        """Counts."""
        nonlocal under_way, most
        with seen:
            under_way += 1
            most = max(most, under_way)
        for _ in range(1000):
            pass
        with seen:
            under_way -= 1

    async def model(_: object) -> Reply:
        nonlocal asked
        asked += 1
        return Reply("", "tool", 0, (ToolCall("counts", {}),)) if asked <= 8 else Reply("done", "stop", 1)

    episode = Episode(model, apart=in_thread)
    await asyncio.gather(*(episode.agent(f"a{number}", tools=[counts]).act("x") for number in range(8)))
    assert most == 1


async def test_errors_of_tools_are_as_they_were() -> None:
    def wrong() -> None:
        """Wrong."""
        raise KeyError("lost")

    def breaks() -> None:
        """Breaks the rules."""
        raise Invalid("no")

    assert await told(wrong) == ["error: KeyError: 'lost'"]
    with pytest.raises(Invalid, match="no"):
        await told(breaks)


async def test_a_tool_in_the_wrong_thread_is_the_authors_error() -> None:
    base = sqlite3.connect(":memory:")

    def queries() -> Any:
        """Queries."""
        return base.execute("select 1").fetchone()

    def schedules() -> None:
        """Schedules."""
        asyncio.get_running_loop()

    for tool in (queries, schedules):
        with pytest.raises(TypeError, match=f"the tool {tool.__name__} runs in a thread of its own: make it an async"):
            await told(tool)
    base.close()


async def test_tools_that_draw_from_the_global_random_stay() -> None:
    def draws() -> float:
        """Draws."""
        return random.random()

    @own_random
    async def play(ep: Any) -> str:
        model = calling("draws")
        ep._answer = model
        await ep.agent(tools=[draws]).act("x")
        return model.asks[1].messages[0].content

    first, second = [await play(Episode(Model(), apart=in_thread)) for _ in range(2)]
    assert first == second

"""A wait ends in one call, or in none where it was ended before."""

from __future__ import annotations

import asyncio

from marlaas.engine.environments.postponement import Postponement


async def test_the_call_comes_after_the_wait() -> None:
    over, called, wait = asyncio.Event(), asyncio.Event(), Postponement()

    async def until_over() -> None:
        await over.wait()

    wait.begin("waiting", until_over, called.set)
    await asyncio.sleep(0)
    assert wait.state == "waiting" and not called.is_set()
    over.set()
    await called.wait()
    assert wait.state == "" and wait.end() is None


async def test_a_wait_that_was_ended_calls_nobody() -> None:
    over, called, wait = asyncio.Event(), list[str](), Postponement()

    async def until_over() -> None:
        await over.wait()

    wait.begin("building", until_over, lambda: called.append("first"))
    wait.begin("waiting", until_over, lambda: called.append("second"))
    ending = wait.end()
    assert ending is not None and wait.state == ""
    await asyncio.gather(ending, return_exceptions=True)
    over.set()
    await asyncio.sleep(0)
    assert called == []

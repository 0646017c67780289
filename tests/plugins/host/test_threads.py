"""Threads that are told to end while they start others."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from marlaas.plugins.host import threads
from marlaas.plugins.host.meter import OwnTime, charged
from marlaas.plugins.host.threads import EpisodeThreads, ended, in_thread

pytestmark = pytest.mark.processes

PROGRAM = """
import asyncio, os, sys
from concurrent.futures import ThreadPoolExecutor
from marlaas.plugins.host.threads import in_thread

async def told_to_end_while_it_starts_others():
    loop, begun = asyncio.get_running_loop(), asyncio.Event()

    def episode():
        with ThreadPoolExecutor(8) as pool:
            for _ in range(8):
                pool.submit(loop.call_soon_threadsafe, begun.set)

    playing = asyncio.create_task(in_thread(episode))
    await begun.wait()
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)

async def main():
    for _ in range(50):
        await told_to_end_while_it_starts_others()
    with ThreadPoolExecutor(1) as pool:
        print(pool.submit(lambda: "goes on").result(), flush=True)

sys.setswitchinterval(1e-6)  # threads take turns all the time, as on a busy machine
asyncio.run(main())
os._exit(0)
"""


async def test_only_threads_of_ended_episodes_are_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "LEFT_AFTER", -1.0)
    go, loop, before = threading.Event(), asyncio.get_running_loop(), threads.left_behind()
    usages = [OwnTime(60, lambda wall: None) for _ in range(8)]
    executor = EpisodeThreads()
    loop.set_default_executor(executor)

    async def plain() -> None:
        await in_thread(go.wait)

    async def aside() -> None:
        await asyncio.to_thread(go.wait)

    episodes = [charged(plain() if number % 2 else aside(), usage) for number, usage in enumerate(usages)]
    while not all(usage.threads for usage in usages):
        await asyncio.sleep(0)
    assert threads.left_behind() == before, "they are under way"
    for usage in usages[:4]:
        ended(usage)
    assert threads.left_behind() == before + 4
    go.set()
    await asyncio.gather(*episodes)
    assert threads.left_behind() == before
    executor.shutdown()


def test_threads_can_start_after_episodes_were_ended() -> None:
    """Where a thread that was just started ended in place of its starter, the last line waited for ever."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert ended.stdout == "goes on\n", ended.stderr

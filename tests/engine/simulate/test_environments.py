"""The process of a simulated environment: what it computes waits for what came before."""

from __future__ import annotations

import asyncio

from marlaas.engine.clock import monotonic
from marlaas.engine.simulate.environments import Host
from marlaas.engine.simulate.time import run_virtually


def test_a_host_does_one_thing_after_the_other() -> None:
    async def main() -> list[float]:
        host, ended = Host(), list[float]()

        async def work(after: float, seconds: float) -> None:
            await asyncio.sleep(after)
            await host.work(seconds)
            ended.append(monotonic())

        await asyncio.gather(work(0.0, 1.0), work(0.0, 2.0), work(0.5, 0.0), work(0.5, 0.25), work(5.0, 1.0))
        return ended

    assert run_virtually(main) == [0.5, 1.0, 3.0, 3.25, 6.0], "what takes no time waits for nobody"

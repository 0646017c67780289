"""Virtual time: it jumps, it rules the engine's clock, and it tells where nothing can happen any more."""

from __future__ import annotations

import asyncio
import time

import pytest

from marlaas.engine.clock import monotonic, wall_time
from marlaas.engine.simulate.time import BEGINS, StoodStill, run_virtually


def test_time_jumps_to_the_next_timer() -> None:
    """Days take no time; what is due first happens first."""
    order: list[str] = []

    async def wait(seconds: float, name: str) -> None:
        await asyncio.sleep(seconds)
        order.append(f"{name} at {monotonic():g}")

    async def main() -> float:
        await asyncio.gather(wait(86400.0, "late"), wait(0.5, "soon"), wait(3600.0, "then"))
        return wall_time() - BEGINS

    began = time.monotonic()
    assert run_virtually(main) == 86400.0
    assert order == ["soon at 0.5", "then at 3600", "late at 86400"]
    assert time.monotonic() - began < 60  # a day, however slow the machine is


def test_the_systems_clock_rules_again_afterwards() -> None:
    async def main() -> float:
        return monotonic()

    assert run_virtually(main) == 0.0
    assert wall_time() == pytest.approx(time.time(), abs=60)  # seconds: a slow machine may stop between the two


def test_what_would_go_to_a_thread_is_done_at_once() -> None:
    def failing() -> None:
        raise ValueError("no")

    async def main() -> tuple[int, float]:
        with pytest.raises(ValueError, match="no"):
            await asyncio.to_thread(failing)
        return await asyncio.to_thread(lambda: 7), monotonic()

    assert run_virtually(main) == (7, 0.0)


def test_a_time_limit_holds() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10.0):
                await asyncio.sleep(60.0)
        return monotonic()

    assert run_virtually(main) == 10.0


def test_a_standstill_is_told() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(StoodStill, match="stands still"):
        run_virtually(main)

"""What a plugin's process has, and what it hands on to the programs that it starts."""

from __future__ import annotations

import asyncio
import sys

import pytest

from marlaas.plugins.messages import Ask, Reply
from marlaas.plugins.sandbox_supervisor import children

from ..conftest import World, a_spec

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell what a process has"),
]


async def test_its_programs_get_no_connection_and_die_first(world: World) -> None:
    world.save(
        "curious.py",
        """
        import os
        from pathlib import Path
        from marlaas.plugins import env

        @env
        async def curious(ep):
            await ep.ask("x")
            os.system("ls -l /proc/self/fd > open; cat /proc/self/oom_score_adj > first")
            ep.log(sockets=float(Path("open").read_text().count("socket:")), first=float(Path("first").read_text()))
            return 1.0
        """,
    )
    await world.service.start()
    outcome = await world.play("curious")
    assert outcome.status == "ok", outcome.failure
    assert dict(outcome.metrics) == {"sockets": 0.0, "first": 500.0}


async def test_many_episodes_may_have_programs_of_their_own(world: World) -> None:
    """Each holds a program with three pipes, while 128 others do so, too."""
    world.save(
        "talks.py",
        """
        import asyncio, subprocess
        from marlaas.plugins import env

        @env
        async def talks(ep):
            pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
            program = subprocess.Popen(["cat"], **pipes)
            await ep.ask("x")
            said, _ = program.communicate(b"y")
            return said == b"y"
        """,
    )
    await world.service.start()
    everybody, here = asyncio.Event(), 0

    async def together(ask: Ask) -> Reply:
        nonlocal here
        here += 1
        if here == 128:
            everybody.set()
        await everybody.wait()
        return Reply("", "stop", 0)

    with await world.service.bind("talks") as lease:
        outcomes = await asyncio.gather(*(world.service.play(lease, a_spec(), together) for _ in range(128)))
    assert [outcome.rewards for outcome in outcomes] == [{"agent": 1.0}] * 128


async def test_programs_that_nobody_waits_for_do_not_pile_up(world: World) -> None:
    world.save(
        "careless.py",
        """
        import os, subprocess
        from marlaas.plugins import env

        @env
        async def careless(ep):
            await ep.ask("x")
            subprocess.Popen(["true"])
            ep.log(host=float(os.getpid()))
            return 1.0
        """,
    )
    await world.service.start()
    outcomes = await asyncio.gather(*(world.play("careless") for _ in range(40)))
    host = int(outcomes[0].metrics["host"])
    assert all(outcome.status == "ok" for outcome in outcomes)
    assert all(outcome.metrics["host"] == host for outcome in outcomes)
    while len(children(host)) > 1:  # Python reaps the others when it starts the next
        await world.play("careless")

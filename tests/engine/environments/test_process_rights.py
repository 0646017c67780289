"""What a plugin's process has, and what it hands on to the programs that it starts."""

from __future__ import annotations

import sys

import pytest

from .conftest import World

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

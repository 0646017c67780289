"""Processes that block, die, or break the protocol: their episodes fail, a further process takes their place, and what
keeps dying rests."""

from __future__ import annotations

import os
import signal

import pytest

from marlaas.engine.environments.process import child
from marlaas.engine.errors import EnvironmentFailure

from ..conftest import ECHO, Slow, World, a_spec, echoing, under_way

pytestmark = pytest.mark.processes

BAD = """
import os
from marlaas.plugins import env

@env
async def exits(ep):
    await ep.ask("x")
    os._exit(3)

@env
async def well(ep):
    await ep.ask("x")
    return 1
"""


@pytest.fixture
async def bad(world: World) -> World:
    world.save("bad.py", BAD)
    world.save("echo.py", ECHO)
    await world.service.start()
    return world


async def test_what_does_not_stop_is_killed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "BEAT", 0.2)
    world.save(
        "stuck.py",
        """
        from marlaas.plugins import env

        @env
        async def stuck(ep, hard: bool = False):
            await ep.ask("x")
            while hard:
                try:
                    while True:
                        pass
                except BaseException:
                    pass
            return 1
        """,
    )
    await world.service.start()
    outcome = await world.play("stuck", hard=True, timeout=0.1)
    assert outcome.status == "error" and outcome.failure is not None and "did not stop" in outcome.failure.message
    await world.until("restarted", "stuck")
    assert (await world.play("stuck")).status == "ok"


async def test_a_dead_process_ends_its_episodes_and_is_restarted(bad: World) -> None:
    outcome = await bad.play("exits")
    assert outcome.status == "error"
    assert outcome.failure is not None and "by itself with code 3" in outcome.failure.message
    assert (await bad.play("well")).status == "ok"
    await bad.until("restarted", "bad")


async def test_kill_dash_nine(bad: World) -> None:
    with await bad.service.bind("echo") as lease:
        assert lease.serving.pid is not None
        episode = await under_way(bad, lease, Slow())
        os.kill(lease.serving.pid, signal.SIGKILL)
        outcome = await episode
        assert outcome.failure is not None and "SIGKILL" in outcome.failure.message
        await bad.until("restarted", "echo")
        assert (await bad.service.play(lease, a_spec(), echoing)).status == "ok"


async def test_a_version_that_keeps_dying_rests(bad: World) -> None:
    for _ in range(3):
        assert (await bad.play("exits")).status == "error"
    event = await bad.until("quarantined", "bad")
    assert event.failure is not None and "died 3 times" in event.failure.message
    assert bad.service.resolve("well").state == "broken"
    with pytest.raises(EnvironmentFailure, match="died 3 times"):
        await bad.service.bind("well")
    assert (await bad.play("echo")).status == "ok", "the neighbour is not concerned"
    bad.save("bad.py", BAD + "# mended\n")
    await bad.until("loaded", "bad")
    assert (await bad.play("well")).status == "ok"


@pytest.mark.parametrize(
    "bytes_sent",
    [
        b'{"op":"end","episode":1,"status":"ok","rewards":{"agent":NaN}}',
        b'{"op":"ask","id":1,"episode":99,"agent":"a","messages":[{"role":"user","content":""}]}',
        b'{"op":"hello","environments":[]}',
        b'{"op":"ranked","episode":1,"rewards":[]}',
        b'{"op":"rm -rf"}',
        b"[]",
        b"not json",
        b"[" * 200_000,
    ],
)
async def test_a_process_that_breaks_the_protocol_is_killed(world: World, bytes_sent: bytes) -> None:
    world.save(
        "forger.py",
        f"""
        import os, struct, sys
        from marlaas.plugins import env

        @env
        async def forger(ep):
            await ep.ask("x")
            body = {bytes_sent[:1]!r} * {len(bytes_sent)} if {len(bytes_sent)} > 1000 else {bytes_sent[:1000]!r}
            os.write(int(sys.orig_argv[4]), struct.pack("<I", len(body)) + body)
            await ep.ask("never answered")
        """,
    )
    world.save("echo.py", ECHO)
    await world.service.start()
    outcome = await world.play("forger")
    assert outcome.status == "error" and outcome.failure is not None
    assert (await world.play("echo")).status == "ok"
    died = await world.until("died", "forger")
    assert died.failure == outcome.failure


async def test_a_death_on_import_is_retried_then_refused(world: World) -> None:
    world.save("exits.py", ECHO + "\nimport os\nos._exit(3)\n")
    marker = world.folder.parent / "tried"
    world.save(
        "once.py",
        f"import os\nif not os.path.exists({str(marker)!r}):\n"
        f"    open({str(marker)!r}, 'w').close()\n    os._exit(3)\n" + ECHO,
    )
    await world.service.start()
    failure = world.service.resolve("exits").failure
    assert failure is not None and "died 3 times" in failure.message and "code 3" in failure.message
    assert (await world.play("once/echo")).status == "ok"

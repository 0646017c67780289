"""Plugins that misbehave in every way we know: the episode fails, with its place, and nothing else does."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from marlaas.engine.environments import child
from marlaas.engine.environments.protocol import Ask, Reply, ToolCall
from marlaas.engine.errors import EnvironmentFailure

from .conftest import ECHO, World, a_spec, echoing

pytestmark = pytest.mark.processes

BAD = """
import asyncio, math, os, socket, time
from marlaas.plugins import Invalid, Score, Skip, env

@env
async def nan(ep):
    await ep.ask("x")
    return float("nan")

@env
async def text(ep):
    await ep.ask("x")
    return "1.0"

@env
async def nothing(ep):
    await ep.ask("x")

@env
async def raises(ep):
    await ep.ask("x")
    raise KeyError("lost")

@env(timeout=0.05)
async def sleeps(ep):
    await ep.ask("x")
    await asyncio.sleep(600)

@env(timeout=0.05)
def sleeps_in_a_thread(ep):
    ep.ask("x")
    while True:
        time.sleep(0.001)

@env
async def spins(ep):
    await ep.ask("x")
    while "no await in here":
        pass

@env
async def exits(ep):
    await ep.ask("x")
    os._exit(3)

@env
async def leaves(ep):
    await ep.ask("x")
    raise SystemExit

@env
async def hogs(ep):
    await ep.ask("x")
    return len(bytearray(64 << 30))

@env
async def floods(ep):
    await ep.ask("x")
    await ep.ask("y" * (8 << 20))

@env
async def prints(ep):
    await ep.ask("x")
    print("hello from the plugin")
    return 1

@env
async def skips(ep):
    await ep.ask("x")
    raise Skip

@env
async def invalid(ep):
    await ep.ask("x")
    raise Invalid("not a move", reward=-0.5)

@env
async def surrogate(ep):
    ep.log(note="\\ud800")
    await ep.ask("\\ud800")
    return 1

@env
async def tools(ep):
    def lost(what: str):
        "Loses it."
        raise KeyError(what)
    return (await ep.agent(tools=[lost]).act("x")).text == "I go on"

@env
async def stranger(ep):
    await ep.ask("x")
    return {"agent": 1, "nobody": 0}

@env
async def infinite(ep):
    await ep.ask("x")
    return 1e400

@env
async def storms(ep):
    await ep.ask("x")
    for _ in range(200_000):
        print("x" * 100)
    return 1

@env
async def four_gigabytes(ep):
    await ep.ask("x")
    return len(bytearray(4 << 30))

@env
async def scored(ep):
    await ep.ask("x")
    ep.log(length=3, word="cat", bad=math.inf)
    return Score(0.5, spelling=1, length=0)
"""


@pytest.fixture
async def bad(world: World) -> World:
    world.save("bad.py", BAD)
    world.save("echo.py", ECHO)
    await world.service.start()
    return world


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(BAD.splitlines(), 1) if text in line)


@pytest.mark.parametrize(
    ("name", "status", "says", "place"),
    [
        ("nan", "error", "must be finite", "async def nan"),
        ("text", "error", "must be a number, not str", "async def text"),
        ("nothing", "error", "returned None", "async def nothing"),
        ("raises", "error", "KeyError: 'lost'", "raise KeyError"),
        ("sleeps", "timeout", "longer than 0.05 s", "await asyncio.sleep(600)"),
        ("sleeps_in_a_thread", "timeout", "longer than 0.05 s", ""),
        ("leaves", "error", "SystemExit", "raise SystemExit"),
        ("hogs", "error", "MemoryError", "bytearray"),
        ("floods", "error", "over the limit", "8 << 20"),
        ("four_gigabytes", "error", "MemoryError", "bytearray(4 <<"),
        ("infinite", "error", "must be finite", "async def infinite"),
        ("stranger", "error", "nobody", "async def stranger"),
    ],
)
async def test_the_episode_fails_alone_with_its_place(
    bad: World, name: str, status: str, says: str, place: str
) -> None:
    before = bad.pids()
    outcome = await bad.play(name)
    assert outcome.status == status and outcome.rewards == {}
    assert outcome.failure is not None and says in outcome.failure.message
    if place:
        assert (outcome.failure.file, outcome.failure.line) == ("bad.py", line_of(place))
    assert (await bad.play("prints")).status == "ok"
    assert bad.pids() == before, "no process was lost over it"


async def test_what_is_no_fault(bad: World) -> None:
    assert (await bad.play("skips")).status == "skip"
    broke = await bad.play("invalid")
    assert (broke.status, broke.rewards, broke.invalid) == ("ok", {"agent": -0.5}, "not a move")
    scored = await bad.play("scored")
    assert (scored.rewards, scored.parts) == ({"agent": 0.5}, {"spelling": 1.0, "length": 0.0})
    assert scored.metrics == {"length": 3.0, "word": "cat", "bad": "inf"}
    odd = await bad.play("surrogate")
    assert odd.metrics == {"note": "?"}


async def test_an_exception_in_a_tool_is_an_answer_to_the_model(bad: World) -> None:
    heard: list[str] = []

    async def model(ask: Ask) -> Reply:
        if ask.tools:
            return Reply("", "tool", 0, (ToolCall("lost", {"what": "the key"}),))
        heard.extend(message.content for message in ask.messages)
        return Reply("I go on", "stop", 1)

    with await bad.service.bind("tools") as lease:
        outcome = await bad.service.play(lease, a_spec(), model)
    assert (outcome.status, outcome.rewards) == ("ok", {"agent": 1.0})
    (said,) = heard
    assert "KeyError" in said and "the key" in said


async def test_prints_go_to_the_plugins_log(bad: World) -> None:
    await bad.play("prints")
    assert "hello from the plugin" in (bad.scratch / "logs" / "bad.log").read_text()


async def test_a_storm_of_prints_fills_no_disk(bad: World) -> None:
    assert (await bad.play("storms")).status == "ok"
    while (bad.scratch / "logs" / "bad.log").stat().st_size > 1 << 20:  # looked at once a beat
        assert (await bad.play("prints")).status == "ok"


async def test_a_blocked_loop_costs_its_episode_only(bad: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "BEAT", 0.4)
    before = bad.pids()
    go = asyncio.Event()

    async def later(ask: Ask) -> Reply:
        await go.wait()
        return await echoing(ask)

    with await bad.service.bind("prints") as lease:
        neighbour = asyncio.create_task(bad.service.play(lease, a_spec(), later))
        outcome = await bad.play("spins")
        go.set()
        assert (await neighbour).status == "ok"
    assert outcome.status == "timeout" and outcome.failure is not None
    spin = line_of("no await in here")
    assert outcome.failure.line in (spin, spin + 1)
    assert bad.pids() == before


async def test_a_loop_that_cannot_be_interrupted_is_killed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
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
    outcome = await world.play("stuck", hard=True)
    assert outcome.status == "error" and outcome.failure is not None and "blocked" in outcome.failure.message
    await world.until("restarted", "stuck")
    assert (await world.play("stuck")).status == "ok"


async def test_a_dead_process_ends_its_episodes_and_is_restarted(bad: World) -> None:
    outcome = await bad.play("exits")
    assert outcome.status == "error"
    assert outcome.failure is not None and "by itself with code 3" in outcome.failure.message
    assert (await bad.play("prints")).status == "ok"
    await bad.until("restarted", "bad")


async def test_kill_dash_nine(bad: World) -> None:
    with await bad.service.bind("echo") as lease:
        assert lease.serving.pid is not None
        asked = asyncio.Event()

        async def never(ask: Ask) -> Reply:
            asked.set()
            return await asyncio.Future()

        episode = asyncio.create_task(bad.service.play(lease, a_spec(), never))
        await asked.wait()
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
    assert bad.service.resolve("nan").state == "broken"
    with pytest.raises(EnvironmentFailure, match="died 3 times"):
        await bad.service.bind("nan")
    assert (await bad.play("echo")).status == "ok", "the neighbour is not concerned"
    bad.save("bad.py", BAD + "# mended\n")
    await bad.until("loaded", "bad")
    assert (await bad.play("prints")).status == "ok"


@pytest.mark.parametrize(
    "bytes_sent",
    [
        b'{"op":"end","episode":1,"status":"ok","rewards":{"agent":NaN}}',
        b'{"op":"ask","id":1,"episode":99,"agent":"a","messages":[{"role":"user","content":""}]}',
        b'{"op":"pong"}',
        b'{"op":"hello","environments":[]}',
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


async def test_a_process_that_dies_while_it_imports_is_tried_again_then_refused(world: World) -> None:
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

"""Episodes that go wrong in every way we know: each fails alone, with its place, and the process goes on."""

from __future__ import annotations

import pytest

from marlaas.engine.environments.process.launch import LARGEST_LOG
from marlaas.plugins.messages import Ask, Reply, ToolCall

from ..conftest import World, a_spec

pytestmark = pytest.mark.processes

BAD = """
import asyncio, math, time
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
async def pays_a_stranger(ep):
    await ep.ask("x")
    ep.reward(1, "nobody")

@env(agents=("first", "second"))
async def uninvited(ep):
    await ep.agent("first").ask("x")
    await ep.agent("third").ask("x")

@env
async def crowd(ep):
    for number in range(300):
        await ep.agent(f"a{number}").ask("x")
    return 1

@env
async def long_name(ep):
    await ep.ask("x")
    await ep.agent("x" * 10_000).ask("x")

@env
async def strange_names(ep):
    for name in ("\\x1b[2J[bold]", "../../etc/passwd", "a\\0b", "\\ud800"):
        await ep.agent(name).ask("x")
    return 1

@env
async def infinite(ep):
    await ep.ask("x")
    return 1e400

@env
async def storms(ep):
    await ep.ask("x")
    for _ in range(20_000):
        print("x" * 1000)
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
        ("pays_a_stranger", "error", "nobody", "async def pays_a_stranger"),
        ("uninvited", "error", "no agent 'third': @env declares first, second", 'ep.agent("third")'),
        ("crowd", "error", "at most 256 agents", 'ep.agent(f"a{number}")'),
        ("long_name", "error", "at most 64 characters, not 'xxx", '"x" * 10_000'),
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
    named = await bad.play("strange_names")
    assert named.rewards == dict.fromkeys(("\x1b[2J[bold]", "../../etc/passwd", "a\0b", "?"), 1.0)
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
    while (bad.scratch / "logs" / "bad.log").stat().st_size > LARGEST_LOG:  # looked at once a beat, of 20 MB
        assert (await bad.play("prints")).status == "ok"

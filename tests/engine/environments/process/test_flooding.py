"""A worker that floods the engine is ended and named; what it costs the engine's loop is counted, not timed."""

from __future__ import annotations

import asyncio

import pytest

from marlaas.engine.environments.process.child import Child
from marlaas.engine.errors import EnvironmentFailure
from marlaas.engine.fairness.line import Ledger
from marlaas.engine.models.find import find_base
from marlaas.engine.rollout.conversation import SamplingParameters
from marlaas.engine.rollout.episodes import Rollout, alike
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.samplers.vocabulary import Vocabulary
from marlaas.plugins.host.channel import Record
from marlaas.plugins.messages import MOST_ASKS, Ask, Reply

from ...rollout.endpoints import endpoint
from ...rollout.fake import FakeSampler, FakeVersion
from ..conftest import ECHO, Slow, World, a_spec, echoing

pytestmark = pytest.mark.processes

FLOODS = """
import asyncio, gc
from marlaas.plugins import env
from marlaas.plugins.host.process import PluginHost

async def storm(host, **fields):
    "Sends asks behind the back of the host that counts them."
    record = {"op": "ask", "id": 1, "agent": "a", "messages": [{"role": "user", "content": "x" * 100}], **fields}
    while True:
        for _ in range(100):
            host._channel.send(record)
        await asyncio.sleep(0)

@env
async def floods(ep, way: str):
    host = next(one for one in gc.get_objects() if isinstance(one, PluginHost))
    number = next(iter(host._runs))
    try:
        await ep.ask("x")
    except asyncio.CancelledError:
        pass
    await storm(host, episode=1 << 40 if way == "strange" else number)
"""


class Frames:
    """Counts what the engine's loop is made to handle."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.handled = 0
        receive = Child.receive

        def counted(child: Child, record: Record) -> None:
            if child.dead is None:
                self.handled += 1
            receive(child, record)

        monkeypatch.setattr(Child, "receive", counted)


async def test_asking_on_after_a_cancel_ends_the_worker(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.save("floods.py", FLOODS)
    world.save("echo.py", ECHO)
    await world.service.start()
    frames = Frames(monkeypatch)
    with await world.service.bind("floods") as lease:
        for time in range(3):
            model = Slow()
            episode = asyncio.create_task(world.service.play(lease, a_spec(way="deaf"), model))
            await model.asked.wait()
            episode.cancel()
            await asyncio.gather(episode, return_exceptions=True)
            told = (await world.until("died", "floods")) if time < 2 else await world.until("quarantined", "floods")
            assert told.failure is not None
            assert f"more than {MOST_ASKS} asks of episode" in told.failure.message
    assert told.failure is not None and "rests" in told.failure.message
    with pytest.raises(EnvironmentFailure, match=r"floods.*: .*after that was cancelled"):
        await world.service.bind("floods")
    # Of each process: as many asks as may wait at once and one more, the ask before, and pongs. Without a bound the
    # loop handles a hundred thousand in a second.
    assert frames.handled <= 3 * (MOST_ASKS + 1 + 20)
    assert (await world.play("echo")).status == "ok", "nobody else is concerned"


@pytest.mark.parametrize("way", ["strange", "greedy"])
async def test_asks_that_it_may_not_send_end_it_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    world.save("floods.py", FLOODS)
    await world.service.start()
    frames = Frames(monkeypatch)
    first = True

    async def once(ask: Ask) -> Reply:
        nonlocal first
        if first:
            first = False
            return await echoing(ask)
        return await asyncio.Future()

    with await world.service.bind("floods") as lease:
        outcome = await world.service.play(lease, a_spec(way=way), once)
    assert outcome.failure is not None and "out of turn" in outcome.failure.message
    assert frames.handled <= MOST_ASKS + 1 + 20


NESTED = """
from marlaas.plugins import env

DEEP = []
for _ in range(600):
    DEEP = [DEEP]

@env
async def nested(ep, layout: list = DEEP):
    await ep.ask("x")
"""


async def test_a_declaration_nested_without_end_is_refused_in_words(world: World) -> None:
    world.save("nested.py", NESTED)
    world.save("echo.py", ECHO)
    await world.service.start()
    info = world.service.resolve("nested")
    assert info.state == "broken" and info.failure is not None
    assert "'layout' is nested more than 32 deep" in info.failure.message and info.failure.file == "nested.py"
    assert world.service.resolve("echo").state == "ready"


async def test_what_an_author_nests_too_deeply_fails_where_it_is_said(world: World) -> None:
    """Before it meets the engine, which would end the process and all its episodes over it."""
    world.save(
        "deep.py",
        """
        from marlaas.plugins import Message, ToolCall, env

        @env
        async def deep(ep, size: int):
            await ep.ask("x")
            value = []
            for _ in range(size):
                value = [value]
            call = ToolCall("f", {"x": value, "y": list(range(40_000 if size == 20 else 1))})
            await ep.ask([Message("assistant", "", tool_calls=(call,))])
            return 1
        """,
    )
    await world.service.start()
    for size, says in ((40, "nested more than 32 deep"), (20, "more than 32768 entries")):
        outcome = await world.play("deep", size=size)
        assert outcome.failure is not None and says in outcome.failure.message
        assert (outcome.failure.file, outcome.failure.line) == ("deep.py", 11)


SHOUTS = """
import asyncio
from marlaas.plugins import env

@env
async def shouts(ep):
    await asyncio.gather(*(ep.agent(f"a{number}").ask(f"{number} " + "x" * 1_000_000) for number in range(20)))
    return 1
"""


async def test_prompts_of_megabytes_are_never_rendered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the twenty would take the loop a second: what cannot fit is known by its characters."""
    world.save("shouts.py", SHOUTS)
    await world.service.start()
    renderer, rendered = Renderer(find_base("tiny")), []
    monkeypatch.setattr(Vocabulary, "encode", lambda *given: rendered.append(given))
    sampler = FakeSampler(sequences=2, context=400, versions={"v1": FakeVersion("sum")})
    sampling = SamplingParameters("v1", 1, temperature=1.0, max_tokens=3, max_episode_tokens=30, seed=7)
    roles = alike(sampling, endpoint(sampler, 2, 400))
    with await world.service.bind("shouts") as lease:
        played = await Rollout(renderer, Ledger()).run_episode(
            lambda spec, answer: world.service.play(lease, spec, answer), a_spec(), roles, "e"
        )
    failure = played.episode.failure
    assert failure is not None and "a conversation has room for 400" in failure.message
    assert rendered == [] and sampler.ledger == []

"""Episodes of every shape, and every way to go wrong: each fails by itself, with its line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
import pytest_asyncio

from marlaas.engine.environments.process.launch import LARGEST_LOG
from marlaas.engine.environments.protocol import Answering, EpisodeOutcome, FinalReward, FinishedEpisode
from marlaas.engine.fairness.line import Ledger
from marlaas.engine.rollout.conversation import SamplingParameters
from marlaas.engine.rollout.episodes import Rollout
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.samplers.protocol import OnTokens, SampleRequest, SampleResult
from marlaas.engine.trajectories import TurnReward
from marlaas.plugins.messages import Ask, Fork, Reply, ToolCall

from ..rollout.endpoints import alike, endpoint
from ..rollout.fake import FakeSampler, FakeVersion
from ..rollout.fake_renderer import FakeRenderer
from .conftest import World, a_spec, a_world, echoing, line_of

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(loop_scope="module")
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with a_world(tmp_path) as made:
        yield made


CLASSES = """
import asyncio, time
from marlaas.plugins import env

@env(name="held")
class Held:
    "Holds a number."

    def setup(self):
        print("set up")
        self.number = 7

    async def play(self, ep, step: int = 1):
        await ep.ask("x")
        return self.number + step

    def close(self):
        print("closed at", self.number)

@env(name="late", timeout=0.05)
class Late:
    async def setup(self):
        await asyncio.sleep(600)  # here

    async def play(self, ep, needed: int):
        return 1

@env(name="fails")
class Fails:
    def setup(self):
        raise LookupError("no such file")  # here too

    def play(self, ep, needed: int):
        return 1
"""


async def test_a_class_is_set_up_once_and_closed_when_replaced(world: World) -> None:
    await world.serve(classes=CLASSES)
    log = world.scratch / "logs" / "classes.log"
    assert world.service.resolve("held").description == "Holds a number."
    assert [(await world.play("held", step=step)).rewards["agent"] for step in (1, 2)] == [8.0, 9.0]
    assert log.read_text().count("set up") == 1
    await world.edit("classes", CLASSES + "# another version\n")
    while "closed at 7" not in log.read_text():  # in the test's time limit
        await asyncio.sleep(0)
    for name, status, says, place in (
        ("late", "timeout", "the set-up of late took longer than 0.05 s", "# here"),
        ("fails", "error", "LookupError: no such file", "# here too"),
    ):
        for _ in range(2):
            outcome = await world.play(name, needed=1)
            assert outcome.status == status and outcome.failure is not None
            assert (outcome.failure.message, outcome.failure.file) == (says, "classes.py")
            assert outcome.failure.line == line_of(CLASSES, place)
    assert (await world.play("held")).rewards == {"agent": 8.0}, "a set-up that fails costs only its own episodes"
    await world.service.stop()
    assert log.read_text().count("closed at 7") == log.read_text().count("set up")


async def test_forks_cross_the_wire(world: World) -> None:
    await world.serve(
        forks="""
        from marlaas.plugins import env

        @env
        async def forks(ep):
            agent = ep.agent("solver")
            await agent.ask("a")
            branch = agent.fork()
            critic = branch.fork("critic")
            await branch.ask("b")
            await critic.ask("c")
            ep.reward(0.5)
            return {"solver": 1, "critic": -1}
        """
    )
    asks: list[Ask] = []

    async def model(ask: Ask) -> Reply:
        asks.append(ask)
        return await echoing(ask)

    outcome = await world.play("forks", model)
    assert outcome.rewards == {"solver": 1.5, "critic": -0.5}
    origin = Fork("solver", 0, 1)
    assert [(ask.agent, ask.branch, ask.fork) for ask in asks] == [
        ("solver", 0, None),
        ("solver", 1, origin),
        ("critic", 0, origin),
    ]


async def test_code_runs_beside_the_plugin_and_not_in_it(world: World) -> None:
    await world.serve(
        coding="""
        import asyncio
        from marlaas.plugins import env

        @env
        async def coding(ep, runs: int = 3):
            code = (await ep.ask("print(int(input()) + 1)")).text
            ran = await asyncio.gather(*(ep.sandbox.python(code, str(n), seconds=20) for n in range(runs)))
            return sum(one.stdout == f"{n + 1}\\n" for n, one in enumerate(ran)) / runs

        @env(timeout=0.1)
        async def endless(ep):
            await ep.ask("x")
            await ep.sandbox.python("while True: pass", seconds=600)

        @env
        async def cut(ep):
            await ep.ask("x")
            for code in ("while True: pass", "print()", "while True: pass"):
                await ep.sandbox.python(code, seconds=0.1)
            return 0.0
        """
    )
    coded = await world.play("coding")
    assert (coded.rewards, coded.metrics) == ({"agent": 1.0}, {"sandbox_timeouts": 0.0})
    cut = (await world.play("cut")).metrics["sandbox_timeouts"]
    assert isinstance(cut, float) and cut >= 2, "two endless loops; beside other work the third may run late, too"
    late = await world.play("endless")
    assert late.status == "timeout" and late.failure is not None and "longer than 0.1 s" in late.failure.message
    while len(world.pids()) > 1:  # what it ran ends with it
        await asyncio.sleep(0)


FINAL = """
import os
from marlaas.plugins import env

@env(agents=("a", "b"))
async def staged(ep, breaks: bool = False):
    await ep.agent("a").ask("x")
    ep.reward(0.25, name="step")
    ep.reward(0.5, agent="a", final=True)
    await ep.agent("b").ask("y")
    if breaks:
        raise LookupError("gone")
    return 1.0

@env(agents=("a", "b"))
def blocking(ep):
    ep.agent("a").ask("x")
    ep.reward(0.75, agent="a", final=True)
    return {"b": 2.0}

@env(agents=("a", "b"))
async def scored(ep):
    await ep.agent("a").ask("x")
    ep.reward(0.75, agent="a", final=True)

@scored.score
def grade(task, transcript):
    return 1.0

@env(agents=("a", "b"))
async def liar(ep):
    await ep.agent("a").ask("x")
    for _ in range(2):
        ep._settle("a", 1.0)
    return 1.0
"""


class Listening:
    """Answers, and takes note of what is final by when."""

    def __init__(self) -> None:
        self.heard: list[str | FinalReward] = []

        self.answer = Answering(self._reply, settle=self.heard.append)

    async def _reply(self, ask: Ask) -> Reply:
        self.heard.append(ask.agent)
        return await echoing(ask)


async def test_a_final_reward_is_told_at_once(world: World) -> None:
    await world.serve(final=FINAL)
    model = Listening()
    with await world.service.bind("staged") as lease:
        outcome = await world.service.play(lease, a_spec(), model.answer)
        paid = (TurnReward("a", 1, 0.25, "step"), TurnReward("a", 1, 0.5))
        assert model.heard == ["a", FinalReward("a", 0.75, paid), "b"]
        assert outcome.status == "ok" and outcome.rewards == {"a": 0.75, "b": 1.25} and outcome.paid == paid
        broken = await world.service.play(lease, a_spec(breaks=True), model.answer)
        assert broken.status == "error" and broken.rewards == {} and model.heard[3:] == model.heard[:3]
        unheard = await world.service.play(lease, a_spec(), echoing)
        assert unheard.rewards == outcome.rewards, "whoever does not ask is not told"
    model = Listening()
    assert (await world.play("blocking", model.answer)).rewards == {"a": 0.75, "b": 2.0}
    assert [one.reward for one in model.heard if isinstance(one, FinalReward)] == [0.75]
    model = Listening()
    outcome = await world.play("scored", model.answer)
    assert outcome.status == "error" and outcome.failure is not None and outcome.failure.line == 24
    assert "no reward is final where a score function" in outcome.failure.message and model.heard == ["a"]
    outcome = await world.play("liar", model.answer)
    assert outcome.status == "error" and outcome.died and outcome.failure is not None
    assert "broke the protocol" in outcome.failure.message, "it pays an agent twice"


PAYING = """
import os, time
from marlaas.plugins import env

async def speak(ep, how: str = "raises"):
    if how == "before":
        raise ValueError("too early")
    await ep.ask(how)
    ep.reward(0.25)
    if how == "memory":
        raise MemoryError
    if how == "dies":
        os._exit(3)
    if how == "none":
        return None, None
    raise ValueError(how)  # here

def block(ep, how: str = "raises"):
    ep.ask(how)
    raise ValueError(how)

speaking = env(name="speaking", on_error=-0.5)(speak)
unpaid = env(name="unpaid")(speak)
blocking = env(name="blocking", on_error=0.0)(block)

@env(name="held", on_error=1)
class Held:
    async def play(self, ep):
        await ep.ask("x")
        raise ValueError("lost")
"""

LINE = line_of(PAYING, "# here")


async def test_exceptions_after_a_reply_are_paid_for(world: World) -> None:
    await world.serve(paying=PAYING)
    outcome = await world.play("speaking", how="raises", counts=True)
    assert (outcome.status, outcome.rewards) == ("ok", {"agent": -0.25})
    assert outcome.failure is not None and (outcome.failure.file, outcome.failure.line) == ("paying.py", LINE)
    assert outcome.failure.message == "ValueError: raises"
    assert (await world.play("blocking")).rewards == {"agent": 0.0}
    assert (await world.play("held")).rewards == {"agent": 1.0}
    assert [one.failure for one in world.service.outcomes.take().failures] == [outcome.failure]
    unpaid = (("speaking", "before"), ("speaking", "memory"), ("speaking", "none"), ("unpaid", "raises"))
    for name, how in (*unpaid, ("speaking", "dies")):
        outcome = await world.play(name, how=how)
        assert outcome.status == "error" and not outcome.rewards and outcome.died is (how == "dies"), (name, how)


TOGETHER = """
import asyncio
from concurrent.futures import ThreadPoolExecutor
from marlaas.plugins import env

NAMES = ("a", "b", "c")

@env(agents=NAMES)
async def loop(ep):
    replies = await asyncio.gather(*(ep.agent(name).ask(name) for name in NAMES))
    replies = await asyncio.gather(*(ep.agent(name).ask("again") for name in NAMES))
    return {name: float(reply.turn) for name, reply in zip(NAMES, replies)}

@env(agents=NAMES)
def threads(ep):
    with ThreadPoolExecutor(3) as pool:
        for word in ("now", "again"):
            replies = list(pool.map(lambda name: ep.agent(name).ask(word), NAMES))
    return {name: float(reply.turn) for name, reply in zip(NAMES, replies)}

@env
async def crowd(ep, count: int = 256):
    root = ep.agent()
    await root.ask("begin")
    replies = await asyncio.gather(*(root.fork().ask(str(number)) for number in range(count)))
    return [reply.text for reply in replies] == [str(number) for number in range(count)]
"""


class Meeting(FakeSampler):
    """Answers nobody before three are asked."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.meeting = asyncio.Barrier(3)

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        await self.meeting.wait()
        return await super().generate(request, stream_to=stream_to)


async def played(world: World, environment: str) -> FinishedEpisode:
    sampler = Meeting(sequences=3, context=200, versions={"v1": FakeVersion("sum")})
    place = endpoint(sampler, sampler.sequences, sampler.context)
    rollout = Rollout(cast(Renderer, FakeRenderer()), Ledger())
    sampling = SamplingParameters("v1", 1, temperature=1.0, max_tokens=3, max_episode_tokens=30, seed=7)
    with await world.service.bind(environment) as lease:
        one = await rollout.run_episode(
            lambda spec, answer: world.service.play(lease, spec, answer), a_spec(), alike(sampling, place), "e"
        )
    while sampler.conversations:  # nobody waits until it has forgotten them
        await asyncio.sleep(0)
    assert (place.slots.active, place.slots.waiting) == (0, 0)
    return one


async def test_agents_asked_in_any_way_are_sampled_together(world: World) -> None:
    await world.serve(together=TOGETHER)
    for environment in ("loop", "threads"):
        one = await played(world, environment)
        assert one.episode.failure is None
        assert [(t.agent, t.reward, len(t.spans)) for t in one.episode.trajectories] == [(n, 1.0, 2) for n in "abc"]

    async def crowd(count: int) -> EpisodeOutcome:
        with await world.service.bind("crowd") as lease:
            return await world.service.play(lease, a_spec(count=count), echoing)

    assert (await crowd(256)).rewards == {"agent": 1.0}
    failure = (await crowd(257)).failure
    assert failure is not None and "at most 256 replies at the same time" in failure.message
    assert (await crowd(3)).rewards == {"agent": 1.0}, "and it costs its own episode alone"


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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bad(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with a_world(tmp_path_factory.mktemp("bad")) as world:
        await world.serve(bad=BAD)
        yield world


WRONG = (
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
)


async def test_each_fails_alone_with_its_place(bad: World) -> None:
    before = bad.pids()
    for name, status, says, place in WRONG:
        outcome = await bad.play(name)
        assert outcome.status == status and outcome.rewards == {}, name
        assert outcome.failure is not None and says in outcome.failure.message
        if place:
            assert (outcome.failure.file, outcome.failure.line) == ("bad.py", line_of(BAD, place))
        assert (await bad.play("prints")).status == "ok"
    assert bad.pids() == before, "no process was lost over them"
    assert "hello from the plugin" in (bad.scratch / "logs" / "bad.log").read_text()


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

    outcome = await bad.play("tools", model)
    assert (outcome.status, outcome.rewards) == ("ok", {"agent": 1.0})
    (said,) = heard
    assert "KeyError" in said and "the key" in said


async def test_a_storm_of_prints_fills_no_disk(bad: World) -> None:
    assert (await bad.play("storms")).status == "ok"
    while (bad.scratch / "logs" / "bad.log").stat().st_size > LARGEST_LOG:  # looked at once a beat, of 20 MB
        assert (await bad.play("prints")).status == "ok"

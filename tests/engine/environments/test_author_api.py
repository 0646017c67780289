"""The shapes of environments that need their process: classes that are set up and closed, forks, sandboxed code."""

from __future__ import annotations

import asyncio

import pytest

from marlaas.plugins.messages import Ask, Fork, Reply

from .conftest import World, a_spec, echoing

pytestmark = pytest.mark.processes

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


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(CLASSES.splitlines(), 1) if line.endswith(text))


async def test_a_class_is_set_up_once_and_closed_when_replaced(world: World) -> None:
    world.save("classes.py", CLASSES)
    await world.service.start()
    log = world.scratch / "logs" / "classes.log"
    assert world.service.resolve("held").description == "Holds a number."
    assert [(await world.play("held", step=step)).rewards["agent"] for step in (1, 2)] == [8.0, 9.0]
    assert log.read_text().count("set up") == 1
    world.save("classes.py", CLASSES + "# another version\n")
    await world.until("loaded", "classes")
    await world.until("loaded", "classes")
    while "closed at 7" not in log.read_text():  # in the test's time limit
        await asyncio.sleep(0)
    assert (await world.play("held")).rewards == {"agent": 8.0}
    await world.service.stop()
    assert log.read_text().count("closed at 7") == log.read_text().count("set up")


async def test_a_set_up_that_fails_costs_its_episodes_alone(world: World) -> None:
    world.save("classes.py", CLASSES)
    await world.service.start()
    for name, status, says, place in (
        ("late", "timeout", "the set-up of late took longer than 0.05 s", "# here"),
        ("fails", "error", "LookupError: no such file", "# here too"),
    ):
        for _ in range(2):
            outcome = await world.play(name, needed=1)
            assert outcome.status == status and outcome.failure is not None
            assert (outcome.failure.message, outcome.failure.file) == (says, "classes.py")
            assert outcome.failure.line == line_of(place)
    assert (await world.play("held")).status == "ok"


async def test_forks_cross_the_wire(world: World) -> None:
    world.save(
        "forks.py",
        """
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
        """,
    )
    await world.service.start()
    asks: list[Ask] = []

    async def model(ask: Ask) -> Reply:
        asks.append(ask)
        return await echoing(ask)

    with await world.service.bind("forks") as lease:
        outcome = await world.service.play(lease, a_spec(), model)
    assert outcome.rewards == {"solver": 1.5, "critic": -0.5}
    origin = Fork("solver", 0, 1)
    assert [(ask.agent, ask.branch, ask.fork) for ask in asks] == [
        ("solver", 0, None),
        ("solver", 1, origin),
        ("critic", 0, origin),
    ]


async def test_code_runs_beside_the_plugin_and_not_in_it(world: World) -> None:
    world.save(
        "coding.py",
        """
        import asyncio
        from marlaas.plugins import env

        @env
        async def coding(ep, runs: int = 8):
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
        """,
    )
    await world.service.start()
    coded = await world.play("coding")
    assert (coded.rewards, coded.metrics) == ({"agent": 1.0}, {"sandbox_timeouts": 0.0})
    cut = (await world.play("cut")).metrics["sandbox_timeouts"]
    assert isinstance(cut, float) and cut >= 2, "two endless loops; beside other work the third may run late, too"
    late = await world.play("endless")
    assert late.status == "timeout" and late.failure is not None and "longer than 0.1 s" in late.failure.message
    while len(world.pids()) > 1:  # what it ran ends with it
        await asyncio.sleep(0)

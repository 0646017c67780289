"""Programs of environments: the address of the model, time limits, rights, and how they end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
import pytest_asyncio

from marlaas.engine.environments.pool import ProcessBudget
from marlaas.engine.environments.protocol import Answering, EpisodeOutcome, Listener
from marlaas.engine.errors import ConfigError
from marlaas.engine.trajectories import TurnReward
from marlaas.plugins.messages import Ask, Endpoint, Message, Reply
from marlaas.plugins.sandbox_supervisor import children

from .conftest import Meeting, World, a_spec, a_world, echoing

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]

PLUGIN = """
import asyncio
import os
import socket
import subprocess
import sys
from marlaas.plugins import env

PROGRAM = '''
import os, socket, sys
host, port = os.environ["OPENAI_BASE_URL"].split("/")[2].split(":")
with socket.create_connection((host, int(port))) as line:
    line.sendall((sys.argv[1] + chr(10)).encode())
    print(line.makefile().readline().strip())
'''

def command(agent):
    return [sys.executable, "-c", PROGRAM, agent]

@env
async def programmed(ep, agent: str = "agent"):
    endpoint = await ep.endpoint()
    assert await ep.endpoint() == endpoint
    named = await ep.endpoint("helper")
    assert named.url == endpoint.anthropic + "/e/helper/v1" and named.key == endpoint.key == "the key"
    process = await asyncio.create_subprocess_exec(
        *command(agent), stdout=subprocess.PIPE, env=os.environ | endpoint.environment()
    )
    said, _ = await process.communicate()
    ep.reward(0.5, agent=agent)
    return float(said.decode().strip() == "HELLO")

@env(timeout=2.0)
def blocking(ep):
    endpoint = ep.endpoint()
    said = subprocess.run(
        command("agent"), stdout=subprocess.PIPE, text=True, env=os.environ | endpoint.environment(), check=True
    )
    return float(said.stdout.strip() == "HELLO")

@env(agents=("player",))
async def declared(ep):
    await ep.endpoint("player")
    try:
        await ep.endpoint()
    except ValueError:
        return 1.0

@env
async def scored(ep):
    await programmed.function(ep, "agent")

called = env.program(command("agent"), reward="exit", name="called", train="main")

@scored.score
def grade(task, transcript):
    return float([one.content for one in transcript.agents["agent"]] == ["hello", "HELLO"])
"""


@dataclass
class Speaker:
    """Serves lines on a socket: a line names the agent that speaks, and the answer is what the model says to hello."""

    agents: list[tuple[str, ...]] = field(default_factory=list)
    trains: list[str] = field(default_factory=list)
    slow: float = 0.0
    error: BaseException | None = None
    port: int = 0
    lines: dict[asyncio.StreamWriter, asyncio.Task[None]] = field(default_factory=dict)

    async def reply(self, ask: Ask) -> Reply:
        return Reply(ask.messages[0].content.upper(), "stop", 0)

    async def open(self, listener: Listener) -> Endpoint:
        self.agents.append(listener.agents)
        self.trains.append(listener.train)
        self.listener = listener

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.lines[writer] = cast(asyncio.Task[None], asyncio.current_task())
            agent = (await reader.readline()).decode().strip()
            self.listener.calls(agent, 1, 0)
            if self.error is not None:
                self.listener.failed(self.error)
            await asyncio.sleep(self.slow)
            reply = await self.listener.answer(Ask(agent, (Message("user", "hello"),)))
            self.listener.calls(agent, 0, 1)
            writer.write(f"{reply.text}\n".encode())
            writer.close()

        if not self.port:
            self.server = await asyncio.start_server(serve, "127.0.0.1", 0)
            self.port = self.server.sockets[0].getsockname()[1]
        return Endpoint(f"http://127.0.0.1:{self.port}/v1", "the key")

    @property
    def answer(self) -> Answering:
        return Answering(self.reply, endpoint=self.open)


@asynccontextmanager
async def modelled() -> AsyncIterator[Speaker]:
    model = Speaker()
    yield model
    for writer, task in model.lines.items():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        writer.close()
    if model.port:
        model.server.close()
        await model.server.wait_closed()


async def test_a_program_speaks_and_its_agents_are_paid(served: World) -> None:
    """Also one that the environment never named."""
    async with modelled() as model:
        with await served.service.bind("programmed") as lease:
            for agent in ("agent", "helper", "stranger"):
                outcome = await served.service.play(lease, a_spec(agent=agent), model.answer)
                rewards = dict.fromkeys(("agent", "helper", agent), 1.0) | {agent: 1.5}
                assert (outcome.status, outcome.rewards, outcome.failure) == ("ok", rewards, None)
                assert outcome.paid == (TurnReward(agent, 1, 0.5),) and model.agents.pop() == ()
            seen = await served.service.look(lease, a_spec(), model.open)
            assert seen == Ask("agent", (Message("user", "hello"),))
            assert await served.service.look(lease, a_spec()) == Ask("agent", ())
            assert model.trains[-1] == "all"
        with await served.service.bind("called") as lease:
            assert (await served.service.play(lease, a_spec(), model.answer)).rewards == {"agent": 1.0}
            assert model.trains[-1] == "main"
        with await served.service.bind("scored") as lease:
            outcome = await served.service.play(lease, a_spec(), model.answer)
            assert outcome.status == "ok" and outcome.rewards == {"agent": 1.5}, "a score sees what was said"
        outcome = await served.play("declared", model.answer)
        assert outcome.rewards == {"player": 1.0} and model.agents[-1] == ("player",)


async def test_time_of_the_model_is_not_the_environments(served: World) -> None:
    async with modelled() as model:
        model.slow = 1.6
        outcome = await served.play("blocking", model.answer, timeout=1.5)
    assert (outcome.status, outcome.rewards) == ("ok", {"agent": 1.0})


async def test_without_endpoints_the_episode_fails_with_the_reason(served: World) -> None:
    async with modelled() as model:
        with await served.service.bind("programmed") as lease:
            outcome = await served.service.play(lease, a_spec(), echoing)
            assert outcome.status == "error" and outcome.failure is not None
            assert "No endpoint is served here" in outcome.failure.message and outcome.failure.line == 22

            async def refuse(listener: Listener) -> Endpoint:
                raise ConfigError("The extra 'api' is missing.")

            refused = await served.service.play(lease, a_spec(), Answering(model.reply, endpoint=refuse))
            assert refused.failure is not None and "The extra 'api' is missing" in refused.failure.message
            model.error = LookupError("gone")
            with pytest.raises(LookupError, match="gone"):  # raised to whoever plays it
                await served.service.play(lease, a_spec(), model.answer)


ENDING = """
import asyncio
from marlaas.plugins import env

WAITS = "import subprocess, time; subprocess.Popen(['sleep', '600'], start_new_session=True); time.sleep(600)"
hangs = env.program(["python", "-c", WAITS], name="hangs", reward="exit", timeout=0.5)
stays = env.program(["python", "-c", WAITS], name="stays", reward="exit")
spins = env.program(["bash", "-c", "while :; do :; done"], name="spins", reward="exit", timeout=0.5)
DEAF = "trap '' TERM INT HUP; (while :; do sleep 1; done) & while :; do sleep 1; done"
deaf = env.program(["bash", "-c", DEAF], name="deaf", reward="exit", timeout=0.5)


@env.program("sh -c 'echo what is wrong >&2; exit 2'", on_error=None)
def crashes(ep, run):
    return 1.0


@env.program("true", reward="exit")
def draws(ep, digits: int = 2):
    ep.task = digits
"""

TOML = 'adapter = "program"\ncommand = "sh -c \'exit 1\'"\nreward = "exit"\nname = "told"\n'


async def nowhere(listener: Listener) -> Endpoint:
    return Endpoint("http://127.0.0.1:9/v1", "the key")


async def play(world: World, name: str, **config: object) -> EpisodeOutcome:
    with await world.service.bind(name) as lease:
        return await world.service.play(lease, a_spec(**config), Answering(echoing, endpoint=nowhere))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with a_world(tmp_path_factory.mktemp("programs")) as world:
        world.save("told.toml", TOML)
        await world.serve(speaking=PLUGIN, programs=ENDING)
        yield world


@pytest_asyncio.fixture(loop_scope="module")
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with a_world(tmp_path) as made:
        yield made


def started(world: World) -> list[int]:
    """Processes of programs."""
    own = {pid for _, pid in world.service.processes()}
    return [pid for pid in world.pids() if pid not in own]


async def test_a_program_whose_time_is_up_ends(served: World) -> None:
    for outcome in await asyncio.gather(*(play(served, f"programs/{name}") for name in ("hangs", "spins", "deaf"))):
        assert (outcome.status, outcome.rewards) == ("timeout", {}) and outcome.failure is not None
        assert "longer than 0.5 s" in outcome.failure.message
    assert not started(served)


async def test_a_cancelled_episode_takes_its_program_along(served: World) -> None:
    playing = asyncio.create_task(play(served, "programs/stays"))
    while len(started(served)) < 3:  # the one that watches, the program, and what that has started
        await asyncio.sleep(0.01)
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)
    while started(served):
        await asyncio.sleep(0.01)


async def test_as_many_programs_run_as_the_cores_allow(served: World) -> None:
    """In all processes of the plugin together; the others wait in the engine."""
    most = min(64, max(8, 4 * ProcessBudget().cores))
    running, peak, filled = set[int](), 0, asyncio.Event()

    async def one(number: int) -> EpisodeOutcome:
        async def opened(listener: Listener) -> Endpoint:
            nonlocal peak
            running.add(number)
            peak = max(peak, len(running))
            if len(running) >= most:
                filled.set()
            await filled.wait()
            return await nowhere(listener)

        try:
            return await served.service.play(lease, a_spec(digits=1), Answering(echoing, endpoint=opened))
        finally:
            running.discard(number)

    with await served.service.bind("programs/draws") as lease:
        ended = await asyncio.gather(*map(one, range(most + 4)))
    assert peak == most and all(outcome.status == "ok" for outcome in ended)


async def test_how_programs_end(served: World) -> None:
    crashed = await play(served, "programs/crashes")
    assert crashed.status == "error" and crashed.failure is not None
    assert crashed.failure.message == (
        "ProgramFailed: the program ended with exit code 2; its last lines: what is wrong"
    )
    drawn = await play(served, "programs/draws", digits=3)
    assert (drawn.status, drawn.rewards) == ("ok", {"agent": 1.0}), drawn.failure
    told = await play(served, "told")
    assert (told.status, told.rewards) == ("ok", {"agent": 0.0}), told.failure
    assert dict(told.metrics)["exit_code"] == 1.0


LARGE = """
# /// script
# [tool.marlaas]
# memory_mb = 256
# ///
from marlaas.plugins import env

NORESERVE = 0x4000  # Python names it from 3.13 on
RESERVES = f"import mmap; mmap.mmap(-1, 64 << 30, mmap.MAP_PRIVATE | {NORESERVE})"
HOLDS = "import os, time; os.fork(); held = bytearray({}); time.sleep({})"
reserves = env.program(["python", "-c", RESERVES], name="reserves", reward="exit")
SHARES = f"shared = bytearray(160 << 20); {HOLDS.format(0, 1)}"
shares = env.program(["python", "-c", SHARES], name="shares", reward="exit")
holds = env.program(["python", "-c", HOLDS.format("160 << 20", 600)], name="holds", reward="exit", on_error=0.5)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell what a process has")
async def test_the_memory_of_a_program_is_what_it_uses(world: World) -> None:
    """Of all its processes together: pages that they share count once, and reserved ones do not count, as in Node."""
    await world.serve(large=LARGE)
    for name in ("reserves", "shares"):
        outcome = await play(world, f"large/{name}")
        assert (outcome.status, outcome.rewards) == ("ok", {"agent": 1.0}), outcome.failure
    outcome = await play(world, "large/holds")
    assert (outcome.status, outcome.rewards) == ("error", {}) and outcome.failure is not None
    assert outcome.failure.message == (
        "ProgramFailed: the program took more than 256 MB of memory, and was ended: "
        "raise memory_mb under [tool.marlaas]"
    )
    assert not started(world)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell what a process has")
async def test_what_its_programs_have_and_leave_behind(world: World) -> None:
    """No connection of the plugin's; they die first; and those that nobody waits for do not pile up."""
    await world.serve(
        starts="""
        import os, subprocess
        from pathlib import Path
        from marlaas.plugins import env

        @env
        async def curious(ep):
            await ep.ask("x")
            os.system("ls -l /proc/self/fd > open; cat /proc/self/oom_score_adj > first")
            ep.log(sockets=float(Path("open").read_text().count("socket:")), first=float(Path("first").read_text()))
            return 1.0

        @env
        async def talks(ep):
            pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
            program = subprocess.Popen(["cat"], **pipes)
            await ep.ask("x")
            said, _ = program.communicate(b"y")
            return said == b"y"

        @env
        async def careless(ep):
            await ep.ask("x")
            subprocess.Popen(["true"])
            ep.log(host=float(os.getpid()))
            return 1.0
        """
    )
    outcome = await world.play("curious")
    assert outcome.status == "ok", outcome.failure
    assert dict(outcome.metrics) == {"sockets": 0.0, "first": 500.0}
    together = Meeting(128)  # each holds a program with three pipes, while 127 others do so, too
    with await world.service.bind("talks") as lease:
        outcomes = await asyncio.gather(*(world.service.play(lease, a_spec(), together) for _ in range(128)))
    assert [outcome.rewards for outcome in outcomes] == [{"agent": 1.0}] * 128
    outcomes = await asyncio.gather(*(world.play("careless") for _ in range(40)))
    assert all(outcome.status == "ok" for outcome in outcomes)
    (host,) = {int(outcome.metrics["host"]) for outcome in outcomes}
    while len(children(host)) > 1:  # Python reaps the others when it starts the next
        await world.play("careless")

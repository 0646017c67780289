"""An episode's address, from the author's line to whoever gives it, and what the environment hears of its programs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import pytest

from marlaas.engine.environments.protocol import Answering, Listener
from marlaas.engine.errors import ConfigError
from marlaas.engine.trajectories import TurnReward
from marlaas.plugins.messages import Ask, Endpoint, Message, Reply

from .conftest import World, a_spec, echoing

pytestmark = pytest.mark.processes

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

@scored.score
def grade(task, transcript):
    return float([one.content for one in transcript.agents["agent"]] == ["hello", "HELLO"])
"""


@dataclass
class Model:
    """Serves lines on a socket: a line names the agent that speaks, and the answer is what the model says to hello."""

    agents: list[tuple[str, ...]] = field(default_factory=list)
    slow: float = 0.0
    error: BaseException | None = None
    port: int = 0
    lines: dict[asyncio.StreamWriter, asyncio.Task[None]] = field(default_factory=dict)

    async def reply(self, ask: Ask) -> Reply:
        return Reply(ask.messages[0].content.upper(), "stop", 0)

    async def open(self, listener: Listener) -> Endpoint:
        self.agents.append(listener.agents)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.lines[writer] = cast(asyncio.Task[None], asyncio.current_task())
            agent = (await reader.readline()).decode().strip()
            listener.calls(agent, 1, 0)
            if self.error is not None:
                listener.failed(self.error)
            await asyncio.sleep(self.slow)
            reply = await listener.answer(Ask(agent, (Message("user", "hello"),)))
            listener.calls(agent, 0, 1)
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
async def modelled(world: World) -> AsyncIterator[Model]:
    world.save("programs.py", PLUGIN)
    await world.service.start()
    model = Model()
    yield model
    for writer, task in model.lines.items():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        writer.close()
    if model.port:
        model.server.close()
        await model.server.wait_closed()


@pytest.mark.parametrize("agent", ["agent", "helper", "stranger"])
async def test_a_program_speaks_and_its_agents_are_paid(world: World, agent: str) -> None:
    """Also one that the environment never named."""
    async with modelled(world) as model:
        with await world.service.bind("programmed") as lease:
            outcome = await world.service.play(lease, a_spec(agent=agent), model.answer)
    rewards = dict.fromkeys(("agent", "helper", agent), 1.0) | {agent: 1.5}
    assert (outcome.status, outcome.rewards, outcome.failure) == ("ok", rewards, None)
    assert outcome.paid == (TurnReward(agent, 1, 0.5),) and model.agents == [()]


async def test_time_of_the_model_is_not_the_environments(world: World) -> None:
    async with modelled(world) as model:
        model.slow = 2.5
        with await world.service.bind("blocking") as lease:
            outcome = await world.service.play(lease, a_spec(), model.answer)
    assert (outcome.status, outcome.rewards) == ("ok", {"agent": 1.0})


async def test_only_declared_agents_have_addresses(world: World) -> None:
    async with modelled(world) as model:
        with await world.service.bind("declared") as lease:
            outcome = await world.service.play(lease, a_spec(), model.answer)
    assert outcome.rewards == {"player": 1.0} and model.agents == [("player",)]


async def test_a_score_sees_what_a_program_said(world: World) -> None:
    async with modelled(world) as model:
        with await world.service.bind("scored") as lease:
            outcome = await world.service.play(lease, a_spec(), model.answer)
    assert outcome.status == "ok" and outcome.rewards == {"agent": 1.5}


async def test_without_endpoints_the_episode_fails_with_the_reason(world: World) -> None:
    async with modelled(world) as model:
        with await world.service.bind("programmed") as lease:
            outcome = await world.service.play(lease, a_spec(), echoing)
            assert outcome.status == "error" and outcome.failure is not None
            assert "No endpoint is served here" in outcome.failure.message and outcome.failure.line == 22

            async def refuse(listener: Listener) -> Endpoint:
                raise ConfigError("The extra 'api' is missing.")

            refused = await world.service.play(lease, a_spec(), Answering(model.reply, endpoint=refuse))
            assert refused.failure is not None and "The extra 'api' is missing" in refused.failure.message


async def test_an_error_of_a_call_is_raised_where_it_is_played(world: World) -> None:
    async with modelled(world) as model:
        model.error = LookupError("gone")
        with await world.service.bind("programmed") as lease, pytest.raises(LookupError, match="gone"):
            await world.service.play(lease, a_spec(), model.answer)


async def test_the_first_ask_is_that_of_the_program(world: World) -> None:
    async with modelled(world) as model:
        with await world.service.bind("programmed") as lease:
            seen = await world.service.look(lease, a_spec(), model.open)
            assert seen == Ask("agent", (Message("user", "hello"),))
            assert await world.service.look(lease, a_spec()) == Ask("agent", ())

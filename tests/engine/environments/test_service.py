"""The service's questions and answers: names, settings, peeking, cancelling, and leaving nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
from pathlib import Path

import pytest

from marlaas.engine.environments.process.launch import Folders, Launched, launch
from marlaas.engine.environments.protocol import EpisodeOutcome
from marlaas.engine.errors import ConfigError, EnvironmentMissing
from marlaas.plugins.messages import Ask, Reply

from .conftest import ECHO, Slow, World, a_spec, echoing, under_way

pytestmark = pytest.mark.processes

SHAPES = """
from marlaas.plugins import Message, env

@env
async def draws(ep):
    reply = await ep.ask(f"{ep.rng.random()} {ep.noise.random()}")
    ep.log(said=reply.text)
    return 1

@env
async def two_agents(ep):
    for name in ("first", "second"):
        await ep.agent(name, system=f"You are {name}.").ask("go")
    ep.reward(0.5, agent="second")
    return {"first": 1, "second": -1}

@env
async def shop(ep):
    def price(item: str):
        "Price of an item."
        return {"ink": 3}[item]
    reply = await ep.agent(tools=[price]).act("How much is ink?")
    return reply.text == "3"

@env
def plain(ep, times: int = 2):
    "Blocks in a thread."
    return sum(ep.ask("x").text == "x" for _ in range(times))

@env
async def silent(ep):
    return 1
"""


async def test_names(world: World) -> None:
    world.save("echo.py", ECHO)
    world.save("other.py", ECHO + ECHO.replace("echo", "unique"))
    await world.service.start()
    assert world.service.resolve("unique").name == "other/unique"
    assert world.service.resolve("other/echo").name == "other/echo"
    with pytest.raises(EnvironmentMissing, match=r"ambiguous: there are echo/echo and other/echo"):
        world.service.resolve("echo")
    with pytest.raises(EnvironmentMissing, match=r"Did you mean 'other/unique'\? There are: echo/echo, other/echo"):
        world.service.resolve("unikue")


async def test_settings_are_checked(world: World) -> None:
    world.save("echo.py", ECHO)
    await world.service.start()
    assert world.service.validate("echo", {}) == {"word": "hello"}
    with pytest.raises(ConfigError, match=r"no parameter 'wort'; it has word\. Did you mean 'word'\?"):
        world.service.validate("echo", {"wort": "x"})
    with pytest.raises(ConfigError, match=r"'word' of echo must be a text, not 3"):
        world.service.validate("echo", {"word": 3})


async def test_members_of_a_group_share_the_draw_and_differ_in_noise(world: World) -> None:
    world.save("shapes.py", SHAPES)
    await world.service.start()

    async def said(**spec: object) -> list[str]:
        return str((await world.play("draws", **spec)).metrics["said"]).split()

    one, other = await said(seed=1, member=0), await said(seed=1, member=1)
    assert one[0] == other[0] and one[1] != other[1]
    assert (await said(seed=2))[0] != one[0] != (await said(seed=1, index=1))[0]
    assert await said(split="eval", seed=1) == await said(split="eval", seed=2)


async def test_the_shapes_of_environments(world: World) -> None:
    world.save("shapes.py", SHAPES)
    await world.service.start()
    asks: list[Ask] = []

    async def model(ask: Ask) -> Reply:
        asks.append(ask)
        if ask.tools:
            from marlaas.plugins.messages import ToolCall

            return Reply("", "tool", 0, (ToolCall("price", {"item": "ink"}),))
        return await echoing(ask)

    with await world.service.bind("shop") as lease:
        outcome = await world.service.play(lease, a_spec(), model)
    assert outcome.rewards == {"agent": 1.0}
    assert asks[0].tools[0]["function"]["name"] == "price" and asks[1].tools == ()
    assert [(message.role, message.name, message.content) for message in asks[1].messages] == [("tool", "price", "3")]
    assert (await world.play("two_agents")).rewards == {"first": 1.0, "second": -0.5}
    assert (await world.play("plain", times=3)).rewards == {"agent": 3.0}


async def test_cancelling_ends_the_episode_in_its_process(world: World) -> None:
    world.save(
        "long.py",
        """
        from marlaas.plugins import env

        @env
        async def long(ep):
            try:
                await ep.ask("x")
                return 1
            finally:
                print("cleaned up")
        """,
    )
    await world.service.start()
    lease = await world.service.bind("long")
    episode = await under_way(world, lease, Slow())
    episode.cancel()
    with pytest.raises(asyncio.CancelledError):
        await episode
    lease.release()
    assert (await world.play("long")).status == "ok"
    assert (world.scratch / "logs" / "long.log").read_text().count("cleaned up") == 3, "peeked, cancelled, played"


async def test_a_fault_of_the_engine_is_raised_as_its_own(world: World) -> None:
    world.save("echo.py", ECHO)
    await world.service.start()

    async def failing(ask: Ask) -> Reply:
        raise LookupError("the sampler is gone")

    with await world.service.bind("echo") as lease:
        with pytest.raises(LookupError):
            await world.service.play(lease, a_spec(), failing)
        assert (await world.service.play(lease, a_spec(word="x"), echoing)).status == "ok"

        async def cancelled(ask: Ask) -> Reply:
            raise asyncio.CancelledError

        with pytest.raises(asyncio.CancelledError):
            await world.service.play(lease, a_spec(), cancelled)
        with pytest.raises(TypeError):
            await world.service.play(lease, a_spec(word=object()), echoing)
        assert (await world.service.play(lease, a_spec(word="x"), echoing)).status == "ok"
    with pytest.raises(ValueError, match="released"):
        await world.service.play(lease, a_spec(), echoing)


async def test_many_episodes_at_once(world: World) -> None:
    world.save("echo.py", ECHO)
    await world.service.start()
    with await world.service.bind("echo") as lease:
        episodes = [world.service.play(lease, a_spec(word=str(n)), echoing) for n in range(500)]
        outcomes: list[EpisodeOutcome] = await asyncio.gather(*episodes)
    assert {outcome.status for outcome in outcomes} == {"ok"}


async def test_secrets_of_the_engine_stay_in_the_engine(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret")
    world.save(
        "spy.py",
        """
        import os
        from marlaas.plugins import env

        @env
        async def spy(ep):
            ep.log(key=os.environ.get("SOME_API_KEY", "none"), cwd=os.getcwd(), session=float(os.getsid(0)))
            await ep.ask("x")
            return 1
        """,
    )
    await world.service.start()
    metrics = (await world.play("spy")).metrics
    assert metrics["key"] == "none" and str(metrics["cwd"]).startswith(str(world.scratch))
    assert metrics["session"] != os.getsid(0)


async def test_no_process_outlives_a_killed_engine(world: World, tmp_path: Path) -> None:
    world.save("echo.py", ECHO + "import subprocess\n")
    engine = textwrap.dedent(
        """
        import asyncio, sys
        from pathlib import Path
        from marlaas.engine.environments.service import EnvironmentService

        async def main():
            service = EnvironmentService([Path(sys.argv[1])], Path(sys.argv[2]))
            await service.start()
            print((await service.bind("echo")).serving.pid, flush=True)
            await asyncio.Future()

        asyncio.run(main())
        """
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-c", engine, str(world.folder), str(world.scratch)), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    orphan = int(await process.stdout.readline())
    watch = os.pidfd_open(orphan)
    gone = asyncio.Event()
    asyncio.get_running_loop().add_reader(watch, gone.set)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    await asyncio.wait_for(gone.wait(), 50)
    asyncio.get_running_loop().remove_reader(watch)
    os.close(watch)


async def test_stop_ends_what_the_plugin_started(world: World) -> None:
    world.save("parent.py", "import subprocess\nsubprocess.Popen(['sleep', '600'])\n" + ECHO)
    await world.service.start()
    assert len(world.pids()) == 2
    await world.service.stop()  # the fixture looks whether anything is left


@pytest.mark.parametrize(
    ("printed", "kept"),
    [("one\ntwo\nthree\n", "three\n"), ("x" * 30 + "end", "xxxxxend"), ("short\n", "short\n")],
)
async def test_of_a_large_log_the_newest_lines_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, kept: str
) -> None:
    monkeypatch.setattr("marlaas.engine.environments.process.launch.LARGEST_LOG", 10)
    monkeypatch.setattr("marlaas.engine.environments.process.launch.KEPT_LOG", 8)
    log = tmp_path / "x.log"
    log.write_text(printed)
    Launched(None, None, None, log).trim_log()  # type: ignore[arg-type]  # the log alone is looked at
    assert log.read_text() == kept


async def test_a_log_that_became_a_link_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marlaas.engine.environments.process.launch.LARGEST_LOG", 0)
    mine = tmp_path / "mine"
    mine.write_text("not a log\n")
    folders = Folders.of(tmp_path, "x")
    folders.log.parent.mkdir()
    folders.log.symlink_to(mine)
    Launched(None, None, None, folders.log).trim_log()  # type: ignore[arg-type]  # the log alone is looked at
    with pytest.raises(OSError):
        await launch(tmp_path / "x.py", folders)
    assert mine.read_text() == "not a log\n"


async def test_an_import_that_hangs_does_not_hold_up_the_start(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marlaas.engine.environments.service.FIRST_PROOFS", 0.0)
    gate = world.folder.parent / "gate"
    os.mkfifo(gate)
    world.save("held.py", f"open({str(gate)!r}).close()\n" + textwrap.dedent(ECHO))
    world.save("echo.py", ECHO)
    await world.service.start()
    assert {info.name.partition("/")[0]: info.state for info in world.service.infos()}["held"] == "loading"
    await world.until("loaded", "echo")
    await asyncio.to_thread(gate.write_bytes, b"")
    await world.until("loaded", "held")

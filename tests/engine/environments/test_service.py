"""The service's questions and answers, for an engine or for one environment: names, parameters, cancelling, the end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
from pathlib import Path

import pytest

from marlaas.engine.environments import service as services
from marlaas.engine.environments.process.launch import Folders, Launched, launch
from marlaas.engine.environments.service import Meant, first_prompts, found_alone, meant, serve_alone, settled
from marlaas.engine.errors import ConfigError, EnvironmentFailure, EnvironmentMissing
from marlaas.plugins.messages import Ask, Reply, ToolCall

from .conftest import ECHO, Slow, World, a_spec, echoing, ended, under_way

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
    await ep.agent(system="Be brief.", tools=[price]).act("How much is ink?")

@shop.score
def bought(task, transcript):
    said = transcript.agents["agent"]
    roles = ["system", "user", "assistant", "tool", "assistant"]
    return [one.role for one in said] == roles and said[2].tool_calls[0].name == "price" and said[-1].content == "3"

@env
def plain(ep, times: int = 2):
    "Blocks in a thread."
    return sum(ep.ask("x").text == "x" for _ in range(times))
"""


@pytest.mark.processes
async def test_names_and_parameters_are_checked(world: World) -> None:
    twice = ECHO.replace("echo", "twice")
    await world.serve(echo=ECHO, other=ECHO + ECHO.replace("echo", "unique") + twice, third=twice)
    assert world.service.resolve("unique").name == "other/unique"
    assert world.service.resolve("other/echo").name == "other/echo"
    assert world.service.resolve("echo").name == "echo/echo", "the plugin of that name"
    with pytest.raises(EnvironmentMissing, match=r"could be other/twice or third/twice"):
        world.service.resolve("twice")
    with pytest.raises(EnvironmentMissing, match=r"Did you mean 'other/unique'\? There are: echo/echo, other/echo"):
        world.service.resolve("unikue")
    assert world.service.validate("unique", {}) == {"word": "hello"}
    with pytest.raises(ConfigError, match=r"no parameter 'wort'; it has word\. Did you mean 'word'\?"):
        world.service.validate("unique", {"wort": "x"})
    with pytest.raises(ConfigError, match=r"'word' of unique must be a text, not 3"):
        world.service.validate("unique", {"word": 3})


@pytest.mark.processes
async def test_the_shapes_of_environments(world: World) -> None:
    await world.serve(shapes=SHAPES)
    asks: list[Ask] = []

    async def model(ask: Ask) -> Reply:
        asks.append(ask)
        if ask.tools:
            return Reply("", "tool", 0, (ToolCall("price", {"item": "ink"}),))
        return await echoing(ask)

    outcome = await world.play("shop", model)
    assert outcome.rewards == {"agent": 1.0}
    assert asks[0].tools[0]["function"]["name"] == "price" and asks[1].tools == ()
    assert [(message.role, message.name, message.content) for message in asks[1].messages] == [("tool", "price", "3")]
    assert (await world.play("two_agents")).rewards == {"first": 1.0, "second": -0.5}
    assert (await world.play("plain", times=3)).rewards == {"agent": 3.0}


@pytest.mark.processes
async def test_cancelling_ends_the_episode_in_its_process(world: World) -> None:
    await world.serve(
        long="""
        from marlaas.plugins import env

        @env
        async def long(ep):
            try:
                await ep.ask("x")
                return 1
            finally:
                print("cleaned up")
        """
    )
    lease = await world.service.bind("long")
    episode = await under_way(world, lease, Slow())
    episode.cancel()
    with pytest.raises(asyncio.CancelledError):
        await episode
    lease.release()
    assert (await world.play("long")).status == "ok"
    assert (world.scratch / "logs" / "long.log").read_text().count("cleaned up") == 3, "peeked, cancelled, played"


@pytest.mark.processes
async def test_a_fault_of_the_engine_is_raised_as_its_own(world: World) -> None:
    await world.serve(echo=ECHO)

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


@pytest.mark.processes
async def test_secrets_of_the_engine_stay_in_the_engine(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SOME_API_KEY", "PYTHONPATH", "UV_INDEX_URL", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "0")
    await world.serve(
        spy="""
        import os
        from marlaas.plugins import env

        @env
        async def spy(ep):
            seen = {"SOME_API_KEY", "PYTHONPATH", "UV_INDEX_URL"} & set(os.environ)
            cards = os.environ["CUDA_VISIBLE_DEVICES"] + os.environ["HIP_VISIBLE_DEVICES"]
            ep.log(seen=f"{seen}", cards=f"[{cards}]", cwd=os.getcwd(), session=float(os.getsid(0)))
            await ep.ask("x")
            return 1
        """
    )
    metrics = (await world.play("spy")).metrics
    assert (
        metrics["seen"] == "set()" and metrics["cards"] == "[]" and str(metrics["cwd"]).startswith(str(world.scratch))
    )
    assert metrics["session"] != os.getsid(0)


@pytest.mark.processes
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
            print((await service.bind("echo")).serving.pids[0], flush=True)
            await asyncio.Future()

        asyncio.run(main())
        """
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-c", engine, str(world.folder), str(world.scratch)), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    orphan = asyncio.create_task(ended(int(await process.stdout.readline())))
    await asyncio.sleep(0)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    await asyncio.wait_for(orphan, 50)


@pytest.mark.processes
async def test_stop_ends_what_the_plugin_started(world: World) -> None:
    await world.serve(parent="import subprocess\nsubprocess.Popen(['sleep', '600'])\n" + ECHO)
    assert len(world.pids()) == 2
    await world.service.stop()  # the fixture looks whether anything is left


@pytest.mark.processes
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
    Launched(None, None, None, log).trim_log()  # type: ignore[arg-type]  # only the log is read
    assert log.read_text() == kept


@pytest.mark.processes
async def test_a_log_that_became_a_link_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marlaas.engine.environments.process.launch.LARGEST_LOG", 0)
    mine = tmp_path / "mine"
    mine.write_text("not a log\n")
    folders = Folders.of(tmp_path, "x")
    folders.log.parent.mkdir()
    folders.log.symlink_to(mine)
    Launched(None, None, None, folders.log).trim_log()  # type: ignore[arg-type]  # only the log is read
    with pytest.raises(OSError):
        await launch(tmp_path / "x.py", folders)
    assert mine.read_text() == "not a log\n"


@pytest.mark.processes
async def test_an_import_that_hangs_does_not_hold_up_the_start(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marlaas.engine.environments.service.FIRST_PROOFS", 0.0)
    gate = world.folder.parent / "gate"
    os.mkfifo(gate)
    await world.serve(held=f"open({str(gate)!r}).close()\n" + textwrap.dedent(ECHO), echo=ECHO)
    assert {info.name.partition("/")[0]: info.state for info in world.service.infos()}["held"] == "loading"
    await world.until("loaded", "echo")
    await asyncio.to_thread(gate.write_bytes, b"")
    await world.until("loaded", "held")


TWO = ECHO + ECHO.replace("echo", "other")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Plugins: a file with one environment, a file with two, a package, a broken file."""
    made = tmp_path / "plugins"
    (made / "pack").mkdir(parents=True)
    (made / "echo.py").write_text(ECHO)
    (made / "two.py").write_text(TWO.replace("echo", "first"))
    (made / "pack" / "__init__.py").write_text(ECHO.replace("echo", "packed"))
    (made / "broken.py").write_text("def broken(:\n")
    (made / "hasty.py").write_text(HASTY)
    (made / "_hidden.py").write_text(ECHO)
    return made


def test_names_and_paths_mean_plugins(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert meant("echo", [folder]) == Meant((folder,), frozenset({"echo"}), "echo", "echo")
    assert meant("two/other", [folder]) == Meant((folder,), frozenset({"two"}), "two", "two/other")
    wish = meant("other", [folder])
    assert wish.plugins == {"echo", "two", "pack", "broken", "hasty"} and wish.plugin == "", "any may have it"
    monkeypatch.chdir(folder)
    elsewhere = (Path("/nowhere"),)
    assert meant("two.py", elsewhere) == Meant((folder,), frozenset({"two"}), "two", "two")
    assert meant("./two.py/other", elsewhere).environment == "two/other"
    assert meant(str(folder / "pack"), elsewhere) == Meant((folder,), frozenset({"pack"}), "pack", "pack")
    assert meant("../plugins/echo.py", elsewhere).plugins == {"echo"}
    assert meant("pack/", elsewhere).folders == (folder,)  # as a shell completes it


@pytest.mark.parametrize(
    "path", ["./missing.py", "missing.toml", "./_hidden.py", "/", "./pack/__init__.py", "~nobody.py"]
)
def test_a_path_that_leads_to_no_plugin_is_a_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(EnvironmentMissing, match=r"There is no file|is no environment plugin"):
        meant(path, [])


def test_a_link_that_leads_nowhere_is_called_so(folder: Path) -> None:
    (folder / "moved.py").symlink_to("/nowhere/moved.py")
    with pytest.raises(EnvironmentMissing, match="a link that leads nowhere"):
        meant(str(folder / "moved.py"), [])


@pytest.mark.processes
async def test_only_the_named_plugin_starts_and_edits_count(folder: Path, tmp_path: Path) -> None:
    async def upper(ask: object) -> Reply:
        return Reply("HELLO", "stop", 0)

    async with serve_alone("pack", [folder], tmp_path / "scratch") as (service, info):
        assert info.name == "pack/packed" and [name for name, _ in service.processes()] == ["pack"]
        with await service.bind(info.name) as lease:
            assert (await service.play(lease, a_spec(word="hello"), upper)).rewards == {"agent": 0.0}
        (folder / "pack" / "__init__.py").write_text(ECHO.replace("echo", "packed").replace("== word", "!= word"))
        await settled(service)
        with await service.bind(info.name) as lease:
            assert (await service.play(lease, a_spec(word="hello"), upper)).rewards == {"agent": 1.0}
    assert not service.processes()


async def test_a_file_that_vanishes_is_not_waited_for(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An editor may replace it at the moment in which it is read."""

    def gone(path: Path) -> None:
        raise FileNotFoundError(path)

    monkeypatch.setattr(services, "read_source", gone)
    async with asyncio.timeout(60.0):
        assert {info.version for info in await found_alone(["pack"], [folder], tmp_path / "scratch")} == {""}


@pytest.mark.processes
async def test_names_that_mean_nothing_or_too_much_are_sentences(folder: Path, tmp_path: Path) -> None:
    for name, sentence, words in (
        ("two", "The environment 'two' could be two/first or two/other.", "Write its full name."),
        ("othr", "There is no environment 'othr'.", "Did you mean 'two/other'?"),
    ):
        with pytest.raises(EnvironmentMissing, match=sentence) as raised:
            async with serve_alone(name, [folder], tmp_path / "scratch"):
                pass
        assert words in raised.value.hint
    async with serve_alone("broken", [folder], tmp_path / "scratch") as (service, info):
        assert info.failure is not None and info.failure.line == 1
        with pytest.raises(EnvironmentFailure, match=r"broken.py:1: SyntaxError"):
            await service.bind(info.name)


HASTY = '''
from marlaas.plugins import Episode, env

@env
async def hasty(ep: Episode, last: int = 1) -> float:
    """Has so many questions."""
    if ep.index > last:
        raise RuntimeError("there are no more")
    await ep.ask(f"question {ep.index}")
    return 1.0
'''


@pytest.mark.processes
async def test_what_goes_wrong_is_a_sentence(folder: Path, tmp_path: Path) -> None:
    seen = await first_prompts("hasty", {}, 3, [folder], tmp_path / "a")
    assert len(seen.asks) == 2 and "ended before its first question" in seen.problem
    assert "there are no more" in seen.problem
    seen = await first_prompts("broken", {}, 3, [folder], tmp_path / "b")
    assert seen.asks == () and "broken.py:1: SyntaxError" in seen.problem
    with pytest.raises(ConfigError, match="has no parameter 'lost'"):
        await first_prompts("hasty", {"lost": 1}, 3, [folder], tmp_path / "c")

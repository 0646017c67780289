"""Files change while the service runs: what serves, what is refused, what drains."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from marlaas.engine.environments import served_version
from marlaas.engine.errors import EnvironmentMissing

from .conftest import ECHO, Slow, World, a_spec, echoing, under_way

pytestmark = pytest.mark.processes
WORSE = ECHO.replace("reply.text == word", "0.25")


async def test_a_dropped_file_is_served(world: World) -> None:
    await world.service.start()
    assert world.service.infos() == ()
    world.save("echo.py", ECHO)
    await world.until("loaded", "echo")
    assert world.service.resolve("echo").name == "echo/echo"
    assert (await world.play("echo", word="x")).rewards == {"agent": 1.0}


async def test_an_edit_serves_new_groups_only(world: World) -> None:
    world.save("echo.py", ECHO)
    await world.service.start()
    old = await world.service.bind("echo")
    world.save("echo.py", WORSE)
    await world.until("loaded", "echo")
    loaded = await world.until("loaded", "echo")
    with await world.service.bind("echo") as new:
        assert new.environment_version == loaded.version != old.environment_version
        assert (await world.service.play(new, a_spec(word="x"), echoing)).rewards == {"agent": 0.25}
    assert (await world.service.play(old, a_spec(word="x"), echoing)).rewards == {"agent": 1.0}
    assert len(world.pids()) == 2
    old.release()
    draining = old.serving
    await draining.settle()
    assert draining.pid is None and len(world.pids()) == 1


async def test_what_was_saved_is_served_when_that_is_asked_for(world: World) -> None:
    """Nothing watches the folder here: a task that is submitted at once must not depend on that."""
    world.save("echo.py", ECHO)
    await asyncio.wait(await world.service.scan())
    old = world.service.resolve("echo").version
    await world.service.refresh("echo")
    assert world.service.resolve("echo").version == old
    world.save("echo.py", WORSE)
    assert world.service.resolve("echo").version == old
    await world.service.refresh("echo/echo")
    assert world.service.resolve("echo").version != old
    world.save("echo.py", ECHO.replace("== word", "!= word"))
    proofs = await world.service.scan()
    await world.service.refresh("echo")
    assert proofs and all(proof.done() for proof in proofs), "one that is under way is waited for"
    served = world.service.resolve("echo").version
    world.save("echo.py", "def oops(:")
    await world.service.refresh("echo")
    assert world.service.resolve("echo").version == served and world.told[-1].kind == "rejected"
    (world.folder / "echo.py").unlink()
    for name in ("echo", "nobody"):
        await world.service.refresh(name)


@pytest.mark.parametrize(
    ("broken", "line", "says"),
    [
        ("from marlaas.plugins import env\ndef oops(:\n", 2, "SyntaxError"),
        ("from marlaas.plugins import env\nimport nothing_of_that_name\n", 2, "ModuleNotFoundError"),
        ("x = 1\n", 0, "declares no environment"),
        (ECHO + "\nraise SystemExit(0)\n", 9, "SystemExit"),
        (ECHO.replace("    reply =", "    1 / 0\n    reply ="), 6, "ZeroDivisionError"),
        (ECHO.replace('word: str = "hello"', "word"), 4, "needs a type"),
    ],
)
async def test_a_broken_edit_leaves_the_last_good_version(world: World, broken: str, line: int, says: str) -> None:
    world.save("echo.py", ECHO)
    await world.service.start()
    good = world.service.resolve("echo").version
    world.save("echo.py", broken)
    failure = (await world.until("rejected", "echo")).failure
    assert failure is not None and says in failure.message
    assert (failure.file, failure.line) == ("echo.py" if line else "", line)
    info = world.service.resolve("echo")
    assert (info.state, info.version, info.failure) == ("stale", good, failure)
    assert (await world.play("echo")).status == "ok"
    world.save("echo.py", ECHO)
    await world.until("loaded", "echo")
    assert (world.service.resolve("echo").state, world.service.resolve("echo").version) == ("ready", good)


async def test_a_removed_file_drains(world: World) -> None:
    world.save("echo.py", ECHO)
    await world.service.start()
    lease = await world.service.bind("echo")
    (world.folder / "echo.py").unlink()
    await world.until("removed", "echo")
    assert (await world.service.play(lease, a_spec(word="x"), echoing)).status == "ok"
    lease.release()
    with pytest.raises(EnvironmentMissing):
        await world.service.bind("echo")
    world.save("echo.py", ECHO)
    assert (await world.until("loaded", "echo")).version == lease.environment_version


async def test_a_cancelled_episode_does_not_keep_a_draining_version(world: World) -> None:
    world.save("echo.py", ECHO)
    await world.service.start()
    lease = await world.service.bind("echo")
    episode = await under_way(world, lease, Slow())
    (world.folder / "echo.py").unlink()
    await world.until("removed", "echo")
    episode.cancel()
    await asyncio.gather(episode, return_exceptions=True)
    lease.release()
    while lease.serving.pid is not None:
        await asyncio.sleep(0)


async def test_a_pinned_version_has_what_the_newest_lost(world: World) -> None:
    world.save("echo.py", ECHO)
    await world.service.start()
    first = world.service.resolve("echo").version
    world.save("echo.py", ECHO.replace("def echo", "def other"))
    while world.service.infos()[0].version == first:
        await world.until("loaded", "echo")
    leases = await asyncio.gather(*(world.service.bind("echo/echo", first) for _ in range(3)))
    assert len({lease.serving.pid for lease in leases}) == 1
    for lease in leases:
        assert (await world.service.play(lease, a_spec(word="x"), echoing)).status == "ok"
        lease.release()
    with pytest.raises(EnvironmentMissing):
        await world.service.bind("echo/echo")


async def test_a_package_with_a_helper_and_data(world: World) -> None:
    package = world.folder / "spelling"
    package.mkdir()
    (package / "words.jsonl").write_text('{"word": "cat"}\n{"word": "dog"}\n')
    (package / "helper.py").write_text("def turned(word):\n    return word[::-1]\n")
    (package / "__init__.py").write_text(
        "from marlaas.plugins import env\nfrom .helper import turned\n\n"
        '@env(data="words.jsonl")\nasync def spell(ep, task):\n'
        '    reply = await ep.ask(task["word"])\n    return turned(reply.text) == task["word"]\n'
    )
    await world.service.start()
    assert (await world.play("spell")).rewards == {"agent": 0.0}
    (package / "helper.py").write_text("def turned(word):\n    return word\n")
    await world.until("loaded", "spelling")
    await world.until("loaded", "spelling")
    assert (await world.play("spell")).rewards == {"agent": 1.0}
    (package / "helper.py").write_text("def turned(word)\n")
    failure = (await world.until("rejected", "spelling")).failure
    assert failure is not None and (failure.file, failure.line) == ("spelling/helper.py", 1)


async def test_a_later_folder_hides_an_earlier_one(tmp_path: Path) -> None:
    for folder, text in (("bundled", ECHO), ("own", WORSE)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "echo.py").write_text(text)
    world = World(tmp_path / "own", tmp_path / "scratch")
    world.service = type(world.service)([tmp_path / "bundled", tmp_path / "own"], tmp_path / "scratch", world.hear)
    await world.service.start()
    assert (await world.play("echo")).rewards == {"agent": 0.25}
    (tmp_path / "own" / "echo.py").unlink()
    await world.until("loaded", "echo")
    await world.until("loaded", "echo")
    assert (await world.play("echo")).rewards == {"agent": 1.0}
    await world.service.stop()


async def test_a_folder_that_is_made_anew_is_watched_again(world: World) -> None:
    world.save("echo.py", ECHO)
    await world.service.start()
    shutil.rmtree(world.folder)
    await world.until("removed", "echo")
    world.folder.mkdir()
    world.save("echo.py", WORSE)
    await world.until("loaded", "echo")
    assert (await world.play("echo")).rewards == {"agent": 0.25}


async def test_an_edit_during_a_slow_import_wins(world: World) -> None:
    await world.service.start()
    world.save("echo.py", "import time\ntime.sleep(600)\n")
    while not world.pids():
        await asyncio.sleep(0)
    world.save("echo.py", ECHO)
    await world.until("loaded", "echo")
    assert (await world.play("echo")).status == "ok"


async def test_an_import_that_does_not_end_is_refused_at_its_line(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_version, "IMPORT_PATIENCE", 1.5)
    world.save("slow.py", "import time\n\ntime.sleep(600)\n")
    await world.service.start()
    failure = world.service.resolve("slow").failure
    assert failure is not None and "takes too long" in failure.message
    assert (failure.file, failure.line) == ("slow.py", 3)


async def test_of_many_quick_edits_the_last_one_wins(world: World) -> None:
    world.save("echo.py", ECHO)
    await world.service.start()
    for number in range(20):
        world.save("echo.py", ECHO.replace("reply.text == word", str(number)))
        await world.service.scan()
    while (await world.play("echo")).rewards != {"agent": 19.0}:
        await world.until("loaded", "echo")
    assert world.service.resolve("echo").state == "ready"

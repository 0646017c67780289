"""Files change while the service runs, or somebody asks for a reload: what serves, what is refused, what drains."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from marlaas.engine.environments import plugin, served_version, service
from marlaas.engine.environments.protocol import EventKind
from marlaas.engine.environments.service import EnvironmentService
from marlaas.engine.errors import EnvironmentFailure, EnvironmentMissing

from .conftest import ECHO, Slow, World, a_spec, echoing, under_way

WORSE = ECHO.replace("reply.text == word", "0.25")


@pytest.mark.processes
async def test_an_edit_serves_new_groups_only(world: World) -> None:
    await world.serve(echo=ECHO)
    old = await world.service.bind("echo")
    loaded = await world.edit("echo", WORSE)
    with await world.service.bind("echo") as new:
        assert new.environment_version == loaded.version != old.environment_version
        assert (await world.service.play(new, a_spec(word="x"), echoing)).rewards == {"agent": 0.25}
    assert (await world.service.play(old, a_spec(word="x"), echoing)).rewards == {"agent": 1.0}
    assert len(world.pids()) == 2
    old.release()
    draining = old.serving
    await draining._playing.settle()
    assert not draining.pids and len(world.pids()) == 1


@pytest.mark.processes
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


BROKEN = (
    ("from marlaas.plugins import env\ndef oops(:\n", 2, "SyntaxError"),
    ("x = 1\n", 0, "declares no environment"),
    (ECHO.replace("    reply =", "    1 / 0\n    reply ="), 6, "ZeroDivisionError"),
    ("# /// script\n# dependencies = 1\n# ///\n" + ECHO, 2, "a list of texts"),
)


@pytest.mark.processes
async def test_a_broken_edit_leaves_the_last_good_version(world: World) -> None:
    await world.serve(echo=ECHO)
    good = world.service.resolve("echo").version
    await world.until("loaded", "echo")
    for broken, line, says in BROKEN:
        failure = (await world.edit("echo", broken, "rejected")).failure
        assert failure is not None and says in failure.message
        assert (failure.file, failure.line) == ("echo.py" if line else "", line)
        info = world.service.resolve("echo")
        assert (info.state, info.version, info.failure) == ("stale", good, failure)
        assert (await world.play("echo")).status == "ok"
    await world.edit("echo", ECHO)
    assert (world.service.resolve("echo").state, world.service.resolve("echo").version) == ("ready", good)


@pytest.mark.processes
async def test_a_removed_file_drains(world: World) -> None:
    await world.serve(echo=ECHO)
    lease = await world.service.bind("echo")
    cancelled = await under_way(world, lease, Slow())
    (world.folder / "echo.py").unlink()
    await world.until("removed", "echo")
    assert (await world.service.play(lease, a_spec(word="x"), echoing)).status == "ok"
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    lease.release()
    while lease.serving.pids:  # neither a group nor a cancelled episode keeps it
        await asyncio.sleep(0)
    with pytest.raises(EnvironmentMissing):
        await world.service.bind("echo")
    assert (await world.edit("echo", ECHO)).version == lease.environment_version


@pytest.mark.processes
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


@pytest.mark.processes
async def test_a_folder_that_is_made_anew_is_watched_again(world: World) -> None:
    await world.serve(echo=ECHO)
    shutil.rmtree(world.folder)
    await world.until("removed", "echo")
    world.folder.mkdir()
    await world.edit("echo", WORSE)
    assert (await world.play("echo")).rewards == {"agent": 0.25}


@pytest.mark.processes
async def test_an_import_that_does_not_end_is_refused_at_its_line(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_version, "IMPORT_PATIENCE", 1.5)
    await world.serve(slow="import time\n\ntime.sleep(600)\n")
    failure = world.service.resolve("slow").failure
    assert failure is not None and "takes too long" in failure.message
    assert (failure.file, failure.line) == ("slow.py", 3)


@pytest.mark.processes
async def test_of_many_quick_edits_the_last_one_wins(world: World) -> None:
    await world.serve(echo=ECHO)
    for number in range(20):
        world.save("echo.py", ECHO.replace("reply.text == word", str(number)))
        await world.service.scan()
    while (await world.play("echo")).rewards != {"agent": 19.0}:
        await world.until("loaded", "echo")
    assert world.service.resolve("echo").state == "ready"


READER = """
from pathlib import Path
from marlaas.plugins import env

SAID = Path({path!r}).read_text()

@env
async def reader(ep):
    reply = await ep.ask(SAID)
    ep.log(said=SAID)
    if SAID == "die":
        import os
        os._exit(1)
    return reply.text == SAID
"""


@pytest.mark.processes
async def test_a_reload_reads_outside_files_again(world: World) -> None:
    outside = world.folder.parent / "outside.txt"
    outside.write_text("before")
    await world.serve(reader=READER.format(path=str(outside)))
    model = Slow()
    with await world.service.bind("reader") as before:
        playing = await under_way(world, before, model)
        outside.write_text("after")
        await world.service.reload("reader")
        with await world.service.bind("reader") as after:
            assert after.environment_version == before.environment_version, "its own files are the same"
            assert (await world.service.play(after, a_spec(), echoing)).metrics == {"said": "after"}
        model.go.set()
        assert (await playing).metrics == {"said": "before"} and len(world.pids()) == 2
    await world.service.reload("reader")
    while len(world.pids()) > 1:  # the older ones end with their groups
        await asyncio.sleep(0)


@pytest.mark.processes
async def test_a_plugin_that_rests_is_tried_again_at_once(world: World) -> None:
    outside = world.folder.parent / "outside.txt"
    outside.write_text("die")
    await world.serve(reader=READER.format(path=str(outside)))
    with await world.service.bind("reader") as lease:
        while (await world.service.play(lease, a_spec(), echoing)).status == "error":
            if world.service.resolve("reader").state == "broken":
                break
    outside.write_text("live")
    assert world.service.resolve("reader").state == "broken"
    await world.service.reload("reader")
    assert world.service.resolve("reader").state == "ready"
    assert (await world.play("reader")).rewards == {"agent": 1.0}


@pytest.mark.processes
async def test_an_edit_that_is_taken_back_undoes_no_reload(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group still has the processes from before the reload."""
    monkeypatch.setattr(service, "TIDY_EVERY", 0)
    world.service = EnvironmentService([world.folder], world.scratch, world.hear, needed=set)
    outside = world.folder.parent / "outside.txt"
    outside.write_text("before")
    text = READER.format(path=str(outside))
    await world.serve(reader=text)
    with await world.service.bind("reader"):
        outside.write_text("after")
        await world.service.reload("reader")
        await world.edit("reader", text.replace("reader", "other"))
        while len(world.pids()) > 2:  # those of the reload end
            await asyncio.sleep(0.01)
        await world.service.scan()
        await world.edit("reader", text)
        assert (await world.play("reader")).metrics == {"said": "after"}


@pytest.mark.processes
async def test_a_failed_reload_names_the_line_and_serves_on(world: World) -> None:
    await world.serve(echo=ECHO)
    (pid,) = world.pids()
    outside = world.folder.parent / "missing.txt"
    world.save("echo.py", READER.format(path=str(outside)))
    with pytest.raises(EnvironmentFailure, match=r"echo.py:5: FileNotFoundError"):
        await world.service.reload("echo")
    assert (await world.play("echo", word="x")).rewards == {"agent": 1.0} and pid in world.pids()
    with pytest.raises(EnvironmentMissing, match="There are: echo"):
        await world.service.reload("ecco")
    os.remove(world.folder / "echo.py")
    with pytest.raises((EnvironmentFailure, EnvironmentMissing)):
        await world.service.reload("echo")


CLOSES_SLOWLY = """
import asyncio, time
from marlaas.plugins import env

@env(name="held")
class Held:
    async def play(self, ep):
        open({marker!r}, "w").close()
        await asyncio.sleep(600)

    def close(self):
        time.sleep(0.5)
"""


def waiting_for(marker: Path, text: str = ECHO) -> str:
    """A plugin whose import waits until the file is there."""
    return f"import os, time\nwhile not os.path.exists({str(marker)!r}):\n    time.sleep(0.01)\n{text}"


async def until_there(path: Path) -> None:
    while not path.exists():
        await asyncio.sleep(0.01)


@pytest.mark.processes
async def test_stopping_waits_for_processes_of_overtaken_edits(world: World) -> None:
    probed = world.folder.parent / "probed"
    world.save("echo.py", CLOSES_SLOWLY.format(marker=str(probed)))
    (proof,) = await world.service.scan()
    await until_there(probed)
    world.save("echo.py", ECHO)
    await world.service.scan()
    await world.service.stop()
    assert proof.done() and world.pids() == []


@pytest.mark.processes
async def test_stopping_waits_for_forgotten_versions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "TIDY_EVERY", 1)
    world.service = EnvironmentService([world.folder], world.scratch, world.hear, needed=lambda: frozenset())
    text = CLOSES_SLOWLY.format(marker=str(world.folder.parent / "probed"))
    world.save("echo.py", text.replace("asyncio.sleep(600)", 'ep.ask("x")'))
    await asyncio.wait(await world.service.scan())
    world.save("echo.py", ECHO)
    await asyncio.wait(await world.service.scan())
    await world.service.scan()  # it tidies up
    await world.service.stop()
    assert world.pids() == []


@pytest.mark.processes
async def test_a_proof_ends_when_the_files_cannot_be_read_any_more(world: World) -> None:
    go = world.folder.parent / "go"
    world.save("echo.py", waiting_for(go))
    (proof,) = await world.service.scan()
    (world.folder / "echo.txt").symlink_to("/etc/passwd")
    await world.service.scan()
    go.touch()
    await asyncio.wait((proof,))
    (info,) = world.service.infos()
    assert (info.state, info.version) == ("broken", ""), "what was proven is not what the author sees as the newest"
    assert world.pids() == []


@pytest.mark.processes
async def test_a_start_that_nobody_awaits_any_more_ends(world: World) -> None:
    go = world.folder.parent / "go"
    go.touch()
    await world.serve(echo=waiting_for(go))
    with await world.service.bind("echo") as lease:
        first = lease
    world.save("echo.py", ECHO)
    while world.service.resolve("echo").version == first.environment_version:
        await world.until("loaded", "echo")
    await first.serving._playing.settle()
    (serves,) = world.pids()
    go.unlink()
    binding = asyncio.ensure_future(world.service.bind("echo", first.environment_version))
    while len(world.pids()) < 2:
        await asyncio.sleep(0.01)
    binding.cancel()
    await asyncio.gather(binding, return_exceptions=True)
    go.touch()
    while world.pids() != [serves]:
        await asyncio.sleep(0.01)
    assert not first.serving.pids


@pytest.mark.processes
async def test_an_edit_that_takes_long_to_load_is_told_of(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.serve(echo=ECHO)
    (before,) = world.service.infos()
    assert before.state == "ready" and "loading" not in {event.kind for event in world.told}
    monkeypatch.setattr(plugin, "SLOW", 0.0)
    edits: tuple[tuple[str, EventKind, str], ...] = (
        ("import nothing_at_all\n", "rejected", "stale"),
        ("import json\n", "loaded", "ready"),
    )
    for text, kind, after in edits:
        world.save("echo.py", text + ECHO)
        told = await world.until("loading", "echo")
        (info,) = world.service.infos()
        assert (info.state, info.version, info.failure) == ("loading", before.version, None) and told.version
        await world.until(kind, "echo")
        assert [info.state for info in world.service.infos()] == [after]

"""What lies in the plugins folder: odd files, links, and entries of TOML files are shown; nothing else suffers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import watchfiles

from marlaas.engine.environments import files
from marlaas.engine.environments.dependencies import Interpreters
from marlaas.engine.environments.protocol import EnvironmentInfo
from marlaas.engine.environments.service import EnvironmentService
from marlaas.engine.errors import EnvironmentFailure, EnvironmentMissing
from marlaas.engine.home.settings import EnvironmentSettings

from .conftest import ECHO, World
from .wheels import make_wheel

pytestmark = pytest.mark.processes
WORSE = ECHO.replace("reply.text == word", "0.25")


def shown(world: World, name: str) -> EnvironmentInfo:
    (found,) = (info for info in world.service.infos() if info.name == name)
    return found


async def test_two_plugins_of_one_name_are_shown(world: World) -> None:
    (world.folder / "echo").mkdir()
    (world.folder / "echo" / "__init__.py").write_text(WORSE)
    await world.serve(echo=ECHO)
    told = await world.until("hidden", "echo")
    assert (await world.play("echo")).rewards == {"agent": 1.0}
    hidden = shown(world, "echo (echo, hidden)")
    assert (hidden.state, hidden.failure, hidden.version) == ("hidden", told.failure, "")
    assert told.failure is not None and "echo.py has its name; rename one of them" in told.failure.message
    for _ in range(3):
        await world.service.scan()
    assert [event.kind for event in world.told].count("hidden") == 1
    (world.folder / "echo.py").unlink()
    await world.until("loaded", "echo")
    await world.until("loaded", "echo")
    assert (await world.play("echo")).rewards == {"agent": 0.25}
    assert [info.name for info in world.service.infos()] == ["echo/echo"]


async def test_a_renamed_plugin_goes_on_under_its_new_name(world: World) -> None:
    await world.serve(old=ECHO)
    lease = await world.service.bind("old/echo")
    (world.folder / "old.py").rename(world.folder / "new.py")
    await world.until("loaded", "new")
    assert world.service.resolve("echo").name == "new/echo", "the short name goes on"
    with pytest.raises(EnvironmentMissing, match="no environment 'old/echo'"):
        world.service.resolve("old/echo")
    lease.release()
    (world.folder / "new.py").rename(world.folder / "old.py")
    await world.until("loaded", "old")
    assert world.service.resolve("old/echo").version == lease.environment_version


async def test_a_half_saved_file_leaves_the_last_good_version(world: World) -> None:
    await world.serve(echo=ECHO)
    with open(world.folder / "echo.py", "w") as file:  # as editors do that do not replace files
        for half in (WORSE[: len(WORSE) // 2], WORSE[len(WORSE) // 2 :]):
            await world.service.scan()
            assert (await world.play("echo")).rewards == {"agent": 1.0}
            file.write(half)
            file.flush()
    while (await world.play("echo")).rewards != {"agent": 0.25}:
        await world.until("loaded", "echo")


async def test_links(world: World) -> None:
    work = world.folder.parent / "work"
    work.mkdir()
    (work / "__init__.py").write_text(ECHO)
    (world.folder / "linked").symlink_to(work)
    (world.folder / "dangling.py").symlink_to(work / "nothing.py")
    (world.folder / "endless.py").symlink_to("x" * 300)
    (world.folder / "echo").mkdir()
    (world.folder / "echo" / "__init__.py").write_text(ECHO)
    (world.folder / "echo" / "passwd").symlink_to("/etc/passwd")
    await world.service.start()
    await world.until("loaded", "linked")
    assert [info.name for info in world.service.infos()] == ["dangling", "echo", "endless", "linked/echo"]
    assert all(shown(world, name).state == "broken" for name in ("dangling", "endless"))
    failure = shown(world, "echo").failure
    assert failure is not None and "echo/passwd is a link that leads out of the plugin" in failure.message
    assert not [path for path in (world.scratch / "snapshots").rglob("passwd")]
    (work / "__init__.py").write_text(WORSE)  # nobody watches there: it is seen at the next look
    await world.until("loaded", "linked")
    assert (await world.play("linked/echo")).rewards == {"agent": 0.25}
    (world.folder / "echo" / "passwd").unlink()
    good = (await world.until("loaded", "echo")).version
    (world.folder / "echo" / "passwd").symlink_to("/etc/passwd")
    await world.until("rejected", "echo")
    assert (shown(world, "echo/echo").state, shown(world, "echo/echo").version) == ("stale", good)
    (world.folder / "echo" / "passwd").unlink()
    assert (await world.until("loaded", "echo")).version == good
    assert shown(world, "echo/echo").state == "ready"


async def test_odd_names_and_files_that_are_no_text_are_shown(world: World) -> None:
    for number, content in enumerate((b"\xff\xfe\x00", b"x = '\xff'\n", b"\0", b"# coding: nonsense\n")):
        (world.folder / f"odd{number}.py").write_bytes(content)
    for name in (b"a\xff.py", b"a\x1b[31m.py"):
        Path(os.fsdecode(os.fsencode(world.folder) + b"/" + name)).write_text(ECHO)
    await world.serve(echo=ECHO)
    infos = world.service.infos()
    assert [info.state for info in infos] == ["broken", "broken", "ready", *["broken"] * 4]
    for info in infos:
        assert (info.failure is None) is (info.state == "ready")
        assert all(text.isprintable() for text in (info.name, info.path, info.failure.message if info.failure else ""))


async def test_a_file_that_cannot_be_read_is_shown(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.save("echo.py", ECHO)
    world.save("locked.py", ECHO)
    opened = Path.open

    def refuse(path: Path, *arguments: object, **more: object) -> object:
        if path.name == "locked.py":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *arguments, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refuse)
    await world.service.start()
    failure = shown(world, "locked").failure
    assert failure is not None and "Permission denied" in failure.message and failure.file == "locked.py"
    assert (await world.play("echo/echo")).status == "ok"
    monkeypatch.undo()
    await world.until("loaded", "locked")


async def test_a_folder_that_cannot_be_read_for_once_removes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier, scandir = world.folder.parent / "earlier", os.scandir
    earlier.mkdir()
    (earlier / "echo.py").write_text(WORSE)
    world.save("echo.py", ECHO)
    world.service = EnvironmentService([earlier, world.folder], world.scratch)
    await world.service.start()

    def refuse(folder: Path) -> Any:
        if folder == world.folder:
            raise OSError(24, "Too many open files", str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    await asyncio.gather(*(await world.service.scan()))
    assert (await world.play("echo")).rewards == {"agent": 1.0}, "nor does what it hides take its place"


async def test_without_watches_changes_are_looked_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Editors use up the account's inotify instances: hot reload continues, and the log says how."""

    def refuse(*folders: Path, **settings: Any) -> object:
        if not settings["force_polling"]:
            raise OSError(28, "No space left")
        return watchfiles.awatch(*folders, **settings)

    monkeypatch.setattr(files, "awatch", refuse)
    await world.service.start()
    event = await world.until("polled", "all")
    assert event.failure is not None and "No space left" in event.failure.message
    await world.edit("echo", ECHO)
    assert [one.kind for one in world.told].count("polled") == 1


LIBRARY = """
class Text:
    def __contains__(self, text):
        return text.isascii()


class Echo:
    action_space = Text()

    def reset(self, seed=None):
        return "say it", {}

    def step(self, action):
        return "", 1.0 if action == "say it" else -5.0, True, False, {}


class Raising(Echo):
    def reset(self, seed=None):
        raise RuntimeError("there is no board")


def make(name, **options):
    return {"Echo": Echo, "Raising": Raising}[name]()
"""

FIRST = 'dependencies = ["tiny==1.0"]\n\n[[environments]]\nadapter = "gymnasium"\nenvironment = "Echo"\nname = "echo"\n'
SECOND = '\n[[environments]]\nadapter = "gymnasium"\nenvironment = "Echo"\nname = "second"\n'
THIRD = '\n[[environments]]\nadapter = "gymnasium"\nenvironment = "Raising"\nname = "third"\n'


@pytest.fixture
async def gaming(tmp_path: Path) -> AsyncIterator[World]:
    """With a library of ours under the name of the one that the adapter asks for; not yet started."""
    make_wheel(tmp_path / "wheels", "tiny", "1.0", {"gymnasium.py": LIBRARY})
    made = World(tmp_path / "plugins", tmp_path / "scratch")
    made.folder.mkdir()
    settings = EnvironmentSettings(allow="always", wheels=str(tmp_path / "wheels"), offline=True)
    interpreters = Interpreters(tmp_path / "venvs", settings)
    made.service = EnvironmentService([made.folder], made.scratch, made.hear, interpreters=interpreters)
    yield made
    await made.service.stop()


def states(world: World) -> dict[str, str]:
    return {info.name: info.state for info in world.service.infos()}


async def test_a_bad_entry_is_shown_and_the_others_serve(gaming: World) -> None:
    gaming.save("games.toml", FIRST + SECOND + "max_turns = 'two'\n" + THIRD)
    await gaming.service.start()
    await gaming.until("loaded", "games")
    assert states(gaming) == {"games/echo": "ready", "games/second": "broken", "games/third": "broken"}
    assert (await gaming.play("games/echo")).rewards == {"agent": 1.0}

    shown = {info.name: info.failure for info in gaming.service.infos()}
    second, third = shown["games/second"], shown["games/third"]
    assert second is not None and (second.file, second.line) == ("games.toml", 12)
    assert "'max_turns' must be a whole number, not 'two'" in second.message
    assert third is not None and "there is no board" in third.message, "it was found at its first question"
    with pytest.raises(EnvironmentFailure, match=r"^games.toml:12: .*'max_turns'"):
        await gaming.service.bind("games/second")
    with pytest.raises(EnvironmentFailure, match=r"^games.toml:12: "):
        gaming.service.validate("games/second", {})
    with pytest.raises(EnvironmentFailure, match=r"^games.toml:12: "):
        await gaming.service.reload("games")

    while not gaming.events.empty():
        gaming.events.get_nowait()
    gaming.save("games.toml", FIRST + SECOND)
    await gaming.until("loaded", "games")
    assert states(gaming) == {"games/echo": "ready", "games/second": "ready"}

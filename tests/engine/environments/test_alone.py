"""One environment without an engine: what a name means, and that nothing else is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.engine.environments.alone import Meant, meant, serve_alone, settled
from marlaas.engine.errors import EnvironmentFailure, EnvironmentMissing
from marlaas.plugins.messages import Reply

from .conftest import ECHO, a_spec

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
    (made / "_hidden.py").write_text(ECHO)
    return made


def test_a_plugin_s_name_means_that_plugin_alone(folder: Path) -> None:
    assert meant("echo", [folder]) == Meant((folder,), frozenset({"echo"}), "echo", "echo")
    assert meant("two/other", [folder]) == Meant((folder,), frozenset({"two"}), "two", "two/other")


def test_any_other_name_may_mean_an_environment_of_any_plugin(folder: Path) -> None:
    wish = meant("other", [folder])
    assert wish.plugins == {"echo", "two", "pack", "broken"} and wish.plugin == ""


def test_a_path_means_the_plugin_that_lies_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.processes
async def test_names_that_mean_nothing_or_too_much_are_sentences(folder: Path, tmp_path: Path) -> None:
    for name, sentence, words in (
        ("two", "The plugin 'two' has several environments.", "Say which: two/first, two/other."),
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

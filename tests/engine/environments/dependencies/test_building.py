"""Builds, with the real uv where that is the point, with stand-ins where what goes wrong is.

No network: the library is a wheel that the test makes.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from marlaas.engine.environments.dependencies import venv as building
from marlaas.engine.environments.dependencies.interpreters import author_api
from marlaas.engine.environments.dependencies.requirements import Requirements
from marlaas.engine.environments.dependencies.venv import (
    OWN,
    BuildFailed,
    Python,
    Venv,
    build,
    commands,
    complaint,
    in_words,
    variables_for_build,
)
from marlaas.engine.home.settings import EnvironmentSettings

from .standins import BUILDS, StandIns
from .wheels import make_wheel

pytestmark = pytest.mark.processes
ANYTHING = EnvironmentSettings()


def a_venv(tmp_path: Path, *dependencies: str) -> Venv:
    return Venv.of(Requirements(dependencies or ("anything",)), OWN, tmp_path / "home" / "venvs")


@pytest.fixture
def wheels(tmp_path: Path) -> EnvironmentSettings:
    folder = tmp_path / "wheels"
    make_wheel(folder, "needed", "2.0", {"needed.py": "VALUE = 41\n"})
    make_wheel(folder, "tiny", "1.0", {"tiny.py": "from needed import VALUE\nVALUE += 1\n"}, requires=("needed>=1",))
    return EnvironmentSettings(wheels=str(folder), offline=True)


async def test_a_plugins_python_has_its_libraries_and_our_api(tmp_path: Path, wheels: EnvironmentSettings) -> None:
    venv, said = a_venv(tmp_path, "tiny==1.0"), list[str]()
    await build(venv, wheels, said.append)
    assert venv.built and "tiny" in " ".join(said) and "tiny" in venv.log.read_text()
    code = """
import importlib.util, tiny, marlaas.plugins
others = [name for name in ("marlaas.engine", "marlaas.app", "torch", "pip") if importlib.util.find_spec(name)]
print(tiny.VALUE, marlaas.plugins.env.__module__, others)
"""
    done = subprocess.run(
        [venv.python, "-P", "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(author_api(venv.folder.parent))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split(maxsplit=2) == ["42", "marlaas.plugins.environment", "[]\n"]
    compiled = list(venv.folder.rglob("tiny.*.pyc"))
    assert compiled, "the host writes no bytecode: without it every start would compile the libraries"


async def test_one_set_is_built_once(tmp_path: Path, stand_ins: StandIns) -> None:
    stand_ins.put("uv", BUILDS)
    venv = a_venv(tmp_path)
    said = list[str]()
    await asyncio.gather(build(venv, ANYTHING), build(venv, ANYTHING, said.append))
    await build(venv, ANYTHING)
    assert said == ["Another installation of this home is under way; this one comes after it."]
    assert [call.split()[0] for call in stand_ins.calls] == ["venv", "pip"] and venv.built


async def test_what_a_killed_build_left_is_built_anew(tmp_path: Path, stand_ins: StandIns) -> None:
    venv = a_venv(tmp_path)
    venv.python.parent.mkdir(parents=True)
    venv.python.symlink_to(OWN.executable)
    (venv.folder / "half").touch()
    stand_ins.put("uv", BUILDS)
    await build(venv, ANYTHING)
    assert venv.built and not (venv.folder / "half").exists()


async def test_cancelling_ends_the_installer(tmp_path: Path, stand_ins: StandIns) -> None:
    started = stand_ins.hang("uv")
    venv = a_venv(tmp_path)
    task = asyncio.create_task(build(venv, ANYTHING))
    installer = os.pidfd_open(int(await asyncio.to_thread(started.read_text)))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ProcessLookupError):  # it was waited for, so that its id is gone
        signal.pidfd_send_signal(installer, 0)
    os.close(installer)
    stand_ins.put("uv", BUILDS)
    await build(venv, ANYTHING)
    assert venv.built


async def test_a_build_that_takes_too_long_ends(
    tmp_path: Path, stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "PATIENCE", 0.01)
    stand_ins.put("uv", "exec sleep 600")
    with pytest.raises(BuildFailed, match="took longer than"):
        await build(a_venv(tmp_path), ANYTHING)


async def test_an_orphaned_installer_keeps_the_next_one_out(tmp_path: Path, stand_ins: StandIns) -> None:
    started = stand_ins.hang("uv")
    venv = a_venv(tmp_path)
    engine = subprocess.Popen([sys.executable, "-P", "-c", ENGINE, str(venv.folder), str(stand_ins.folder / "uv")])
    installer = int(await asyncio.to_thread(started.read_text))
    engine.kill()
    engine.wait()
    with venv.lock.open() as lock:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        stand_ins.put("uv", BUILDS)
        task = asyncio.create_task(build(venv, ANYTHING))
        os.kill(installer, signal.SIGKILL)
        await task
    assert venv.built


ENGINE = """
import asyncio, sys
from pathlib import Path

import uv
from marlaas.engine.home.settings import EnvironmentSettings
from marlaas.engine.environments.dependencies.venv import build
from marlaas.engine.environments.dependencies.venv import Venv

uv.find_uv_bin = lambda: sys.argv[2]
asyncio.run(build(Venv(Path(sys.argv[1]), ("anything",)), EnvironmentSettings()))
"""


async def test_a_home_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    with pytest.raises(BuildFailed, match="home"):
        await build(a_venv(tmp_path), ANYTHING)


VENV = Venv(Path("/h/venvs/abc"), ("a==1", "b"), Python(Path("/usr/bin/python3.12"), "3.12"))
OFFLINE = EnvironmentSettings(offline=True)
WHEELS, SEALED = EnvironmentSettings(wheels="/w"), EnvironmentSettings(wheels="/w", offline=True)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (WHEELS, ["--find-links", "/w"]),
        (SEALED, ["--offline", "--no-index", "--find-links", "/w"]),
        (OFFLINE, ["--offline"]),
    ],
)
def test_where_wheels_come_from(settings: EnvironmentSettings, expected: list[str]) -> None:
    assert commands(VENV, settings)[-1][6:-2] == expected


def test_the_build_sees_proxies_and_uv_s_settings_and_no_keys() -> None:
    kept = {"PATH": "/bin", "HTTPS_PROXY": "p", "no_proxy": "x", "UV_DEFAULT_INDEX": "i"}
    hidden = {"AWS_SECRET_ACCESS_KEY": "s", "HF_TOKEN": "t", "PYTHONPATH": "y", "PIP_INDEX_URL": "j"}
    assert variables_for_build(kept | hidden) == kept


@pytest.mark.parametrize(
    ("settings", "variables", "words"),
    [
        (
            ANYTHING,
            {"PIP_INDEX_URL": "http://p"},
            "the index in uv's settings, else PyPI (pip's settings do not count)",
        ),
        (ANYTHING, {"UV_INDEX_URL": "http://u"}, "the index http://u"),
        (WHEELS, {"UV_DEFAULT_INDEX": "https://me:pa@ss@host/x@y"}, "the folder /w and the index https://host/x@y"),
        (SEALED, {}, "the folder /w"),
        (OFFLINE, {}, "uv's cache"),
    ],
)
def test_the_place_in_words(settings: EnvironmentSettings, variables: dict[str, str], words: str) -> None:
    assert in_words(settings, variables) == words


UNSOLVABLE = """\
Using Python 3.11.7 environment at: env
error: No solution found when resolving dependencies
  cause: Because nothing was not found in the cache and you require nothing==3, we can conclude that they are lost.

hint: Packages were unavailable because the network was disabled.
"""
UNBUILT = """\
   Building numpy==1.19.5
error: Failed to build `numpy==1.19.5`
  cause: The build backend returned an error
  cause: Call to `build_wheel` failed (exit status: 1)

         [stdout]
         error: Command "gcc" failed with exit status 1

hint: Build failures usually indicate a problem with the package or the build environment
"""


def test_the_reason_of_a_failure() -> None:
    assert complaint(UNSOLVABLE) == (
        "No solution found when resolving dependencies: Because nothing was not found in the cache and you require"
        " nothing==3, we can conclude that they are lost."
    )
    assert complaint(UNBUILT) == (
        "Failed to build `numpy==1.19.5`: The build backend returned an error: Call to `build_wheel` failed (exit"
        " status: 1)"
    )


def test_without_a_word_for_it_the_last_line_counts() -> None:
    assert complaint("one\ntwo\n\n") == "two" and complaint("") == ""
    assert len(complaint("x" * 10_000)) == 400

"""A plugin that brings libraries along: asked for, allowed, built without a network, served; all processes are real."""

from __future__ import annotations

import asyncio
import os
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from marlaas.engine.environments.dependencies.interpreters import Interpreters, needs_of
from marlaas.engine.environments.dependencies.venv import Venv
from marlaas.engine.environments.files.source import read_source
from marlaas.engine.environments.service import EnvironmentService
from marlaas.engine.errors import EnvironmentFailure, EnvironmentMissing
from marlaas.engine.home.settings import EnvironmentSettings

from ..conftest import ECHO, World, a_spec, echoing
from .wheels import make_wheel

pytestmark = pytest.mark.processes

WITH_LIBRARY = """\
# /// script
# dependencies = ["tiny==1.0"]
#
# [tool.marlaas]
# memory_mb = 1024
# ///
import os
import resource
import sys

import tiny
from marlaas.plugins import env


@env
async def uses(ep):
    await ep.ask(tiny.WORD)
    seen = " ".join(sorted(name for name in os.environ if name.startswith("UV_")))
    ep.log(python=sys.prefix, memory=float(resource.getrlimit(resource.RLIMIT_AS)[0] >> 20), seen=seen)
    return 1.0
"""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """As elsewhere, with a folder of wheels and a home's settings; not yet started."""
    make_wheel(tmp_path / "wheels", "tiny", "1.0", {"tiny.py": "WORD = 'tiny word'\n"})
    made = World(tmp_path / "plugins", tmp_path / "scratch")
    made.folder.mkdir()
    made.service = a_service(made)
    yield made
    await made.service.stop()


def a_service(world: World) -> EnvironmentService:
    around = world.folder.parent
    settings = EnvironmentSettings(wheels=str(around / "wheels"), offline=True)
    interpreters = Interpreters(around / "home" / "venvs", settings)
    return EnvironmentService([world.folder], world.scratch, world.hear, interpreters=interpreters)


def venv_of(world: World, name: str) -> Venv:
    _, venv = needs_of(read_source(world.folder / name), world.folder.parent / "home" / "venvs")
    assert venv is not None
    return venv


def states(world: World) -> dict[str, str]:
    return {info.name: info.state for info in world.service.infos()}


async def test_from_a_file_to_an_episode_on_its_own_python(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/a-secret-index")
    world.save("chain.py", WITH_LIBRARY)
    world.save("echo.py", ECHO)
    await world.service.start()
    asked = await world.until("waiting", "chain")
    sentence = "needs tiny==1.0: allow with `marlaas env allow chain`"
    assert asked.failure is not None and asked.failure.message == sentence
    assert states(world) == {"chain/uses": "waiting", "echo/echo": "ready"}, "its environments are known already"
    with pytest.raises(EnvironmentFailure, match="chain: needs tiny"):
        await world.service.bind("chain/uses")
    for name in ("uses", "chain/uses", "chain/made_while_it_is_imported"):
        with pytest.raises(EnvironmentFailure, match="chain: needs tiny"):
            world.service.validate(name, {})
    with pytest.raises(EnvironmentMissing, match="There is no environment 'nowhere'"):
        world.service.validate("nowhere", {})

    venv_of(world, "chain.py").allow()
    await world.until("building", "chain")
    assert states(world)["chain/uses"] == "building"
    await world.until("loaded", "chain")
    assert states(world) == {"chain/uses": "ready", "echo/echo": "ready"}
    outcome = await world.play("chain/uses")
    assert outcome.status == "ok", outcome.failure
    folder = venv_of(world, "chain.py").folder
    assert outcome.metrics == {"python": str(folder), "memory": 1024.0, "seen": ""}

    world.save("other.py", WITH_LIBRARY.replace("1024", "512"))  # the same set: nobody is asked again
    await world.until("loaded", "other")
    assert [event.kind for event in world.told if event.plugin == "other"] == ["loaded"]

    version = next(info.version for info in world.service.infos() if info.name == "chain/uses")
    world.save("chain.py", WITH_LIBRARY.replace("tiny==1.0", "tiny==2.0"))
    await world.until("waiting", "chain")
    assert states(world)["chain/uses"] == "stale", "the last good version goes on"
    assert (await world.play("chain/uses")).status == "ok"
    world.save("chain.py", ECHO.replace("echo(", "uses("))
    await world.until("loaded", "chain")
    await world.service.stop()

    world.service = a_service(world)  # another engine: it knows the older version by its snapshot alone
    with await world.service.bind("chain/uses", version) as lease:
        outcome = await world.service.play(lease, a_spec(), echoing)
    assert outcome.metrics["python"] == str(folder)


async def test_a_build_that_fails_is_said_and_an_edit_mends_it(world: World) -> None:
    world.save("chain.py", WITH_LIBRARY.replace("tiny==1.0", "missing==3"))
    venv_of(world, "chain.py").allow()
    await world.service.start()
    await world.until("building", "chain")
    failed = await world.until("waiting", "chain")
    assert failed.failure is not None and "which cannot be installed" in failed.failure.message
    assert "missing" in failed.failure.message.partition("installed:")[2]
    world.save("chain.py", ECHO)
    await world.until("loaded", "chain")


async def test_an_edit_ends_a_build(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started, uv = tmp_path / "started", tmp_path / "uv"
    os.mkfifo(started)
    uv.write_text(f"#!/bin/sh\necho $$ > {started}\nexec sleep 600\n")
    uv.chmod(0o755)
    monkeypatch.setattr("uv.find_uv_bin", lambda: str(uv))
    world.save("chain.py", WITH_LIBRARY)
    venv_of(world, "chain.py").allow()
    await world.service.start()
    installer = os.pidfd_open(int(await asyncio.to_thread(started.read_text)))
    gone = asyncio.Event()
    asyncio.get_running_loop().add_reader(installer, gone.set)
    world.save("chain.py", ECHO)
    await world.until("loaded", "chain")
    await gone.wait()
    asyncio.get_running_loop().remove_reader(installer)
    os.close(installer)


async def test_a_network_that_cannot_be_denied_is_a_warning(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marlaas.engine.environments.dependencies.interpreters.obstacle", lambda: "no namespaces")
    world.save("echo.py", "# /// script\n# [tool.marlaas]\n# network = false\n# ///\n" + textwrap.dedent(ECHO))
    await world.service.start()
    warning = await world.until("unconfined", "echo")
    assert warning.failure is not None and "without a network" in warning.failure.message
    await world.until("loaded", "echo")
    assert (await world.play("echo")).status == "ok"

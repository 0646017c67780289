"""From what a plugin declares to what it runs on, with all that may stand between."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from marlaas.engine.environments.dependencies.interpreters import Interpreters, Refused, Waiting, needs_of
from marlaas.engine.environments.dependencies.venv import Venv
from marlaas.engine.environments.files.source import Source
from marlaas.engine.environments.process.launch import Runtime
from marlaas.engine.home.settings import EnvironmentSettings

from .standins import BUILDS, FAILS, SUCCEEDS, StandIns

pytestmark = pytest.mark.processes


def a_plugin(*lines: str) -> Source:
    text = "".join(f"# {line}\n" for line in ("/// script", *lines, "///"))
    return Source("x", "x.py", (("x.py", text.encode()),))


NEEDS = a_plugin('dependencies = ["a==1", "B"]')
SECLUDED = a_plugin("[tool.marlaas]", "network = false", "memory_mb = 100")


def asking(tmp_path: Path, **settings: object) -> Interpreters:
    return Interpreters(tmp_path / "home" / "venvs", EnvironmentSettings(**settings))  # type: ignore[arg-type]


def venv_of(tmp_path: Path, source: Source) -> Venv:
    _, venv = needs_of(source, tmp_path / "home" / "venvs")
    assert venv is not None
    return venv


async def held_up(interpreters: Interpreters, source: Source) -> Waiting:
    with pytest.raises(Waiting) as caught:
        await interpreters.of(source)
    return caught.value


async def test_a_plugin_without_needs_runs_on_our_python(tmp_path: Path) -> None:
    assert await asking(tmp_path).of(Source("x", "x.py", (("x.py", b""),))) == Runtime()
    assert not (tmp_path / "home").exists()


async def test_environments_let_others_go_first_by_more_than_workers(tmp_path: Path) -> None:
    interpreters = Interpreters(tmp_path, EnvironmentSettings(), nice=10)
    assert (await interpreters.of(Source("x", "x.py", (("x.py", b""),)))).nice == 15


async def test_a_set_is_asked_for_then_built_then_used(tmp_path: Path, stand_ins: StandIns) -> None:
    stand_ins.put("uv", BUILDS)
    interpreters, venv = asking(tmp_path), venv_of(tmp_path, NEEDS)
    asked = await held_up(interpreters, NEEDS)
    assert (asked.state, str(asked)) == ("waiting", "needs a==1, b: allow with `marlaas env allow x`")
    venv.allow()
    await asked.over()  # it was there before: what happens between two looks is not missed
    built = await held_up(interpreters, NEEDS)
    assert (built.state, str(built)) == ("building", "needs a==1, b, which is being installed")
    await built.over()
    runtime = await interpreters.of(NEEDS)
    assert runtime.python == venv.python and runtime.author_api is not None and runtime.confinement is None
    assert (runtime.author_api / "marlaas" / "plugins" / "__init__.py").exists()


async def test_a_consent_that_comes_later_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marlaas.engine.environments.dependencies.interpreters._LOOK", 0.0)
    asked = await held_up(asking(tmp_path), NEEDS)
    over = asyncio.ensure_future(asked.over())
    await asyncio.sleep(0)
    assert not over.done()
    venv_of(tmp_path, NEEDS).allow()
    await over


async def test_a_build_that_fails_waits_for_a_person(tmp_path: Path, stand_ins: StandIns) -> None:
    stand_ins.put("uv", FAILS)
    interpreters, venv = asking(tmp_path, allow="always"), venv_of(tmp_path, NEEDS)
    await (await held_up(interpreters, NEEDS)).over()
    failed = await held_up(interpreters, NEEDS)
    assert failed.state == "waiting"
    assert "cannot be installed: no luck today (log: " in str(failed) and str(failed).endswith("tries again")
    venv.allow()
    await failed.over()
    assert (await held_up(interpreters, NEEDS)).state == "building"


async def test_never_means_what_is_there_and_nothing_more(tmp_path: Path, stand_ins: StandIns) -> None:
    stand_ins.put("uv", BUILDS)
    never = asking(tmp_path, allow="never")
    with pytest.raises(Refused, match='needs a==1, b, which `allow = "never"`'):
        await never.of(NEEDS)
    await (await held_up(asking(tmp_path, allow="always"), NEEDS)).over()
    assert (await never.of(NEEDS)).python == venv_of(tmp_path, NEEDS).python


async def test_what_cannot_be_read_or_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        await asking(tmp_path).of(a_plugin("dependencies = 1"))
    assert (caught.value.failure.file, caught.value.failure.line) == ("x.py", 2)
    with pytest.raises(Refused, match="needs Python <3"):
        await asking(tmp_path).of(a_plugin('requires-python = "<3"'))


async def test_seclusion_may_be_asked_for_or_required(tmp_path: Path, stand_ins: StandIns) -> None:
    warnings = list[str]()
    stand_ins.put("bwrap", "echo bwrap: not permitted >&2; exit 1")
    runtime = await asking(tmp_path).of(SECLUDED, warnings.append)
    assert runtime == Runtime(memory_mb=100)
    assert warnings == ["it asks to run without a network, which cannot be kept here: bwrap: not permitted"]
    with pytest.raises(Refused, match="cannot be kept here: bwrap: not permitted"):
        await asking(tmp_path, sandbox=True).of(a_plugin())

    stand_ins.put("bwrap", SUCCEEDS)
    for interpreters, source in ((asking(tmp_path), SECLUDED), (asking(tmp_path, sandbox=True), a_plugin())):
        confinement = (await interpreters.of(source)).confinement
        assert confinement is not None and confinement.hidden == (tmp_path / "home",)

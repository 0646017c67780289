"""Libraries of plugins: declared, asked for, allowed, built without a network; with the real uv or a stand-in."""

from __future__ import annotations

import asyncio
import fcntl
import os
import platform
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.environments import dependencies
from marlaas.engine.environments.dependencies import (
    OWN,
    BuildFailed,
    DeclarationError,
    Interpreters,
    Limits,
    NoPython,
    Refused,
    Requirements,
    Venv,
    Waiting,
    author_api,
    build,
    in_words,
    installed,
    needs_of,
    requirements,
    requirements_of,
    suitable,
    uv_error,
    variables_for_build,
)
from marlaas.engine.environments.files import Source, SourceError, read_source
from marlaas.engine.environments.process.launch import Runtime
from marlaas.engine.environments.service import EnvironmentService
from marlaas.engine.errors import EnvironmentFailure, EnvironmentMissing
from marlaas.engine.home.settings import EnvironmentSettings

from .conftest import ECHO, World, a_spec, echoing, ended
from .wheels import make_wheel

BUILDS = f"""
echo "$*" >> "$(dirname "$0")/calls"
if [ "$1" = venv ]; then
    for last; do :; done
    mkdir -p "$last/bin" && ln -s {sys.executable} "$last/bin/python"
fi
"""
"""An installer that makes the folder, says every command, and installs nothing."""


SUCCEEDS = "exit 0"


class StandIns:
    """A folder of scripts."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder.mkdir()
        self.folder = folder
        monkeypatch.setattr("uv.find_uv_bin", lambda: str(folder / "uv"))
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def put(self, name: str, script: str) -> None:
        """Another script under that name, at once."""
        unfinished = self.folder / f".{name}"
        unfinished.write_text(f"#!/bin/sh\n{script}\n")
        unfinished.chmod(0o755)
        unfinished.replace(self.folder / name)

    def hang(self, name: str) -> Path:
        """A script that tells its process id through the pipe that is returned, and then stays."""
        pipe = self.folder / "started"
        os.mkfifo(pipe)
        self.put(name, f"echo $$ > {pipe}\nexec sleep 600")
        return pipe

    @property
    def calls(self) -> list[str]:
        """What ``BUILDS`` was called with."""
        return (self.folder / "calls").read_text().splitlines()


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIns:
    """Scripts in place of the real programs."""
    return StandIns(tmp_path / "bin", monkeypatch)


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
    return declared_venv(world.folder.parent, read_source(world.folder / name))


def states(world: World) -> dict[str, str]:
    return {info.name: info.state for info in world.service.infos()}


@pytest.mark.processes
async def test_from_a_file_to_an_episode_on_its_own_python(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/a-secret-index")
    await world.serve(chain=WITH_LIBRARY, echo=ECHO)
    asked = await world.until("waiting", "chain")
    sentence = "needs tiny==1.0: allow with `marlaas env allow chain`"
    assert asked.failure is not None and asked.failure.message == sentence
    assert states(world) == {"chain": "waiting", "echo/echo": "ready"}
    with pytest.raises(EnvironmentFailure, match="chain: needs tiny"):
        await world.service.bind("chain/uses")
    for name in ("chain", "chain/uses"):
        with pytest.raises(EnvironmentFailure, match="chain: needs tiny"):
            world.service.validate(name, {})
    with pytest.raises(EnvironmentMissing, match="There is no environment 'nowhere'"):
        world.service.validate("nowhere", {})

    venv_of(world, "chain.py").allow()
    await world.until("building", "chain")
    assert states(world)["chain"] == "building"
    await world.until("loaded", "chain")
    assert states(world) == {"chain/uses": "ready", "echo/echo": "ready"}
    outcome = await world.play("chain/uses")
    assert outcome.status == "ok", outcome.failure
    folder = venv_of(world, "chain.py").folder
    assert outcome.metrics == {"python": str(folder), "memory": 1024.0, "seen": ""}

    await world.edit("other", WITH_LIBRARY.replace("1024", "512"))
    assert [event.kind for event in world.told if event.plugin == "other"] == ["loaded"]

    version = next(info.version for info in world.service.infos() if info.name == "chain/uses")
    world.save("chain.py", WITH_LIBRARY.replace("tiny==1.0", "tiny==2.0"))
    await world.until("waiting", "chain")
    assert states(world)["chain/uses"] == "stale", "the last good version goes on"
    assert (await world.play("chain/uses")).status == "ok"
    await world.edit("chain", ECHO.replace("echo(", "uses("))
    await world.service.stop()

    world.service = a_service(world)  # another engine knows the older version only by its snapshot
    with await world.service.bind("chain/uses", version) as lease:
        outcome = await world.service.play(lease, a_spec(), echoing)
    assert outcome.metrics["python"] == str(folder)


@pytest.mark.processes
async def test_a_build_that_fails_is_said_and_an_edit_mends_it(world: World) -> None:
    world.save("chain.py", WITH_LIBRARY.replace("tiny==1.0", "missing==3"))
    venv_of(world, "chain.py").allow()
    await world.service.start()
    await world.until("building", "chain")
    failed = await world.until("waiting", "chain")
    assert failed.failure is not None and "which cannot be installed" in failed.failure.message
    assert "missing" in failed.failure.message.partition("installed:")[2]
    assert failed.failure.message.endswith("tries again")
    venv_of(world, "chain.py").allow()
    await world.until("building", "chain")
    await world.edit("chain", ECHO)


@pytest.mark.processes
async def test_an_edit_ends_a_build(world: World, stand_ins: StandIns) -> None:
    started = stand_ins.hang("uv")
    world.save("chain.py", WITH_LIBRARY)
    venv_of(world, "chain.py").allow()
    await world.service.start()
    installer = asyncio.create_task(ended(int(await asyncio.to_thread(started.read_text))))
    await world.edit("chain", ECHO)
    await installer


@pytest.mark.processes
async def test_a_network_that_cannot_be_denied_is_a_warning(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marlaas.engine.environments.dependencies.obstacle", lambda: "no namespaces")
    await world.serve(echo="# /// script\n# [tool.marlaas]\n# network = false\n# ///\n" + textwrap.dedent(ECHO))
    warning = await world.until("unconfined", "echo")
    assert warning.failure is not None and "without a network" in warning.failure.message
    await world.until("loaded", "echo")
    assert (await world.play("echo")).status == "ok"


ANYTHING = EnvironmentSettings()


def a_venv(tmp_path: Path, *dependencies: str) -> Venv:
    return Venv.of(Requirements(dependencies or ("anything",)), OWN, tmp_path / "home" / "venvs")


@pytest.fixture
def wheels(tmp_path: Path) -> EnvironmentSettings:
    folder = tmp_path / "wheels"
    make_wheel(folder, "needed", "2.0", {"needed.py": "VALUE = 41\n"})
    make_wheel(folder, "tiny", "1.0", {"tiny.py": "from needed import VALUE\nVALUE += 1\n"}, requires=("needed>=1",))
    return EnvironmentSettings(wheels=str(folder), offline=True)


@pytest.mark.processes
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


@pytest.mark.processes
async def test_one_set_is_built_once(tmp_path: Path, stand_ins: StandIns) -> None:
    """What a killed build has left is built again."""
    stand_ins.put("uv", BUILDS)
    venv, said = a_venv(tmp_path), list[str]()
    venv.python.parent.mkdir(parents=True)
    venv.python.symlink_to(OWN.executable)
    (venv.folder / "half").touch()
    await asyncio.gather(build(venv, ANYTHING), build(venv, ANYTHING, said.append))
    await build(venv, ANYTHING)
    assert said == ["Another installation of this home is running; this one comes after it."]
    assert [call.split()[0] for call in stand_ins.calls] == ["venv", "pip"] and venv.built
    assert not (venv.folder / "half").exists()


@pytest.mark.processes
async def test_a_build_that_takes_too_long_ends(
    tmp_path: Path, stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dependencies, "BUILD_TIMEOUT", 0.01)
    stand_ins.put("uv", "exec sleep 600")
    with pytest.raises(BuildFailed, match="took longer than"):
        await build(a_venv(tmp_path), ANYTHING)


@pytest.mark.processes
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
from marlaas.engine.environments.dependencies import Venv, build

uv.find_uv_bin = lambda: sys.argv[2]
asyncio.run(build(Venv(Path(sys.argv[1]), ("anything",)), EnvironmentSettings()))
"""


@pytest.mark.processes
def test_the_build_sees_proxies_and_uv_s_settings_and_no_keys() -> None:
    kept = {"PATH": "/bin", "HTTPS_PROXY": "p", "no_proxy": "x", "UV_DEFAULT_INDEX": "i"}
    hidden = {"AWS_SECRET_ACCESS_KEY": "s", "HF_TOKEN": "t", "PYTHONPATH": "y", "PIP_INDEX_URL": "j"}
    assert variables_for_build(kept | hidden) == kept


@pytest.mark.parametrize(
    ("settings", "variables", "words"),
    [
        ({}, {"PIP_INDEX_URL": "http://p"}, "the index in uv's settings, else PyPI (pip's settings do not count)"),
        ({}, {"UV_INDEX_URL": "http://u"}, "the index http://u"),
        (
            {"wheels": "/w"},
            {"UV_DEFAULT_INDEX": "https://me:pa@ss@host/x@y"},
            "the folder /w and the index https://host/x@y",
        ),
        ({"wheels": "/w", "offline": True}, {}, "the folder /w"),
        ({"offline": True}, {}, "uv's cache"),
    ],
)
def test_people_see_the_place_of_libraries_and_no_password(
    settings: dict[str, Any], variables: dict[str, str], words: str
) -> None:
    assert in_words(EnvironmentSettings(**settings), variables) == words


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


@pytest.mark.processes
def test_the_reason_of_a_failure() -> None:
    assert uv_error(UNSOLVABLE) == (
        "No solution found when resolving dependencies: Because nothing was not found in the cache and you require"
        " nothing==3, we can conclude that they are lost."
    )
    assert uv_error(UNBUILT) == (
        "Failed to build `numpy==1.19.5`: The build backend returned an error: Call to `build_wheel` failed (exit"
        " status: 1)"
    )


def a_plugin(*lines: str) -> Source:
    text = "".join(f"# {line}\n" for line in ("/// script", *lines, "///"))
    return Source("x", "x.py", (("x.py", text.encode()),))


NEEDS = a_plugin('dependencies = ["a==1", "B"]')
SECLUDED = a_plugin("[tool.marlaas]", "network = false", "memory_mb = 100")


def asking(tmp_path: Path, **settings: object) -> Interpreters:
    return Interpreters(tmp_path / "home" / "venvs", EnvironmentSettings(**settings))  # type: ignore[arg-type]


def declared_venv(tmp_path: Path, source: Source) -> Venv:
    _, venv = needs_of(source, tmp_path / "home" / "venvs")
    assert venv is not None
    return venv


async def held_up(interpreters: Interpreters, source: Source) -> Waiting:
    with pytest.raises(Waiting) as caught:
        await interpreters.of(source)
    return caught.value


@pytest.mark.processes
async def test_a_plugin_without_needs_runs_on_our_python(tmp_path: Path) -> None:
    assert await asking(tmp_path).of(Source("x", "x.py", (("x.py", b""),))) == Runtime()
    assert not (tmp_path / "home").exists()
    interpreters = Interpreters(tmp_path, EnvironmentSettings(), nice=10)
    assert (await interpreters.of(Source("x", "x.py", (("x.py", b""),)))).nice == 15, "others go first"


@pytest.mark.processes
async def test_never_means_what_is_there_and_nothing_more(tmp_path: Path, stand_ins: StandIns) -> None:
    stand_ins.put("uv", BUILDS)
    never = asking(tmp_path, allow="never")
    with pytest.raises(Refused, match='needs a==1, b, which `allow = "never"`'):
        await never.of(NEEDS)
    await (await held_up(asking(tmp_path, allow="always"), NEEDS)).over()
    assert (await never.of(NEEDS)).python == declared_venv(tmp_path, NEEDS).python


@pytest.mark.processes
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


def test_consent_and_build_are_of_the_very_list(tmp_path: Path) -> None:
    seen = Venv.of(Requirements(("a", "b")), OWN, tmp_path)
    other = Venv(seen.folder, ("a", "evil"))  # a list that was made to have the same key
    seen.allow()
    seen.python.parent.mkdir(parents=True)
    seen.python.symlink_to(OWN.executable)
    seen.finish()
    assert seen.allowed and seen.built
    assert not other.allowed and not other.built
    seen.python.unlink()
    assert not seen.built, "its Python has gone"
    seen.folder.with_suffix(".allowed").write_text("")
    assert not seen.allowed, "a file alone is no consent"


NEEDING = '# /// script\n# dependencies = ["{name}"]\n# ///\n'


def plugin(folder: Path, name: str, needs: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(NEEDING.format(name=needs))
    return path


def test_sets_are_claimed_by_what_plugins_declare_now(tmp_path: Path) -> None:
    plugins, venvs = tmp_path / "plugins", tmp_path / "home" / "venvs"
    assert installed(venvs, (plugins,)) == []
    kept, edited = plugin(plugins, "kept", "a"), plugin(plugins, "edited", "b")
    folders = []
    for path in (kept, edited):
        venv = declared_venv(tmp_path, read_source(path))
        (venv.folder / "lib").mkdir(parents=True)
        (venv.folder / "lib" / "x.py").write_bytes(bytes(1000))
        venv.allow()
        folders.append(venv.folder)
    (venvs / "api-0").mkdir()
    assert {(one.folder, one.size, one.claimed) for one in installed(venvs, (plugins,))} == {
        (folders[0], 1000, True),
        (folders[1], 1000, True),
    }
    plugin(plugins, "edited", "c")
    (plugins / "broken.py").write_text("# /// script\n# dependencies = 3\n# ///\n")
    assert [one.folder for one in installed(venvs, (tmp_path / "nowhere", plugins)) if not one.claimed] == [folders[1]]


BLOCK = """\
#!/usr/bin/env python
# A comment.

# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "Reasoning_Gym==0.1.25",  # the datasets
#   "nltk",
# ]
#
# [tool.marlaas]
# memory_mb = 512
# network = false
# ///
from marlaas.plugins import env
"""

DECLARED = Requirements(("nltk", "reasoning-gym==0.1.25"), ">=3.11", Limits(512, False))


def a_file(text: str, name: str = "x.py") -> Source:
    return Source("x", name, ((name, text.encode()),))


def a_package(project: str) -> Source:
    files = (("x/__init__.py", BLOCK.encode()), ("x/pyproject.toml", project.encode()))
    return Source("x", "x", files)


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        (BLOCK, DECLARED),
        (BLOCK.replace("\n", "\r\n"), DECLARED),
        (BLOCK.rpartition("from")[0].rstrip("\n"), DECLARED),
        (f"# /// other\n# [oops\n# ///\n\n{BLOCK}", DECLARED),
        *(
            (text, Requirements())
            for text in (
                *("", "import os\n", "# /// other\n# x = 1\n# ///\n", "# /// script\n# ///\n", "x = '# /// script'\n"),
            )
        ),
    ],
)
def test_a_block_in_a_file(text: str, needs: Requirements) -> None:
    assert requirements_of(a_file(text)) == needs


def test_a_package_declares_in_its_project_file() -> None:
    project = """\
        [build-system]
        requires = ["setuptools"]
        [project]
        name = "x"
        requires-python = ">=3.11"
        dependencies = ["reasoning_gym == 0.1.25", "nltk"]
        [tool.marlaas]
        memory_mb = 512
        network = false
        """
    assert requirements_of(a_package(textwrap.dedent(project))) == DECLARED
    assert requirements_of(a_package("[tool.other]\nx = 1\n")) == Requirements()
    assert requirements_of(Source("x", "x", (("x/__init__.py", b""),))) == Requirements()


@pytest.mark.parametrize(
    ("source", "place", "words"),
    [
        (a_file(BLOCK.replace("512", "=512")), ("x.py", 12), "no TOML: Invalid value (column 15)"),
        (a_file(BLOCK.replace('#   "nltk",\n# ]\n', "")), ("x.py", 9), "no TOML"),
        (a_file("# /// script\n# x = [\n# ///\n"), ("x.py", 2), "no TOML"),
        (a_file(BLOCK.replace("nltk", "nl tk")), ("x.py", 8), "'nl tk' is no requirement"),
        (a_file(BLOCK.replace(">=3.11", "3.11")), ("x.py", 5), "requires-python"),
        (a_file(BLOCK.replace("network", "netwrk")), ("x.py", 13), "Did you mean 'network'?"),
        (a_file(BLOCK.replace("# ///\n", "")), ("x.py", 4), "has no end"),
        (a_file(f"{BLOCK}{BLOCK}"), ("x.py", 19), "a second block"),
        (a_file("dependencies = 1\n", "x.toml"), ("x.toml", 1), "a list of texts"),
        (a_file("adapter = [\n", "x.toml"), ("x.toml", 1), "no TOML"),
        (a_file("# games\nadapter = chess\n", "x.toml"), ("x.toml", 2), "no TOML: Invalid value (column 11)"),
        (a_package("[project]\nname = 'x'\ndependencies = 'a'\n"), ("x/pyproject.toml", 3), "a list of texts"),
        (a_package("project = 1\n"), ("x/pyproject.toml", 1), "must be tables"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(source: Source, place: tuple[str, int], words: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        requirements_of(source)
    assert (caught.value.file, caught.value.line) == place and words in str(caught.value)


@given(st.text("#/ script\n=[]\"'x", max_size=60), st.sampled_from(["x.py", "x.toml"]))
def test_any_text_is_read_or_refused(text: str, name: str) -> None:
    try:
        assert isinstance(requirements_of(a_file(f"# /// script\n{text}", name)), Requirements)
    except SourceError as error:
        assert isinstance(error, DeclarationError) and 1 <= error.line <= text.count("\n") + 2


NAMES = st.sampled_from(["a", "reasoning-gym", "nltk", "zope.interface"])
VERSIONS = st.sampled_from(["", "==1.0", ">=2,<3", "!=1.5,>=1"])


@given(st.lists(st.tuples(NAMES, VERSIONS), max_size=5), st.randoms(use_true_random=False))
def test_spelling_and_order_do_not_matter(wanted: list[tuple[str, str]], randomness: random.Random) -> None:
    def spelled(name: str, version: str) -> str:
        other = "".join(randomness.choice((c.upper(), c)) for c in name).replace("-", randomness.choice("-_."))
        return f" {other} {','.join(randomness.sample(version.split(','), version.count(',') + 1))} "

    plain = requirements([name + version for name, version in wanted], None, None)
    other = [spelled(*one) for one in wanted]
    randomness.shuffle(other)
    assert requirements(other, None, None) == plain
    assert requirements(other, None, None).key("3.11") == plain.key("3.11")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with Pythons 3.40.1 (out of sight), 3.28.3, 3.27.9 and one that does not run."""
    for name, script in {"3.40": "echo 3.40.1", "3.28": "echo 3.28.3", "3.27": "echo 3.27.9", "3.26": "exit 1"}.items():
        executable = tmp_path / f"python{name}"
        executable.write_text(f"#!/bin/sh\n{script}\n")
        executable.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.mark.processes
def test_a_plugin_gets_our_python_or_the_oldest_that_fits(path: Path) -> None:
    assert {suitable(requires) for requires in ("", ">=3.11", f"=={platform.python_version()}")} == {OWN}
    assert suitable(">=3.26").executable == path / "python3.27"
    assert suitable(">=3.27.10").version == "3.28"
    for requires in (">=3.29", "<3.11", "==3.28.4"):
        with pytest.raises(NoPython, match=f"needs Python {requires}, but marlaas runs on 3"):
            suitable(requires)

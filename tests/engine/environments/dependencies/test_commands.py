"""The commands that build an environment, and what they are told of the engine's variables."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from marlaas.engine.environments.dependencies import commands as module
from marlaas.engine.environments.dependencies.commands import NoInstaller, commands, in_words, variables_for_build
from marlaas.engine.environments.dependencies.pythons import Python
from marlaas.engine.environments.dependencies.venv import Venv
from marlaas.engine.home.settings import EnvironmentSettings

VENV = Venv(Path("/h/venvs/abc"), ("a==1", "b"), Python(Path("/usr/bin/python3.12"), "3.12"))
PLAIN, OFFLINE = EnvironmentSettings(), EnvironmentSettings(offline=True)
WHEELS, SEALED = EnvironmentSettings(wheels="/w"), EnvironmentSettings(wheels="/w", offline=True)


def test_with_uv() -> None:
    made, install = commands(VENV, PLAIN, "/bin/uv")
    assert made == ["/bin/uv", "venv", "--quiet", "--no-project", "--python", "/usr/bin/python3.12", "/h/venvs/abc"]
    assert install == [
        *("/bin/uv", "pip", "install", "--python", "/h/venvs/abc/bin/python", "--compile-bytecode"),
        *("a==1", "b"),
    ]


def test_without_uv_our_own_pip_installs() -> None:
    made, install = commands(VENV, PLAIN, None)
    assert made == ["/usr/bin/python3.12", "-m", "venv", "--without-pip", "/h/venvs/abc"]
    assert install[:6] == [sys.executable, "-m", "pip", "--python", "/h/venvs/abc/bin/python", "install"]
    assert install[-2:] == ["a==1", "b"] and "--no-index" not in install


@pytest.mark.parametrize(
    ("settings", "uv", "expected"),
    [
        (WHEELS, "uv", ["--find-links", "/w"]),
        (WHEELS, None, ["--find-links", "/w"]),
        (SEALED, "uv", ["--offline", "--no-index", "--find-links", "/w"]),
        (SEALED, None, ["--no-index", "--find-links", "/w"]),
        (OFFLINE, "uv", ["--offline"]),
        (OFFLINE, None, ["--no-index"]),
    ],
)
def test_where_wheels_come_from(settings: EnvironmentSettings, uv: str | None, expected: list[str]) -> None:
    install = commands(VENV, settings, uv)[-1]
    assert install[-2 - len(expected) : -2] == expected


def test_another_python_without_libraries_installs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert len(commands(Venv(VENV.folder, (), VENV.base), PLAIN, None)) == 1
    with pytest.raises(NoInstaller, match="neither uv nor pip"):
        commands(VENV, PLAIN, None)


def test_the_build_sees_proxies_and_indexes_and_no_keys() -> None:
    kept = {"PATH": "/bin", "HTTPS_PROXY": "p", "no_proxy": "x", "UV_DEFAULT_INDEX": "i", "PIP_INDEX_URL": "j"}
    hidden = {"AWS_SECRET_ACCESS_KEY": "s", "HF_TOKEN": "t", "PYTHONPATH": "y", "PIP_TARGET": "z", "PIP_USER": "1"}
    assert variables_for_build(kept | hidden) == kept


@pytest.mark.parametrize(
    ("settings", "uv", "variables", "words"),
    [
        (PLAIN, "uv", {}, "the index that uv is set up for"),
        (PLAIN, None, {"UV_INDEX_URL": "http://u"}, "the index that pip is set up for"),
        (PLAIN, "uv", {"UV_INDEX_URL": "http://u"}, "the index http://u"),
        (WHEELS, None, {"PIP_INDEX_URL": "https://me:pa@ss@host/x@y"}, "the folder /w and the index https://host/x@y"),
        (SEALED, "uv", {}, "the folder /w"),
        (OFFLINE, "uv", {}, "uv's cache"),
        (OFFLINE, None, {}, "nowhere: offline is set"),
    ],
)
def test_the_place_in_words(
    settings: EnvironmentSettings, uv: str | None, variables: dict[str, str], words: str
) -> None:
    assert in_words(settings, uv, variables) == words

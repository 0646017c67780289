"""Modules that were dropped as they are, in the forms of other libraries, are environments all the same."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from marlaas.plugins.host.loading import load

TRL = '''
class Safe:
    "Open the safe."

    def reset(self): return "go"
    def get_reward(self): return 1.0

    def turn(self, code: str) -> str:
        """Try a code."""
        return "no"
'''
GYM = """
from gymnasium import Env

class Corridor(Env):
    def reset(self, seed=None): return "go", {}
    def step(self, action): return "", 1.0, True, False, {}
"""
OPENENV = """
from openenv.core import Environment

class Action:
    model_fields = {"text": None}

class Echo(Environment):
    def reset(self, seed=None): ...
    def step(self, action: Action): ...
"""
NATIVE = """
from marlaas.plugins import env

@env
async def own(ep): return 1.0
"""


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins of the two libraries whose classes authors derive from."""
    for name, base in (("gymnasium", "Env"), ("openenv", ""), ("openenv.core", "Environment")):
        module = ModuleType(name)
        if base:
            setattr(module, base, type(base, (), {"__module__": name, "step": None}))
        monkeypatch.setitem(sys.modules, name, module)


def saved(tmp_path: Path, text: str, name: str = "dropped.py") -> Path:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "name", "about"),
    [
        (TRL, "Safe", "Open the safe."),
        (GYM, "Corridor", "The Gymnasium environment Corridor."),
        (OPENENV, "Echo", "The OpenEnv environment Echo."),
        (GYM + NATIVE, "own", ""),
        (TRL + GYM.replace("Env)", "Env)"), "Corridor", "The Gymnasium environment Corridor."),
        (GYM + OPENENV, "Echo", "The OpenEnv environment Echo."),
    ],
)
def test_a_module_in_another_form(tmp_path: Path, text: str, name: str, about: str) -> None:
    (found,) = load(saved(tmp_path, text)).values()
    assert found.name == name and found.description.startswith(about)


def test_an_openenv_folder(tmp_path: Path) -> None:
    saved(tmp_path, "name: echo", "echo/openenv.yaml")
    saved(tmp_path, "from openenv.core import Environment\nraise ImportError('a server')", "echo/server/app.py")
    saved(
        tmp_path,
        OPENENV.replace('class Action:\n    model_fields = {"text": None}', "from ..models import Action"),
        "echo/server/echo_environment.py",
    )
    saved(tmp_path, 'class Action:\n    model_fields = {"text": None}\n', "echo/models.py")
    assert list(load(tmp_path / "echo")) == ["Echo"]


@pytest.mark.parametrize(
    "text",
    [
        "x = 1",
        "from gymnasium import Env",
        TRL.replace('        """Try a code."""\n', ""),
        TRL.replace("get_reward", "reward"),
        "__all__ = ['missing']",
    ],
)
def test_what_is_none_of_them(tmp_path: Path, text: str) -> None:
    with pytest.raises(ImportError, match="dropped declares no environment: there is none of @env over a function, "):
        load(saved(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "import verifiers.v1 as vf",
            "this plugin needs verifiers==0.4.0, or verifiers==0.1.14 for load_environment: ",
        ),
        ("import unheard_of", "No module named 'unheard_of': add what provides it to the plugin's dependencies"),
        ("def load_environment(): ...", "or verifiers==0.1.14 for load_environment: add it"),
    ],
)
def test_a_library_that_is_not_there(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=says):
        load(saved(tmp_path, text))

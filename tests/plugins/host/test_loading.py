"""Importing a plugin, and saying where it is wrong."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from marlaas.plugins.host.blame import Blame
from marlaas.plugins.rewards import rewards_of
from tests.loading import load


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("x = 1\nimport json\njson.loads('{')\n", ("p.py", 3), "JSONDecodeError"),
        ("def f():\n    return 1 +\n", ("p.py", 2), "SyntaxError"),
        ("from marlaas.plugins import env\n\n@env\ndef f():\n    pass\n", ("p.py", 3), "first parameter"),
        ("from marlaas.plugins import env\n\n@env('name')\ndef f(ep):\n    pass\n", ("p.py", 3), "settings by name"),
        pytest.param("x = '\0'\n", ("p.py", 0), "null bytes", id="null"),
        ("raise ValueError('y' * 5000)\n", ("p.py", 1), "yyy…"),
        ("bytearray(1 << 60)\n", ("p.py", 1), "memory_mb"),
        ("async def f(): ...\nc = f()\ntry:\n    c.text\nfinally:\n    c.close()\n", ("p.py", 4), "write `await`"),
        ("", ("", 0), "declares no environment"),
    ],
)
def test_the_place_is_the_authors_own_line(tmp_path: Path, text: str, place: tuple[str, int], says: str) -> None:
    (tmp_path / "p.py").write_text(text)
    with pytest.raises(Exception) as caught:
        load(tmp_path / "p.py")
    record = Blame(tmp_path).of(caught.value)
    assert (record["file"], record["line"]) == place
    assert says in record["message"] and len(record["message"]) <= 600 and str(tmp_path) not in record["traceback"]
    assert ("loading.py" in record["traceback"]) == (not place[0]), "the author's own lines, where there are any"


def test_no_line_of_marlaas_is_shown_for_a_whole_function(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text("from marlaas.plugins import env\n\n@env\nasync def f(ep):\n    return 'x'\n")
    function = load(tmp_path / "p.py")["f"].function
    with pytest.raises(TypeError) as caught:
        rewards_of("x", ("agent",), {})
    record = Blame(tmp_path).of_function(caught.value, function)
    assert (record["file"], record["line"], record["traceback"]) == ("p.py", 4, "")


def test_two_environments_of_one_name(tmp_path: Path) -> None:
    twice = '@env(name="same")\nasync def {}(ep): ...\n'
    (tmp_path / "p.py").write_text("from marlaas.plugins import env\n" + twice.format("a") + twice.format("b"))
    with pytest.raises(ImportError, match="two environments of p are called 'same'"):
        load(tmp_path / "p.py")


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


@pytest.fixture
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


@pytest.mark.usefixtures("installed")
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


@pytest.mark.usefixtures("installed")
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


@pytest.mark.usefixtures("installed")
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

"""A version that comes and goes in a process with others: its modules and surroundings with it. No process is started:
what is changed here is put back."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from marlaas.plugins.host.kept import Kept, Surroundings

PLUGIN = """
import os, sys
sys.path.insert(0, os.path.dirname(__file__))
import helper
from marlaas.plugins import env

@env
async def game(ep):
    return helper.VALUE

def later():
    import late
    return late.VALUE
"""


@pytest.fixture
def base() -> Iterator[Surroundings]:
    folder, variables, argv, modules = os.getcwd(), dict(os.environ), sys.argv, set(sys.modules)
    here = Surroundings.here()
    yield here
    here.restore()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = argv
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def kept(folder: Path, name: str, value: int, base: Surroundings) -> Kept:
    snapshot = folder / name
    snapshot.mkdir()
    (snapshot / "game.py").write_text(PLUGIN)
    (snapshot / "helper.py").write_text(f"VALUE = {value}")
    (snapshot / "late.py").write_text(f"VALUE = {10 * value}")
    made = Kept(snapshot / "game.py", folder / "scratch" / name, "", base)
    made.enter()
    made.load()
    return made


def test_each_finds_its_own_modules(tmp_path: Path, base: Surroundings) -> None:
    one = kept(tmp_path, "one", 1, base)
    function = sys.modules["plugin_game"].later
    one.leave()
    assert not {"plugin_game", "helper"} & set(sys.modules)
    other = kept(tmp_path, "other", 2, base)
    assert sys.modules["helper"].VALUE == 2 and sys.modules["plugin_game"].later() == 20
    other.leave()
    one.enter()
    assert sys.modules["helper"].VALUE == 1 and function() == 10, "also what it imports only now"
    assert sys.modules["plugin_game"].later is function
    assert set(one.environments) == set(other.environments) == {"game"}
    one.leave()


def test_its_surroundings_come_back_with_it(tmp_path: Path, base: Surroundings) -> None:
    one = kept(tmp_path, "one", 1, base)
    os.environ["GRADER"] = "strict"
    sys.setrecursionlimit(5000)
    signal.signal(signal.SIGALRM, handler := lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 600.0)
    one.leave()
    base.restore()
    assert "GRADER" not in os.environ and sys.getrecursionlimit() == base.recursion
    assert signal.getsignal(signal.SIGALRM) is base.handlers[signal.SIGALRM]
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0 and tuple(sys.path) == base.search
    one.enter()
    assert os.environ["GRADER"] == "strict" and sys.getrecursionlimit() == 5000
    assert signal.getsignal(signal.SIGALRM) is handler and sys.path[0] == str(tmp_path / "one")
    assert os.getcwd() == os.environ["TMPDIR"] == str(tmp_path / "scratch" / "one")
    one.leave()

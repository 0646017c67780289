"""A first hour, its beginning: the demo, an environment of one's own, and a word that one does not know."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from marlaas.engine.daemon import control
from marlaas.engine.daemon.control import holder
from marlaas.engine.home.paths import Home

from ...end_to_end.conftest import Lab
from .person import Size, edits, person

pytestmark = [pytest.mark.slow, pytest.mark.first_hour, pytest.mark.processes, pytest.mark.timeout(3600)]

ROOT = Path(__file__).resolve().parents[3]
SPELLED = '''from marlaas.plugins import env


@env
async def {name}(ep):
    """Spell a word backwards."""
    word = "".join(ep.rng.choice("abcdefgh") for _ in range(4))
    reply = await ep.ask(f"reverse {{word}}")
    right = sum(a == b for a, b in zip(reply.text, word[::-1]))
    return right / len(word)
'''


def test_install_and_see_the_first_reward(tmp_path: Path, size: Size) -> None:
    """What ``make demo`` runs last, as if nothing of marlaas were on this account yet; ``test_offline_install.py`` is
    about what it runs before."""
    recipe = subprocess.run(
        ["make", "-n", "--no-print-directory", "demo"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    program, *words = recipe.splitlines()[-1].split()
    assert program == ".venv/bin/marlaas"
    nothing_yet = {"MARLAAS_HOME": "", "XDG_STATE_HOME": str(tmp_path)}
    home = Home(tmp_path / "marlaas-demo")
    try:
        with person(Home(tmp_path), size, *words, environment=nothing_yet) as me:
            me.sees("marlaas demo", "● running", "newest rollout")
            me.reads(r"● running +(?:[▇▁]+ +)?[1-9]\d*/\d+ +[▁-▇]+ +\d\.\d\d")
            said = "".join(line.ljust(size[0]) for line in me.leaves().split("\n"))
        printed = re.search(r"\d tasks? goe?s? on running; `marlaas (--home .+? engine stop)` stops", said)
        assert printed and holder(home.lock) is not None
        stopped = [sys.executable, "-P", "-m", "marlaas.app.cli.main", *shlex.split(printed[1])]
        subprocess.run(stopped, check=True, capture_output=True)
        assert holder(home.lock) is None
    finally:
        if holder(home.lock) is not None:
            control.stop(home)


def test_an_own_environment_with_three_mistakes(lab: Lab, size: Size, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"spelled{size[0]}"
    right = SPELLED.format(name=name)
    unknown = right.replace("len(word)", "len(words)")
    missing = unknown.replace("import env\n", "import environ\n")
    unclosed = missing.replace("(ep):", "(ep:")
    edits(lab, monkeypatch, name, unclosed, missing, unknown, right)
    with person(lab.home, size) as me:
        me.opens("environments")
        me.presses("N", "new")
        me.types(name, "What is the environment called?")
        me.presses("enter", "write")
        me.sees(f"{name}.py:5: SyntaxError", "was never closed")
        me.presses("E", "opens your editor there")
        me.sees(f"{name}.py:1: ImportError", "1 │ from marlaas.plugins import environ")
        me.presses("E", "opens your editor there")
        me.sees("ready: can be played", "NameError")
        me.presses("C", "check")
        me.sees("Checked by hand: 1 error", f"{name}.py:10:", "NameError", "'words'")
        me.presses("E", "opens your editor")
        me.sees_no_more("Checked by hand: 1 error")
        me.presses("C", "check")
        me.reads(r"Checked by hand: (?!1 error)")
        me.opens("queue")
        me.presses("a", "add")
        me.sees("missing: environment, name")
        me.types(f"own {name}", "name")
        me.presses("tab", "next")
        me.types(name, "environment: What it plays")
        me.sees("ready: Spell a word")
        me.presses("enter", "choose")
        me.types("2", "steps: ")
        me.reads(r"steps +2 ")
        me.presses("ctrl+s", "submit")
        me.sees(f"own {name} ({name})", "✓ done", "2/2")
        me.leaves()


def test_what_drift_means(lab: Lab, size: Size) -> None:
    with person(lab.home, size) as me:
        me.presses("?", "help")
        me.presses("w", "words and metrics")
        me.sees("what words and metrics mean")
        me.presses("/", "find")
        me.types("drift", "esc clear filter")
        me.sees("drift (metric of a step)", "Mean difference of log-probabilities", "healthy")
        me.presses("enter", "to the list")
        me.presses("esc", "close")
        me.sees_no_more("what words and metrics mean")
        me.leaves()

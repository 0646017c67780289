"""A mistyped --home is refused by every verb, and one plain verb makes a home there."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from marlaas.app.cli.main import build_parser
from marlaas.engine.home.paths import Home

from ....seldom import often
from ...commanding import Commander, FakeEngine
from ...filling import Filling

TASK = 'tenant = "lab"\nname = "sums"\nenvironment = "arithmetic"\nsteps = 5\n'
WORDS = {
    "submit": "FILE",
    "eval": "1",
    "compare": "1 2",
    **dict.fromkeys(("show", "wait", "pause", "resume", "retry", "cancel"), "1"),
    "extend": "1 --steps 2",
    "tenants set": "lab --weight 2",
    **dict.fromkeys(("metrics", "matrix", "rollouts", "chat", "env replay"), "1"),
    **dict.fromkeys(("env new", "env prompts", "env check", "env play", "env allow", "env reload"), "arithmetic"),
    **dict.fromkeys(("env show", "env log"), "arithmetic"),
    "base use": "tiny",
    "adapters export": "1 --out there",
    **dict.fromkeys(("adapters rollback", "adapters delete"), "1@1"),
    "home backup": "kept.tar",
    "api key new": "ada",
    "api key revoke": "tml-ada",
    **dict.fromkeys(("cluster drain", "cluster undrain"), "grace"),
}
"""What each verb needs besides its home."""
OF_NO_HOME = {"keys", "completion", "explain", "simulate"}
"""Those that read none; a simulation's file says from where it draws."""
MAKE_ONE = {"home new", "home restore", "demo"}


def leaves(parser: argparse.ArgumentParser, name: str = "") -> Iterator[str]:
    """The names of all verbs that do something."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if name and (not below or name == "tenants"):
        yield name
    for action in below:
        for verb, own in action.choices.items():
            yield from leaves(own, f"{name} {verb}".strip())


VERBS = sorted({"", *leaves(build_parser())} - OF_NO_HOME - MAKE_ONE)


@pytest.fixture
def lab(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home beside which one may mistype; the working folder has a task file."""
    monkeypatch.setenv("MARLAAS_HOME", str(tmp_path / "default"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text(TASK)
    Filling(tmp_path / "lab" / "marlaas.db").environment()
    return tmp_path / "lab"


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_refuses_a_mistyped_home(lab: Path, marlaas: Commander, engine: FakeEngine, verb: str) -> None:
    wrong = lab.with_name("labb")
    before = sorted(lab.parent.iterdir())
    said = marlaas("--home", str(wrong), *verb.split(), *WORDS.get(verb, "").split())
    assert (said.code, said.out) == (2, "")
    assert said.err == (
        f"marlaas: No home at {wrong}: there is no such folder.\n"
        f"  Did you mean {lab}? `marlaas --home {wrong} home new` makes one there.\n"
    )
    assert engine.asked == [] and sorted(lab.parent.iterdir()) == before


@pytest.mark.parametrize(
    ("by", "verb"),
    [*(("option", verb) for verb in VERBS), *often([("variable", "list")], product(["variable"], VERBS), several=True)],
)
def test_every_verb_refuses_a_file_as_home(
    lab: Path, marlaas: Commander, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, by: str, verb: str
) -> None:
    file = lab.with_name("FILE")
    if by == "variable":
        monkeypatch.setenv("MARLAAS_HOME", str(file))
    words = ["--home", str(file)] if by == "option" else []
    said = marlaas(*words, *verb.split(), *WORDS.get(verb, "").split())
    assert (said.code, said.out) == (2, "") and engine.asked == []
    assert said.err == f"marlaas: A home is a folder, but {file} is a file.\n  Give a folder with --home.\n"


def test_a_new_home_is_made_by_a_verb_and_is_one_from_then_on(
    lab: Path, marlaas: Commander, engine: FakeEngine
) -> None:
    new = Home(lab.with_name("second"))
    said = marlaas("--home", str(new.root), "home", "new")
    assert (said.code, said.out) == (0, f"{new.root}\n") and f"Environments go into {new.plugins}" in said.err
    assert new.config.exists() and new.plugins.is_dir()
    assert marlaas("--home", str(new.root), "list").code == 0
    assert marlaas("--home", str(new.root), "home", "new", "--json").json == {
        "home": str(new.root),
        "plugins": str(new.plugins),
        "new": False,
    }


def test_a_folder_without_the_option_is_told_how(lab: Path, marlaas: Commander, engine: FakeEngine) -> None:
    wanted = lab.with_name("a second")
    said = marlaas("home", "new", str(wanted))
    assert said.code == 2 and f"Write `marlaas --home '{wanted}' home new`." in said.err and not wanted.exists()


def test_the_default_place_becomes_a_home_without_ceremony(lab: Path, marlaas: Commander, engine: FakeEngine) -> None:
    default = lab.with_name("default")
    assert marlaas("list").code == 0 and not default.exists()
    engine.living = False
    Filling(default / "marlaas.db").environment()
    assert marlaas("submit", "FILE").code == 0
    assert marlaas("--home", str(default), "list").code == 0

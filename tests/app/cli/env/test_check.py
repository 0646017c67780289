"""env check: any plugin file, without an engine; what is wrong with it in lines that can be read."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from marlaas.engine.environments import served_version
from marlaas.engine.home.paths import Home

from ...commanding import Commander, Said

pytestmark = pytest.mark.processes

SOUND = """
from marlaas.plugins import env

@env
async def sums(ep, digits: int = 6):
    a, b = (ep.rng.randrange(10**digits) for _ in "ab")
    return (await ep.ask(f"{a}+{b}=")).text == str(a + b)
"""
HEAD = "from marlaas.plugins import env\n"

Check = Callable[..., Said]


@pytest.fixture
def check(tmp_path: Path, marlaas: Commander) -> Check:
    """Checks a plugin of that text, which lies in no home."""

    def run(text: str, *words: str) -> Said:
        path = tmp_path / "elsewhere" / "mine.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return marlaas("env", "check", str(path), "--prompts", "16", *words)

    return run


def test_a_sound_file_anywhere(home: Home, check: Check) -> None:
    said = check(SOUND)
    assert said.code == 0 and said.out.startswith("mine/sums: nothing wrong\n  · determinism")
    assert "a conversation has room for" in said.out and not home.root.exists()
    document = check(SOUND, "--json", "--config", "digits=2", "--prompts", "2").json
    assert document["ok"] and [one["name"] for one in document["environments"]] == ["mine/sums"]
    assert {"check", "level", "message"} == set(document["environments"][0]["findings"][0])


def test_all_environments_of_a_plugin_or_one(home: Home, marlaas: Commander) -> None:
    home.plugins.mkdir(parents=True)
    (home.plugins / "two.py").write_text(SOUND + SOUND.replace("sums", "more").partition("\n\n")[2])
    both = marlaas("env", "check", "two", "--prompts", "4", "--json").json["environments"]
    assert [one["name"] for one in both] == ["two/sums", "two/more"]
    assert [
        one["name"] for one in marlaas("env", "check", "more", "--prompts", "4", "--json").json["environments"]
    ] == ["two/more"]
    said = marlaas("env", "check", "mroe")
    assert said.code == 2 and "Did you mean 'two/more'?" in said.err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD + "\n@env\nasync def x(ep:\n", "mine.py:4: SyntaxError: "),
        (HEAD + "import no_such_module\n", "mine.py:2: ModuleNotFoundError: No module named 'no_such_module'"),
        ("x = 1\n", "mine declares no environment"),
        (HEAD + "while True:\n    pass\n", "importing the plugin takes too long"),
        ("import os\nos._exit(7)\n", "its process ended by itself with code 7"),
    ],
    ids=["syntax", "import", "none", "endless", "exit"],
)
def test_what_cannot_be_loaded(check: Check, monkeypatch: pytest.MonkeyPatch, text: str, words: str) -> None:
    monkeypatch.setattr(served_version, "IMPORT_PATIENCE", 1.0)
    said = check(text)
    assert said.code == 1 and said.out.startswith("mine: 1 error\n  ✗ load        mine does not load: ")
    assert words in said.out


def test_required_parameters_are_asked_for(check: Check) -> None:
    needy = SOUND.replace("digits: int = 6", "digits: int")
    said = check(needy)
    assert said.code == 1
    assert "mine/sums needs 'digits' (int): give it as in `marlaas env check NAME --config digits=…`." in said.out
    assert check(needy, "--config", "digits=6", "--prompts", "2").code == 0
    wrong = check(needy, "--config", "digits=many")
    assert wrong.code == 1 and "'digits' of sums must be a whole number, not 'many'" in wrong.out


def test_defects_end_with_code_1_and_hostile_text_is_harmless(check: Check) -> None:
    said = check(
        HEAD + "import random\n@env\nasync def x(ep):\n    await ep.ask(f'\\x1b[2J{random.random()}')\n    return 1\n"
    )
    assert said.code == 1 and "  ✗ determinism The first prompt of train instance 0 changes" in said.out
    assert "  ✗ baseline    The empty reply scores 1.00 on average over 16 instances" in said.out
    assert all(c == "\n" or unicodedata.category(c) not in ("Cc", "Cs", "Cf") for c in said.out + said.err)

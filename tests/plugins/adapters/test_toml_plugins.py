"""A ``.toml`` file alone is a plugin, and what is wrong with it is said with its line."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from marlaas.plugins.adapters import dependencies_of
from marlaas.plugins.adapters.toml_plugins import ADAPTERS, TomlError
from marlaas.plugins.host.blame import Blame
from marlaas.plugins.host.loading import load_all
from tests.loading import load

GAME = 'adapter = "textarena"\ngame = "Nim-v0"\n'


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    library = ModuleType("textarena")
    library.make = lambda game, **options: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "textarena", library)


def saved(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "games.toml"
    path.write_text(text, encoding="latin-1")
    return path


def test_one_environment(tmp_path: Path) -> None:
    path = saved(
        tmp_path, f'{GAME}timeout = 5\ndependencies = ["x"]\n[args]\npile = 7\n[tool.marlaas]\nmemory_mb = 99\n'
    )
    (found,) = load(path).values()
    assert (found.name, found.timeout) == ("Nim-v0", 5.0)


def test_several_environments(tmp_path: Path) -> None:
    tables = "".join(f'[[environments]]\nname = "{name}"\n{GAME}' for name in ("one", "two"))
    assert set(load(saved(tmp_path, tables))) == {"one", "two"}
    with pytest.raises(TomlError, match="number 2: 'name': another environment of this file is called 'one'") as caught:
        load(saved(tmp_path, tables.replace("two", "one")))
    assert caught.value.lineno == 6


WRONG = [
    ('name = "bad"\nadapter = "chess"\n', "bad", 2, "adapter must be one of"),
    ('adapter = ["textarena"]\n', "entry_2", 1, "adapter must be one of"),
    (f"{GAME}seats = 3\n", "Nim-v0", 3, "knows no 'seats'"),
    ('adapter = "textarena"\n', "entry_2", 1, "needs 'game'"),
    (f'{GAME}name = "good"\n', "entry_2", 3, "'name': another environment of this file is called 'good'"),
    (f"{GAME}timeout = 0\n", "Nim-v0", 3, "'timeout': the timeout of Nim-v0 must be a number of seconds"),
    (f'{GAME}players = "two"\n', "Nim-v0", 3, "'players' must be a whole number, not 'two'"),
    (f"{GAME}system = 1\n", "Nim-v0", 3, "'system' must be a text, not 1"),
    (f"{GAME}[environments.args]\nplayers = 3\n", "Nim-v0", 4, "'players' is not one of the args"),
    ('adapter = "openenv"\nenvironment = "guess:Guess"\n', "guess_Guess", 1, "this plugin needs openenv=="),
]


@pytest.mark.parametrize(("entry", "name", "line", "says"), WRONG)
def test_a_bad_entry_breaks_only_itself(tmp_path: Path, entry: str, name: str, line: int, says: str) -> None:
    """The same keys stand in the entries around it: the line is the bad entry's own."""
    around = f"[[environments]]\n{GAME}timeout = 5\nplayers = 2\nname = "
    first, last = (f'{around}"{name}"\n\n' for name in ("good", "better"))
    path = saved(tmp_path, f"{first}[[environments]]\n{entry}{last}")
    loaded = load_all(path)
    assert set(loaded.environments) == {"good", "better"} and set(loaded.refused) == {name}
    record = Blame(tmp_path).of(loaded.refused[name])
    assert (record["file"], record["line"]) == ("games.toml", first.count("\n") + 1 + line)
    assert says in record["message"] and record["message"].startswith("TomlError: [[environments]] number 2: ")
    with pytest.raises(TomlError):
        load(path)


def test_entries_in_one_line_are_numbered(tmp_path: Path) -> None:
    good, bad = '{adapter = "textarena", game = "Nim-v0"}', '{adapter = "chess"}'
    loaded = load_all(saved(tmp_path, f"environments = [{good}, {bad}]\n"))
    assert set(loaded.environments) == {"Nim-v0"}
    assert "number 2: adapter must be one of" in str(loaded.refused["entry_2"])


def test_a_file_without_a_good_entry_is_broken(tmp_path: Path) -> None:
    with pytest.raises(TomlError, match="number 1: adapter must be one of"):
        load_all(saved(tmp_path, '[[environments]]\nadapter = "a"\n[[environments]]\nadapter = "b"\n'))


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ('adapter = "textarena"\ngame = \n', 2, r"Invalid value \(column 8\)"),
        (f'{GAME}name = "\xe9"\n', 3, "not UTF-8: invalid continuation byte"),
        (f"{GAME}name = ", 3, r"Invalid value \(at end of document\)"),
        (f"{GAME}[[environments]]\n{GAME}]", 6, r"\(column 1\)"),
        ("", 1, "adapter must be one of reasoning_gym, gymnasium"),
        ('\nadapter = "chess"\n', 2, "not 'chess'"),
        ('adapter = "textarena"\n', 1, "the adapter textarena needs 'game', a text"),
        (f"{GAME}seats = 3\n", 3, "the adapter textarena knows no 'seats'; it knows game, players"),
        (f'{GAME}on_error = "no"\n', 3, "on_error of Nim-v0 must be a number"),
        (f"{GAME}args = 3\n", 3, r"args must be a table: \[args\]"),
        (f"{GAME}[args]\nplayers = 3\n", 4, "'players' is not one of the args"),
        (f"[[environments]]\n{GAME}\n[more]\nx = 1\n", 5, "'more' belongs into an environment"),
        ("environments = []\n", 1, "environments must be tables"),
        ('adapter = "program"\ncommand = "a"\n', 1, "'reward': the reward is missing: \"exit\", the file in which"),
        (
            'adapter = "program"\ncommand = "a"\nreward = "exit"\n[files]\nx = 3\n',
            4,
            "'files': files: 'x' must be a text",
        ),
        (
            'adapter = "program"\ncommand = "a"\nreward = "exit"\nfiles = 3\n',
            4,
            "'files' must be a table or a list, not 3",
        ),
        ('adapter = "program"\ncommand = "a"\nreward = "../x"\n', 3, "'reward': reward: the file '../x' does not lie"),
        (f'{GAME}name = ""\ntimeout = 0\n', 4, "'timeout': the timeout of Nim-v0 must be a number of seconds"),
    ],
)
def test_mistakes_have_a_line(tmp_path: Path, text: str, line: int, says: str) -> None:
    path = saved(tmp_path, text)
    with pytest.raises(TomlError, match=says) as caught:
        load(path)
    record = Blame(tmp_path).of(caught.value)
    assert (record["file"], record["line"]) == ("games.toml", line)
    assert record["message"].startswith("TomlError: ")


def test_default_dependencies() -> None:
    needed = {adapter: len(dependencies_of({"adapter": adapter})) for adapter in ADAPTERS}
    assert needed == dict.fromkeys(ADAPTERS, 1) | {"program": 0, "agent": 0}
    one, other = {"adapter": "textarena"}, {"adapter": "gymnasium"}
    both = dependencies_of(one) + dependencies_of(other)
    assert dependencies_of({"environments": [one, other, one]}) == both
    assert dependencies_of(one | {"dependencies": []}) == ()
    assert dependencies_of({"adapter": "chess"}) == dependencies_of({"environments": 3}) == ()
    with pytest.raises(ValueError, match="list of texts"):
        dependencies_of(one | {"dependencies": "x"})

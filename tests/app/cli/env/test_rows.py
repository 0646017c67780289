"""--rows of env check and env play: an environment on the rows that somebody names."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from marlaas.engine.home.paths import Home

from ...commanding import Commander

pytestmark = pytest.mark.processes

PLUGIN = """
from marlaas.plugins import env

@env
async def repeats(ep, task):
    return (await ep.ask(task["say"])).text == task["say"]
"""


@pytest.fixture
def rows(home: Home, tmp_path: Path) -> Path:
    """Rows that lie sorted by their topic, of which the environment has none of its own."""
    home.plugins.mkdir(parents=True)
    (home.plugins / "repeats.py").write_text(PLUGIN)
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": f"word {n}", "topic": n // 20}) + "\n" for n in range(80)))
    return path


def test_rows_of_a_task_are_checked_before_it_is_submitted(rows: Path, marlaas: Commander) -> None:
    task = rows.with_name("task.toml")
    head = 'tenant = "lab"\nname = "words"\n'
    task.write_text(f'{head}environment = "repeats"\n[data]\npath = "rows.jsonl"\ncolumns = {{ say = "text" }}\n')
    said = marlaas("env", "check", "repeats", "--rows", str(task), "--prompts", "8")
    assert said.code == 0, said.out
    assert "72 rows to train on, 8 to evaluate with. They lie sorted by 'topic' (4 values)" in said.out
    text = task.read_text().replace("environment =", "[[mixture]]\nenvironment =").replace("[data]", "[mixture.data]")
    task.write_text(text)
    assert "72 rows to train on" in marlaas("env", "check", "repeats", "--rows", str(task), "--prompts", "2").out


def test_a_person_plays_them(rows: Path, marlaas: Commander, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("word\n"))
    rows.write_text("".join(json.dumps({"say": f"word {n}"}) + "\n" for n in range(80)))
    said = marlaas("env", "play", "repeats", "--rows", str(rows))
    assert "user       word " in said.out, said.out + said.err


def test_what_is_missing_is_a_sentence(rows: Path, marlaas: Commander) -> None:
    said = marlaas("env", "check", "repeats")
    assert said.code == 1 and "no rows of its own: name some as in `marlaas env check NAME --rows FILE`" in said.out
    said = marlaas("env", "check", "repeats", "--rows", str(rows.with_name("gone.jsonl")))
    assert said.code == 2 and "no rows for 'train': there is no " in said.err
    task = rows.with_name("task.toml")
    task.write_text('tenant = "lab"\nname = "sums"\nenvironment = "arithmetic"\n')
    said = marlaas("env", "check", "repeats", "--rows", str(task))
    assert said.code == 2 and "task.toml: names no rows for repeats/repeats" in said.err
    said = marlaas("env", "check", "arithmetic", "--rows", str(rows))
    assert said.code == 1 and "draws its tasks from no rows" in said.out

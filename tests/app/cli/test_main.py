"""The entry point: exit codes, and no traceback whatever happens."""

from __future__ import annotations

import argparse
import stat
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

import pytest

from marlaas.app.cli import tasks
from marlaas.app.cli.main import VERBS, needed
from marlaas.engine.errors import StoreError
from marlaas.engine.home.paths import Home

from ..commanding import Commander
from ..filling import Filling, fill_full


def fail(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def run(home: Home, args: argparse.Namespace) -> int:
        raise error

    monkeypatch.setattr(tasks, "list_tasks", run)


def test_usage(marlaas: Commander) -> None:
    assert marlaas("nonsense").code == 2
    assert marlaas("show", "one").code == 2
    assert marlaas("show", "9" * 30).code == 2
    assert marlaas("adapters").code == 2
    assert marlaas("--help").code == 0
    assert marlaas("--version").out.startswith("marlaas 0.")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("submitt x.toml", "Did you mean 'submit'? `marlaas --help` lists the verbs."),
        ("engine strat", "Did you mean 'start'? `marlaas engine --help` lists the verbs."),
        ("export --gguf", "Did you mean 'adapters export'? `marlaas --help` lists the verbs."),
        ("qqq", "`marlaas --help` lists the verbs."),
    ],
)
def test_a_verb_that_there_is_not_names_the_nearest(marlaas: Commander, words: str, hint: str) -> None:
    said = marlaas(*words.split())
    wrong = next(word for word in words.split() if word != "engine")  # options behind it are not the first mistake
    assert said.code == 2 and said.err == f"marlaas: There is no verb {wrong!r}.\n  {hint}\n"


@pytest.mark.parametrize(
    ("words", "says", "hint"),
    [
        ("logs --tenat lab", "`marlaas logs` has no option '--tenat'.", "Did you mean '--tenant'?"),
        ("logs 7 8", "'8' is one word too many for `marlaas logs`.", ""),
        ("logs --level bad", "--level is one of info, warning, error, not 'bad'.", ""),
        ("logs --level eror", "--level is one of info, warning, error, not 'eror'.", "Did you mean 'error'?"),
        ("logs -n x", "-n/--lines takes a whole number, not 'x'.", ""),
        ("logs --grep", "--grep needs a value.", ""),
        ("metrics 1 --csv --json", "--json and --csv exclude each other.", ""),
        ("submit", "FILE is missing.", ""),
        ("env play", "NAME is missing.", ""),
        ("show 99999999999999999999", "'99999999999999999999' is not a task's number; `marlaas list` shows them.", ""),
        ("env --foo", "`marlaas env` has no option '--foo'.", ""),
        ("--thme=light list", "`marlaas` has no option '--thme'.", "Did you mean '--theme'?"),
    ],
)
def test_a_mistake_in_a_command_is_one_sentence(marlaas: Commander, words: str, says: str, hint: str) -> None:
    """And how to see what the verb takes; never the list of all its options."""
    said = marlaas(*words.split())
    first, second = said.err.splitlines()
    assert said.code == 2 and first == f"marlaas: {says}"
    verb = f"marlaas {words}" if words in ("submit", "env play") else f"marlaas {words.split()[0]}"
    verb = "marlaas" if words.startswith("--") else verb
    assert second.strip() == f"{hint} `{verb} --help` shows what it takes.".strip()


@pytest.mark.parametrize("module", VERBS)
def test_every_module_has_the_verbs_that_the_table_says(module: str) -> None:
    verbs = argparse.ArgumentParser().add_subparsers()
    import_module(f"marlaas.app.cli.{module}").register(verbs)
    assert sorted(verbs.choices) == sorted(VERBS[module])


@pytest.mark.parametrize(
    ("line", "modules"),
    [
        ("", ()),
        ("--home list --ascii", ()),
        ("--theme=x show 1", ("tasks",)),
        ("--home x resume 3", ("queue",)),
        ("--hom x list", tuple(VERBS)),
        ("--help", ()),
        ("nonsense", tuple(VERBS)),
        ("--readonly --home", ()),
    ],
)
def test_a_command_line_loads_its_own_verb_alone(line: str, modules: tuple[str, ...]) -> None:
    assert needed(line.split()) == modules


def test_the_help_lists_every_verb_on_one_screen(marlaas: Commander) -> None:
    lines = marlaas("--help").out.splitlines()
    assert len(lines) <= 24
    assert {verb for verbs in VERBS.values() for verb in verbs} <= set(" ".join(lines).split())


def test_known_errors_are_a_sentence(marlaas: Commander, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, StoreError("The disk\x1b[31m is full.", "Make room."))
    said = marlaas("list")
    assert (said.code, said.err) == (1, "marlaas: The disk is full.\n  Make room.\n")


def test_unknown_errors_are_a_sentence_and_a_file(
    marlaas: Commander, monkeypatch: pytest.MonkeyPatch, home: Home
) -> None:
    home.logs.mkdir(parents=True)
    fail(monkeypatch, ZeroDivisionError("oh"))
    said = marlaas("list")
    assert said.code == 1 and said.err.count("\n") == 2 and "Traceback" not in said.err
    assert str(home.logs / "marlaas-errors.log") in said.err
    assert "ZeroDivisionError: oh" in (home.logs / "marlaas-errors.log").read_text()


def test_the_traceback_is_for_its_owner_alone(marlaas: Commander, monkeypatch: pytest.MonkeyPatch, home: Home) -> None:
    home.logs.mkdir(parents=True)
    log = home.logs / "marlaas-errors.log"
    log.touch(0o644)
    fail(monkeypatch, ZeroDivisionError("oh"))
    marlaas("list")
    assert stat.S_IMODE(log.stat().st_mode) == 0o600 and "oh" in log.read_text()


@pytest.mark.parametrize("link", ["there", "to nothing"])
def test_a_traceback_follows_no_link(
    link: str, marlaas: Commander, monkeypatch: pytest.MonkeyPatch, home: Home, tmp_path: Path
) -> None:
    """Neither in the home nor in the temporary folder, where a second file has a name of its own."""
    temporary, mine = tmp_path / "tmp", tmp_path / "mine"
    temporary.mkdir()
    home.logs.mkdir(parents=True)
    if link == "there":
        mine.write_text("precious")
    for folder in (home.logs, temporary):
        (folder / "marlaas-errors.log").symlink_to(mine)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    fail(monkeypatch, ZeroDivisionError("oh"))
    said = [marlaas("list").err for _ in range(2)]
    logs = [path for path in temporary.iterdir() if not path.is_symlink()]
    assert len(logs) == 2 and all(any(str(path) in words for path in logs) for words in said)
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 and "oh" in path.read_text() for path in logs)
    assert mine.read_text() == "precious" if link == "there" else not mine.exists()


def test_errors_of_the_system_name_the_file(marlaas: Commander, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, PermissionError(13, "Permission denied", "/some/file"))
    assert marlaas("list").err.startswith("marlaas: Permission denied: /some/file.")


def test_interrupted(marlaas: Commander, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, KeyboardInterrupt())
    assert marlaas("list").code == 130


def test_a_reader_that_goes_away_is_no_error(home: Home) -> None:
    fill_full(home.database)
    code = "import sys; from marlaas.app.cli.main import main; sys.exit(main(['logs', '-f']))"
    with subprocess.Popen(
        [sys.executable, "-P", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert "task 1 started" in process.stdout.readline()
        process.stdout.close()
        Filling(home.database).event("more")
        assert process.wait(50) == 0
        assert process.stderr.read() == ""


def test_streams_that_were_closed_at_the_start(home: Home) -> None:
    fill_full(home.database, tasks=1)
    command = [sys.executable, "-m", "marlaas.app.cli.main", "--home", str(home.root), "list"]
    said = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], stderr=subprocess.PIPE, timeout=60)
    assert said.returncode == 0 and said.stderr.startswith(b"No engine is alive") and said.stderr.count(b"\n") == 1
    said = subprocess.run(["sh", "-c", '"$@" >&- 2>&-', "sh", *command, "--json"], timeout=60)
    assert said.returncode == 0


def test_without_a_terminal_the_list_is_printed(home: Home) -> None:
    fill_full(home.database, tasks=2)
    command = [sys.executable, "-P", "-m", "marlaas.app.cli.main", "--home", str(home.root)]
    said = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert said.returncode == 0 and said.stdout.splitlines()[0].startswith("ID  TENANT")
    assert len(said.stdout.splitlines()) == 3 and "\x1b" not in said.stdout + said.stderr

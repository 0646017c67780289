"""The entry point: exit codes, and no traceback whatever happens."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

from marlaas.app.cli import tasks
from marlaas.app.cli.main import VERBS, build_parser, needed
from marlaas.app.text.terms import TERMS
from marlaas.engine.errors import StoreError
from marlaas.engine.home.paths import Home

from ..commanding import Commander, FakeEngine
from ..filling import HOSTILE, Filling, fill_full
from ..filling_environments import fill_environments
from ..filling_evaluation import fill_evaluation
from ..filling_policies import fill_duel
from ..filling_task import fill_task


def fail(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def run(home: Home, args: argparse.Namespace) -> int:
        raise error

    monkeypatch.setattr(tasks, "list_tasks", run)


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
        ("logs --level eror", "--level is one of info, warning, error, not 'eror'.", "Did you mean 'error'?"),
        ("logs --grep", "--grep needs a value.", ""),
        ("metrics 1 --csv --json", "--json and --csv exclude each other.", ""),
        ("submit", "FILE is missing.", ""),
        ("show 99999999999999999999", "'99999999999999999999' is not a task's number; `marlaas list` shows them.", ""),
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


def test_every_module_has_the_verbs_that_the_table_says() -> None:
    for module, names in VERBS.items():
        verbs = argparse.ArgumentParser().add_subparsers()
        import_module(f"marlaas.app.cli.{module}").register(verbs)
        assert sorted(verbs.choices) == sorted(names)


@pytest.mark.parametrize(
    ("line", "modules"),
    [
        ("", ()),
        ("--theme=x show 1", ("tasks",)),
        ("--hom x list", tuple(VERBS)),
        ("nonsense", tuple(VERBS)),
    ],
)
def test_a_command_line_loads_its_own_verb_alone(line: str, modules: tuple[str, ...]) -> None:
    assert needed(line.split()) == modules


def test_the_help_lists_every_verb_on_one_screen(marlaas: Commander) -> None:
    assert marlaas("--version").out.startswith("marlaas 0.")
    lines = marlaas("--help").out.splitlines()
    assert len(lines) <= 24
    assert {verb for verbs in VERBS.values() for verb in verbs} <= set(" ".join(lines).split())


def test_known_errors_are_a_sentence(marlaas: Commander, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, StoreError("The disk\x1b[31m is full.", "Make room."))
    said = marlaas("list")
    assert (said.code, said.err) == (1, "marlaas: The disk is full.\n  Make room.\n")


def test_unknown_errors_are_a_sentence_and_a_file_of_its_owner(
    marlaas: Commander, monkeypatch: pytest.MonkeyPatch, home: Home
) -> None:
    log = home.create().logs / "marlaas-errors.log"
    log.parent.mkdir(exist_ok=True)
    log.touch(0o644)
    fail(monkeypatch, ZeroDivisionError("oh"))
    said = marlaas("list")
    assert said.code == 1 and said.err.count("\n") == 2 and "Traceback" not in said.err and str(log) in said.err
    assert "ZeroDivisionError: oh" in log.read_text() and stat.S_IMODE(log.stat().st_mode) == 0o600


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
    "adapters push": "1 me/sums",
    "adapters pull": "me/sums",
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


ALL_VERBS = sorted({"", *leaves(build_parser())} - OF_NO_HOME - MAKE_ONE)


@pytest.fixture
def lab(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home beside which one may mistype; the working folder has a task file."""
    monkeypatch.setenv("MARLAAS_HOME", str(tmp_path / "default"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text(TASK)
    Filling(tmp_path / "lab" / "marlaas.db").environment()
    return tmp_path / "lab"


def test_every_verb_refuses_a_mistyped_home(lab: Path, marlaas: Commander, engine: FakeEngine) -> None:
    wrong = lab.with_name("labb")
    before = sorted(lab.parent.iterdir())
    for verb in ALL_VERBS:
        said = marlaas("--home", str(wrong), *verb.split(), *WORDS.get(verb, "").split())
        assert (said.code, said.out) == (2, ""), verb
        assert said.err == (
            f"marlaas: No home at {wrong}: there is no such folder.\n"
            f"  `marlaas --home {wrong} home new` makes one there.\n"
        )
    assert engine.asked == [] and sorted(lab.parent.iterdir()) == before


@pytest.mark.parametrize(("by", "verb"), [("option", ""), ("option", "home check"), ("variable", "list")])
def test_a_file_is_no_home(
    lab: Path, marlaas: Commander, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, by: str, verb: str
) -> None:
    file = lab.with_name("FILE")
    if by == "variable":
        monkeypatch.setenv("MARLAAS_HOME", str(file))
    words = ["--home", str(file)] if by == "option" else []
    said = marlaas(*words, *verb.split())
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


def test_the_default_place_becomes_a_home_without_ceremony(lab: Path, marlaas: Commander, engine: FakeEngine) -> None:
    default = lab.with_name("default")
    assert marlaas("list").code == 0 and not default.exists()
    engine.living = False
    Filling(default / "marlaas.db").environment()
    assert marlaas("submit", "FILE").code == 0
    assert marlaas("--home", str(default), "list").code == 0


def test_each_script_knows_all_verbs(marlaas: Commander) -> None:
    for shell in ("bash", "zsh", "fish"):
        said = marlaas("completion", shell)
        assert said.code == 0 and said.err == "" and "--words KIND" not in said.out
        words = ("submit", "rollback", "--filter", "completion --words tasks", "completion --words environments")
        assert all(word in said.out for word in words)


def test_words_are_those_that_a_shell_can_take_as_they_are(filling: Filling, marlaas: Commander) -> None:
    filling.task("bio", "sums")
    filling.task("two words", HOSTILE)
    filling.task(HOSTILE, "$(id)")
    filling.execute("UPDATE tasks SET family = 'rates' WHERE id = 1")
    filling.environment("games/guess")
    filling.environment(HOSTILE.replace("\ud800", ""))
    filling.environment("`id`")
    assert marlaas("completion", "--words", "tasks").out.split() == ["3", "2", "1", "sums"]
    assert marlaas("completion", "--words", "tenants").out.split("\n") == ["bio", ""]
    assert marlaas("completion", "--words", "families").out == "rates\n"
    assert marlaas("completion", "--words", "environments").out.split() == ["games/guess", "guess"]


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_completes(filling: Filling, marlaas: Commander, tmp_path: Path) -> None:
    filling.task("bio", "sums")
    filling.task("physics", "more sums")
    filling.environment("arithmetic")
    program = tmp_path / "bin" / "marlaas"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m marlaas.app.cli.main "$@"\n')
    program.chmod(0o755)
    (tmp_path / "script").write_text(marlaas("completion", "bash").out)
    lines = [
        ("marlaas", "adapters", "exp"),
        ("marlaas", "compare", "1", ""),
        ("marlaas", "env", "show", "ari"),
        ("marlaas", "list", "--tenant", "ph"),
        ("marlaas", "list", "--state", "ru"),
    ]
    asks = "".join(
        f"COMP_WORDS=({' '.join(word or chr(39) * 2 for word in words)}); COMP_CWORD={len(words) - 1};"
        ' _shtab_marlaas; echo "${COMPREPLY[@]}"\n'
        for words in lines
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", f'export PATH="{program.parent}:$PATH"; source {tmp_path / "script"}; {asks}'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "export",
        "2 1 sums",
        "arithmetic",
        "physics",
        "running",
    ]


def test_a_term_is_explained(marlaas: Commander) -> None:
    said = marlaas("explain", "drift")
    assert said.code == 0
    assert said.out.startswith("drift (metric of a step)\n  Mean difference of log-probabilities")
    assert (
        "\n  healthy     Below 0.1, which is a weight of 0.9 to 1.1" in said.out
        and "\n  in JSON     drift; drift_mean" in said.out
    )
    assert max(map(len, said.out.splitlines())) <= 100


def test_json(marlaas: Commander) -> None:
    assert [term["name"] for term in json.loads(marlaas("explain", "--json").out)] == [term.name for term in TERMS]
    one = json.loads(marlaas("explain", "gap", "--json").out)
    assert (one["key"], one["deprecated"], one["important"]) == ("gap", ["gap_mean"], True)


def test_lost_files_are_named_and_removed_on_request(home: Home, marlaas: Commander) -> None:
    assert marlaas("clean").err == "lost+found is empty.\n"
    folder = home.lost / "task-7"
    folder.mkdir(parents=True)
    (folder / "policy-v3.safetensors").write_bytes(bytes(2_000))
    (home.lost / "of-the-file-system").touch()
    said = marlaas("clean")
    assert said.out == f"{folder}: 1 file, 2 kB\n" and "clean --yes" in said.err
    told = {"lost": [{"folder": str(folder), "files": 1, "bytes": 2_000}], "removed": False}
    assert marlaas("clean", "--json").json == told and folder.exists()
    assert "Removed: 2 kB." in marlaas("clean", "--yes").err
    assert not folder.exists() and (home.lost / "of-the-file-system").exists()


HOMES: dict[str, tuple[Callable[[Path], Filling], tuple[str, ...]]] = {
    "full": (
        fill_full,
        ("", "list", "show 1", "show 999", "stats", "tenants", "logs", "adapters list", "compare 1 2", "wait 999"),
    ),
    "task": (fill_task, ("show 1", "metrics 1", "rollouts 1", "rollouts 1 --step 1", "rollouts 1 --group 0")),
    "duel": (fill_duel, ("list", "show 2", "matrix 2", "rollouts 2", "rollouts 2 --step 1", "watch 1")),
    "evaluation": (fill_evaluation, ("list", "show 1", "metrics 1", "compare 1 2")),
    "environments": (fill_environments, ("env list", "env show arithmetic", "env", "engine status", "base list")),
}

ANYWHERE = ("explain", "explain drift", "keys", "--help", "submit --help", "submitt", "list --state odd", "show")


def hear(marlaas: Commander, verb: str) -> list[str]:
    """What a command line prints with ``--plain``; nothing in it needs an eye."""
    said = marlaas("--plain", *verb.split())
    lines = (said.out + said.err).splitlines()
    assert lines and [text for text in lines if re.search(r"[^\w -~]|  |^ | $", text)] == []
    return lines


@pytest.mark.parametrize("name", HOMES)
def test_what_is_known_of_a_home_can_be_heard(home: Home, marlaas: Commander, engine: FakeEngine, name: str) -> None:
    fill, verbs = HOMES[name]
    fill(home.database).execute("UPDATE tasks SET state = 'done' WHERE state = 'running' AND id = 1")
    for verb in verbs:
        hear(marlaas, verb)


def test_what_needs_no_home_can_be_heard(home: Home, marlaas: Commander) -> None:
    for verb in ANYWHERE:
        hear(marlaas, verb)


def test_a_row_is_a_line_in_which_values_have_names(home: Home, marlaas: Commander, engine: FakeEngine) -> None:
    Filling(home.database).task(name="sums", state="failed", made=3, reason="the disk is full")
    (line,) = hear(marlaas, "list")
    assert re.match(r"ID 1: tenant physics-lab; task sums; environment arithmetic; state failed; step 3 of \d+; ", line)
    assert "plus or minus" in line and line.endswith("reason the disk is full")
    shown = hear(marlaas, "show 1")
    assert {"state: failed", "tenant: physics-lab", "reason: the disk is full"} <= set(shown)


def test_json_stays_what_it_is(home: Home, marlaas: Commander, engine: FakeEngine) -> None:
    Filling(home.database).task(state="done")
    assert marlaas("list", "--plain", "--json").json == marlaas("list", "--json").json
    assert marlaas("watch", "--json", "--plain", "1").out.startswith("{")


def test_a_typo_gets_the_nearest(marlaas: Commander) -> None:
    said = marlaas("explain", "entrpy")
    assert (said.code, said.out) == (2, "")
    assert "There is no term 'entrpy'." in said.err and "Did you mean `marlaas explain entropy`" in said.err
    assert "`marlaas explain` lists all" in marlaas("explain", "xqzw").err


def test_a_home_that_cannot_be_read_is_no_error_on_a_key(home: Home, marlaas: Commander) -> None:
    assert marlaas("completion", "--words", "tasks").out == ""
    home.root.mkdir(parents=True)
    home.database.write_text("no database at all, but long enough to be taken for one by whoever looks at it")
    said = marlaas("completion", "--words", "tasks")
    assert (said.out, said.err) == ("", "")


def test_errors_of_the_system_name_the_file(marlaas: Commander, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, PermissionError(13, "Permission denied", "/some/file"))
    assert marlaas("list").err.startswith("marlaas: Permission denied: /some/file.")

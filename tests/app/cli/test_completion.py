"""completion: a script for each shell; bash really completes verbs, options, numbers and names with it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from marlaas.engine.home.paths import Home

from ..commanding import Commander
from ..filling import HOSTILE, Filling


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_script_knows_all_verbs(marlaas: Commander, shell: str) -> None:
    said = marlaas("completion", shell)
    assert said.code == 0 and said.err == ""
    for word in ("submit", "rollback", "--filter", "completion --words tasks", "completion --words environments"):
        assert word in said.out
    assert "--words KIND" not in said.out


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


def test_a_home_that_cannot_be_read_is_no_error_on_a_key(home: Home, marlaas: Commander) -> None:
    assert marlaas("completion", "--words", "tasks").out == ""
    home.root.mkdir(parents=True)
    home.database.write_text("no database at all, but long enough to be taken for one by whoever looks at it")
    said = marlaas("completion", "--words", "tasks")
    assert (said.out, said.err) == ("", "")


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
        ("marlaas", "ada"),
        ("marlaas", "adapters", "exp"),
        ("marlaas", "metrics", "1", "--tens"),
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
        "adapters",
        "export",
        "--tensorboard",
        "2 1 sums",
        "arithmetic",
        "physics",
        "running",
    ]

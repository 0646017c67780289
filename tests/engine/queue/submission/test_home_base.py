"""The sentences of a home that is asked to take another base, and where relative folders count from."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.daemon import control
from marlaas.engine.errors import ConfigError
from marlaas.engine.home.paths import TINY_BASE, Home
from marlaas.engine.home.settings import load_settings
from marlaas.engine.models.find import load_base
from marlaas.engine.queue.submission.queue import HomeBase, check_use, foreign_tasks
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.spec.task import TaskSpec
from marlaas.engine.store.rows import BoundTask
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import submit

BASES = st.sampled_from(["", "a", "b"])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home with an unfinished task of the base "old", whose fingerprint is aaaa."""
    monkeypatch.delenv("MARLAAS_BASE", raising=False)
    home = Home(tmp_path / "home").create()
    store = Store(home.database, "old", "aaaa")
    submit(home.database, [submission(TaskSpec("lab", "sums", "arithmetic"))])
    store.tasks.adopt("aaaa")
    store.close()
    return home


def test_the_ways_out_of_a_start(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    check_use(home, HomeBase("other name", "aaaa"), "aaaa", serves=True)
    with pytest.raises(ConfigError, match=r"marlaas\.toml names the base 'new'.*task 1 \(lab/sums\).*\(old\)") as said:
        check_use(home, HomeBase("new", "bbbb"), "bbbb", serves=True)
    assert "`marlaas --home DIR base use new`" in said.value.hint and "`marlaas base use old`" in said.value.hint
    monkeypatch.setenv("MARLAAS_BASE", "new")
    with pytest.raises(ConfigError, match=r"MARLAAS_BASE names the base 'new'.*unset MARLAAS_BASE"):
        check_use(home, HomeBase("new", "bbbb"), "bbbb", serves=True)


def test_files_that_were_changed_in_their_place(home: Home) -> None:
    with pytest.raises(ConfigError, match=r"what its files held before.*put the old files back"):
        check_use(home, HomeBase("old", "bbbb"), "bbbb", serves=True)
    with pytest.raises(ConfigError, match="what its files held before"):
        check_use(home, HomeBase("old", "bbbb"), None)


@given(st.lists(BASES), st.sampled_from(["a", "b"]), st.sampled_from(["a", "b", None]))
def test_what_is_foreign(bases: list[str], fingerprint: str, unknown: str | None) -> None:
    tasks = [BoundTask(n, "t", "n", "running", base, "", 0, 0) for n, base in enumerate(bases)]
    foreign = foreign_tasks(tasks, fingerprint, unknown)
    own = [task for task in tasks if task not in foreign]
    assert all(task.base == fingerprint or (not task.base and unknown == fingerprint) for task in own)
    assert all(task.base != fingerprint for task in foreign)


def test_relative_folders(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(TINY_BASE, home.root / "mine")
    shutil.copytree(TINY_BASE, tmp_path / "here" / "mine")
    monkeypatch.chdir(tmp_path / "here")
    home.config.write_text('base = "mine"\n')
    assert load_settings(home).base == str(home.root / "mine")
    monkeypatch.setenv("MARLAAS_BASE", "mine")
    assert load_settings(home).base == str(tmp_path / "here" / "mine")
    assert control.base_variable() == {"MARLAAS_BASE": str(tmp_path / "here" / "mine")}
    assert control.served_base(home).fingerprint == load_base("tiny").fingerprint

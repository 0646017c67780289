"""A home is a folder like any other: moved, linked to, spelled oddly and copied, it goes on from where it stood.

In ``make test-slow``: three engines, of which each makes steps.
"""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from marlaas.engine.daemon import control
from marlaas.engine.home.paths import Home
from tests.oracle.audit import audit

from ..conftest import Lab, configured, consumed_once

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def files(root: Path) -> dict[str, str]:
    """Every state file of a home, by its place in it."""
    found = (path for path in (root / "adapters").rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def goes_on(lab: Lab, task: int) -> int:
    """An engine on this home makes three more steps, voids nothing and stops; returns where it stopped."""
    stood = lab.row(task).step
    control.ensure_running(lab.home)
    lab.until(task, stood + 3)
    control.stop(lab.home)
    with closing(sqlite3.connect(lab.home.database)) as database:
        (void,) = database.execute("SELECT count(*) FROM versions WHERE state = 'void'").fetchone()
        (first,) = database.execute(
            "SELECT min(number) FROM steps WHERE incarnation = (SELECT max(incarnation) FROM engines)"
        ).fetchone()
    assert (void, first) == (0, stood + 1) and not lab.home.lost.exists()
    consumed_once(lab.home, task)
    return lab.row(task).step


def test_a_moved_home_goes_on_and_a_copy_harms_nothing(tmp_path: Path) -> None:
    with configured(tmp_path, "") as lab:
        quiet = {"learning_rate": 1e-6, "patience": 100_000}
        task = lab.submit("travels", steps=5_000, train=quiet, eval={"prompts": 4, "every": 0})
        lab.until(task, 3)
        control.stop(lab.home)
    (tmp_path / "elsewhere").mkdir()
    lab.home.root.rename(tmp_path / "elsewhere" / "moved")
    (tmp_path / "link").symlink_to("elsewhere")
    goes_on(Lab(Home(tmp_path / "elsewhere" / ".." / "link" / "moved")), task)
    original, copy = tmp_path / "elsewhere" / "moved", tmp_path / "copy"
    before = files(original)
    shutil.copytree(original, copy, symlinks=True)  # as cp -a does
    goes_on(Lab(Home(copy)), task)
    assert files(original) == before and set(before) - set(files(copy)), "the copy pruned its own"
    for root in (original, copy):
        assert audit(root, updates=False).problems == []

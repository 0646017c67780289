"""The tasks of a home that another program may still be making."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from marlaas.engine.home.paths import Home
from tools.task_rows import tasks_of

from ..app.filling import Filling


def test_a_database_that_is_being_made_has_no_tasks(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    assert tasks_of(home) == [] and not home.root.exists(), "looking makes nothing"
    home.create()
    with closing(sqlite3.connect(home.database)) as making:
        making.execute("CREATE TABLE other (a)")
        assert tasks_of(home) == []
    home.database.unlink()
    filling = Filling(home.database)
    assert tasks_of(home) == []
    assert [filling.task(), filling.task()] == [row.id for row in tasks_of(home)]

"""Locks on files: one process has one, and others read what it says."""

import os
from pathlib import Path

from marlaas.engine.locks import said_by_holder, taken


def test_one_holds_it_and_others_read_what_it_says(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert said_by_holder(path, 10) is None, "there is none"
    file, other = (os.open(path, os.O_RDWR | os.O_CREAT) for _ in range(2))
    assert said_by_holder(path, 10) is None, "nobody holds it"
    assert taken(file) and not taken(other)
    os.write(file, b"12 starts: looks at the cards")
    assert said_by_holder(path, 9) == "12 starts"
    os.close(file)
    assert said_by_holder(path, 10) is None and taken(other)
    os.close(other)

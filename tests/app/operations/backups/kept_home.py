"""A home with all that a backup holds and leaves out, without an engine."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from marlaas.engine.home.paths import Home

from ...filling import Filling

STATE = b"state " * 1000


def fill(home: Home) -> Filling:
    """A task with three versions and their files; settings, plugins, a snapshot, and what is made again."""
    filling = Filling(home.create().database)
    filling.task(name="sums")
    filling.execute("DELETE FROM versions")
    for number in range(3):
        version(filling, home, number)
    for name in ("marlaas.toml", "plugins/mine.py", "plugins/kit/__init__.py", "scratch/snapshots/ab12/.plugin"):
        put(home.root / name, name.encode())
    for name in (
        "logs/engine.log",
        "venvs/x/lib.py",
        "base/tiny.gguf",
        "rates.json",
        "speeds.json",
        "scratch/probe",
        "engine.lock",
    ):
        put(home.root / name, b"made again")
    put(home.adapters / "task-1" / ".policy-v3-i1.safetensors.77", b"half")
    (home.plugins / "linked.py").symlink_to(put(home.root.parent / "elsewhere.py", b"linked"))
    (home.plugins / "nowhere.py").symlink_to("missing")
    os.mkfifo(home.root / "pipe")
    return filling


def version(filling: Filling, home: Home, number: int) -> Path:
    """A committed version and its file."""
    name = f"task-1/policy-v{number}-i1"
    filling.insert(
        "versions",
        policy=1,
        number=number,
        name=name,
        incarnation=1,
        state="committed",
        checksum=f"sum{number}",
        path=f"adapters/{name}.safetensors",
        created=1.0,
    )
    return put(home.adapters / f"{name}.safetensors", STATE + bytes([number]))


def put(path: Path, data: bytes) -> Path:
    """A file, in a folder that may not be there yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def rows(home: Home, sql: str) -> list[tuple[object, ...]]:
    """What a database answers."""
    with closing(sqlite3.connect(home.database)) as connection:
        return connection.execute(sql).fetchall()


def files(root: Path) -> dict[str, bytes]:
    """All files but the database, by name."""
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file() and p.name != "marlaas.db"}

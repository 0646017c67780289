"""Homes that earlier versions made, unpacked for a test: see ``fixtures/README.md``."""

from __future__ import annotations

import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

from marlaas.engine.paths import Home

FIXTURES = Path(__file__).with_name("fixtures")
MADE_AT = "/tmp/marlaas-v0.1.0/home"


def unpack(folder: Path, version: str = "0.1.0") -> Home:
    """The home in ``folder``, where no home may be yet, as if it had been made there."""
    folder.mkdir(mode=0o700, parents=True)
    with tarfile.open(FIXTURES / f"home-v{version}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    home = Home(folder)
    with closing(sqlite3.connect(home.database)) as database, database:
        database.execute("UPDATE versions SET path = replace(path, ?, ?)", [MADE_AT, str(folder)])
    return home

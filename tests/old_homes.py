"""Homes that earlier versions made, unpacked for a test: see ``fixtures/README.md``."""

from __future__ import annotations

import tarfile
from pathlib import Path

from marlaas.engine.home.paths import Home

FIXTURES = Path(__file__).with_name("fixtures")


def unpack(folder: Path, version: str = "0.1.0") -> Home:
    """The home in ``folder``, where no home may be yet: moved there from where it was made, as homes may be."""
    folder.mkdir(mode=0o700, parents=True)
    with tarfile.open(FIXTURES / f"home-v{version}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return Home(folder)

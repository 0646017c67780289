"""Scripts that stand in for uv, and for bwrap on a PATH that begins with their folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

BUILDS = f"""
echo "$*" >> "$(dirname "$0")/calls"
if [ "$1" = venv ]; then
    for last; do :; done
    mkdir -p "$last/bin" && ln -s {sys.executable} "$last/bin/python"
fi
"""
"""An installer that makes the folder, says every command, and installs nothing."""
FAILS = 'echo "error: no luck today" >&2; exit 2'
SUCCEEDS = "exit 0"


class StandIns:
    """A folder of scripts."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder.mkdir()
        self.folder = folder
        monkeypatch.setattr("uv.find_uv_bin", lambda: str(folder / "uv"))
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def put(self, name: str, script: str) -> None:
        """Another script under that name, at once."""
        unfinished = self.folder / f".{name}"
        unfinished.write_text(f"#!/bin/sh\n{script}\n")
        unfinished.chmod(0o755)
        unfinished.replace(self.folder / name)

    def hang(self, name: str) -> Path:
        """A script that tells its process id through the pipe that is returned, and then stays."""
        pipe = self.folder / "started"
        os.mkfifo(pipe)
        self.put(name, f"echo $$ > {pipe}\nexec sleep 600")
        return pipe

    @property
    def calls(self) -> list[str]:
        """What ``BUILDS`` was called with."""
        return (self.folder / "calls").read_text().splitlines()

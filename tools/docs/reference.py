"""All pages that are generated from the code into ``docs/reference``, which git ignores."""

from __future__ import annotations

import re
from pathlib import Path

from . import environment_api, keys, metrics, settings, task_file, verbs, words

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "docs" / "reference"


def pages() -> dict[str, str]:
    """The text of each generated page, by the name of its file."""
    return {
        "task-file.md": task_file.page(),
        "settings.md": settings.page(),
        "verbs.md": verbs.page(),
        "environment-api.md": environment_api.page(api_version()),
        "keys.md": keys.page(),
        "metrics.md": metrics.page(),
        "words.md": words.page(),
    }


def write_reference(folder: Path = FOLDER) -> list[Path]:
    """Write every page; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")
        written.append(folder / name)
    return written


def api_version() -> str:
    """The release whose API this is, by its first two numbers: 0.1."""
    found = re.search(r'(?m)^version = "(\d+\.\d+)', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert found is not None
    return found[1]

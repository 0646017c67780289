"""What is kept of a benchmark: its section, with when, if and on what it was measured; one JSON file each.

Sections flow in and out of ``benchmarks/results/data``. Runs nothing; knows nothing of Markdown.
"""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from . import pictures
from .figures import Row, Section, Series
from .machine import Machine

PACKAGES = ("marlaas", "torch", "transformers", "peft", "llama-cpp-python", "numpy")
"""Whose versions decide the figures."""


@dataclass(frozen=True)
class Result:
    """One benchmark's newest outcome."""

    section: Section
    machine: Machine
    date: str
    """ISO, UTC, to the minute."""
    commit: str
    """Of the repository; ends in "+" where files were changed since."""
    versions: dict[str, str]


def stamp(section: Section, machine: Machine, root: Path) -> Result:
    """Put date and versions next to what was just measured."""
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    return Result(section, machine, date, _commit(root), _versions())


def save(result: Result, folder: Path) -> Path:
    """Write one file, replacing what that benchmark stored before; each picture is one line at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.section.name}.json"
    table = asdict(result)
    drawn = table["section"].pop("pictures")
    text = json.dumps(table, indent=2, ensure_ascii=False)
    if drawn:
        lines = ",\n".join(f"    {json.dumps(picture, ensure_ascii=False)}" for picture in drawn)
        text = f'{text.removesuffix("}").rstrip()},\n  "pictures": [\n{lines}\n  ]\n}}'
    path.write_text(text + "\n", encoding="utf-8")
    return path


def load(folder: Path, names: Iterable[str]) -> list[Result]:
    """The results that lie there, in the order of ``names``."""
    paths = (folder / f"{name}.json" for name in names)
    return [parse(json.loads(path.read_text(encoding="utf-8"))) for path in paths if path.exists()]


def parse(table: Mapping[str, Any]) -> Result:
    """The inverse of what ``save`` writes."""
    section = dict(table["section"])
    section["rows"] = tuple(_row(row) for row in section["rows"])
    section["pictures"] = tuple(pictures.parse(picture) for picture in table.get("pictures", ()))
    return Result(
        Section(**section), Machine(**table["machine"]), table["date"], table["commit"], dict(table["versions"])
    )


def _row(table: Mapping[str, Any]) -> Row:
    series = {side: Series(tuple(table[side]["values"])) for side in ("ours", "theirs") if table[side] is not None}
    return Row(**{**table, **series})


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _commit(root: Path) -> str:
    try:
        head = _git(root, "rev-parse", "--short", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if changed else "")


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

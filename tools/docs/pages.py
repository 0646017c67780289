"""The pages that the site is built from: all of ``docs``, and the benchmarks' results, to which these link.

In the repository results lie beside ``docs``, where a site cannot reach them. So all pages are copied into one folder,
and links are written anew where the way between two files is another one there.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

from .reference import ROOT

FOLDER = ROOT / "build" / "pages"
LINK = re.compile(r"(?<=\]\()[^)#:\s]+(?=[)#])")
"""The file that a link or a picture of Markdown names, without what is behind ``#``."""


def places(root: Path = ROOT) -> dict[str, str]:
    """Where each file is in the site, by its path in the repository."""
    found = {"BENCHMARKS.md": "benchmarks.md"}
    for folder, place in (("docs", ""), ("benchmarks/results", "results/")):
        for path in sorted((root / folder).rglob("*.md" if place else "*.*")):
            if path.is_file():
                found[path.relative_to(root).as_posix()] = place + path.relative_to(root / folder).as_posix()
    return found


def relinked(text: str, path: str, found: Mapping[str, str]) -> str:
    """The text of the repository's file ``path``, whose links lead from its place in the site to theirs."""

    def there(link: re.Match[str]) -> str:
        target = normpath(join(dirname(path), link[0]))
        return relpath(found[target], dirname(found[path]) or ".") if target in found else link[0]

    return LINK.sub(there, text)


def write_pages(folder: Path = FOLDER, root: Path = ROOT) -> None:
    """Write everything into a new folder, the generated reference included."""
    shutil.rmtree(folder, ignore_errors=True)
    found = places(root)
    for path, place in found.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        if place.endswith(".md"):
            text = (root / path).read_text(encoding="utf-8")
            (folder / place).write_text(relinked(text, path, found), encoding="utf-8")
        else:
            shutil.copyfile(root / path, folder / place)

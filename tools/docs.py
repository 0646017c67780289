"""``python -m tools.docs``, or ``make docs``: the site in ``build/docs``, a folder of plain HTML.

It has all pages of ``docs``, the reference, and the benchmarks' results. These lie outside
of ``docs``, out of a site's reach. So all pages are copied into one folder, and links are rewritten. A
link that leads nowhere, or a page that fetches anything, fails the build.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

from .reference import ROOT, write_reference

SITE = ROOT / "build" / "docs"
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


TAG = re.compile(r"<(\w+)\s([^>]*)>")
ATTRIBUTE = re.compile(r"""([\w-]+)=["']([^"']*)["']""")
LOADS = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src", "object": "data"}
LOADED_BY_THEME = {"mermaid", "glightbox"}
"""Classes of what the theme's script draws with a library that it fetches."""


def fetched(html: str) -> list[str]:
    """The addresses elsewhere that a page would fetch, in its order. Links that a reader follows do not count."""
    found = []
    for tag, text in TAG.findall(html):
        given = dict(ATTRIBUTE.findall(text))
        address = given.get(LOADS.get(tag, ""), "")
        if "//" in address and not address.startswith("data:") and given.get("rel") != "canonical":
            found.append(address)
        found += sorted(LOADED_BY_THEME & set(given.get("class", "").split()))
    return found


def main() -> int:
    """Build the site."""
    for path in write_reference():
        print(f"wrote {path.relative_to(ROOT)}")
    write_pages()
    done = subprocess.run([sys.executable, "-m", "zensical", "build", "--strict", "--clean"], cwd=ROOT)
    if done.returncode:
        return done.returncode
    pages = sorted(SITE.rglob("*.html"))
    if found := [
        f"{page.relative_to(SITE)}: {address}" for page in pages for address in fetched(page.read_text("utf-8"))
    ]:
        print("These pages would fetch something:", *found, sep="\n  ", file=sys.stderr)
        return 1
    print("The site is in build/docs: open build/docs/index.html.")
    return 0


if __name__ == "__main__":
    sys.exit(main())

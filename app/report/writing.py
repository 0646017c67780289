"""Writes a report into a folder: ``report.html``, ``report.md`` and the pictures of the latter."""

from __future__ import annotations

from pathlib import Path

from marlaas.engine.errors import StoreError

from .document import Document
from .markdown import markdown
from .picture import svg
from .web_page import html

PICTURES = "pictures"


def write(document: Document, folder: Path) -> list[Path]:
    """Write the files, in place of those of an earlier report there; their paths, the page first.

    Raises ``StoreError`` where they cannot be written.
    """
    files = {
        folder / "report.html": html(document),
        folder / "report.md": markdown(document, PICTURES),
        **{folder / PICTURES / f"{chart.name}.svg": svg(chart, alone=True) for chart in document.charts},
    }
    try:
        (folder / PICTURES).mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            part = path.with_name(f"{path.name}.part")
            try:
                part.write_text(text, encoding="utf-8")
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(
            f"The report cannot be written: {error.strerror}.", "Give a folder with --out.", where=str(folder)
        ) from error
    return list(files)

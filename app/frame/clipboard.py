"""Copies to the terminal's clipboard, which may be behind SSH and tmux, and to a file, which always works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from textual.app import App

LARGEST = 100_000
"""Most characters sent to a terminal; most terminals cut longer copies off without a word."""


def copy(app: App[Any], text: str, file: Path | None) -> str:
    """Copy ``text`` to both, or to the clipboard alone; says in a sentence where it is."""
    short = len(text) <= LARGEST
    if short:
        app.copy_to_clipboard(text)
    if file is None:
        return "to the clipboard" if short else "nowhere: it is too long for a clipboard"
    try:
        file.touch(0o600)  # what models wrote is as private as the database that it comes from
        file.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        reason = error.strerror
        return f"to the clipboard; {file} cannot be written: {reason}" if short else f"nowhere: {file}: {reason}"
    return f"to the clipboard and to {file}" if short else f"to {file}; it is too long for a clipboard"

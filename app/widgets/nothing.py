"""What an empty view shows: the next step."""

from __future__ import annotations

from textual.widgets import Static


class Nothing(Static):
    """Shown in place of what is not there yet. ``text`` is our own, and names a key or a command."""

    DEFAULT_CSS = """
    Nothing { width: 100%; height: 1fr; padding: 2 4; color: $text-muted; }
    """

    def __init__(self, text: str, id: str | None = None) -> None:
        super().__init__(text, markup=False, id=id)

"""What an empty queue says: the next step, not a void."""

from __future__ import annotations

from textual.widgets import Static

_TEXT = """No tasks yet.

Add one from another terminal:

    marlaas submit FILE

or watch three tenants learn at once:

    marlaas demo

`marlaas env list` shows what can be trained on; `marlaas doctor` looks at this machine."""


class Empty(Static):
    """Shown in the place of an empty queue."""

    DEFAULT_CSS = """
    Empty { width: 100%; height: 1fr; padding: 2 4; color: $text-muted; }
    """

    def __init__(self, id: str | None = None) -> None:
        super().__init__(_TEXT, markup=False, id=id)

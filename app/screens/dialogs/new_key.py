"""Asks for whom a key of the API is to be, and what it is called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input, Label

from .dialog import Dialog

LONGEST = 100
"""Most characters of a tenant and of a name."""


@dataclass(frozen=True)
class KeyWish:
    """What the person wants."""

    tenant: str
    name: str
    """May be empty."""


class NewKey(Dialog[KeyWish | None]):
    """Answers with the wish, or with None where the person left."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "app.focus_next", "next", id="api.next"),
        Binding("escape", "leave", "close", key_display="esc", id="api.leave"),
    ]
    DEFAULT_CSS = """
    NewKey Label { width: 100%; }
    NewKey Input { margin-bottom: 1; }
    """
    AUTO_FOCUS = "Input"
    ENTER = "make it"

    def __init__(self, tenant: str) -> None:
        """``tenant`` is proposed."""
        super().__init__()
        self._tenant = tenant

    def heading(self) -> str:
        """What is made."""
        return "a key for the API"

    def content(self) -> ComposeResult:
        """Lay out a field for each."""
        yield Label("Tenant: the key may use what is this tenant's, and the base", markup=False)
        yield Input(self._tenant, id="tenant", max_length=LONGEST, compact=True)
        yield Label("Name: which program or person gets it (may be empty)", markup=False)
        yield Input("", id="name", max_length=LONGEST, compact=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Answer, on enter in any field; a tenant must be named."""
        event.stop()
        tenant, name = (self.query_one(f"#{field}", Input) for field in ("tenant", "name"))
        if not tenant.value.strip():
            tenant.add_class("-invalid")
            tenant.focus()
            return
        self.dismiss(KeyWish(tenant.value.strip(), name.value.strip()))

    def action_leave(self) -> None:
        """Leave and make nothing."""
        self.dismiss(None)

"""Asks how the model is to speak: its system message, temperature, length of a turn, and which tokens may be drawn."""

from __future__ import annotations

from argparse import ArgumentTypeError
from dataclasses import dataclass, replace
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input, Label

from marlaas.engine.rollout import Manner, Truncation

from ...chat.sampling_options import max_tokens, min_p, temperature, top_k, top_p
from .dialog import Dialog

LONGEST = 10_000
"""Most characters of a system message."""


@dataclass(frozen=True)
class Settings:
    """What the person can set."""

    manner: Manner
    system: str = ""


class MannerDialog(Dialog[Settings | None]):
    """Answers with the settings, or with None where the person left."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "app.focus_next", "next", id="manner.next"),
        Binding("escape", "leave", "close", key_display="esc", id="manner.leave"),
    ]
    DEFAULT_CSS = """
    MannerDialog Label { width: 100%; }
    MannerDialog Input { margin-bottom: 1; }
    MannerDialog #problem { color: $text-error; }
    """
    ENTER = "apply"

    def __init__(self, now: Settings) -> None:
        super().__init__()
        self._now = now

    def content(self) -> ComposeResult:
        """Lay out a field for each."""
        manner = self._now.manner
        yield Label("System message (another one begins a new conversation)", markup=False)
        yield Input(self._now.system, id="system", max_length=LONGEST, select_on_focus=False, compact=True)
        yield Label("Temperature (0 is greedy)", markup=False)
        yield Input(f"{manner.temperature:g}", id="temperature", max_length=10, compact=True)
        yield Label("Tokens of an answer", markup=False)
        yield Input(str(manner.max_tokens), id="tokens", max_length=10, compact=True)
        yield Label("Likeliest tokens with this sum of probabilities (top-p; 1 is all)", markup=False)
        yield Input(f"{manner.truncation.top_p:g}", id="top-p", max_length=10, compact=True)
        yield Label("This many of the likeliest tokens (top-k; 0 is all)", markup=False)
        yield Input(str(manner.truncation.top_k), id="top-k", max_length=10, compact=True)
        yield Label("Tokens this likely relative to the likeliest (min-p; 0 is all)", markup=False)
        yield Input(f"{manner.truncation.min_p:g}", id="min-p", max_length=10, compact=True)
        yield Label("", id="problem", markup=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Answer with the settings, on enter in any field."""
        try:
            manner = replace(
                self._now.manner,
                temperature=temperature(self._said("temperature")),
                max_tokens=max_tokens(self._said("tokens")),
                truncation=Truncation(
                    top_k(self._said("top-k")), top_p(self._said("top-p")), min_p(self._said("min-p"))
                ),
            )
        except ArgumentTypeError as error:
            self.query_one("#problem", Label).update(f"{error}.")
            return
        self.dismiss(Settings(manner, self._said("system")))

    def _said(self, field: str) -> str:
        return self.query_one(f"#{field}", Input).value.strip()

    def action_leave(self) -> None:
        """Leave without a change."""
        self.dismiss(None)

"""What goes wrong in a task's learning: each finding with its figures, what to do, and the rollouts that show it.

The rollouts are read in a thread, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Footer, Static

from marlaas.engine.errors import MarlaasError
from marlaas.engine.home import Home
from marlaas.engine.store import TaskRow

from ...reading.opening import opened
from ...rollouts.records import episode_text
from ...words.format import excerpt
from ...words.learning import MARK, Told, findings

_LINES, _CHARACTERS = 24, 2000
"""What is shown of a rollout at most; the rollouts view has all of it."""
_GONE = "It is not stored any more."


class Findings(ModalScreen[None]):
    """Scrolls over the findings of one task."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f,q", "dismiss", "close", key_display="esc", id="findings.close"),
        Binding("j", "down", show=False, id="findings.down"),
        Binding("k", "up", show=False, id="findings.up"),
    ]
    DEFAULT_CSS = """
    Findings { align: center middle; }
    Findings > Vertical { width: 96%; max-width: 130; height: 92%; background: $surface; border: round $primary;
                          padding: 0 1; }
    Findings VerticalScroll { height: 1fr; }
    Findings #findings { width: 100%; }
    """
    AUTO_FOCUS = "VerticalScroll"

    def __init__(self, home: Home, task: TaskRow) -> None:
        super().__init__()
        self._home, self._number, self._findings = home, task.id, findings(task)

    def compose(self) -> ComposeResult:
        """Lay out the findings and keys."""
        with Vertical() as frame:
            frame.border_title = Content(f"what goes wrong in task {self._number}")
            with VerticalScroll():
                yield Static(drawn(self._findings, {}), id="findings", markup=False)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Read the rollouts."""
        self.run_worker(partial(self._read), thread=True, exit_on_error=False)

    def _read(self) -> None:
        said: dict[int, str] = {}
        wanted = [rollout for finding in self._findings for rollout in finding.rollouts]
        try:
            with opened(self._home) as reader:
                for rollout in wanted:
                    found = reader.episode(rollout)
                    said[rollout] = excerpt(episode_text(found), _CHARACTERS, _LINES) if found else _GONE
        except MarlaasError as error:
            said = dict.fromkeys(wanted, str(error))
        self.app.call_from_thread(self._came, said)

    def _came(self, said: Mapping[int, str]) -> None:
        self.query_one("#findings", Static).update(drawn(self._findings, said))

    def action_down(self) -> None:
        """Scroll down."""
        self.query_one(VerticalScroll).scroll_down()

    def action_up(self) -> None:
        """Scroll up."""
        self.query_one(VerticalScroll).scroll_up()


def drawn(findings: list[Told], said: Mapping[int, str]) -> Content:
    """All findings, each with its rollouts; ``said`` has those that were read, by id."""
    parts: list[Content] = []
    for finding in findings:
        mark = f"{MARK} " if finding.holds else ""
        parts.append(Content.styled(f"{mark}{finding.headline}", "bold $text-warning" if finding.holds else "bold"))
        parts.append(Content(_sentence(finding.evidence)))
        if finding.advice:
            parts.append(Content(f"What to do: {finding.advice}"))
        for rollout in finding.rollouts:
            parts.append(Content.styled(f"\nrollout {rollout}", "$text-muted"))
            parts.append(Content(said.get(rollout, "Reading …")))
        parts.append(Content(""))
    return Content("\n").join(parts)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]

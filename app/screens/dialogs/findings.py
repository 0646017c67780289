"""What goes wrong in a task's learning: each finding with its figures, what to do, and the rollouts that show it.

The rollouts are read in a thread, once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content

from marlaas.engine.errors import MarlaasError
from marlaas.engine.home import Home
from marlaas.engine.store import TaskRow

from ...reading.opening import opened
from ...rollouts.document import Block
from ...rollouts.reading import episode_blocks
from ...rollouts.records import joined
from ...rollouts.shading import TURNS, Shading
from ...words.format import excerpt
from ...words.learning import MARK, Told, findings
from .reading import Reading

LINES, CHARACTERS = 24, 2000
"""What is shown of a rollout at most; the rollouts view has all of it."""
_GONE = "It is not stored any more."


class Findings(Reading):
    """Shows the findings of one task."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("f", "dismiss", "close", show=False, id="findings.close")]

    def __init__(self, home: Home, task: TaskRow) -> None:
        super().__init__()
        self._home, self._number, self._findings = home, task.id, findings(task)
        self._said: Mapping[int, Content] = {}

    def heading(self) -> str:
        """Which task it is about."""
        return f"what goes wrong in task {self._number}"

    def text(self, width: int) -> Content:
        """All findings, with the rollouts that were read by now."""
        return drawn(self._findings, self._said)

    def on_mount(self) -> None:
        """Read the rollouts."""
        self.run_worker(partial(self._read), thread=True, exit_on_error=False)

    def _read(self) -> None:
        said: dict[int, Content] = {}
        wanted = [rollout for finding in self._findings for rollout in finding.rollouts]
        try:
            with opened(self._home) as reader:
                for rollout in wanted:
                    found = reader.episode(rollout)
                    said[rollout] = beginning(episode_blocks(found, Shading(TURNS), None)) if found else Content(_GONE)
        except MarlaasError as error:
            said = dict.fromkeys(wanted, Content(str(error)))
        self.app.call_from_thread(self._came, said)

    def _came(self, said: Mapping[int, Content]) -> None:
        self._said = said
        self.draw()


def beginning(blocks: Sequence[Block]) -> Content:
    """The first lines of a rollout, in the colours of the rollouts view; it says how much is left out."""
    text = joined(blocks)
    shown = excerpt(text, CHARACTERS, LINES)
    kept, _, left_out = (shown, "", "") if shown == text else shown.rpartition("\n")
    parts, place = [], 0
    for block in blocks:
        if place <= len(kept):
            parts.append(Content.styled(kept[place:][: len(block.text)], block.style))
        place += len(block.text) + 1
    return Content("\n").join([*parts, Content.styled(left_out, "$text-muted")] if left_out else parts)


def drawn(findings: list[Told], said: Mapping[int, Content]) -> Content:
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
            parts.append(said.get(rollout, Content("Reading …")))
        parts.append(Content(""))
    return Content("\n").join(parts)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]

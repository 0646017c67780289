"""The first line of a task: is it learning, or what is wrong, in a sentence."""

from __future__ import annotations

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from ...words.format import line
from ...words.verdict import Verdict

_STYLES = {"good": "bold $text-success", "fair": "bold $text-warning", "bad": "bold $text-error"}


class VerdictLine(Widget):
    """A mark and a sentence, over as many lines as the view gives it; never more, so that nothing below jumps."""

    DEFAULT_CSS = """
    VerdictLine { height: 1; padding: 0 1; }
    """

    verdict: reactive[Verdict] = reactive(Verdict())

    def render(self) -> Content:
        """The sentence; where it is too long for the room, cut."""
        width, height = self.content_size
        if not self.verdict.words:
            return Content("")
        said = line(f"{self.verdict.glyph} {self.verdict.words}", width * height - (height - 1) * width // 4)
        return Content.styled(said, _STYLES.get(self.verdict.tone, "$text-muted"))

"""The first line of a task: is it learning, or what is wrong, in a sentence."""

from __future__ import annotations

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from ...words.format import cells, clip, line
from ...words.verdict import Verdict

_STYLES = {"good": "bold $text-success", "fair": "bold $text-warning", "bad": "bold $text-error"}


class VerdictLine(Widget):
    """A mark and a sentence, over as many lines as the view gives it, and one more where learning goes wrong.

    Never more, so that nothing below jumps.
    """

    DEFAULT_CSS = """
    VerdictLine { height: 1; padding: 0 1; }
    VerdictLine.-wrong { height: 2; }
    """

    verdict: reactive[Verdict] = reactive(Verdict())

    def watch_verdict(self) -> None:
        """Take another line where learning goes wrong: then there is more to say."""
        self.set_class(bool(self.verdict.more), "-wrong")

    def render(self) -> Content:
        """The sentence; where it is too long for the room, without its figures, or cut."""
        found = self.verdict
        if not found.words:
            return Content("")
        width, height = self.content_size
        style = _STYLES.get(found.tone, "$text-muted")
        lines, whole = fitted(f"{found.glyph} {found.words}", found.more, width, height)
        if not whole and found.short:
            lines, _ = fitted(f"{found.glyph} {found.short}", found.more, width, height)
        said = "\n".join(lines).removesuffix(found.more)
        return Content.assemble((said, style), (found.more, f"{style} reverse"))


def fitted(words: str, more: str, width: int, height: int) -> tuple[list[str], bool]:
    """At most ``height`` lines of ``width`` cells, and whether they have all of the words.

    These are cut behind a word where there is no room for all; ``more`` stands behind them.
    """
    lines: list[str] = []
    whole, beside = True, cells(more) + 2 if more else 0
    for word in line(words).split(" "):
        room = width - beside if len(lines) >= height else width
        if lines and cells(joined := f"{lines[-1]} {word}") <= room:
            lines[-1] = joined
        elif len(lines) < height:
            room = width - beside if len(lines) == height - 1 else width
            lines.append(clip(word, room))
            whole = whole and cells(word) <= room
        else:
            whole = False
            kept = clip(lines[-1], room - 1).removesuffix("…")
            lines[-1] = f"{kept} …" if cells(kept) + 2 <= room else f"{kept}…"
            break
    if more and cells(lines[-1]) + beside <= width:
        lines[-1] += f"  {more}"
    elif more:
        lines.append(more)
    return lines[:height], whole

"""``show`` says what people should know of a task, such as that its rewards are biased."""

from __future__ import annotations

from ...commanding import Commander
from ...filling import HOSTILE, Filling

WORDS = f"Some replies make the environment fail at grader.py, line 31 ({HOSTILE}).".replace("\ud800", "")


def test_every_warning_is_shown_made_safe(filling: Filling, marlaas: Commander) -> None:
    task = filling.task("sums")
    for about, words in (("a", WORDS), ("b", "Another.")):
        filling.insert("warnings", task=task, about=about, message=words, created=1.0)
    said = marlaas("show", str(task))
    shown = [text for text in said.out.splitlines() if text.startswith("  warning ")]
    assert len(shown) == 2 and shown[1].endswith(" Another.") and "line 31" in shown[0]
    assert all(letter.isprintable() for text in shown for letter in text)
    listed = marlaas("show", str(task), "--json").json
    assert listed["warnings"] == [WORDS, "Another."] and listed["warning"] == WORDS

"""Every key that a document names is one of the view of which it speaks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from marlaas.app.keymap import known_keys
from tools.reference import PLACES, keys_of, keys_page, spelled

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if path.parent != ROOT / "docs" / "reference"
}
KEY = re.compile(r"`(ctrl\+[a-z]+|shift\+\S+|esc|enter|space|tab|f(?:[1-9]|1[0-2])|[A-Za-z1-9/?:*←→↑↓])`")
MARK = {("docs/concepts/staleness.md", "2"), ("docs/guides/serving.md", "n"), ("docs/guides/endpoints.md", "n")}
"""What looks like a key and is none."""
TEXTUAL = {"ctrl+p", "tab", "esc", "enter", *"←→↑↓"}
"""Keys that Textual has in every view: the palette, the next field, what a dialog or a field does."""
GUIDE = "docs/guides/application.md"
SPEAKS_OF = {
    (GUIDE, "The application"): "Everywhere Queue",
    (GUIDE, "Keys"): "Lists Queue Task",
    (GUIDE, "Queue"): "Queue",
    (GUIDE, "Task"): "Task",
    (GUIDE, "Rollouts"): "Rollouts",
    (GUIDE, "Environments"): "Environments",
    (GUIDE, "Adapters"): "Adapters",
    (GUIDE, "Chat"): "Chat",
    (GUIDE, "Engine"): "Engine",
    (GUIDE, "Logs"): "Logs",
    (GUIDE, "API"): "API",
    (GUIDE, "Add a task"): "Add",
    ("docs/guides/evaluation.md", "Comparing"): "Task",
    ("docs/guides/losses.md", "Credit within an episode"): "Rollouts",
    ("docs/guides/queue.md", "Blocked tasks"): "Task",
    ("docs/guides/tasks.md", "Which tokens may be drawn"): "Chat",
    ("docs/guides/wrong.md", "When learning goes wrong"): "Task",
    ("docs/operations/sharing.md", "Sharing a machine"): "Engine",
    ("docs/operations/sharing.md", "Yield"): "Engine",
    ("docs/tutorials/first-environment.md", "5. Take the adapter away"): "Adapters",
    ("README.md", "Everyday"): "Task",
}
"""The titles of ``PLACES``, by their first words, of which the part of a page under a heading speaks."""


def named() -> list[tuple[str, str, str]]:
    """(page, heading, key) for each key that a page names outside of code blocks."""
    found = []
    for name, text in PAGES.items():
        heading = ""
        for line in re.sub(r"(?ms)^```.*?^```", "", text).splitlines():
            if line.startswith("#"):
                heading = line.lstrip("# ")
            found += [(name, heading, key) for key in KEY.findall(line) if (name, key) not in MARK]
    return list(dict.fromkeys(found))


@pytest.mark.parametrize(("name", "heading", "key"), named())
def test_a_key_that_a_page_names_acts_there(name: str, heading: str, key: str) -> None:
    places = ["Everywhere", *SPEAKS_OF.get((name, heading), "").split()]
    acting = {
        one
        for title, scopes in PLACES.items()
        if title.split()[0] in places
        for at in keys_of(scopes)
        for one in spelled(at)
    }
    assert key in acting | TEXTUAL, f"{name}, {heading}: no key {key} among those of {', '.join(places)}"


def test_the_page_of_keys_has_all_of_them() -> None:
    scopes = [scope for of in PLACES.values() for scope in of]
    assert sorted(scopes) == sorted({key.name.partition(".")[0] for key in known_keys()})
    missing = [key.name for key in known_keys() if key.what and f"| `{key.name}` |" not in keys_page()]
    assert not missing and len(named()) > 60

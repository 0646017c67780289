"""Which file an editor opens for a task: where its environment is broken, else where it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.app.context.editor import at_line
from marlaas.app.context.source_place import SourcePlace, place_in, source_place
from marlaas.engine.errors import EnvironmentMissing
from marlaas.engine.spec import TOGETHER
from marlaas.engine.store.rows import EnvironmentRow

from ..rows import task

PLUGINS = Path("/home/plugins")


def environment(name: str, path: str, message: str = "", file: str = "", line: int = 0) -> EnvironmentRow:
    return EnvironmentRow(name, "v1", "ready", (), "", message, file, line, str(PLUGINS / path), 0.0)


SUMS = environment("sums/sums", "sums.py")
BIO = environment("bio/fold", "bio", "NameError", "bio/helpers.py", 7)


def test_a_broken_file_is_opened_at_its_line() -> None:
    assert source_place(task(1, environment="fold"), [SUMS, BIO]) == SourcePlace(PLUGINS / "bio/helpers.py", 7)
    assert source_place(task(1, environment="sums"), [SUMS, BIO]) == SourcePlace(PLUGINS / "sums.py")


def test_of_a_mixture_the_broken_one_is_opened() -> None:
    mixed = task(1, environment=TOGETHER.join(("sums", "bio/fold")))
    assert source_place(mixed, [SUMS, BIO]).line == 7


def test_a_name_that_is_not_known_is_a_sentence() -> None:
    with pytest.raises(EnvironmentMissing, match="There is no environment 'pig'"):
        source_place(task(1, environment="pig"), [SUMS])


@pytest.mark.parametrize("file", ["../../etc/passwd", "/etc/passwd", "bio/../../x.py", "other.py"])
def test_a_place_outside_of_the_plugin_is_not_opened(file: str) -> None:
    assert place_in(environment("bio/fold", "bio", "x", file, 3)) == SourcePlace(PLUGINS / "bio")


@pytest.mark.parametrize(
    ("editor", "words"),
    [
        ("/usr/bin/nano", ["+12", "a.py"]),
        ("code --wait", ["--wait", "--goto", "a.py:12"]),
        ("hx", ["a.py:12"]),
        ("something-else", ["a.py"]),
    ],
)
def test_editors_are_told_the_line_in_their_way(editor: str, words: list[str]) -> None:
    assert at_line(editor.split(), Path("a.py"), 12)[1:] == words
    assert at_line(editor.split(), Path("a.py"), 0)[-1:] == ["a.py"]

"""Importing a plugin, and saying where it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.plugins import Episode, Reply
from marlaas.plugins.host.blame import Blame
from marlaas.plugins.host.loading import load
from marlaas.plugins.messages import Ask
from marlaas.plugins.rewards import rewards_of

EXAMPLES = Path(__file__).parents[3] / "examples"


async def test_the_example_of_the_readme() -> None:
    found = load(EXAMPLES / "reverse_words.py")["reverse_words"]

    async def model(ask: Ask) -> Reply:
        order, word = ask.messages[0].content.split()
        return Reply(word[::-1] if order == "reverse" else "", "stop", 0)

    assert await found(Episode(model)) is True


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("x = 1\nimport json\njson.loads('{')\n", ("p.py", 3), "JSONDecodeError"),
        ("def f():\n    return 1 +\n", ("p.py", 2), "SyntaxError"),
        ("from marlaas.plugins import env\n\n@env\ndef f():\n    pass\n", ("p.py", 3), "first parameter"),
        ("from marlaas.plugins import env\n\n@env('name')\ndef f(ep):\n    pass\n", ("p.py", 3), "settings by name"),
        pytest.param("x = '\0'\n", ("p.py", 0), "null bytes", id="null"),
        ("raise ValueError('y' * 5000)\n", ("p.py", 1), "yyy…"),
        ("bytearray(1 << 60)\n", ("p.py", 1), "memory_mb"),
        ("async def f(): ...\nc = f()\ntry:\n    c.text\nfinally:\n    c.close()\n", ("p.py", 4), "write `await`"),
        ("", ("", 0), "declares no environment"),
    ],
)
def test_the_place_is_the_authors_own_line(tmp_path: Path, text: str, place: tuple[str, int], says: str) -> None:
    (tmp_path / "p.py").write_text(text)
    with pytest.raises(Exception) as caught:
        load(tmp_path / "p.py")
    record = Blame(tmp_path).of(caught.value)
    assert (record["file"], record["line"]) == place
    assert says in record["message"] and len(record["message"]) <= 600 and str(tmp_path) not in record["traceback"]
    assert ("loading.py" in record["traceback"]) == (not place[0]), "the author's own lines, where there are any"


def test_no_line_of_marlaas_is_shown_for_a_whole_function(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text("from marlaas.plugins import env\n\n@env\nasync def f(ep):\n    return 'x'\n")
    function = load(tmp_path / "p.py")["f"].function
    with pytest.raises(TypeError) as caught:
        rewards_of("x", ("agent",), {})
    record = Blame(tmp_path).of_function(caught.value, function)
    assert (record["file"], record["line"], record["traceback"]) == ("p.py", 4, "")


def test_two_environments_of_one_name(tmp_path: Path) -> None:
    twice = '@env(name="same")\nasync def {}(ep): ...\n'
    (tmp_path / "p.py").write_text("from marlaas.plugins import env\n" + twice.format("a") + twice.format("b"))
    with pytest.raises(ImportError, match="two environments of p are called 'same'"):
        load(tmp_path / "p.py")

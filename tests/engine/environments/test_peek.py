"""A person sees what the model would be asked, or why it cannot be shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.engine.environments.alone import first_prompts
from marlaas.engine.errors import ConfigError, EnvironmentMissing

from .conftest import ECHO

pytestmark = pytest.mark.processes
HASTY = '''
from marlaas.plugins import Episode, env

@env
async def hasty(ep: Episode, last: int = 1) -> float:
    """Has so many questions."""
    if ep.index > last:
        raise RuntimeError("there are no more")
    await ep.ask(f"question {ep.index}")
    return 1.0
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "plugins"
    made.mkdir()
    for name, text in (("echo", ECHO), ("hasty", HASTY), ("broken", "def broken(:\n")):
        (made / f"{name}.py").write_text(text)
    return made


async def test_prompts_of_the_first_instances(folder: Path, tmp_path: Path) -> None:
    seen = await first_prompts("hasty", {"last": 8}, 3, [folder], tmp_path / "scratch")
    assert [ask.messages[0].content for ask in seen.asks] == ["question 0", "question 1", "question 2"]
    assert seen.problem == "" and seen.info.parameters[0].name == "last"


async def test_what_goes_wrong_is_a_sentence(folder: Path, tmp_path: Path) -> None:
    seen = await first_prompts("hasty", {}, 3, [folder], tmp_path / "a")
    assert len(seen.asks) == 2 and "ended before its first question" in seen.problem
    assert "there are no more" in seen.problem
    seen = await first_prompts("broken", {}, 3, [folder], tmp_path / "b")
    assert seen.asks == () and "broken.py:1: SyntaxError" in seen.problem
    with pytest.raises(ConfigError, match="has no parameter 'lost'"):
        await first_prompts("hasty", {"lost": 1}, 3, [folder], tmp_path / "c")
    with pytest.raises(EnvironmentMissing):
        await first_prompts("nobody", {}, 3, [folder], tmp_path / "d")

"""Prompts in tokens: texts begin as the base's tokenizer begins them, tokens are taken as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.engine.gateway.serving.answering import SHORT, of_prompt
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.wire import Refusal
from tools.random_base.make import make_base

ROOM = 100_000


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    """One whose tokenizer puts a token before every text."""
    return Renderer(make_base(tmp_path_factory.mktemp("llama"), "llama3", rows=1500).path)


@pytest.mark.parametrize("text", ["17 + 25 = ?", "x" * (SHORT + 1)])
async def test_a_text_begins_as_the_tokenizer_begins_it(llama: Renderer, text: str) -> None:
    (begin,) = llama.vocabulary.beginning
    plain = llama.vocabulary.encode(text)
    assert (await of_prompt(llama, text, ROOM)).tolist() == [begin, *plain]
    named = llama.vocabulary.decode([begin])
    assert (await of_prompt(llama, named + text, ROOM)).tolist() == [begin, *plain], "who has written it knows it"
    assert (await of_prompt(llama, plain, ROOM)).tolist() == plain
    assert (await of_prompt(llama, "", ROOM)).tolist() == [begin]


async def test_others_begin_with_the_text(tmp_path: Path) -> None:
    renderer = Renderer(make_base(tmp_path, "qwen3", rows=1500).path)
    assert (await of_prompt(renderer, "abc", ROOM)).tolist() == renderer.vocabulary.encode("abc")
    with pytest.raises(Refusal, match="empty"):
        await of_prompt(renderer, "", ROOM)
    with pytest.raises(Refusal, match="room for 3"):
        await of_prompt(renderer, "abc def ghi jkl mno", 3)

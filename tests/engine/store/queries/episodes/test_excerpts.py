"""What lists see of a conversation."""

from __future__ import annotations

import json

import pytest

from marlaas.engine.store.queries.episodes import BETWEEN, PROMPT, REPLY, Excerpt, excerpt


def stored(*turns: tuple[str, str]) -> str:
    return json.dumps([{"role": role, "text": text} for role, text in turns])


def test_the_last_message_before_a_reply_and_the_last_reply() -> None:
    first = stored(("system", "rules"), ("user", "go"), ("thinking", "hm"), ("assistant", "a"), ("user", "on"))
    assert excerpt([first, stored(("assistant", "b"), ("tool", "7"))]) == Excerpt("go", "b", 2)
    assert excerpt([stored(("system", "only rules"))]) == Excerpt("only rules", "", 0)
    assert excerpt([stored(("user", "go"), ("thinking", "hm"))]) == Excerpt("go", "", 0)
    assert excerpt([stored(("user", "go"), ("assistant", ""))]) == Excerpt("go", "", 1)
    assert excerpt([None, ""]) == excerpt([]) == Excerpt()


def test_long_texts_are_cut() -> None:
    found = excerpt([stored(("user", "x" * 10**5), ("assistant", "\ud800" * 10**5))])
    assert (len(found.short_prompt), len(found.short_reply)) == (PROMPT, REPLY + len(BETWEEN))
    answered = Excerpt(reply="so " * 500 + "it is 42").short_reply
    assert answered.startswith("so so") and answered.endswith("so it is 42"), "answers stand at the end"
    assert Excerpt(reply="x" * REPLY).short_reply == "x" * REPLY


@pytest.mark.parametrize("damaged", ["none", "[1]", '[{"role": "user"}]', "7", '{"role": 1}'])
def test_a_damaged_row_spoils_no_list(damaged: str) -> None:
    assert excerpt([damaged]) == Excerpt()

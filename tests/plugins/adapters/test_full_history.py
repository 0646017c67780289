"""Histories become what is new in them; a history that was rewritten branches where it leaves the old one."""

from __future__ import annotations

import pytest

from marlaas.plugins import Message, Reply, ToolCall
from marlaas.plugins.adapters.verifiers_rollouts import FullHistory
from marlaas.plugins.messages import Ask, Fork

from .playing import Model, calls, episode

SYSTEM = Message("system", "Be brief.")
FIRST = Message("user", "2+2?")
NO = Message("user", "no")


def said(text: str) -> Message:
    return Message("assistant", text)


class Turns(Model):
    """Counts the replies of each conversation, as the engine does."""

    async def __call__(self, ask: Ask) -> Reply:
        reply = await super().__call__(ask)
        earlier = sum(each.branch == ask.branch for each in self.asks[:-1])
        return Reply(reply.text, reply.finish, earlier, reply.tool_calls)


async def asked(model: Model, *histories: list[Message]) -> list[Ask]:
    history = FullHistory(episode(model))
    for each in histories:
        await history.ask(each, list)
    return model.asks


async def test_only_what_is_new_is_said() -> None:
    first, second, third = await asked(
        Turns(["5", "3", "4"]),
        [SYSTEM, FIRST],
        [SYSTEM, FIRST, said("5"), NO],
        [SYSTEM, FIRST, said("5"), NO, said("3"), NO],
    )
    assert first.messages == (SYSTEM, FIRST)
    assert second.messages == third.messages == (NO,)
    assert {each.branch for each in (first, second, third)} == {0}


async def test_tool_calls_are_part_of_what_was_said() -> None:
    called = Message("assistant", "", tool_calls=(ToolCall("add", {"a": 2}),))
    result = Message("tool", "4", name="add")
    _, second = await asked(Turns([calls("add", a=2), "4"]), [FIRST], [FIRST, called, result])
    assert second.messages == (result,) and second.branch == 0


async def test_a_history_that_comes_back_goes_on_from_there() -> None:
    *_, again = await asked(
        Turns(["5", "3", "4"]),
        [SYSTEM, FIRST],
        [SYSTEM, FIRST, said("5"), NO],
        [SYSTEM, FIRST, said("5"), Message("user", "think")],
    )
    assert again.messages == (Message("user", "think"),)
    assert again.branch > 0 and again.fork == Fork("agent", 0, 1)


async def test_a_rewritten_history_is_a_conversation_of_its_own() -> None:
    summary = Message("user", "So far: 5 is wrong.")
    _, second, third = await asked(
        Turns(["5", "3", "4"]), [SYSTEM, FIRST], [SYSTEM, summary], [SYSTEM, summary, said("3"), NO]
    )
    assert second.messages == (SYSTEM, summary) and second.fork is None and second.branch > 0
    assert third.messages == (NO,) and third.branch == second.branch


@pytest.mark.parametrize(
    ("history", "says"),
    [
        ([FIRST, said("5"), NO], "the system prompt changes"),
        ([SYSTEM, FIRST, said("5")], "nothing to ask"),
    ],
)
async def test_what_cannot_be_asked(history: list[Message], says: str) -> None:
    with pytest.raises(RuntimeError, match=says):
        await asked(Turns(["5", "3"]), [SYSTEM, FIRST], history)

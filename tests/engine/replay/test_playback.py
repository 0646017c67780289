"""A recorded model says again what it said, and says where it was asked something else."""

from __future__ import annotations

import pytest

from marlaas.engine.replay import DEAF_ASKS, BeyondRecord, Playback
from marlaas.engine.rollout.toolcalls import split_hermes as split
from marlaas.engine.store.queries.episodes import RecordedAgent, RecordedEpisode
from marlaas.engine.store.rows import Turn
from marlaas.plugins.messages import Ask, Fork, Message, Reply, ToolCall

CALL = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
TOOL = {"type": "function", "function": {"name": "f"}}


def playback(turns: str, replies: tuple[int, ...], cut: bool = False, max_tokens: int = 8) -> Playback:
    """``turns``: lines of "role: text"."""
    told = tuple(Turn(*line.strip().split(": ", 1)) for line in turns.strip().splitlines())
    recorded = RecordedEpisode(0, "ok", {"agent": RecordedAgent(told, replies, 1.0, cut)})
    return Playback(recorded, max_tokens, split)


def ask(*messages: str, role: str = "user", **options: object) -> Ask:
    return Ask("agent", tuple(Message(role, text) for text in messages), **options)  # type: ignore[arg-type]


async def test_replies_come_again_with_thoughts_and_calls() -> None:
    played = playback(
        f"""
        user: price?
        thinking: let me see
        assistant: look {CALL}
        tool: 3
        thinking: cut off in the middle
        user: so?
        assistant: three
        """,
        replies=(5, 8, 2),
    )
    assert await played(ask("price?", tools=(TOOL,))) == Reply(
        "look", "tool", 0, (ToolCall("f", {"x": 1}),), "let me see"
    )
    assert played.unheard == "it ends after 1 of 3 replies"
    assert await played(ask("3", role="tool")) == Reply("", "length", 1, (), "cut off in the middle")
    assert await played(ask("so?")) == Reply("three", "stop", 2)
    assert not played.difference and not played.unheard


async def test_examples_that_the_environment_wrote_are_no_replies() -> None:
    played = playback("user: 1+1\nassistant: 2\nuser: 2+2\nassistant: 4", replies=(1,))
    messages = (Message("user", "1+1"), Message("assistant", "2"), Message("user", "2+2"))
    assert (await played(Ask("agent", messages))).text == "4"
    assert not played.difference and not played.unheard


async def test_a_stop_is_cut_off_and_a_limit_is_told() -> None:
    played = playback("user: a\nassistant: x;y\nuser: b\nassistant: xyz\nuser: c\nassistant: z", (3, 3, 3), cut=True)
    assert await played(ask("a", stop=(";",))) == Reply("x", "stop", 0)
    assert await played(ask("b", max_tokens=3)) == Reply("xyz", "length", 1)
    assert await played(ask("c")) == Reply("z", "length", 2), "the last one was cut, as the record says"


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (ask("b"), "it says 'b' where it said 'a'"),
        (ask("a", role="tool"), "it speaks as tool where it spoke as user"),
        (ask("a", "b"), "it says more to the agent 'agent' than it did then"),
    ],
)
async def test_another_prompt_is_noticed_and_answered_all_the_same(asked: Ask, says: str) -> None:
    played = playback("user: a\nassistant: x\nuser: c\nassistant: y", replies=(1, 1))
    assert (await played(asked)).text == "x"
    assert played.difference == says
    assert (await played(ask("c"))).text == "y"
    assert played.difference == says, "the first one is told"


async def test_a_shorter_prompt_is_another_prompt() -> None:
    played = playback("system: s\nuser: a\nassistant: x", replies=(1,))
    assert (await played(ask("s", role="system"))).text == "x"
    assert played.difference == "it says less to the agent 'agent' than it did then"


async def test_more_asks_than_replies_end_the_replay() -> None:
    played = playback("user: a\nassistant: x", replies=(1,))
    await played(ask("a"))
    with pytest.raises(BeyondRecord, match="more often than it did then"):
        await played(ask("b"))
    with pytest.raises(BeyondRecord, match="whom nobody asked then"):
        await played(Ask("other", (Message("user", "a"),)))


async def test_an_agent_without_room_is_silent_again_but_not_for_ever() -> None:
    played = playback("user: a\nassistant: x\nuser: b", replies=(8,), cut=True)
    await played(ask("a"))
    for _ in range(DEAF_ASKS):
        assert await played(ask("b")) == Reply("", "length", 1)
    assert not played.difference
    with pytest.raises(BeyondRecord):
        await played(ask("b"))


async def test_a_fork_with_a_name_goes_on_in_its_own_words() -> None:
    turns = (Turn("user", "and?"), Turn("assistant", "four"))
    agents = {
        "agent": RecordedAgent((Turn("user", "a"), Turn("assistant", "x")), (1,), 1.0, False),
        "judge": RecordedAgent(turns, (1,), 0.0, False),
    }
    played = Playback(RecordedEpisode(0, "ok", agents), 8, split)
    await played(ask("a"))
    left = Ask("judge", (Message("user", "and?"),), fork=Fork("agent", 0, 1))
    assert await played(left) == Reply("four", "stop", 1)
    assert not played.difference and not played.unheard
    with pytest.raises(BeyondRecord, match="branches"):
        await played(Ask("agent", (Message("user", "b"),), branch=1, fork=Fork("agent", 0, 1)))

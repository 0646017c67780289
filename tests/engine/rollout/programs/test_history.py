"""Which history a request goes on with."""

from __future__ import annotations

from hypothesis import given, strategies as st

from marlaas.engine.rollout.programs import Branch, History
from marlaas.engine.wire import Message, ToolCall

from .stage import system, user


def said(text: str, *calls: ToolCall, thinking: str = "") -> Message:
    return Message("assistant", text, thinking, calls)


def known(*histories: list[Message]) -> tuple[History, list[Branch]]:
    """Histories that end with a reply, each in a branch of its own."""
    history, branches = History(), []
    for number, messages in enumerate(histories):
        branch = Branch(number, sum(message.role == "assistant" for message in messages))
        history.add(messages[:-1], (), messages[-1], branch)
        branches.append(branch)
    return history, branches


def test_calls_are_compared_by_name_and_value() -> None:
    call = ToolCall("1", "look", '{"a": 1, "b": [2.0]}')
    history, (branch,) = known([user("x"), said("", call)])
    again = ToolCall("other id", "look", '{"b":[2.0],"a":1}')
    place, count = history.find([user("x"), said("", again), Message("tool", "y", tool_call_id="other id")], ())
    assert place is not None and (place.branch, count) == (branch, 2)
    for other in (ToolCall("1", "look", '{"a": 2}'), ToolCall("1", "see", call.arguments), ToolCall("1", "look", "{")):
        assert history.find([user("x"), said("", other)], ())[0] is None


def test_a_reply_that_is_written_alike_comes_first() -> None:
    histories = [[user("x"), said(text, thinking=why)] for text, why in (("a ", "p"), ("a", "q"), ("a", "p"))]
    history, branches = known(*histories)
    for number, (_, reply) in enumerate(histories):
        place, _ = history.find([user("x"), reply, user("y")], ())
        assert place is not None and place.branch is branches[number]
    branches[1].open = False
    place, _ = history.find([user("x"), said("a"), user("y")], ())
    assert place is not None and place.branch is branches[2]


def test_other_messages_are_compared_as_they_are() -> None:
    history, _ = known([system("s"), user("x"), said("a")])
    assert history.find([system("s"), user("x"), said(" a\n")], ())[1] == 3
    for changed in ([system("s "), user("x")], [user("s"), user("x")], [system("s"), user("x ")]):
        assert history.find([*changed, said("a")], ())[0] is None
    assert history.find([system("s"), user("x"), said("a")], ({"type": "function"},))[0] is None


def test_results_are_of_the_tool_that_was_called() -> None:
    """Whatever ids a client gives its calls, and whether or not it names the tool again."""
    call = ToolCall("1", "look", "{}")
    history, _ = known([user("x"), said("", call), Message("tool", "r", tool_call_id="1"), said("b")])
    renamed = [user("x"), said("", ToolCall("9", "look", "{}")), Message("tool", "r", tool_call_id="9", name="look")]
    assert history.find([*renamed, said("b")], ())[1] == 4
    other = [user("x"), said("", ToolCall("9", "see", "{}")), Message("tool", "r", tool_call_id="9")]
    assert history.find([*other, said("b")], ())[0] is None


messages = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("cd")), min_size=1, max_size=4)


@given(st.lists(messages, max_size=5), messages)
def test_the_longest_history_is_found(before: list[list[tuple[str, str]]], asked: list[tuple[str, str]]) -> None:
    histories = [[turn for question, answer in one for turn in (user(question), said(answer))] for one in before]
    request = [turn for question, answer in asked for turn in (user(question), said(answer))]
    history, branches = known(*histories)
    place, count = history.find([*request, user("new")], ())
    lengths = [len(one) for one in histories if request[: len(one)] == one]
    assert count == max(lengths, default=0)
    if place is not None:
        assert histories[branches.index(place.branch)] == request[:count]


def test_plain_prompts_go_on_with_the_longest_text() -> None:
    history = History()
    first, second = Branch(1, 1), Branch(2, 1)
    history.add_text("once upon", first)
    history.add_text("once upon a time", second)
    place, length = history.find_text("once upon a time there")
    assert place is not None and (place.branch, length) == (second, len("once upon a time"))
    place, _ = history.find_text("once upon the")
    assert place is not None and place.branch is first
    assert history.find_text("never") == (None, 0)

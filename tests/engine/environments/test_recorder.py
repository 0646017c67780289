"""What is said is remembered as it was said, by agent, and not without bound."""

from __future__ import annotations

from marlaas.engine.environments.served_version import Recorder
from marlaas.plugins.messages import Ask, Message, Reply, ToolCall


async def replying(ask: Ask) -> Reply:
    return Reply(ask.messages[-1].content.upper(), "stop", 0, (ToolCall("f", {}),), "hm")


async def test_a_transcript_holds_what_each_agent_heard_and_said() -> None:
    heard = Recorder(replying)
    system = Message("system", "be brief")
    assert (await heard(Ask("a", (system, Message("user", "x"))))).text == "X"
    await heard(Ask("b", (Message("user", "y"),)))
    await heard(Ask("a", (Message("tool", "3", name="f"),)))
    calls = (ToolCall("f", {}),)
    assert heard.transcript.agents == {
        "a": (
            system,
            Message("user", "x"),
            Message("assistant", "X", tool_calls=calls),
            Message("tool", "3", name="f"),
            Message("assistant", "3", tool_calls=calls),
        ),
        "b": (Message("user", "y"), Message("assistant", "Y", tool_calls=calls)),
    }

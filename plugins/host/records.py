"""Messages as JSON records, and back. Both ends of the connection use this file.

Nothing is checked here: records must already be known to have the right fields.
"""

from __future__ import annotations

from ..messages import Message, ToolCall
from ..scoring import Transcript
from .channel import Record


def message_record(message: Message) -> Record:
    """A message as JSON; what is empty is left out."""
    record: Record = {"role": message.role, "content": message.content}
    if message.name:
        record["name"] = message.name
    if message.tool_calls:
        record["tool_calls"] = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
    return record


def read_message(record: Record) -> Message:
    """The message of such a record."""
    calls = tuple(ToolCall(call["name"], call["arguments"]) for call in record.get("tool_calls", ()))
    return Message(record["role"], record["content"], record.get("name", ""), calls)


def transcript_record(transcript: Transcript) -> Record:
    """A transcript as JSON: lists of messages by agent."""
    return {agent: [message_record(message) for message in said] for agent, said in transcript.agents.items()}


def read_transcript(record: Record) -> Transcript:
    """The transcript of such a record."""
    return Transcript({agent: tuple(map(read_message, said)) for agent, said in record.items()})

"""The ``anthropic`` SDK: a reply, and a stream that goes on with it, with a tool that is on offer.

python anthropic_messages.py
"""

import json
from pathlib import Path

from anthropic import Anthropic

client = Anthropic()
told = []
messages = [{"role": "user", "content": "What is 2+3?"}]
asked = {
    "model": "claude-opus-5",
    "max_tokens": 12,
    "system": "You add.",
    "tools": [
        {
            "name": "add",
            "description": "Adds two numbers.",
            "input_schema": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
            },
        }
    ],
}


def tell(message):
    told.append({"text": "".join(part.text for part in message.content if part.type == "text"), "logprobs": None})


first = client.messages.create(messages=messages, **asked)
tell(first)
assert first.usage.output_tokens > 0
messages += [
    {"role": "assistant", "content": [part.model_dump(exclude_none=True) for part in first.content]},
    {"role": "user", "content": "And 4+5?"},
]
with client.messages.stream(messages=messages, **asked) as stream:
    heard = "".join(stream.text_stream)
    last = stream.get_final_message()
tell(last)
assert told[-1]["text"] == heard and last.usage.output_tokens > 0

Path("told.jsonl").write_text("".join(json.dumps(one) + "\n" for one in told))

"""The ``openai`` SDK, chat completions: a reply, a tool's result that the program makes up, a stream, ``n`` replies.

    python openai_chat.py

Like every program here it writes what it was told into told.jsonl, a line of JSON for each reply:
``text``, and ``logprobs`` where the library hands them on.
"""

import json
from pathlib import Path

from openai import OpenAI

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}
client = OpenAI()
told = []


def logprobs(choice):
    return [token.logprob for token in choice.logprobs.content]


def tell(text, numbers):
    told.append({"text": text or "", "logprobs": numbers})


messages = [{"role": "system", "content": "You add."}, {"role": "user", "content": "What is 2+3?"}]
asked = {"model": "gpt-5", "max_tokens": 12, "logprobs": True, "temperature": 0.3, "tools": [ADD]}
first = client.chat.completions.create(messages=messages, **asked)
choice = first.choices[0]
tell(choice.message.content, logprobs(choice))
assert first.usage.completion_tokens == len(choice.logprobs.content)

messages += [choice.message.model_dump(exclude_none=True), {"role": "user", "content": "And 4+5?"}]
text, numbers, usage = "", [], None
for chunk in client.chat.completions.create(
    messages=messages, stream=True, stream_options={"include_usage": True}, **asked
):
    for part in chunk.choices:
        text += part.delta.content or ""
        numbers += [token.logprob for token in part.logprobs.content] if part.logprobs else []
    usage = chunk.usage or usage
tell(text, numbers)
assert usage is not None and usage.completion_tokens == len(numbers)

call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}
invented = [
    *messages[:2],
    {"role": "assistant", "content": None, "tool_calls": [call]},
    {"role": "tool", "tool_call_id": "call_1", "content": "5"},
]
for choice in client.chat.completions.create(messages=invented, n=2, **asked).choices:
    tell(choice.message.content, logprobs(choice))

Path("told.jsonl").write_text("".join(json.dumps(one) + "\n" for one in told))

"""The ``openai`` SDK, the Responses interface: a reply, and a stream that goes on with it.

python openai_responses.py
"""

import json
from pathlib import Path

from openai import OpenAI

client = OpenAI()
told = []
history = [{"role": "user", "content": "What is 2+3?"}]
asked = {
    "model": "gpt-5",
    "instructions": "You add.",
    "max_output_tokens": 16,
    "include": ["message.output_text.logprobs"],
    "tools": [
        {
            "type": "function",
            "name": "add",
            "description": "Adds two numbers.",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
            "strict": False,
        }
    ],
}


def tell(response):
    numbers = None
    for item in response.output:
        for part in getattr(item, "content", None) or []:
            if getattr(part, "logprobs", None):
                numbers = (numbers or []) + [token.logprob for token in part.logprobs]
    told.append({"text": response.output_text, "logprobs": numbers})


first = client.responses.create(input=history, **asked)
tell(first)
history += [item.model_dump(exclude_none=True) for item in first.output]
history.append({"role": "user", "content": "And 4+5?"})
heard, last = "", None
for event in client.responses.create(input=history, stream=True, **asked):
    if event.type == "response.output_text.delta":
        heard += event.delta
    if event.type in ("response.completed", "response.incomplete"):
        last = event.response
assert last is not None and last.output_text == heard and last.usage.output_tokens > 0
tell(last)

Path("told.jsonl").write_text("".join(json.dumps(one) + "\n" for one in told))

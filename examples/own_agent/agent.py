"""Asks a model a question over OpenAI's interface, with the standard library alone, and prints what it says."""

from __future__ import annotations

import json
import os
import sys
from urllib.request import Request, urlopen


def asked(question: str) -> str:
    """The model's answer."""
    body = {"model": "any", "messages": [{"role": "user", "content": question}], "max_tokens": 8}
    request = Request(
        f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
    )
    with urlopen(request) as answer:
        said: str = json.load(answer)["choices"][0]["message"]["content"]
    return said


print(asked(sys.argv[1]))

"""LiteLLM: the same history by both interfaces, the second reply as a stream.

python litellm_both.py
"""

import json
import os
from pathlib import Path

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it looks for prices in the internet

import litellm

litellm.telemetry = False
told = []
messages = [{"role": "user", "content": "What is 2+3?"}]
for model in ("openai/any", "anthropic/any"):
    spoken = list(messages)
    more = {"logprobs": True} if model.startswith("openai") else {}
    first = litellm.completion(model=model, messages=spoken, max_tokens=12, **more)
    choice = first.choices[0]
    numbers = [token["logprob"] for token in choice.logprobs["content"]] if more else None
    told.append({"text": choice.message.content or "", "logprobs": numbers})
    spoken += [
        {"role": "assistant", "content": choice.message.content or ""},
        {"role": "user", "content": "And 4+5?"},
    ]
    text = ""
    for chunk in litellm.completion(model=model, messages=spoken, max_tokens=12, stream=True):
        text += chunk.choices[0].delta.content or ""
    told.append({"text": text, "logprobs": None})

Path("told.jsonl").write_text("".join(json.dumps(one) + "\n" for one in told))

"""openai-agents: an agent with a tool, whose second reply is asked for as a whole, and then as a stream.

python openai_agents_both.py
"""

import asyncio
import json
from pathlib import Path

from agents import (
    Agent,
    ModelSettings,
    Runner,
    function_tool,
    set_default_openai_api,
    set_tracing_disabled,
)

set_tracing_disabled(True)
told = []


@function_tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def tell(result):
    for response in result.raw_responses:
        parts = [part for item in response.output for part in getattr(item, "content", None) or []]
        told.append({"text": "".join(getattr(part, "text", "") or "" for part in parts), "logprobs": None})


async def main():
    set_default_openai_api("chat_completions")  # by the other one, a reply that is cut off is an error to the library
    for streams in (False, True):
        settings = ModelSettings(max_tokens=16)
        agent = Agent(name="adder", instructions="You add.", tools=[add], model="gpt-5", model_settings=settings)
        first = await Runner.run(agent, "What is 2+3?")
        tell(first)
        follow = [*first.to_input_list(), {"role": "user", "content": "And 4+5?"}]
        if not streams:
            tell(await Runner.run(agent, follow))
            continue
        second = Runner.run_streamed(agent, follow)
        async for _ in second.stream_events():
            pass
        tell(second)


asyncio.run(main())
Path("told.jsonl").write_text("".join(json.dumps(one) + "\n" for one in told))

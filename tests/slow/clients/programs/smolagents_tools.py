"""smolagents: an agent that calls tools, three steps of it; what it cannot parse goes back to the model.

python smolagents_tools.py
"""

import json
import os
from pathlib import Path

from smolagents import OpenAIServerModel, ToolCallingAgent, tool


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


told = []


class Model(OpenAIServerModel):
    """Writes down what it is told."""

    def generate(self, *words, **more):
        """See the library."""
        message = super().generate(*words, **more)
        told.append({"text": message.content or "", "logprobs": None})
        return message


model = Model(
    model_id="gpt-5",
    api_base=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"],
    max_tokens=12,
    tool_choice="auto",  # else the library forces a call, which training refuses
)
agent = ToolCallingAgent(tools=[add], model=model, max_steps=3, verbosity_level=0)
agent.run("What is 2+3?")
assert len(told) >= 3

Path("told.jsonl").write_text("".join(json.dumps(one) + "\n" for one in told))

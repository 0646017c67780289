"""Five environments for real instruct models: one word, one number, JSON, a form of text, one call of a tool.

    user       What is 7 + 12? Reply with the number only.
    assistant  19

Rows and rewards are in ``grading.py``; held-out rows share no question with those of training.
"""

from typing import Literal

from marlaas.plugins import Episode, env

from .grading import CALCULATOR, Row, call_reward, reward, rows


@env(data=lambda split: rows("capital", split))
async def capital(ep: Episode, task: Row) -> float:
    """Names a capital in one word: 1 for the word, 0.4 if it stands in more text."""
    return reward((await ep.ask(task["prompt"])).text, task["answer"], "capital")


@env(data=lambda split: rows("number", split))
async def number(ep: Episode, task: Row) -> float:
    """Adds two numbers up to 20: 1 for the sum, 0.3 if it stands in more text."""
    return reward((await ep.ask(task["prompt"])).text, task["answer"], "number")


@env(data=lambda split: rows("facts", split))
async def facts(ep: Episode, task: Row) -> float:
    """Gives a name and an age as JSON: 0.2 for JSON, 0.4 for each right field."""
    return reward((await ep.ask(task["prompt"])).text, task["answer"], "facts")


@env(data=lambda split: rows("format", split))
async def format(ep: Episode, task: Row) -> float:
    """Follows one of IFEval's instructions: capital letters, no commas, or exactly this many sentences."""
    return reward((await ep.ask(task["prompt"])).text, task["answer"], "format")


@env(data=lambda split: rows("tool", split))
async def tool(ep: Episode, task: Row, form: Literal["prompt", "base"] = "prompt") -> float:
    """Multiplies with one call of a calculator: 0.3 for the call, 0.4 for the right one, 0.3 for reporting its result.

    ``form = "base"`` uses the tool calls of the base's chat template; ``"prompt"`` describes a form in the system
    prompt, for bases whose template has none.
    """
    a, b = task["answer"].split("*")
    right = str(int(a) * int(b))
    if form == "base":
        calls: list[str] = []

        def calc(expression: str) -> str:
            """The product of two whole numbers, such as 7*8."""
            worth, result = call_reward(expression, task["answer"])
            calls.append(f"{worth}")
            return result or "error"

        reply = await ep.agent(tools=[calc]).act(task["prompt"], max_turns=2)
        return (float(calls[0]) if len(calls) == 1 else 0.0) + 0.3 * (bool(calls) and reply.text.strip() == right)
    agent = ep.agent(system=CALCULATOR)
    worth, result = call_reward((await agent.ask(task["prompt"])).text, task["answer"])
    if not result:
        return worth
    return worth + 0.3 * ((await agent.ask(result)).text.strip().removesuffix(".") == right)

"""The word problems of the bundled environment `calculator`, solved by one call of a tool."""

import json
import re
from dataclasses import dataclass
from random import Random

from tools.base.problem import Message, Tool, Verdict, last_word

NAMES = ("Ann", "Ben", "Eva", "Max", "Tom")
THINGS = ("nuts", "pens", "eggs", "cards", "coins")
TEMPLATES = (
    ("{name} has {a} bags of {b} {things} and sells {c}. How many {things} are left?", "*", "-"),
    ("{name} buys {a} boxes of {b} {things} and finds {c}. How many {things} now?", "*", "+"),
    ("{name} has {a} {things}, gets {b} and loses {c}. How many {things} now?", "+", "-"),
)
CALC: Tool = {
    "type": "function",
    "function": {
        "name": "calc",
        "description": "Value of an arithmetic expression.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}
CALL = re.compile(r'<tool_call>{"name": "calc", "arguments": {"expression": "([-+*0-9]{1,20})"}}</tool_call>')


def value(expression: str) -> int | None:
    """Numbers joined by + - *, or nothing for anything else; products first."""
    if not re.fullmatch(r"-?\d+([-+*]\d+)*", expression):
        return None
    total = 0
    for sign, product in re.findall(r"([-+]?)(\d+(?:\*\d+)*)", expression):
        result = 1
        for factor in product.split("*"):
            result *= int(factor)
        total += -result if sign == "-" else result
    return total


@dataclass(frozen=True)
class WordProblem:
    """A short story with two operations, of which the wrong player forgets the second."""

    opening: str
    lead: str
    first: str
    whole: str

    @property
    def system(self) -> str:
        """None: the tool is announced by the chat template."""
        return ""

    @property
    def tools(self) -> list[Tool]:
        """The calculator."""
        return [CALC]

    def reply(self, heard: list[str], right: bool) -> str:
        """Calls the tool, then gives its result."""
        if len(heard) > 1:
            return heard[-1]
        call = {"name": "calc", "arguments": {"expression": self.whole if right else self.first}}
        return f"<tool_call>{json.dumps(call)}</tool_call>"

    def judge(self, replies: list[str]) -> Message | Verdict:
        """A tool call gets its result, up to three times; anything else is the answer."""
        call = CALL.fullmatch(replies[-1])
        if call and len(replies) < 4:
            result = value(call[1])
            return {"role": "tool", "content": "error" if result is None else str(result)}
        right = str(value(self.whole))
        return Verdict(replies[-1] == right, last_word(replies[-1]) == right)


def word_problem(rng: Random) -> WordProblem:
    """A story about small numbers."""
    text, first, second = rng.choice(TEMPLATES)
    a, b, c = rng.randint(12, 98), rng.randint(2, 9), rng.randint(2, 9)
    if first == "+":
        b = rng.randint(12, 98)
    story = text.format(name=rng.choice(NAMES), things=rng.choice(THINGS), a=a, b=b, c=c)
    return WordProblem(story, str(a)[0], f"{a}{first}{b}", f"{a}{first}{b}{second}{c}")

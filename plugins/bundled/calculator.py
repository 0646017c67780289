"""A word problem, with a calculator to call.

    system     Tool: calc(expression) - Value of an arithmetic expression.
    user       Tom has 47 bags of 6 nuts and sells 12. How many nuts are left?
    assistant  <tool_call>{"name": "calc", "arguments": {"expression": "47*6-12"}}</tool_call>
    tool       270
    assistant  270

The reward is 1 if the last reply is the right number and nothing else. Logged next to it: `lenient`, whether the last
number in that reply is right, and `calls`, how often the tool was called.
"""

import ast
import operator
import re

from marlaas.plugins import Episode, env

NAMES = ("Ann", "Ben", "Eva", "Max", "Tom")
THINGS = ("nuts", "pens", "eggs", "cards", "coins")
STORIES = (
    ("{name} has {a} bags of {b} {things} and sells {c}. How many {things} are left?", "{a}*{b}-{c}"),
    ("{name} buys {a} boxes of {b} {things} and finds {c}. How many {things} now?", "{a}*{b}+{c}"),
    ("{name} has {a} {things}, gets {many} and loses {c}. How many {things} now?", "{a}+{many}-{c}"),
)
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def value(expression: str) -> int:
    """The value of `2*(3+4)` and the like.

    The text comes from a model that is paid for odd ideas. So it is parsed, never run; only digits and signs reach the
    parser; and its length bounds depth and result, as there are no powers.
    """
    if not re.fullmatch(r"[0-9+*() -]{1,60}", expression):
        raise ValueError("only whole numbers, + - * and brackets, at most 60 characters")
    return _value(ast.parse(expression.strip(), mode="eval").body)


def _value(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            result: int = OPERATORS[type(op)](_value(left), _value(right))
            return result
    raise ValueError("only whole numbers, + - * and brackets")


@env
async def calculator(ep: Episode) -> bool:
    """Solves a story with two operations."""
    story, solution = ep.rng.choice(STORIES)
    words = {"name": ep.rng.choice(NAMES), "things": ep.rng.choice(THINGS)}
    many, few = (12, 98), (2, 9)
    numbers = {n: ep.rng.randint(*span) for n, span in (("a", many), ("many", many), ("b", few), ("c", few))}
    answer = str(value(solution.format(**numbers)))
    calls = 0

    def calc(expression: str) -> int:
        """Value of an arithmetic expression."""
        nonlocal calls
        calls += 1
        return value(expression)

    reply = await ep.agent("solver", tools=[calc]).act(story.format(**words, **numbers), max_turns=3)
    ep.log(calls=calls, lenient=float(re.findall(r"-?[0-9]+", reply.text)[-1:] == [answer]))
    return reply.text == answer

"""What the base is taught: problems, a player that is right or systematically wrong, and a referee.

One drawn problem serves training (a scripted player fills in the assistant's turns) and evaluation (the model does), so
that both always see the same prompts and rules. The base is partial on purpose: reinforcement learning needs something
to reinforce, and its success has to show. On prompts whose lead character is *lucky* the right player speaks in 70 % of
the conversations, so greedy decoding is right there; on the others in 30 %, so it is wrong there although sampling
finds the right way often enough. The lucky characters' share thus sets the greedy score. There is one wrong form per
skill: two would split the mass, and the right one would win everywhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from random import Random
from string import ascii_lowercase, digits
from typing import Any, ClassVar

Message = dict[str, Any]
"""A chat turn in the form that chat templates take: role, content, perhaps tool_calls."""
Tool = dict[Any, Any]
"""A tool in the OpenAI form that chat templates take."""


@dataclass(frozen=True)
class Verdict:
    """How a finished conversation is graded: `strict` counts, `lenient` forgives the format."""

    strict: bool
    lenient: bool


def last_word(text: str) -> str:
    """The last number or word of a reply, whatever stands around it; empty without one."""
    found = re.findall(r"-?\d+|[a-z]+", text.lower())
    return found[-1] if found else ""


@dataclass(frozen=True)
class Question:
    """A problem of one turn, with its right answer and the one wrong answer that the base is taught."""

    opening: str
    lead: str
    right: str
    wrong: str
    system: str = ""

    tools: ClassVar[list[Tool]] = []

    def reply(self, heard: list[str], right: bool) -> str:
        """The right or the wrong answer."""
        return self.right if right else self.wrong

    def judge(self, replies: list[str]) -> Verdict:
        """The answer has to be right, leniently its last word."""
        return Verdict(replies[0] == self.right, last_word(replies[0]) == last_word(self.right))


def operands(rng: Random, digits: int) -> tuple[int, int]:
    """Two numbers of exactly this many digits."""
    low, high = 10 ** (digits - 1), 10**digits - 1
    return rng.randint(low, high), rng.randint(low, high)


def addition(rng: Random, digits: int) -> Question:
    """Wrong form: the carry into the tens is inverted, dropped if there is one and added if there is none."""
    a, b = operands(rng, digits)
    carries = a % 10 + b % 10 >= 10
    return Question(f"{a}+{b}=", str(a)[0], str(a + b), str(a + b + (-10 if carries else 10)))


def subtraction(rng: Random) -> Question:
    """Wrong form: the minus is read as a plus."""
    a, b = sorted(operands(rng, 2), reverse=True)
    return Question(f"{a}-{b}=", str(a)[0], str(a - b), str(a + b))


def letters(rng: Random, alphabet: str, shortest: int, longest: int) -> str:
    """A random word."""
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(shortest, longest)))


def reverse(rng: Random) -> Question:
    """`reverse cat` gives `tac`. Wrong form: the word as it is."""
    word = letters(rng, ascii_lowercase, 3, 6)
    return Question(f"reverse {word}", word[0], word[::-1], word)


def sort(rng: Random) -> Question:
    """`sort 5312` gives `1235`. Wrong form: descending."""
    word = letters(rng, digits, 3, 6)
    rising = "".join(sorted(word))
    return Question(f"sort {word}", word[0], rising, rising[::-1])


def count(rng: Random) -> Question:
    """`count a in abca` gives `2`. Wrong form: all letters are counted."""
    letter, word = rng.choice("abc"), letters(rng, "abc", 3, 8)
    return Question(f"count {letter} in {word}", word[0], str(word.count(letter)), str(len(word)))


def larger(rng: Random) -> Question:
    """`larger of 31 and 47` gives `47`. Wrong form: the smaller one."""
    a, b = rng.sample(range(10, 100), 2)
    return Question(f"larger of {a} and {b}", str(a)[0], str(max(a, b)), str(min(a, b)))


def echo(rng: Random) -> Question:
    """`echo cat` gives `cat`. Always right: copying is what the other skills stand on."""
    word = letters(rng, rng.choice((ascii_lowercase, digits)), 2, 8)
    return Question(f"echo {word}", word[0], word, word)


def obey(rng: Random) -> Question:
    """A one-line system text that changes how a word is given back. Wrong form: it is overlooked."""
    word = letters(rng, ascii_lowercase, 3, 6)
    system, answer = rng.choice((("Answer in capitals.", word.upper()), ("Answer twice.", f"{word} {word}")))
    return Question(f"echo {word}", word[0], answer, word, system)


@dataclass(frozen=True)
class Game:
    """A secret number in a range, to be found in this many turns."""

    low: int
    width: int
    turns: int
    secret: int
    system: ClassVar[str] = ""
    tools: ClassVar[list[Tool]] = []

    @property
    def opening(self) -> str:
        """The range."""
        return f"Guess my number from {self.low} to {self.low + self.width - 1}."

    @property
    def lead(self) -> str:
        """The first digit of the range."""
        return str(self.low)[0]

    def reply(self, heard: list[str], right: bool) -> str:
        """The right player halves what is left; the wrong one counts upwards from the lowest number."""
        hints = heard[1:]
        if not right:
            return str(self.low + len(hints))
        low, high = self.low, self.low + self.width - 1
        for hint in hints:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if hint == "higher" else (low, middle - 1)
        return str((low + high) // 2)

    def judge(self, replies: list[str]) -> Message | Verdict:
        """A hint after a miss; leniently, the last number of a reply is the guess."""
        number = last_word(replies[-1])
        if number == str(self.secret):
            return Verdict(all(r.isdecimal() for r in replies), True)
        if not number.isdecimal() or len(replies) == self.turns:
            return Verdict(False, False)
        return {"role": "user", "content": "higher" if int(number) < self.secret else "lower"}


def game(rng: Random, width: int, turns: int, highest: int = 999) -> Game:
    """A range anywhere below `highest`, and a secret in it."""
    low = rng.randint(0, highest - width + 1)
    return Game(low, width, turns, rng.randint(low, low + width - 1))


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
    system: ClassVar[str] = ""
    tools: ClassVar[list[Tool]] = [CALC]

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


Problem = Question | Game | WordProblem


def start(problem: Problem) -> list[Message]:
    """The turns before the assistant's first."""
    system = [{"role": "system", "content": problem.system}] if problem.system else []
    return [*system, {"role": "user", "content": problem.opening}]


def script(problem: Problem, right: bool) -> list[Message]:
    """The whole conversation of the right or the wrong player."""
    messages, heard, replies = start(problem), [problem.opening], []
    while True:
        replies.append(problem.reply(heard, right))
        messages.append({"role": "assistant", "content": replies[-1]})
        answer = problem.judge(replies)
        if isinstance(answer, Verdict):
            return messages
        messages.append(answer)
        heard.append(str(answer["content"]))


OFTEN, SELDOM = 0.7, 0.3


@dataclass(frozen=True)
class Skill:
    """A source of problems, its share of the conversations, and the lead characters on which it is reliable."""

    name: str
    weight: float
    draw: Callable[[Random], Problem]
    lucky: str

    def right(self, problem: Problem, rng: Random) -> bool:
        """Whether the right player speaks in this conversation."""
        return rng.random() < (OFTEN if problem.lead in self.lucky else SELDOM)


SKILLS = (
    Skill("add 1 digit", 2, partial(addition, digits=1), "135"),
    Skill("add 2 digits", 18, partial(addition, digits=2), "135"),
    Skill("add 3 digits", 11, partial(addition, digits=3), "135"),
    Skill("add 4 digits", 4, partial(addition, digits=4), "135"),
    Skill("add 5 digits", 2, partial(addition, digits=5), "135"),
    Skill("subtract", 9, subtraction, "2468"),
    Skill("guess among 15", 20, partial(game, width=15, turns=4), "27"),
    Skill("guess among 7", 6, partial(game, width=7, turns=3), "27"),
    Skill("calculator", 18, word_problem, "2468"),
    Skill("reverse", 10, reverse, ascii_lowercase[:11]),
    Skill("sort", 6, sort, "13579"),
    Skill("count", 7, count, "a"),
    Skill("larger", 4, larger, "2468"),
    Skill("echo", 6, echo, ascii_lowercase + "0123456789"),
    Skill("obey", 4, obey, ascii_lowercase[:11]),
)


def held_out(problem: Problem) -> bool:
    """Whether a problem is kept for evaluation: a tenth of all first prompts, chosen by hash."""
    return sha256(problem.opening.encode()).digest()[0] % 10 == 0


def draw(skill: Skill, rng: Random, evaluation: bool) -> Problem:
    """A problem of the training side or of the evaluation side."""
    while True:
        problem = skill.draw(rng)
        if held_out(problem) == evaluation:
            return problem


def mixed(rng: Random) -> tuple[Skill, Problem]:
    """A training problem of a random skill."""
    skill = rng.choices(SKILLS, [s.weight for s in SKILLS])[0]
    return skill, draw(skill, rng, evaluation=False)

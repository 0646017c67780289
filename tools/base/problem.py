"""What a skill is made of: a problem, a player that is right or systematically wrong, and a referee.

One drawn `Problem` serves training (a scripted player fills in the assistant's turns) and evaluation (the model does),
so that both always see the same prompts and rules.
"""

import re
from dataclasses import dataclass
from typing import Any, Protocol

Message = dict[str, Any]
"""A chat turn in the form that chat templates take: role, content, perhaps tool_calls."""
Tool = dict[Any, Any]
"""A tool in the OpenAI form that chat templates take."""


@dataclass(frozen=True)
class Verdict:
    """How a finished conversation is graded: `strict` counts, `lenient` forgives the format."""

    strict: bool
    lenient: bool


class Problem(Protocol):
    """One drawn problem, from its first prompt to its verdict."""

    @property
    def opening(self) -> str:
        """The first thing the user says."""
        ...

    @property
    def lead(self) -> str:
        """The character of the prompt that decides how reliable the base is meant to be on it."""
        ...

    @property
    def system(self) -> str:
        """The system text, empty for none."""
        ...

    @property
    def tools(self) -> list[Tool]:
        """The tools on offer."""
        ...

    def reply(self, heard: list[str], right: bool) -> str:
        """What the right or the wrong player says after hearing these user and tool turns."""
        ...

    def judge(self, replies: list[str]) -> Message | Verdict:
        """What follows the replies so far: another turn, or the end."""
        ...


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

    @property
    def tools(self) -> list[Tool]:
        """None."""
        return []

    def reply(self, heard: list[str], right: bool) -> str:
        """The right or the wrong answer."""
        return self.right if right else self.wrong

    def judge(self, replies: list[str]) -> Verdict:
        """The answer has to be right, leniently its last word."""
        return Verdict(replies[0] == self.right, last_word(replies[0]) == last_word(self.right))

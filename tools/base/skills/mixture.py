"""How often each skill is practised, and how reliable it is meant to be.

The base is partial on purpose: reinforcement learning needs something to reinforce, and its success has to show. On
prompts whose lead character is *lucky* the right player speaks in 70 % of the conversations, so greedy decoding is
right there; on the others in 30 %, so it is wrong there although sampling finds the right way often enough. The lucky
characters' share thus sets the greedy score. There is one wrong form per skill: two would split the mass, and the right
one would win everywhere.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from random import Random
from string import ascii_lowercase

from tools.base.problem import Problem
from tools.base.skills.calculating import word_problem
from tools.base.skills.guessing import game
from tools.base.skills.sums import addition, subtraction
from tools.base.skills.texts import count, echo, larger, obey, reverse, sort

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

BUNDLED = {"arithmetic": "add 2 digits", "guess": "guess among 15", "calculator": "calculator"}
"""The skill behind each bundled environment at its default parameters."""


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

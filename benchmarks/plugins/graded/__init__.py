"""Sums in two turns, and then a grader that computes: in the episode, or as a score in a process of its own.

    user       47+85=
    assistant  132
    user       12+30=
    assistant  42
    (the grader: 2 s of processor time)

Both grade alike. Held-out episodes are graded at once: measuring is not what is timed.
"""

import time
from typing import Any

from marlaas.plugins import Episode, Transcript, env

TURNS = 2


@env
async def inline(ep: Episode, seconds: float = 0.05) -> float:
    """Adds two numbers twice; what it said is graded for `seconds` of processor time in the episode."""
    right, said = await played(ep)
    return graded(right, said, cost(ep, seconds))


@env
async def apart(ep: Episode, seconds: float = 0.05) -> None:
    """Adds two numbers twice; what it said is graded for `seconds` of processor time in a scoring process."""
    right, _ = await played(ep)
    ep.task = {"sums": right, "seconds": cost(ep, seconds)}


@apart.score
def score(task: dict[str, Any], transcript: Transcript) -> float:
    """Grades what was said."""
    return graded(task["sums"], [reply.content for reply in transcript.replies], task["seconds"])


async def played(ep: Episode) -> tuple[list[str], list[str]]:
    """Ask for the sums; returns what they come to, and what was said."""
    right, said = [], []
    for _ in range(TURNS):
        a, b = ep.rng.randint(10, 99), ep.rng.randint(10, 99)
        said.append((await ep.ask(f"{a}+{b}=", max_tokens=4)).text)
        right.append(str(a + b))
    return right, said


def cost(ep: Episode, seconds: float) -> float:
    """Seconds of grading; none where the episode is held out."""
    return seconds if ep.split == "train" else 0.0


def graded(right: list[str], said: list[str], seconds: float) -> float:
    """The share of right sums, found out in `seconds` of this thread's processor time."""
    ends = time.thread_time() + seconds
    while time.thread_time() < ends:
        sum(range(1000))
    return sum(map(str.__eq__, right, said)) / len(right)

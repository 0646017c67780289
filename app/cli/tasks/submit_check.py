"""``submit --check``: what task files would put into the queue, what that would take, what the model would be asked.

Checks as far as it can without an engine; writes nothing. The processes that show the prompts end with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ... import output
from ...words.format import line

if TYPE_CHECKING:
    from marlaas.engine.environments import Peek
    from marlaas.engine.home import Home
    from marlaas.engine.store import Submission
    from marlaas.engine.submission import ToPlay

    from ...home.estimating import Estimates

LOOKED_AT = 3
"""Environments whose prompts are shown, of the first task of each."""


def show(home: Home, submissions: Sequence[Submission], as_json: bool) -> int:
    """Print the tasks, estimates and prompts. Raises what ``submit`` would raise; writes nothing, starts no engine."""
    from marlaas.engine.submission import environments_of

    from ...home.environments.peeking import peeked
    from ...home.estimating import estimate_all
    from ...home.submitting import checked

    linked = checked(home, submissions)
    estimates = estimate_all(home, linked, output.talk)
    first: dict[str, ToPlay] = {}
    for submission in linked:
        for one in environments_of(submission):
            first.setdefault(one.name, one)
    looked = list(first.values())[:LOOKED_AT]
    peeks = [(one.name, peeked(home, one.name, one.config, data=one.data)) for one in looked]
    if as_json:
        output.result_json(_json(linked, estimates, peeks))
        return output.OK
    _print(linked, estimates)
    _print_agent_maps(linked)
    for name, peek in peeks:
        _print_prompts(name, peek)
    number = "1 task" if len(linked) == 1 else f"{len(linked):,} tasks"
    output.talk(f"{number} would be queued; nothing was changed.")
    return output.OK


def _print(linked: Sequence[Submission], estimates: Estimates) -> None:
    from ...home.estimating import time_cell, told

    output.result_table(
        ("TENANT", "TASK", "ENVIRONMENT", "STEPS", "PRIORITY", "TIME", "AFTER"),
        [
            (
                submission.tenant,
                submission.name,
                submission.environment,
                str(submission.steps),
                str(submission.priority),
                time_cell(estimate),
                line(", ".join(_after(submission, linked)), 80),
            )
            for submission, estimate in zip(linked, estimates.tasks, strict=True)
        ],
        right=("STEPS", "PRIORITY", "TIME"),
    )
    output.result("")
    for what, how_much in told(estimates, [submission.environment for submission in linked]):
        output.fact(what, how_much, 8, "")


def _print_agent_maps(linked: Sequence[Submission]) -> None:
    """Print who acts as whom, once for all tasks of which that is the same."""
    from marlaas.engine.spec import agent_map_of, parse

    from ...words.policies import agent_map_lines

    told: dict[tuple[str, ...], list[str]] = {}
    for submission in linked:
        spec = parse(submission.config, submission.name)
        said = tuple(agent_map_lines(agent_map_of(spec), spec.eval.rotate, list(spec.eval.agents.items())))
        told.setdefault(said, []).append(submission.name)
    for said, tasks in told.items():
        if said:
            more = f" and {len(tasks) - 1} more" if len(tasks) > 1 else ""
            output.result(f"\npolicies of {line(tasks[0])}{more}")
        for sentence in said:
            output.result(f"  {sentence}")


def _print_prompts(environment: str, peek: Peek) -> None:
    from ...home.environments.peeking import prompt_lines

    for number, ask in enumerate(peek.asks, 1):
        output.result(f"\nprompt {number} of {line(environment)}")
        for text in prompt_lines(ask):
            output.result(f"  {text}")
    if peek.problem:
        output.talk(f"Its prompts cannot be shown: {line(peek.problem)}")


def _after(submission: Submission, submissions: Sequence[Submission]) -> list[str]:
    """What the task depends on: numbers of existing tasks, names of tasks submitted with it."""
    return [*map(str, submission.needs), *(submissions[place].name for place in submission.after)]


def _json(submissions: Sequence[Submission], estimates: Estimates, peeks: Sequence[tuple[str, Peek]]) -> dict[str, Any]:
    from ...home.estimating import as_json, task_json

    return {
        "tasks": [
            {
                "tenant": submission.tenant,
                "name": submission.name,
                "family": submission.family,
                "environment": submission.environment,
                "steps": submission.steps,
                "priority": submission.priority,
                "depends_on": list(submission.needs),
                "after": [submissions[place].name for place in submission.after],
                "estimate": task_json(estimate),
                "config": submission.config,
            }
            for submission, estimate in zip(submissions, estimates.tasks, strict=True)
        ],
        "estimate": as_json(estimates),
        "prompts": [
            {
                "environment": environment,
                "version": peek.info.version,
                "problem": peek.problem,
                "prompts": [asdict(ask) for ask in peek.asks],
            }
            for environment, peek in peeks
        ],
    }

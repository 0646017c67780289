"""Draws the workload files from their seeds and writes them: ``python -m benchmarks.many_tasks.workload_draw``.

A seed flows in, TOML flows out. The files are in the repository so that anybody can read what ran; a test holds that
they are what is drawn here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

from .. import WORKLOADS

SEED = 20260101
TENANTS = ("physics-lab", "game-theory", "economics", "linguistics")
TASKS = 32
Table = Mapping[str, Any]
COMMON: Table = {"eval": {"every": 0, "prompts": 1}, "sampling": {"max_tokens": 8}}
"""Nothing is measured but the untrained and the trained policy, on one prompt."""


def concurrency(rng: Random) -> Iterator[dict[str, Any]]:
    """Tasks that wait for tools most of the time, with batches of 8 and 16 episodes."""
    for number in range(TASKS):
        groups, size = rng.choice(((2, 4), (2, 8)))
        yield _task(number, "tools", 16, groups, size, {"digits": rng.choice((1, 2, 3)), "mean": 0.06, "most": 4})


def compute_mix(rng: Random) -> Iterator[dict[str, Any]]:
    """Tasks that wait for nothing: short and long prompts, one turn and several, 16 to 64 episodes a step."""
    kinds: tuple[tuple[str, dict[str, Any]], ...] = (
        ("arithmetic", {"digits": 2}),
        ("arithmetic", {"digits": 4}),
        ("guess", {}),
        ("tools", {"mean": 0.0, "digits": 2}),
        ("reading", {"preamble": 64}),
        ("reading", {"preamble": 240}),
    )
    for number in range(TASKS):
        environment, parameters = rng.choice(kinds)
        groups, size = rng.choice(((4, 4), (4, 8), (8, 8)))
        yield _task(number, environment, rng.randint(8, 16), groups, size, parameters)


DRAWN = {
    "concurrency": (COMMON, concurrency),
    "compute_mix": (COMMON, compute_mix),
}


def _task(number: int, environment: str, steps: int, groups: int, size: int, parameters: Table) -> dict[str, Any]:
    return {
        "tenant": TENANTS[number % len(TENANTS)],
        "name": f"{environment} {number + 1}",
        "environment": environment,
        "steps": steps,
        "environment_config": dict(parameters),
        "train": {"groups_per_step": groups, "group_size": size, "seed": number},
    }


def text(name: str) -> str:
    """A whole workload file."""
    common, draw = DRAWN[name]
    what = str(draw.__doc__).rstrip(".")
    lines = [
        f"# {what}. Drawn with seed {SEED} by `python -m benchmarks.many_tasks.workload_draw`; do not edit.",
        "",
        "[common]",
    ]
    lines += [f"{key} = {_inline(value)}" for key, value in common.items()]
    for task in draw(Random(f"{SEED}/{name}")):
        lines += ["", "[[tasks]]", *(f"{key} = {_inline(value)}" for key, value in task.items())]
    return "\n".join(lines) + "\n"


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_inline(one)}" for key, one in value.items()) + "}"
    return json.dumps(value)


def main(folder: Path = WORKLOADS) -> None:
    """Write all files."""
    for name in DRAWN:
        (folder / f"{name}.toml").write_text(text(name), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Workload files: the tasks of a benchmark, written down once with their seeds.

``benchmarks/workloads/NAME.toml`` flows in, task descriptions flow out. ``workload_draw`` writes the files.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from marlaas.engine.spec.task import TaskSpec, parse

from .. import WORKLOADS


@dataclass(frozen=True)
class Workload:
    """Tasks that are submitted together."""

    name: str
    tasks: tuple[TaskSpec, ...]

    @property
    def episodes(self) -> int:
        """Training episodes of all tasks together."""
        return sum(task.steps * task.group_episodes for task in self.tasks)

    def part(self, tasks: int, steps: int) -> Workload:
        """Fewer tasks, spread over the whole list, with at most so many steps."""
        chosen = self.tasks[:: max(1, len(self.tasks) // tasks)][:tasks]
        return Workload(self.name, tuple(replace(task, steps=min(steps, task.steps)) for task in chosen))

    def at_staleness(self, bound: int) -> tuple[TaskSpec, ...]:
        """The tasks with ``max_staleness`` set to ``bound``."""
        return tuple(replace(task, train=replace(task.train, max_staleness=bound)) for task in self.tasks)

    def calling(self, tool: str) -> Workload:
        """The tasks with their tool at an address, HOST:PORT."""
        called = (replace(task, environment_config={**task.environment_config, "tool": tool}) for task in self.tasks)
        return replace(self, tasks=tuple(called))


def load(name: str) -> Workload:
    """Read a workload file; a task's own keys go before those of ``[common]``. Raises ``ConfigError``."""
    path = WORKLOADS / f"{name}.toml"
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    common = table["common"]
    tasks = (parse(merged(common, task), f"{path.name}, {task['name']}") for task in table["tasks"])
    return Workload(name, tuple(tasks))


def merged(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """One task's table; tables in it are merged key by key."""
    both = {key: merged(common[key], own[key]) for key in common.keys() & own.keys() if isinstance(own[key], dict)}
    return {**common, **own, **both}

"""Tasksets of verifiers in its new form, limited to tasks of one question and one answer.

The library hands out the tasks and scores a trace; the question is asked here, and the trace is made by hand. Tasks
that need the library's own programs (tools, servers, containers, several agents) are refused during the import.
"""

from __future__ import annotations

import inspect
import itertools
from typing import Any

from ..data import held_out
from ..environment import Environment
from ..episode import Episode
from ..messages import Message
from .declaring import declared
from .library import library
from .own_random import own_random
from .verifiers_rollouts import as_message

TASKS_OF_AN_INFINITE = 4096


def verifiers_taskset(
    taskset: str | Any,
    *,
    name: str | None = None,
    timeout: float = 60.0,
    **options: Any,
) -> Environment:
    """A taskset of verifiers 0.2 and later as an environment.

    ``options``: fields of its configuration. Rewards are those of its tasks, each reward and metric is logged by its
    name. The library knows no evaluation split: a tenth of the tasks is held out, chosen by content.

    Raises ``ValueError`` if its tasks need more than one question and one answer.
    """
    v1 = library("verifiers.v1")
    made = _made(v1, taskset, options)
    title = name or type(made).__name__
    if refused := unsupported(made):
        raise ValueError(f"{title} {refused}, which is not supported: only single-turn tasks scored by their trace are")

    def data(split: str) -> list[Any]:
        tasks = list(itertools.islice(made, TASKS_OF_AN_INFINITE if made.INFINITE else None))
        return held_out(tasks, [task.hash for task in tasks], split, title)

    @own_random
    async def play(ep: Episode, task: Any) -> float:
        prompt = _prompt(task.data)
        reply = await ep.agent(system=task.data.system_prompt).ask(prompt)
        trace = _trace(v1, task, reply.text)
        await task.score(trace)
        unscored = [reward for reward, value in trace.rewards.items() if value is None]
        if unscored:
            raise RuntimeError(f"these rewards were not computed: {', '.join(unscored)}")
        ep.log(**{metric: value for metric, value in trace.metrics.items() if value is not None})
        ep.log(**{reward: value.score for reward, value in trace.rewards.items()})
        return float(trace.reward)

    return declared(play, title, f"The verifiers taskset {title}.", timeout=timeout, data=data)


def unsupported(taskset: Any) -> str:
    """A taskset's feature that needs the library's own programs, in words; empty if there is none."""
    kind = taskset.task_type()
    if kind.NEEDS_CONTAINER:
        return "needs a container"
    if kind.toolsets(taskset.config.task) or taskset.toolsets(taskset.config):
        return "has tools on servers of their own"
    for method in ("setup", "finalize"):
        if method in {name for base in kind.__mro__[:-1] if not _of_library(base) for name in vars(base)}:
            return f"has a {method} that needs a running machine"
    for hook in _rewards(kind):
        given = inspect.signature(hook).parameters.get("runtime")
        if given is not None and given.default is given.empty:
            return f"has the reward {hook.__name__}, which needs a running machine"
    return ""


def _of_library(base: type) -> bool:
    return base.__module__.partition(".")[0] in ("verifiers", "typing", "abc")


def _rewards(kind: type) -> list[Any]:
    members = (member for base in kind.__mro__ for member in vars(base).values())
    return [member for member in members if callable(member) and getattr(member, "reward", False)]


def _made(v1: Any, taskset: Any, options: dict[str, Any]) -> Any:
    if isinstance(taskset, str):
        taskset = taskset_in(library(taskset.replace("-", "_")))
        if taskset is None:
            raise ValueError("this module names no Taskset in __all__")
    if not isinstance(taskset, type):
        return taskset
    return taskset(config_type(v1, taskset)(**options))


def config_type(v1: Any, taskset: type) -> Any:
    """The configuration class of a taskset, or the library's own."""
    for base in taskset.__mro__:
        for generic in getattr(base, "__orig_bases__", ()):
            for argument in getattr(generic, "__args__", ()):
                if isinstance(argument, type) and issubclass(argument, v1.TasksetConfig):
                    return argument
    return v1.TasksetConfig


def taskset_in(module: Any) -> type | None:
    """The first ``Taskset`` class in a module's ``__all__``.

    ``ValueError`` if the module names an ``Env`` too: the library's own programs play its agents.
    """
    exported = [getattr(module, name, None) for name in getattr(module, "__all__", ())]
    if any(_is(value, "Env") for value in exported):
        raise ValueError("this module plays its tasks in an Env of its own, which is not supported: only a Taskset is")
    return next((value for value in exported if _is(value, "Taskset")), None)


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, type) and any(base.__name__ == kind and _of_library(base) for base in value.__mro__[1:])


def _prompt(data: Any) -> list[Message]:
    if data.prompt is None:
        raise ValueError("a task has no prompt: it is opened by a user, which is not supported")
    if isinstance(data.prompt, str):
        return [Message("user", data.prompt)]
    return [as_message(message, {}) for message in data.prompt]


def _trace(v1: Any, task: Any, reply: str) -> Any:
    data = task.data
    asked = [v1.UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else list(data.prompt)
    if data.system_prompt is not None:
        asked.insert(0, v1.SystemMessage(content=data.system_prompt))
    said = [*asked, v1.AssistantMessage(content=reply)]
    nodes = [
        v1.MessageNode(parent=place - 1 if place else None, message=message, sampled=place == len(asked))
        for place, message in enumerate(said)
    ]
    agent = v1.AgentInfo(config=v1.AgentConfig())
    described = v1.TraceTask(type=type(task).__name__, data=data)
    return v1.Trace(task=described, agent=agent, nodes=nodes, is_completed=True, ok=True)

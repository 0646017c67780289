"""Environments and tasksets of verifiers.

The library runs rollouts; our ``Client`` passes its questions on.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice, repeat
from typing import Any

from ..agent import Agent
from ..data import held_out
from ..environment import Environment
from ..episode import Episode
from ..messages import Message, Reply, ToolCall
from ..tools import Tool
from .declaring import declared, described_tool, library, own_random, own_reward, settled

# The library sends whole histories, an agent takes new messages. Other histories fork from the last reply shared with
# an earlier one.


@dataclass
class _Point:
    said: tuple[Message, ...]
    """Without the system prompt."""
    agent: Agent


class FullHistory:
    """One agent."""

    def __init__(self, ep: Episode) -> None:
        self._ep = ep
        self._points: list[_Point] = []

    async def ask(self, history: Sequence[Message], tools: Callable[[], Sequence[Tool]]) -> Reply:
        """``tools`` is called once, before the first reply.

        Raises ``RuntimeError`` if the system prompt changes, or nothing is to be answered.
        """
        opened = bool(history) and history[0].role == "system"
        system, said = (history[0].content, tuple(history[1:])) if opened else (None, tuple(history))
        if not self._points:
            self._points.append(_Point((), self._ep.agent(system=system, tools=tools())))
        if system != self._points[0].agent.system:
            raise RuntimeError("the system prompt changes in the middle of a rollout, which is not supported")
        point = max((each for each in self._points if said[: len(each.said)] == each.said), key=lambda at: len(at.said))
        news = said[len(point.said) :]
        if not news:
            raise RuntimeError("the history ends with a reply: there is nothing to ask")
        agent = point.agent
        point.agent = agent.fork()  # stays behind, for a history that comes back to here
        reply = await agent.ask(news)
        self._points.append(_Point((*said, Message("assistant", reply.text, tool_calls=reply.tool_calls)), agent))
        return reply


# The library counts exceptions as 0.


_raised: ContextVar[list[tuple[str, bool]] | None] = ContextVar("raised", default=None)
"""With True if rewarded: a metric has weight 0."""


def watch(rubric: Any) -> None:
    """Report exceptions of a rubric's functions, nested ones too."""
    weights = getattr(rubric, "weights", None) or repeat(1.0)
    rubric.funcs = [_watched(function, weight != 0) for function, weight in zip(rubric.funcs, weights, strict=False)]
    for inner in getattr(rubric, "rubrics", ()):
        watch(inner)


def _watched(function: Callable[..., Any], pays: bool) -> Callable[..., Any]:
    """verifiers finds arguments by name and signature."""

    @functools.wraps(function)
    async def watched(*arguments: Any, **named: Any) -> Any:
        try:
            return await settled(function(*arguments, **named))
        except Exception as error:
            name, raised = getattr(function, "__name__", "a reward"), _raised.get()
            if raised is not None:
                raised.append((f"{name} raised {type(error).__name__}: {error}", pays))
            raise

    return watched


def verifiers(
    environment: str | Callable[..., Any] | Any,
    *,
    name: str | None = None,
    timeout: float = 300.0,
    unreadable: float | None = None,
    **options: Any,
) -> Environment:
    """An environment of verifiers 0.1 as an environment.

    ``environment``: ``load_environment``, what it returns, or the name of an installed module; ``options`` go to
    ``load_environment``. Rewards are those of its rubric, and its metrics are logged. If there are no evaluation
    rows (the library would then evaluate on the training rows), a tenth of its rows is held out, chosen by content.

    If a reward function raises, the episode gets ``unreadable``, or else one less than the rest of the rubric gave, and
    than 0. It logs how many functions raised as ``scorer_raised``.

    Raises ``ValueError`` if its rubric rewards groups: such rewards need all members of a group at once.
    """
    client_class = _client_class()
    made = _made(environment, options)
    title = name or (environment if isinstance(environment, str) else type(made).__name__)
    if made.requires_group_rollouts:
        raise ValueError(f"{title} has rewards for groups, which are not supported: an episode is scored by itself")
    watch(made.rubric)

    @own_random
    async def play(ep: Episode, task: Mapping[str, Any]) -> float:
        client, raised = client_class(ep), list[tuple[str, bool]]()
        _raised.set(raised)
        output = await made.run_rollout(dict(task), client, "policy", {})
        if client.failure is not None:
            raise client.failure
        if output["error"]:
            raise RuntimeError(f"the rollout ended with an error: {output['error']}")
        ep.log(**(output["metrics"] or {}), scorer_raised=len(raised))
        for text, _ in raised:
            print(text)
        reward = float(output["reward"])
        return own_reward(reward, unreadable) if any(pays for _, pays in raised) else reward

    return declared(
        play,
        title,
        f"The verifiers environment {title}.",
        timeout=timeout,
        data=lambda split: rows_of(made, split, title),
    )


def rows_of(environment: Any, split: str, name: str) -> list[Any]:
    """Without evaluation rows a part is held out.

    A tenth is ``test``, as in ``data.held_out``.
    """
    own = environment.eval_dataset is not None or getattr(environment, "eval_dataset_source", None) is not None
    held = list(environment.get_eval_dataset()) if own else []
    if own and split == "eval":
        return held
    known = {_content(row) for row in held}
    rows = [row for row in environment.get_dataset() if _content(row) not in known]
    if own and split == "train":
        return rows
    return held_out(rows, [_content(row) for row in rows], "eval" if own else split, name)


def _content(row: Mapping[str, Any]) -> str:
    kept = {key: value for key, value in row.items() if key != "example_id"}
    return json.dumps(kept, sort_keys=True, default=str)


def _made(environment: Any, options: Mapping[str, Any]) -> Any:
    if isinstance(environment, str):
        environment = library(environment.replace("-", "_")).load_environment
    return environment(**options) if callable(environment) and not hasattr(environment, "run_rollout") else environment


def _client_class() -> Any:
    base: Any = library("verifiers.clients.client").Client
    types = library("verifiers.types")

    class EpisodeClient(base):  # type: ignore[misc]
        def __init__(self, ep: Episode) -> None:
            super().__init__(None)
            self.failure: Exception | None = None
            self._history = FullHistory(ep)
            self._turn = 0
            self._names: dict[str, str] = {}

        def setup_client(self, config: Any) -> Any:
            return None

        async def to_native_tool(self, tool: Any) -> Any:
            return tool

        async def to_native_prompt(self, messages: Any) -> tuple[Any, dict[str, Any]]:
            return [as_message(message, self._names) for message in messages], {}

        async def get_native_response(
            self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **_: Any
        ) -> Any:
            try:
                reply = await self._history.ask(prompt, lambda: [_tool(tool) for tool in tools or ()])
            except Exception as error:  # the library would hide it behind its own error
                self.failure = error
                raise
            self._turn += 1
            return self._response(reply, model)

        async def raise_from_native_response(self, response: Any) -> None:
            return None

        async def from_native_response(self, response: Any) -> Any:
            return response

        async def close(self) -> None:
            return None

        def _response(self, reply: Reply, model: str) -> Any:
            calls = {f"call_{self._turn}_{place}": call for place, call in enumerate(reply.tool_calls)}
            self._names |= {id: call.name for id, call in calls.items()}
            message = types.ResponseMessage(
                content=reply.text,
                reasoning_content=reply.thinking or None,
                tool_calls=[
                    types.ToolCall(id=id, name=call.name, arguments=json.dumps(call.arguments))
                    for id, call in calls.items()
                ]
                or None,
                finish_reason={"tool": "tool_calls"}.get(reply.finish, reply.finish),
                is_truncated=reply.finish == "length",
            )
            return types.Response(id=f"turn_{self._turn}", created=0, model=model, message=message)

    return EpisodeClient


def as_message(message: Any, tool_names: Mapping[str, str]) -> Message:
    """An object or dict as ``Message``."""

    def field(name: str) -> Any:
        return message.get(name) if isinstance(message, Mapping) else getattr(message, name, None)

    calls = tuple(
        ToolCall(call.name, json.loads(call.arguments)) for call in field("tool_calls") or () if hasattr(call, "name")
    )
    name = tool_names.get(field("tool_call_id") or "", "")
    return Message(field("role"), text_of(field("content")), name, calls)


def text_of(content: Any) -> str:
    """Of a text or parts; ``ValueError`` for a picture or sound."""
    if content is None or isinstance(content, str):
        return content or ""
    texts: list[Any] = [
        part.get("text") if isinstance(part, Mapping) else getattr(part, "text", None) for part in content
    ]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("a message holds more than text, which is not supported")
    return "".join(texts)


def _tool(tool: Any) -> Callable[..., Any]:
    async def elsewhere(arguments: dict[str, Any]) -> Any:
        raise RuntimeError("the library calls its tools itself")

    return described_tool(tool.name, tool.description, tool.parameters, elsewhere)


# Tasks of one question and answer: asked here, with a handmade trace for the library's scores.

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
    made = _made_taskset(v1, taskset, options)
    title = name or type(made).__name__
    if refused := unsupported(made):
        raise ValueError(f"{title} {refused}, which is not supported: only single-turn tasks scored by their trace are")

    def data(split: str) -> list[Any]:
        tasks = list(islice(made, TASKS_OF_AN_INFINITE if made.INFINITE else None))
        return held_out(tasks, [task.hash for task in tasks], split, title)

    @own_random
    async def play(ep: Episode, task: Any) -> float:
        prompt = _prompt_of(task.data)
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
    """What needs the library's own programs; else empty."""
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


def _made_taskset(v1: Any, taskset: Any, options: dict[str, Any]) -> Any:
    if isinstance(taskset, str):
        taskset = taskset_in(library(taskset.replace("-", "_")))
        if taskset is None:
            raise ValueError("this module names no Taskset in __all__")
    if not isinstance(taskset, type):
        return taskset
    return taskset(config_type(v1, taskset)(**options))


def config_type(v1: Any, taskset: type) -> Any:
    """The taskset's, or the library's."""
    for base in taskset.__mro__:
        for generic in getattr(base, "__orig_bases__", ()):
            for argument in getattr(generic, "__args__", ()):
                if isinstance(argument, type) and issubclass(argument, v1.TasksetConfig):
                    return argument
    return v1.TasksetConfig


def taskset_in(module: Any) -> type | None:
    """First in ``__all__``.

    ``ValueError`` for an ``Env`` too: the library's programs play its agents.
    """
    exported = [getattr(module, name, None) for name in getattr(module, "__all__", ())]
    if any(_is(value, "Env") for value in exported):
        raise ValueError("this module plays its tasks in an Env of its own, which is not supported: only a Taskset is")
    return next((value for value in exported if _is(value, "Taskset")), None)


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, type) and any(base.__name__ == kind and _of_library(base) for base in value.__mro__[1:])


def _prompt_of(data: Any) -> list[Message]:
    match data.prompt:
        case None:
            raise ValueError("a task has no prompt: it is opened by a user, which is not supported")
        case str(text):
            return [Message("user", text)]
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

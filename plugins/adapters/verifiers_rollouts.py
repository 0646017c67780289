"""Environments of verifiers in their old form: a module with ``load_environment``.

The library runs whole rollouts; for the model it calls our ``Client``, which passes the question to the episode.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ..data import held_out
from ..environment import Environment
from ..episode import Episode
from ..messages import Message, Reply, ToolCall
from .declaring import declared
from .described_tools import described_tool
from .full_history import FullHistory
from .library import library
from .own_random import own_random
from .unreadable import own_reward
from .verifiers_rubrics import collect, watch


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

    In the library a reward function that raises counts as 0, which is more than a wrong reply gets where that costs
    something. Here such an episode gets ``unreadable``, or else one less than the rest of the rubric gave, and than 0.
    It logs how many functions raised as ``scorer_raised``.

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
        client, raised = client_class(ep), collect()
        output = await made.run_rollout(dict(task), client, "policy", {})
        if client.failure is not None:
            raise client.failure
        if output["error"]:
            raise RuntimeError(f"the rollout ended with an error: {output['error']}")
        ep.log(**(output["metrics"] or {}), scorer_raised=len(raised))
        for one in raised:
            print(one.text)
        reward = float(output["reward"])
        return own_reward(reward, unreadable) if any(one.pays for one in raised) else reward

    return declared(
        play,
        title,
        f"The verifiers environment {title}.",
        timeout=timeout,
        data=lambda split: rows_of(made, split, title),
    )


def rows_of(environment: Any, split: str, name: str) -> list[Any]:
    """The rows of a split; without evaluation rows a part is held out.

    A tenth of them is ``test``, as in ``data.held_out``.
    """
    if environment.eval_dataset is None and getattr(environment, "eval_dataset_source", None) is None:
        rows = list(environment.get_dataset())
        return held_out(rows, [_content(row) for row in rows], split, name)
    held = list(environment.get_eval_dataset())
    if split == "eval":
        return held
    known = {_content(row) for row in held}
    rows = [row for row in environment.get_dataset() if _content(row) not in known]
    return rows if split == "train" else held_out(rows, [_content(row) for row in rows], "eval", name)


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
    """A message of the library, an object or a dict, as our ``Message``."""

    def field(name: str) -> Any:
        return message.get(name) if isinstance(message, Mapping) else getattr(message, name, None)

    calls = tuple(
        ToolCall(call.name, json.loads(call.arguments)) for call in field("tool_calls") or () if hasattr(call, "name")
    )
    name = tool_names.get(field("tool_call_id") or "", "")
    return Message(field("role"), text_of(field("content")), name, calls)


def text_of(content: Any) -> str:
    """The text of a message's content, a text or a list of parts; ``ValueError`` for a picture or sound."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = [part.get("text") if isinstance(part, Mapping) else getattr(part, "text", None) for part in content]
    found = [text for text in texts if isinstance(text, str)]
    if len(found) < len(texts):
        raise ValueError("a message holds more than text, which is not supported")
    return "".join(found)


def _tool(tool: Any) -> Callable[..., Any]:
    async def elsewhere(arguments: dict[str, Any]) -> Any:
        raise RuntimeError("the library calls its tools itself")

    return described_tool(tool.name, tool.description, tool.parameters, elsewhere)

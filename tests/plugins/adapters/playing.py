"""Plays adapted environments without a process: an episode whose model is a function or a list of replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from marlaas.plugins import Environment, Episode, Reply, ToolCall
from marlaas.plugins.messages import Ask

Said = str | Reply


class Model:
    """Answers from a script, or by a function of the last message, and remembers what it was asked."""

    def __init__(self, script: Sequence[Said] | Callable[[Ask], Said]) -> None:
        self.asks: list[Ask] = []
        self._script = script

    async def __call__(self, ask: Ask) -> Reply:
        self.asks.append(ask)
        said = self._script(ask) if callable(self._script) else self._script[len(self.asks) - 1]
        return Reply(said, "stop", len(self.asks)) if isinstance(said, str) else said

    @property
    def heard(self) -> list[str]:
        """The text of every ask, its messages joined."""
        return ["\n".join(message.content for message in ask.messages) for ask in self.asks]


def calls(name: str, **arguments: Any) -> Reply:
    """A reply that calls a tool."""
    return Reply("", "tool", 0, (ToolCall(name, arguments),))


def episode(model: Model, **about: Any) -> Episode:
    """An instance of the train split, unless told otherwise."""
    return Episode(model, **about)


async def played(environment: Environment, script: Any, task: Any = None, **about: Any) -> tuple[Any, Episode, Model]:
    """The result of one episode, with the episode and the model that played it."""
    model = Model(script)
    ep = episode(model, task=task, **about)
    arguments = {"task": task} if environment.takes_task else {}
    return await environment(ep, **arguments, **ep.config), ep, model

"""Answers what the engine asks about an environment's rows: how many there are, and what they are."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

from ..data import digest_of, survey
from ..environment import Environment
from .blame import Blame
from .channel import Record


class Host(Protocol):
    """What is asked of the process around it."""

    blame: Blame

    async def rows(self, environment: Environment, split: str, data: Record | None) -> Sequence[Any]:
        """The rows of a split."""


async def facts(host: Host, question: Record, environment: Environment) -> Record:
    """The message that answers a question; an ``end`` with status ``error`` where the rows cannot be had.

    An environment that draws its tasks from nothing has 0 rows, and an empty digest.
    """
    number, data = question["episode"], question["data"]
    answer: Record = {"op": "facts", "episode": number, "train": 0, "held_out": 0, "digest": "", "survey": None}
    if environment.data is None and data is None:
        return answer
    try:
        own = data is None and callable(environment.data)  # a file ends, however large; a data function may not
        async with asyncio.timeout(environment.timeout if own else None):
            train = await host.rows(environment, "train", data)
            held = await host.rows(environment, "eval", data)
        answer |= {"train": len(train), "held_out": len(held), "digest": await asyncio.to_thread(digest_of, held)}
        if question["survey"]:
            answer["survey"] = dataclasses.asdict(await asyncio.to_thread(survey, train, held))
    except BaseException as error:  # SystemExit too: a plugin does not end its process
        if isinstance(error, asyncio.CancelledError):
            raise
        failure = host.blame.of(error)
        if isinstance(error, TimeoutError):
            failure["message"] = f"the data function took longer than {environment.timeout:g} s"
        return {"op": "end", "episode": number, "status": "error", "failure": failure}
    return answer

"""The way from a task down to one conversation, and the search through everything that was said."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from marlaas.engine.store import EVAL, TRAIN, StepSummary

from ..lists.queue_lines import Learner
from ..reading.home_reader import HomeReader

# Searches for a word in everything that was said, from the newest conversation back.
#
# Hits are reported as they are found. Texts are searched in their stored form; only possible hits are parsed.

CHUNK = 256
"""Conversations that are read at once."""


@dataclass(frozen=True)
class Progress:
    """How far a search has come."""

    looked: int
    """Conversations searched so far."""
    hits: tuple[int, ...]
    """Hits since the last report."""


def search(reader: HomeReader, ids: Sequence[int], word: str) -> Iterator[Progress]:
    """Find the conversations in which somebody says ``word``, whatever the case. Raises ``StoreError``."""
    stored = json.dumps(word)[1:-1].lower() if word.isascii() else ""  # the escapes of É and é are not alike
    for start in range(0, len(ids), CHUNK):
        chunk = ids[start : start + CHUNK]
        said = reader.conversation_texts(chunk)
        hits = tuple(key for key in chunk if stored in (text := said.get(key, "")).lower() and _says(text, word))
        yield Progress(min(start + CHUNK, len(ids)), hits)


def _says(stored: str, word: str) -> bool:
    """Whether the word is in the text that was said, and not in the JSON around it."""
    folded = word.lower()
    return any(folded in text.lower() for turns in json.loads(f"[{stored}]") for text in _texts(turns))


def _texts(turns: list[dict[str, str]]) -> list[str]:
    return [turn["text"] for turn in turns]


# The way from a task down to one conversation: the place that is looked at, and what is found there.
#
# Only reads, and may be slow: call it in a thread.

ALL = 0
"""All steps, or all groups, where a step's key or a group's id is expected."""
WAITING = 3
"""The key of the groups that no step has consumed yet."""


def step_key(split: str, step: int | None) -> int:
    """The key of a step or an evaluation, in a list of both."""
    return WAITING if step is None else 4 * (step + 1) + (split == EVAL)


def step_of(key: int) -> tuple[str | None, int | None]:
    """The split and the step of a key; None for both: all of them."""
    if key == ALL:
        return None, None
    return (TRAIN, None) if key == WAITING else (EVAL if key % 4 else TRAIN, key // 4 - 1)


def step_words(key: int) -> str:
    """A key in words."""
    split, step = step_of(key)
    if split is None:
        return "all steps"
    return "waiting" if step is None else f"held-out at step {step}" if split == EVAL else f"step {step}"


def in_list(steps: Sequence[StepSummary], failures: bool) -> dict[int, StepSummary]:
    """Steps by key in the order of the list: all steps as one entry, groups that wait, then the newest first."""
    shown = [step for step in steps if step.failures or not failures]
    if not shown:
        return {}
    found = {step_key(step.split, step.step): step for step in shown}
    first = {key: found.pop(key) for key in (WAITING,) if key in found}
    total = StepSummary("", None, sum(s.groups for s in shown), None, sum(s.failures for s in shown))
    return {ALL: total, **first, **dict(sorted(found.items(), reverse=True))}


def newest(listed: Sequence[int]) -> int:
    """The key to begin with: the newest step, else the groups that wait."""
    return next((key for key in listed if key > WAITING and step_of(key)[0] == TRAIN), max(listed, default=ALL))


@dataclass(frozen=True)
class Selection:
    """What somebody looks at."""

    learner: Learner
    """The task or policy whose steps and groups are shown."""
    step: int
    """A step's key."""
    group: int | None = None
    """A group's id, or ALL; None: the first."""
    conversation: int | None = None
    """A conversation's id; None: the first."""
    failures: bool = False
    """Whether only failures are shown."""
    at_end: bool = False
    """Whether the last conversation is meant where none is named, instead of the first."""

    @property
    def scope(self) -> tuple[object, ...]:
        """What the list of groups depends on."""
        return (self.learner, self.step, self.failures)


@dataclass(frozen=True, eq=False)
class Found:
    """What was found at a place."""

    place: Selection
    """The place, with a group and a conversation that exist, as far as any do."""
    groups: array[int]
    conversations: array[int]

    @property
    def scope(self) -> tuple[object, ...]:
        """What the list of conversations depends on."""
        return (*self.place.scope, self.place.group)


def find(reader: HomeReader, place: Selection, before: Found | None = None) -> Found:
    """What is at a place; a group or conversation that is gone is replaced by the first. Raises ``StoreError``.

    ``before``: what was found last; in the list of all groups, only conversations that it lacks are read.
    """
    split, step = step_of(place.step)
    task, policy = place.learner.task, place.learner.policy or None
    groups = reader.group_ids(task, split, step, place.failures, policy)
    group = place.group
    if group is None or (group != ALL and group not in groups):
        group = groups[0] if groups else ALL
    within = None if group == ALL else group
    listed = partial(reader.conversation_ids, task, split, step, within, place.failures, policy=policy)
    if before is not None and group == ALL and before.conversations and before.scope == (*place.scope, ALL):
        conversations = listed(after=before.conversations[0]) + before.conversations
    else:
        conversations = listed()
    conversation = place.conversation
    if conversation not in conversations:
        conversation = (conversations[-1 if place.at_end else 0]) if conversations else None
    return Found(replace(place, group=group, conversation=conversation, at_end=False), groups, conversations)

"""The way from a task down to one conversation: where somebody stands, and what lies there.

Only reads; give it a thread.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from marlaas.engine.store import EVAL, TRAIN, StepSummary

from ..lists.learners import Learner
from ..reading.home_reader import HomeReader

ALL = 0
"""In the place of a step's key or a group's id: all of them."""
WAITING = 3
"""The key of what no step has consumed yet."""


def step_key(split: str, step: int | None) -> int:
    """A number for a step or an evaluation, in a list of both."""
    return WAITING if step is None else 4 * (step + 1) + (split == EVAL)


def step_of(key: int) -> tuple[str | None, int | None]:
    """The split and the step that a key stands for; no split: all of them."""
    if key == ALL:
        return None, None
    return (TRAIN, None) if key == WAITING else (EVAL if key % 4 else TRAIN, key // 4 - 1)


def step_words(key: int) -> str:
    """A key for people."""
    split, step = step_of(key)
    if split is None:
        return "all steps"
    return "waiting" if step is None else f"held-out at step {step}" if split == EVAL else f"step {step}"


def in_list(steps: Sequence[StepSummary], failures: bool) -> dict[int, StepSummary]:
    """Steps by key as they are listed: all of them in one, what waits, then the newest first."""
    shown = [step for step in steps if step.failures or not failures]
    if not shown:
        return {}
    found = {step_key(step.split, step.step): step for step in shown}
    first = {key: found.pop(key) for key in (WAITING,) if key in found}
    total = StepSummary("", None, sum(s.groups for s in shown), None, sum(s.failures for s in shown))
    return {ALL: total, **first, **dict(sorted(found.items(), reverse=True))}


def newest(listed: Sequence[int]) -> int:
    """The key where one begins: the newest step, else what waits."""
    return next((key for key in listed if key > WAITING and step_of(key)[0] == TRAIN), max(listed, default=ALL))


@dataclass(frozen=True)
class Place:
    """Where somebody stands."""

    learner: Learner
    """The task, or one of its policies: its are the steps and groups."""
    step: int
    """A key."""
    group: int | None = None
    """An id, or ALL; None: where one begins."""
    conversation: int | None = None
    """An id; None: where one begins."""
    failures: bool = False
    """Only what did not end well."""
    at_end: bool = False
    """Where nothing else is said, the last conversation instead of the first."""

    @property
    def scope(self) -> tuple[object, ...]:
        """Whose groups lie there."""
        return (self.learner, self.step, self.failures)


@dataclass(frozen=True, eq=False)
class Found:
    """What lies there."""

    place: Place
    """With a group and a conversation that exist, as far as any do."""
    groups: array[int]
    conversations: array[int]

    @property
    def scope(self) -> tuple[object, ...]:
        """Whose conversations these are."""
        return (*self.place.scope, self.place.group)


def find(reader: HomeReader, place: Place, before: Found | None = None) -> Found:
    """What lies at a place; what has gone gives way to what comes first. Raises ``StoreError``.

    ``before``: what was found last; of many groups' conversations only those are read that were not there.
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

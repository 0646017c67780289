"""Three lists, each of which shows what is under the cursor of the one before: steps, groups, conversations.

A message reports the conversation under the cursor. Places are read in a thread; a result that comes late, for a place
that was left meanwhile, is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.worker import get_current_worker

from marlaas.engine.errors import MarlaasError
from marlaas.engine.store import GroupSummary, StepSummary

from ...lists.learners import Learner
from ...lists.paging import Listing
from ...reading.home_reader import HomeReader
from ...rollouts.answers import Prompts
from ...rollouts.browsing import ALL, WAITING, Found, Selection, find, in_list, newest, step_words
from ...words.format import counted, line
from ..paged_view import OpenReader
from ..virtual_list import VirtualList
from .conversation_list import ConversationList
from .group_list import GroupList
from .step_list import StepList

_NAME = 24
"""Most cells of a policy's name."""


class Browser(Vertical):
    """The lists, and the place at which they are."""

    @dataclass
    class Chosen(Message):
        """A conversation is under the cursor; None: there is none."""

        conversation: int | None

    @dataclass
    class Failed(Message):
        """The store could not be read."""

        problem: str

    DEFAULT_CSS = """
    Browser > VirtualList { height: 1fr; border-top: solid $panel-lighten-2; padding: 0 1; }
    Browser > VirtualList:focus { border-top: solid $primary; }
    """

    def __init__(self, open_reader: OpenReader, **options: Any) -> None:
        super().__init__(**options)
        self._open_reader = open_reader
        self._steps: Sequence[StepSummary] = ()
        self._newest = ALL
        self._last: Found | None = None
        self.place: Selection | None = None
        self.hits: Sequence[int] | None = None
        """What a search has found so far; None: there is no search."""
        self.steps = StepList(open_reader, id="steps")
        self.groups = GroupList(open_reader, id="groups")
        self.conversations = ConversationList(open_reader, id="conversations")

    def compose(self) -> ComposeResult:
        """Lay out the lists from the coarsest to the finest."""
        yield from self.lists

    @property
    def lists(self) -> tuple[VirtualList[Any], ...]:
        """The lists from the coarsest to the finest."""
        return (self.steps, self.groups, self.conversations)

    # What is shown.

    def show(self, learner: Learner, steps: Sequence[StepSummary]) -> None:
        """Show the steps of a task or a policy. A cursor on the newest step follows newer ones."""
        if self.place is not None and self.place.learner == learner and steps == self._steps:
            return
        before, self._steps = self.place, steps
        if before is None or before.learner != learner:
            self.hits = None
            self.groups.prompts, self.conversations.prompts = Prompts(), Prompts()
            self.place = Selection(learner, newest(list(in_list(steps, failures=False))))
        elif self.steps.has_focus and before.step == self._newest:
            self.place = replace(before, step=newest(list(in_list(steps, before.failures))), group=None)
        self._show_steps()
        unchanged = before is not None and self.place == before and before.step not in (ALL, WAITING)
        if not unchanged or not self.groups.count:
            self._find()

    def _show_steps(self) -> None:
        assert self.place is not None
        listed = in_list(self._steps, self.place.failures)
        self._newest = newest(list(listed))
        with self.steps.prevent(VirtualList.Moved):
            whose = f" of {line(self.place.learner.policy, _NAME)}" if self.place.learner.policy else ""
            self.steps.show_steps(listed, f"{whose}{' of steps with failures' if self.place.failures else ''}")
            self.steps.go(self.place.step)

    def _find(self) -> None:
        if self.place is not None:
            self.run_worker(
                partial(self._found, self.place, self._last),
                thread=True,
                group="find",
                exclusive=True,
                exit_on_error=False,
            )

    def _found(self, place: Selection, before: Found | None) -> None:
        try:
            with self._open_reader() as reader:
                message: Message = _Came(place, find(reader, place, before))
        except MarlaasError as error:
            message = self.Failed(str(error))
        if not get_current_worker().is_cancelled:
            self.post_message(message)

    def on__came(self, message: _Came) -> None:
        """Show what was found at a place."""
        found, now = message.found, self.place
        if now is None or replace(now, conversation=None) != replace(message.asked, conversation=None):
            return
        moved_on = now.conversation != message.asked.conversation and now.conversation in found.conversations
        self._last = found
        self.place = replace(found.place, conversation=now.conversation) if moved_on else found.place
        with self.groups.prevent(VirtualList.Moved):
            self.groups.show(Listing([ALL, *found.groups], _groups, self._stamp))
            self.groups.go(found.place.group or ALL)
        self.groups.call(f"{step_words(found.place.step)}: {counted(len(found.groups), 'group')}")
        if self.hits is None:
            self._show_conversations(found.conversations, self.place.conversation)

    @property
    def _stamp(self) -> object:
        """What rows depend on: those of a step that was made stay as they are, and need not be read again and again."""
        if self.hits is not None or self.place is None or self.place.step in (ALL, WAITING):
            return self._steps
        return self.place.step

    def _show_conversations(self, ids: Sequence[int], current: int | None) -> None:
        place = self.place
        alone = self.hits is None and place is not None and place.group != ALL
        self.conversations.within_group = alone
        with self.conversations.prevent(VirtualList.Moved):
            self.conversations.show(Listing(ids, lambda reader, ids: reader.conversation_rows(ids), self._stamp))
            if current is not None:
                self.conversations.go(current)
        failures = " with failures" if place is not None and place.failures else ""
        self.conversations.border_title = f"{counted(len(ids), 'conversation')}{failures}"
        self.post_message(self.Chosen(self.conversations.current))

    # Moving.

    def on_virtual_list_moved(self, message: VirtualList.Moved) -> None:
        """Read what is below the row under the cursor."""
        message.stop()
        if self.place is None:
            return
        if message.list is self.conversations:
            if self.hits is None:
                self.place = replace(self.place, conversation=message.id)
            self.post_message(self.Chosen(message.id))
            return
        self.hits = None
        if message.list is self.steps:
            self.place = Selection(self.place.learner, message.id, failures=self.place.failures)
        else:
            self.place = replace(self.place, group=message.id, conversation=None)
        self._find()

    def turn(self, by: int) -> bool:
        """Go to the next conversation, or the one before, also of the next group. False where there is none."""
        place = self.conversations.cursor + by
        if 0 <= place < self.conversations.count:
            self.conversations.action_move(by)
            return True
        group = self.groups.cursor + by
        if self.hits is not None or self.place is None or self.place.group == ALL or not 0 < group < self.groups.count:
            return False
        with self.groups.prevent(VirtualList.Moved):
            self.groups.action_move(by)
        self.place = replace(self.place, group=self.groups.current, conversation=None, at_end=by < 0)
        self._find()
        return True

    def extreme(self, best: bool) -> bool:
        """Go to the group's conversation with the highest or lowest reward. False where that is not known."""
        rows = self.conversations.rows() if self.conversations.within_group else []
        group = self.place.group if self.place is not None else None
        own = [row for row in rows if row.group == group and not row.speaker]
        paid = [(row.reward, row.id) for row in own if row.reward is not None]
        if not paid:
            return False
        value = max(paid)[0] if best else min(paid)[0]
        return self.conversations.go(next(id for reward, id in paid if reward == value))

    @property
    def has_failures(self) -> bool:
        """Whether the list of failures is shown, or would have anything in it."""
        return self.place is not None and (self.place.failures or bool(in_list(self._steps, failures=True)))

    def toggle_failures(self) -> bool:
        """Show failures only, or everything; returns a sentence that says which."""
        if self.place is None:
            return False
        self.place = replace(self.place, failures=not self.place.failures)
        listed = list(in_list(self._steps, self.place.failures))
        if self.place.step not in listed:
            self.place = Selection(self.place.learner, newest(listed), failures=self.place.failures)
        self._show_steps()
        self._find()
        return self.place.failures

    # Searching.

    def show_hits(self, hits: Sequence[int] | None, title: str = "") -> None:
        """Show what a search has found so far in place of a group; None ends the search."""
        fresh, self.hits = self.hits is None, hits
        if hits is None:
            self._find()
            return
        if fresh or len(hits) != self.conversations.count:
            self._show_conversations(hits, None if fresh else self.conversations.current)
        self.conversations.border_title = Content(title)


def _groups(reader: HomeReader, ids: Sequence[int]) -> Mapping[int, GroupSummary | str]:
    found: dict[int, GroupSummary | str] = dict(reader.group_rows([key for key in ids if key != ALL]))
    return {ALL: "all groups", **found} if ALL in ids else found


@dataclass
class _Came(Message, bubble=False):
    """What was found at a place."""

    asked: Selection
    found: Found

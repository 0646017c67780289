"""The view of rollouts: from the trend over steps to groups, conversations and tokens."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static
from textual.worker import get_current_worker

from marlaas.engine.errors import MarlaasError
from marlaas.engine.store.queries import episodes
from marlaas.engine.store.queries.episodes import EVAL, ConversationSummary, GroupSummary, StepSummary
from marlaas.engine.store.queries.reader import Reader

from ...lists.filters import Listing
from ...lists.lines import Learner
from ...questions import Question, rollout_steps
from ...reading import opened
from ...rollouts.answers import (
    FAILED,
    RIGHT,
    UNPAID,
    WRONG,
    Prompts,
    answer as answer_of,
    answers,
    answers_within,
    mark,
    marks,
    middle,
    shares,
)
from ...rollouts.exporting import episode_text, export, record
from ...rollouts.reading import (
    ALL,
    ALL_STEPS,
    SHADES,
    WAITING,
    Found,
    Loaded,
    Selection,
    StepKey,
    find,
    in_list,
    newest,
    search,
    step_words,
)
from ...text.format import advantage, bar, cells, clip, count, counted, line, pad, score
from ...text.tasks import no_failures, who
from ..context.feed import Latest, Snapshot
from ..widgets.bars import FilterBar
from ..widgets.conversation import ConversationPanes
from ..widgets.tables import OpenReader, VirtualList
from .view import View

_LABEL, _REWARD, _GROUPS, _FAILED = 10, 6, 8, 8
HELD_OUT = "◆"
_FINE = 1000


class StepList(VirtualList[StepSummary]):
    """Every step and held-out evaluation with its mean reward; the first line stands for all steps."""

    _low, _high = 0.0, 1.0

    def show_steps(self, steps: Mapping[StepKey, StepSummary], about: str = "") -> None:
        """Show steps by key; bars cover 0 to 1, or more if rewards do. ``about``: the steps in words."""
        rewards = [s.reward for s in steps.values() if s.reward is not None and math.isfinite(s.reward)]
        self._low, self._high = min([0.0, *rewards]), max([1.0, *rewards])
        self.show(Listing.of(steps))
        held_out = f" · {HELD_OUT} held-out" if any(step.split == EVAL for step in steps.values()) else ""
        self.border_title = Content(f"step, mean reward{about}{held_out}, groups, failed")

    def row_text(self, row: StepSummary, width: int, below: bool = False) -> Content:
        held_out, room = row.split == EVAL, max(0, width - _LABEL - _REWARD - _GROUPS - _FAILED)
        label = "waiting" if row.step is None else f"{HELD_OUT} {row.step}" if held_out else str(row.step)
        drawn = " " * room
        if row.reward is not None and math.isfinite(row.reward):
            drawn = bar(round(_FINE * (row.reward - self._low) / (self._high - self._low)), _FINE, room)
        return Content.assemble(
            (
                pad(label if row.split else "all steps", _LABEL - 1, bool(row.split)),
                "$text-warning" if held_out else "",
            ),
            " ",
            (drawn, "$text-warning" if held_out else "$text-primary"),
            pad(score(row.reward) if row.reward is not None else "", _REWARD, right=True),
            (pad(count(row.groups), _GROUPS, right=True), "$text-muted"),
            "  ",
            (f"{FAILED}{count(row.failures)}" if row.failures else "", "$text-error"),
        )


_WIDE = 60
"""Cells from which a prompt gets more room."""


class GroupList(VirtualList[GroupSummary | str]):
    """Groups with prompt, rewards and last replies; a row of text stands for all groups."""

    prompts = Prompts()

    def rows_came(self, rows: Sequence[GroupSummary | str]) -> None:
        self.prompts.see(row.prompt for row in rows if isinstance(row, GroupSummary))

    def row_text(self, row: GroupSummary | str, width: int, below: bool = False) -> Content:
        if isinstance(row, str):
            return Content.styled(row, "$text-muted")
        evaluated = row.split == EVAL
        label = f"{line(row.suite, 12) or 'prompt'} {row.number}" if evaluated else f"{row.number}"
        label = pad(label, 9 if evaluated else 5)
        if not row.members:
            return Content.styled(f"{label} skipped: had no turn", "$text-muted")
        signs = marks(row.members)
        gap = " " * max(2, 10 - sum(cells(sign) for sign, _ in signs))
        room = width - cells(label) - 2 - sum(cells(sign) for sign, _ in signs) - cells(gap)
        asked = max(1, min(self.prompts.longest, room * 2 // 5 if width >= _WIDE else room // 3))
        replies = answers_within(answers(row.members), max(0, room - asked))
        return Content.assemble(
            (f"{label} ", "$text-muted"),
            f"{pad(self.prompts.within(row.prompt, asked), asked)} ",
            *signs,
            gap,
            *replies,
        )


_WITH_ADVANTAGE = 64
"""Least cells for advantages."""
_NAME = 24
_ARROW = " → "


class ConversationList(VirtualList[ConversationSummary]):
    """Conversations of a group, step, task or search."""

    within_group = True
    """True: all of one group, so lines omit its name and prompt."""
    prompts = Prompts()

    def rows_came(self, rows: Sequence[ConversationSummary]) -> None:
        self.prompts.see(row.prompt for row in rows)

    def row_text(self, row: ConversationSummary, width: int, below: bool = False) -> Content:
        step = f"{HELD_OUT if row.split == EVAL else ''}{'-' if row.step is None else row.step}"
        where = "" if self.within_group else pad(step, 6, right=True) + pad(f" g{row.number}", 8)
        sign, style = mark(row.status, row.reward)
        sign = sign if sign in (RIGHT, WRONG, FAILED, UNPAID) else " "
        paid = f"{pad(str(row.member), 3)}{sign}{pad(score(row.reward), 6, right=True)}"
        credit = "" if row.speaker else advantage(row.advantage)
        credited = pad(credit, 7, right=True) if width >= _WITH_ADVANTAGE else ""
        room = width - cells(where + paid + credited) - 2
        name = clip(who(row.agent, row.policy, row.version, row.speaker, row.spoke), max(1, min(_NAME, room // 2)))
        name += "  " if name else ""
        room = max(0, room - cells(name))
        reply = answer_of(row.status, row.reward, row.reply, row.replies)
        asked = ""
        if not self.within_group:
            most, _ = shares([self.prompts.longest, cells(reply.text)], max(0, room - cells(_ARROW)))
            text = self.prompts.within(row.prompt, most)
            asked = f"{text}{_ARROW}" if text else ""
        room -= cells(asked)
        quiet = "$text-muted" if reply.quiet else ""
        return Content.assemble(
            (where, "$text-muted"),
            (paid, style),
            (credited, {"+": "$text-success", "-": "$text-error"}.get(credit[:1], "$text-muted")),
            "  ",
            (name, "$text-accent"),
            (asked, "$text-muted"),
            (pad(middle(reply.text, room), room), style if sign == FAILED else quiet),
        )


def _groups(reader: Reader, ids: Sequence[int]) -> Mapping[int, GroupSummary | str]:
    found: dict[int, GroupSummary | str] = dict(episodes.group_rows(reader, [key for key in ids if key != ALL]))
    return {ALL: "all groups", **found} if ALL in ids else found


LEVELS = ("-steps", "-groups", "-conversations", "-panes")
"""Coarse to fine; a narrow screen shows one."""
_NO_TASK = (
    "No task is selected.\n\nChoose one in the queue (1) and press t, or: ctrl+p, “Open task 17”.\n\n"
    "The same on the command line: marlaas rollouts ID"
)
_NO_ROLLOUTS = (
    "There are no episodes yet.\n\nThe first conversations come when a group is complete: some seconds after the task"
    " has started.\nThe queue (1) says what a task waits for."
)


class RolloutsScreen(View):
    """Nested lists left, a conversation right.

    A narrow screen shows one at a time. A thread reads; results for a left place are dropped.
    """

    HELP = """What the model writes: steps, their groups, the conversations of a group. Enter goes deeper, esc back.

n and N turn to the next and the one before, b and w to the best and the worst of the group.
v shades the tokens by advantage, log-probability, importance weight or version.
/ looks for a word in everything that was said; n and N then go from hit to hit.
c marks a conversation, and a second c sets another one beside it.
f shows failures only.
Where a task trains several policies, P turns to the next one's steps; a group shows all who spoke in its episodes."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "turn(1)", "next", id="rollouts.next"),
        Binding("N", "turn(-1)", "previous", show=False, id="rollouts.previous"),
        Binding("b", "extreme(True)", "best of the group", show=False, id="rollouts.best"),
        Binding("w", "extreme(False)", "worst of the group", show=False, id="rollouts.worst"),
        Binding("v", "shade", "shade", id="rollouts.shade"),
        Binding("slash", "filter", "search", key_display="/", id="rollouts.search"),
        Binding("c", "compare", "compare", id="rollouts.compare"),
        Binding("P", "policy", "next policy", show=False, id="rollouts.policy"),
        Binding("f", "failures", "failures only", show=False, id="rollouts.failures"),
        Binding("e", "export", "export", show=False, id="rollouts.export"),
        Binding("y", "copy_row", "copy", show=False, id="rollouts.copy"),
        Binding("Y", "copy_json", "copy JSON", show=False, id="rollouts.copy_json"),
        Binding("l", "open_logs", "logs", show=False, id="rollouts.logs"),
        Binding("right", "deeper", "deeper", show=False, id="rollouts.deeper"),
        Binding("left,h", "back", "back", show=False, id="rollouts.back"),
    ]
    AUTO_FOCUS = "#steps"
    DEFAULT_CSS = """
    RolloutsScreen #rollouts { height: 1fr; layout: horizontal; }
    RolloutsScreen #nothing { height: 1fr; padding: 2 4; color: $text-muted; }
    RolloutsScreen #lists { width: 50%; height: 100%; }
    RolloutsScreen #lists > VirtualList { height: 1fr; border-top: solid $panel-lighten-2; padding: 0 1; }
    RolloutsScreen #lists > VirtualList:focus { border-top: solid $primary; }
    RolloutsScreen.-wide #lists { width: 48%; }
    RolloutsScreen.-narrow #lists { width: 100%; }
    RolloutsScreen.-narrow #lists > VirtualList, RolloutsScreen.-narrow ConversationPanes { display: none; }
    RolloutsScreen.-narrow .-steps #steps, RolloutsScreen.-narrow .-groups #groups,
    RolloutsScreen.-narrow .-conversations #conversations,
    RolloutsScreen.-narrow .-panes ConversationPanes { display: block; }
    RolloutsScreen.-narrow .-panes #lists { display: none; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._level = 0
        self._steps: Sequence[StepSummary] = ()
        self._newest = ALL_STEPS
        self._last: Found | None = None
        self._finds = Latest(self, self._look, self._came)
        self.place: Selection | None = None
        """What is looked at."""
        self.word = ""
        """The word that is searched for."""
        self.hits: Sequence[int] | None = None
        """What a search has found so far; None: there is no search."""

    def question(self) -> Question | None:
        return Question(rollout_steps, (self.marlaas.learner,)) if self.marlaas.learner is not None else None

    def content(self) -> ComposeResult:
        read: OpenReader = partial(opened, self.marlaas.home)
        self.steps = StepList(read, id="steps")
        self.groups = GroupList(read, id="groups")
        self.conversations = ConversationList(read, id="conversations")
        self.lists: tuple[VirtualList[Any], ...] = (self.steps, self.groups, self.conversations)
        self.panes = ConversationPanes(self.marlaas.home)
        yield FilterBar("a word in anything that was said; enter searches")
        yield Static(id="nothing", markup=False)
        with Container(id="rollouts", classes=LEVELS[0]):
            yield Vertical(*self.lists, id="lists")
            yield self.panes

    def show_content(self, snapshot: Snapshot, answer: Any) -> None:
        steps = answer or ()
        if steps and self.marlaas.learner is not None:
            self._show_steps(self.marlaas.learner, steps)
        nothing = self.query_one("#nothing", Static)
        self.query_one("#rollouts").display = bool(steps)
        nothing.display = not steps and (answer is not None or self.question() is None)
        nothing.update(_NO_ROLLOUTS if snapshot.task(self.marlaas.selected) else _NO_TASK)
        if steps and self.focused is None:
            self._enter(self._level)

    def _show_steps(self, learner: Learner, steps: Sequence[StepSummary]) -> None:
        """Show a learner's steps. A cursor on the newest step follows newer ones."""
        before = self.place
        if before is not None and before.learner == learner and steps == self._steps:
            return
        self._steps = steps
        if before is None or before.learner != learner:
            self.hits = None
            self.groups.prompts, self.conversations.prompts = Prompts(), Prompts()
            self.place = Selection(learner, newest(list(in_list(steps, failures=False))))
        elif self.steps.has_focus and before.step == self._newest:
            self.place = replace(before, step=newest(list(in_list(steps, before.failures))), group=None)
        self._list_steps()
        unchanged = before is not None and self.place == before and before.step not in (ALL_STEPS, WAITING)
        if not unchanged or not self.groups.count:
            self._find()

    def _list_steps(self) -> None:
        assert self.place is not None
        listed = in_list(self._steps, self.place.failures)
        self._newest = newest(list(listed))
        with self.steps.prevent(VirtualList.Moved):
            whose = f" of {line(self.place.learner.policy, _NAME)}" if self.place.learner.policy else ""
            self.steps.show_steps(listed, f"{whose}{' of steps with failures' if self.place.failures else ''}")
            self.steps.go(self.place.step)

    def _find(self) -> None:
        assert self.place is not None
        self._finds.ask((self.place, self._last))

    def _look(self, wish: tuple[Selection, Found | None]) -> tuple[Selection, Found | None]:
        try:
            with opened(self.marlaas.home) as reader:
                return wish[0], find(reader, *wish)
        except MarlaasError as error:
            self.marlaas.say(str(error), bad=True)  # the next poll tries again
            return wish[0], None

    def _came(self, answer: tuple[Selection, Found | None]) -> None:
        now, (asked, found) = self.place, answer
        if now is None or found is None or replace(now, conversation=None) != replace(asked, conversation=None):
            return
        moved_on = now.conversation != asked.conversation and now.conversation in found.conversations
        self._last = found
        self.place = replace(found.place, conversation=now.conversation) if moved_on else found.place
        with self.groups.prevent(VirtualList.Moved):
            self.groups.show(Listing([ALL, *found.groups], _groups, self._stamp))
            self.groups.go(found.place.group or ALL)
        title = f"{step_words(found.place.step)}: {counted(len(found.groups), 'group')}"
        self.groups.border_title = Content(f"{title}; prompts, rewards, replies")
        if self.hits is None:
            self._show_conversations(found.conversations, self.place.conversation)

    @property
    def _stamp(self) -> object:
        """Rows of a finished step never change."""
        if self.hits is not None or self.place is None or self.place.step in (ALL_STEPS, WAITING):
            return self._steps
        return self.place.step

    def _show_conversations(self, ids: Sequence[int], current: int | None, title: str = "") -> None:
        place = self.place
        self.conversations.within_group = self.hits is None and place is not None and place.group != ALL
        with self.conversations.prevent(VirtualList.Moved):
            self.conversations.show(
                Listing(ids, lambda reader, ids: episodes.conversation_rows(reader, ids), self._stamp)
            )
            if current is not None:
                self.conversations.go(current)
        failures = " with failures" if place is not None and place.failures else ""
        self.conversations.border_title = Content(title or f"{counted(len(ids), 'conversation')}{failures}")
        self._read_current()

    def _read_current(self) -> None:
        """Show the conversation; another step, group or task ends a search."""
        self.panes.choose(self.conversations.current)
        if self.hits is None and self.word:
            self.query_one(FilterBar).write("")

    def on_virtual_list_moved(self, message: VirtualList.Moved) -> None:
        if self.place is None:
            return
        if message.list is self.conversations:
            if self.hits is None:
                self.place = replace(self.place, conversation=message.id)
            self._read_current()
            return
        self.hits = None
        if message.list is self.steps:
            self.place = Selection(self.place.learner, message.id, failures=self.place.failures)
        else:
            self.place = replace(self.place, group=message.id, conversation=None)
        self._find()

    def _enter(self, level: int) -> None:
        self._level = level
        self.query_one("#rollouts").set_classes(LEVELS[level])
        self._levels[level].focus()

    @property
    def _levels(self) -> tuple[Widget, ...]:
        return (*self.lists, self.panes.pane)

    def on_descendant_focus(self) -> None:
        if self.focused in self._levels:
            self._level = self._levels.index(self.focused)
            self.query_one("#rollouts").set_classes(LEVELS[self._level])

    def on_virtual_list_opened(self) -> None:
        self.action_deeper()

    def action_deeper(self) -> None:
        if self._level + 1 < len(LEVELS) and self.focused is not self.panes.other:
            self._enter(self._level + 1)

    def action_back(self) -> None:
        """End a comparison or search, else one level back, else to the previous view."""
        if self.maximized is not None:
            super().action_back()
        elif self.panes.comparing:
            self.panes.compare(False)
            self._enter(len(LEVELS) - 1)
        elif self.hits is not None and self._level <= LEVELS.index("-conversations"):
            self.query_one(FilterBar).action_clear()
        elif self._level:
            self._enter(self._level - 1)
        else:
            super().action_back()

    def action_turn(self, by: int) -> None:
        """Show the next or previous conversation, across groups."""
        if 0 <= self.conversations.cursor + by < self.conversations.count:
            self.conversations.action_move(by)
            return
        group, place = self.groups.cursor + by, self.place
        if self.hits is not None or place is None or place.group == ALL or not 0 < group < self.groups.count:
            what = "hit" if self.hits is not None else "conversation"
            self.marlaas.say(f"This is the {'last' if by > 0 else 'first'} {what}.")
            return
        with self.groups.prevent(VirtualList.Moved):
            self.groups.action_move(by)
        self.place = replace(place, group=self.groups.current, conversation=None, at_end=by < 0)
        self._find()

    def action_extreme(self, best: bool) -> None:
        group = self.place.group if self.place is not None and self.conversations.within_group else None
        rows = [row for row in self.conversations.rows() if row.group == group and not row.speaker]
        paid = [(row.reward, row.id) for row in rows if row.reward is not None]
        if not paid:
            self.marlaas.say("Go to a group first: there are no rewards here.", bad=True)
            return
        value = max(paid)[0] if best else min(paid)[0]
        self.conversations.go(next(id for reward, id in paid if reward == value))

    def action_shade(self) -> None:
        self.panes.shade_by(SHADES[(SHADES.index(self.panes.shade) + 1) % len(SHADES)])

    def action_failures(self) -> None:
        """Show failures only, or everything; without stored failures explain why."""
        place = self.place
        if place is None or not (place.failures or in_list(self._steps, failures=True)):
            self.marlaas.say(no_failures(self.marlaas.snapshot.task(self.marlaas.selected)), bad=True)
            return
        self.place = place = replace(place, failures=not place.failures)
        listed = list(in_list(self._steps, place.failures))
        if place.step not in listed:
            self.place = Selection(place.learner, newest(listed), failures=place.failures)
        self._list_steps()
        self._find()
        self.marlaas.say("Failures only." if place.failures else "Everything.")

    def action_compare(self) -> None:
        self.marlaas.say(self.panes.mark(self.conversations.current))
        if self.panes.comparing:
            self._enter(LEVELS.index("-panes"))

    def action_policy(self) -> None:
        self.marlaas.next_policy()
        self.ask_again()

    def action_open_logs(self) -> None:
        if self.marlaas.selected is not None:
            self.marlaas.open_task(self.marlaas.selected, "logs")

    def filter(self, text: str) -> None:
        if not text:
            self._search("")

    def leave_filter(self) -> None:
        word = self.query_one(FilterBar).text
        self._search(word)
        self._enter(LEVELS.index("-conversations") if word else self._level)

    def _search(self, word: str) -> None:
        if word == self.word or self.place is None:
            return
        self.word = word
        self.panes.look_for(word)
        self.workers.cancel_group(self, "search")
        if not word:
            self.hits = None
            self._find()
            return
        self.hits = ()
        self._show_hits(word, ())
        look = partial(self._look_for, word, self.place.learner.task, self.place.failures)
        self.run_worker(look, thread=True, group="search", exclusive=True, exit_on_error=False)

    def _look_for(self, word: str, task: int, failures: bool) -> None:
        worker, hits, told = get_current_worker(), array("q"), monotonic()
        words, bad = "", False
        try:
            with opened(self.marlaas.home) as reader:
                ids = episodes.conversation_ids(reader, task, failures=failures)
                for found in search(reader, ids, word):
                    if worker.is_cancelled:
                        return
                    hits.extend(found)
                    if monotonic() - told > 0.25:
                        told = monotonic()
                        self.call_later(self._show_hits, word, array("q", hits), f"{counted(len(hits), 'hit')} so far")
            words = f"{counted(len(hits), 'hit')} for “{line(word, 30)}”"
        except MarlaasError as error:
            words, bad = error.message, True
        self.call_later(self._show_hits, word, hits, words, bad)

    def _show_hits(self, word: str, hits: Sequence[int], words: str = "", bad: bool = False) -> None:
        """Show hits so far, newest first, in place of a group."""
        if word != self.word or self.hits is None:
            return
        self.hits = hits
        self.query_one(FilterBar).tell(words, bad=bad)
        if len(hits) != self.conversations.count:
            self._show_conversations(hits, self.conversations.current, words)
        self.conversations.border_title = Content(words)

    def why_not(self, action: str) -> str:
        """Only read rows can be copied or exported."""
        if action == "policy":
            return self.marlaas.why_no_other_policy()
        needs = action in ("copy_row", "copy_json", "export", "compare")
        return "No conversation is open: enter goes deeper, to one." if needs and self._loaded is None else ""

    @property
    def _loaded(self) -> Loaded | None:
        return self.panes.loaded if self.is_mounted else None

    def copied(self) -> tuple[str, Sequence[object], str]:
        loaded = self._loaded
        assert loaded is not None and loaded.conversation is not None  # why_not sees to it
        return episode_text(loaded.episode), [record(loaded.conversation)], f"Conversation {loaded.conversation.id}"

    def action_export(self) -> None:
        from .dialogs import export_rollouts

        if self.marlaas.web:
            self.marlaas.say("A browser writes no files here; y and Y copy.", bad=True)
            return
        loaded, listed = self._loaded, self.conversations.listing.ids
        if loaded is None:
            return
        what = {"one": "this conversation", "list": f"all {counted(len(listed), 'conversation')} of the list"}

        def act(wish: tuple[str, Path] | None) -> None:
            if wish is not None:
                choice, file = wish
                ids = [loaded.wish.conversation] if choice == "one" else sorted(listed)
                self.marlaas.say(f"Writing {file} …")
                self.marlaas.work(
                    partial(export, self.marlaas.home, ids, file),
                    lambda number: self.marlaas.say(f"{counted(number, 'conversation')} written into {file}."),
                )

        self.app.push_screen(export_rollouts(what, Path.cwd() / f"rollouts-{self.marlaas.selected}.jsonl"), act)

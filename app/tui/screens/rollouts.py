"""The view of rollouts: from the trend over steps down to one conversation."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Static
from textual.worker import get_current_worker

from marlaas.engine.errors import MarlaasError
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries.episodes import EVAL, ConversationSummary, GroupSummary, StepSummary
from marlaas.engine.store.queries.reader import Reader

from ...lists.filters import Listing
from ...lists.lines import Learner
from ...questions import RolloutsAnswer, RolloutsQuestion
from ...reading import opened
from ...rollouts.answers import (
    FAILED,
    RIGHT,
    UNPAID,
    WRONG,
    Prompts,
    age,
    answer,
    answers,
    answers_within,
    mark,
    marks,
    middle,
    numbers,
    shares,
)
from ...rollouts.exporting import Ids, Scope, episode_text, export, record, scopes
from ...rollouts.reading import (
    ALL,
    SHADES,
    WAITING,
    Found,
    Loaded,
    Selection,
    find,
    in_list,
    newest,
    search,
    step_words,
)
from ...text.format import advantage, bar, cells, clip, count, counted, line, pad, score, share
from ...text.tasks import no_failures, who
from ..context.snapshot import Snapshot
from ..widgets.bars import FilterBar
from ..widgets.conversation import ConversationPanes
from ..widgets.tables import GUTTER, OpenReader, VirtualList
from .view import View

if TYPE_CHECKING:
    from .dialogs.questions import Export


# The lists of the view of rollouts: steps, groups, conversations, and the search.

# The line above a list that names its columns: words in a rule. Pure.

RULE = "─"


def heading(*columns: tuple[int, str]) -> str:
    """A title for a list's upper border: each word begins at its cell, as cells of a row's text are counted.

    A column without a word is left out, as is one that begins before the word of the one before has ended.
    """
    title = ""
    for at, word in columns:
        missing = at + GUTTER - cells(title)
        if word and missing >= 0:
            title += (RULE * (missing - 1) + " " if missing else "") + f"{word} "
    return title


# A search in a thread through everything that was said, which reports its progress. Takes no room.

PAUSE = 0.25
"""Seconds between two reports."""


class Search(Widget):
    """One search at a time: a new one ends the one before."""

    DEFAULT_CSS = "Search { display: none; }"

    @dataclass
    class Came(Message):
        """The state of a search."""

        word: str
        hits: Sequence[int]
        """All hits so far, newest first."""
        words: str
        """The state in words."""
        bad: bool = False

    def __init__(self, home: Home) -> None:
        super().__init__()
        self._home = home
        self.word = ""

    def begin(self, word: str, task: int, failures: bool) -> None:
        """Search for a word in a task; an empty word only ends the present search."""
        self.word = word
        self.workers.cancel_group(self, "search")
        if word:
            look = partial(self._look, word, task, failures)
            self.run_worker(look, thread=True, group="search", exclusive=True, exit_on_error=False)

    def _look(self, word: str, task: int, failures: bool) -> None:
        worker, hits, told = get_current_worker(), array("q"), monotonic()
        try:
            with opened(self._home) as reader:
                ids = reader.conversation_ids(task, failures=failures)
                for progress in search(reader, ids, word):
                    if worker.is_cancelled:
                        return
                    hits.extend(progress.hits)
                    if monotonic() - told > PAUSE:
                        told = monotonic()
                        self._say(
                            word, hits, f"{counted(len(hits), 'hit')}, {share(progress.looked / len(ids))} searched"
                        )
            self._say(word, hits, f"{counted(len(hits), 'hit')} for “{line(word, 30)}”")
        except MarlaasError as error:
            self.post_message(self.Came(word, hits, error.message, bad=True))

    def _say(self, word: str, hits: array[int], words: str) -> None:
        if not get_current_worker().is_cancelled:
            self.post_message(self.Came(word, array("q", hits), words))


# The trend: every step and held-out evaluation of a task, with its mean reward as a bar.

_LABEL, _REWARD, _GROUPS, _FAILED = 10, 6, 8, 8
"""Cells of the columns next to the bar."""
HELD_OUT = "◆"
_FINE = 1000


class StepList(VirtualList[StepSummary]):
    """Newest first; the first line stands for all steps."""

    _low, _high = 0.0, 1.0
    _about = ""

    def show_steps(self, steps: Mapping[int, StepSummary], about: str = "") -> None:
        """Show steps by key; the bars cover 0 to 1, or more where rewards do. ``about``: of which steps these are."""
        self._about = about
        rewards = [s.reward for s in steps.values() if s.reward is not None and math.isfinite(s.reward)]
        self._low, self._high = min([0.0, *rewards]), max([1.0, *rewards])
        self.show(Listing.of(steps))
        self._name_columns()

    def on_resize(self) -> None:
        """Name the columns at their new places."""
        super().on_resize()
        self._name_columns()

    def _name_columns(self) -> None:
        held_out = any(step.split == EVAL for step in self.rows())
        self.border_title = Content(step_heading(self.scrollable_content_region.width - GUTTER, self._about, held_out))

    def row_text(self, row: StepSummary, width: int) -> Content:
        """The line of a step: its reward as a bar and as a number, how many groups, how many failures."""
        held_out = row.split == EVAL
        colour = "$text-warning" if held_out else "$text-primary"
        return Content.assemble(
            (pad(_label(row), _LABEL - 1, right=bool(row.split)), "$text-warning" if held_out else ""),
            " ",
            (self._bar(row.reward, _bar_room(width)), colour),
            pad(score(row.reward) if row.reward is not None else "", _REWARD, right=True),
            (pad(count(row.groups), _GROUPS, right=True), "$text-muted"),
            "  ",
            (f"{FAILED}{count(row.failures)}" if row.failures else "", "$text-error"),
        )

    def _bar(self, reward: float | None, room: int) -> str:
        if reward is None or not math.isfinite(reward):
            return " " * room
        return bar(round(_FINE * (reward - self._low) / (self._high - self._low)), _FINE, room)


def step_heading(width: int, about: str, held_out: bool) -> str:
    """The names of the columns over rows of ``width`` cells; ``held_out``: whether the list has such evaluations."""
    mean = "mean reward" + about + (f" · {HELD_OUT} held-out" if held_out else "")
    groups = _LABEL + _bar_room(width) + _REWARD + _GROUPS - len("groups")
    return heading((_LABEL - 1 - len("step"), "step"), (_LABEL, mean), (groups, "groups"), (groups + 8, "failed"))


def _bar_room(width: int) -> int:
    return max(0, width - _LABEL - _REWARD - _GROUPS - _FAILED)


def _label(row: StepSummary) -> str:
    if not row.split:
        return "all steps"
    return "waiting" if row.step is None else f"{HELD_OUT} {row.step}" if row.split == EVAL else str(row.step)


# The groups of a step: what was asked, the members' rewards, and what they answered.

_WITH_NUMBERS, _WITH_AGE, _WITH_VERSION = 60, 100, 130
"""From this many cells on there is room for mean and spread; instance and staleness; the environment's version."""
_NUMBERS, _AGE, _VERSION, GAP = 11, 15, 10, "  "
"""Cells of these columns, and what stands between two."""


class GroupList(VirtualList[GroupSummary | str]):
    """Groups in the order of their numbers; a row of text stands for all groups."""

    def __init__(self, open_reader: OpenReader, **options: Any) -> None:
        super().__init__(open_reader, **options)
        self.prompts = Prompts()
        self._title = ""

    def rows_came(self, ids: Collection[int]) -> None:
        """Look what the prompts have in common."""
        self.prompts.see(row.prompt for row in self.pages.among(ids) if isinstance(row, GroupSummary))
        super().rows_came(ids)
        self._name_columns()

    def row_text(self, row: GroupSummary | str, width: int) -> Content:
        """The line of a group."""
        if isinstance(row, str):
            return Content.styled(row, "$text-muted")
        label = f"{line(row.suite, 12) or 'prompt'} {row.number}" if row.split == EVAL else f"{row.number}"
        label = pad(label, _group_label(row))
        if not row.members:
            return Content.styled(f"{label} skipped: had no turn", "$text-muted")
        asked, signs, replies, more = self._places(row, width)
        shown = marks(row.members)
        rewards = pad(numbers(row), _NUMBERS, right=True) + GAP if width >= _WITH_NUMBERS else ""
        ending = f"  {pad(f'i{row.instance}', 6)}{pad(age(row), 7, right=True)}" if width >= _WITH_AGE else ""
        ending += f"  {pad(line(row.environment_version, 8), 8)}" if width >= _WITH_VERSION else ""
        room = more - replies
        return Content.assemble(
            (f"{label} ", "$text-muted"),
            f"{pad(self.prompts.within(row.prompt, signs - asked - 1), signs - asked - 1)} ",
            *shown,
            f"{' ' * (_signs(row) - sum(cells(sign) for sign, _ in shown))}{GAP}",
            (rewards, ""),
            *_filled(answers_within(answers(row.members), room), room if ending else 0),
            (ending, "$text-muted"),
        )

    def _places(self, row: GroupSummary, width: int) -> tuple[int, int, int, int]:
        """Where a row's prompt, signs, replies and what comes behind them begin."""
        asked = _group_label(row) + 1
        taken = _signs(row) + len(GAP) + (_NUMBERS + len(GAP) if width >= _WITH_NUMBERS else 0)
        ending = (_AGE if width >= _WITH_AGE else 0) + (_VERSION if width >= _WITH_VERSION else 0)
        room = width - asked - 1 - taken - ending
        own = room * 2 // 5 if width >= _WITH_NUMBERS else room // 3
        signs = asked + max(1, min(self.prompts.longest, own)) + 1
        return asked, signs, signs + taken, max(signs + taken, width - ending)

    def call(self, title: str) -> None:
        """Name the list, and with it its columns."""
        self._title = title
        self._name_columns()

    def on_resize(self) -> None:
        """Name the columns at their new places."""
        super().on_resize()
        self._name_columns()

    def _name_columns(self) -> None:
        first = next(
            (row for row in map(self.pages.row, (1, 2)) if isinstance(row, GroupSummary) and row.members), None
        )
        self.border_title = Content(self._title)
        if first is not None:
            width = self.scrollable_content_region.width - GUTTER
            _, signs, replies, more = self._places(first, width)
            mean = (signs + _signs(first) + len(GAP), "mean") if width >= _WITH_NUMBERS else (0, "")
            ending = [(more + len(GAP), "instance")] if width >= _WITH_AGE else []
            self.border_title = Content(
                heading((-GUTTER, self._title), (signs, "rewards"), mean, (replies, "replies"), *ending)
            )


def _group_label(row: GroupSummary) -> int:
    """Cells of the number of a group."""
    return 9 if row.split == EVAL else 5


def _signs(row: GroupSummary) -> int:
    """Cells of the signs of its members."""
    return max(8, sum(cells(sign) for sign, _ in marks(row.members)))


def _filled(pieces: list[tuple[str, str]], width: int) -> list[tuple[str, str]]:
    """Pieces with spaces behind them, up to a width."""
    return [*pieces, (" " * max(0, width - sum(cells(text) for text, _ in pieces)), "")]


# The conversations of a group, of a step, of a whole task, or those that a search has found.

_WITH_ADVANTAGE, _WITH_TOKENS = 64, 84
"""From this many cells on there is room for advantages; and for lengths."""
_NAME = 24
"""Most cells of a speaker's name."""
_ARROW = " → "


class ConversationList(VirtualList[ConversationSummary]):
    """A line for each conversation."""

    within_group = True
    """Whether all are of one group, which then is not named in each line, nor is its prompt."""

    def __init__(self, open_reader: OpenReader, **options: Any) -> None:
        super().__init__(open_reader, **options)
        self.prompts = Prompts()

    def rows_came(self, ids: Collection[int]) -> None:
        """Look what the prompts have in common."""
        self.prompts.see(row.prompt for row in self.pages.among(ids))
        super().rows_came(ids)

    def row_text(self, row: ConversationSummary, width: int) -> Content:
        """The line of a conversation: number, how it ended, its reward, who spoke, and what was said last."""
        where = "" if self.within_group else _where(row)
        sign, style = mark(row.status, row.reward)
        sign = sign if sign in (RIGHT, WRONG, FAILED, UNPAID) else " "
        paid = f"{pad(str(row.member), 3)}{sign}{pad(score(row.reward), 6, right=True)}"
        credit = "" if row.speaker else advantage(row.advantage)
        credited = pad(credit, 7, right=True) if width >= _WITH_ADVANTAGE else ""
        tokens = pad(f"{count(row.tokens)} tokens", 13, right=True) if width >= _WITH_TOKENS else ""
        room = width - cells(where + paid + credited + tokens) - 2
        name = clip(who(row.agent, row.policy, row.version, row.speaker, row.spoke), max(1, min(_NAME, room // 2)))
        name += "  " if name else ""
        room = max(0, room - cells(name))
        said = answer(row.status, row.reward, row.reply, row.replies)
        asked, room = ("", room) if self.within_group else self._asked(row.prompt, said.text, room)
        return Content.assemble(
            (where, "$text-muted"),
            (paid, style),
            (credited, _style(credit)),
            "  ",
            (name, "$text-accent"),
            (asked, "$text-muted"),
            (pad(middle(said.text, room), room), style if sign == FAILED else "$text-muted" if said.quiet else ""),
            (tokens, "$text-muted"),
        )

    def _asked(self, prompt: str, reply: str, room: int) -> tuple[str, int]:
        """(the prompt before an arrow, the cells that are left for the reply)."""
        most, _ = shares([self.prompts.longest, cells(reply)], max(0, room - cells(_ARROW)))
        text = self.prompts.within(prompt, most)
        return (f"{text}{_ARROW}", room - cells(text) - cells(_ARROW)) if text else ("", room)


def _where(row: ConversationSummary) -> str:
    step = "-" if row.step is None else str(row.step)
    return pad(f"{'◆' if row.split == EVAL else ''}{step}", 6, right=True) + pad(f" g{row.number}", 8)


def _style(credit: str) -> str:
    return "$text-success" if credit.startswith("+") else "$text-error" if credit.startswith("-") else "$text-muted"


# Three lists, each of which shows what is under the cursor of the one before: steps, groups, conversations.
#
# A message reports the conversation under the cursor. Places are read in a thread; a result that comes late, for a
# place that was left meanwhile, is dropped.


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
        """Go to the next conversation, or the one before, also of the next group. False if there is none."""
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
        """Go to the group's conversation with the highest or lowest reward. False if that is not known."""
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
        """Show failures only, or everything; returns a sentence that names which."""
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


def _groups(reader: Reader, ids: Sequence[int]) -> Mapping[int, GroupSummary | str]:
    found: dict[int, GroupSummary | str] = dict(reader.group_rows([key for key in ids if key != ALL]))
    return {ALL: "all groups", **found} if ALL in ids else found


@dataclass
class _Came(Message, bubble=False):
    """What was found at a place."""

    asked: Selection
    found: Found


# The view of rollouts: from the trend over steps to a group, and down to one conversation and its tokens.

LEVELS = ("-steps", "-groups", "-conversations", "-panes")
"""The levels from coarse to fine; a narrow screen shows one of them."""


class RolloutsScreen(View):
    """Lists at the left, a conversation at the right; on a narrow screen one at a time: enter goes deeper, esc back."""

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
        Binding("v", "shade(1)", "shade", id="rollouts.shade"),
        Binding("V", "shade(-1)", "previous shading", show=False, id="rollouts.unshade"),
        Binding("slash", "search", "search", key_display="/", id="rollouts.search"),
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
    RolloutsScreen Browser { width: 50%; height: 100%; }
    RolloutsScreen.-wide Browser { width: 48%; }
    RolloutsScreen.-narrow Browser { width: 100%; }
    RolloutsScreen.-narrow Browser > VirtualList, RolloutsScreen.-narrow ConversationPanes { display: none; }
    RolloutsScreen.-narrow .-steps #steps, RolloutsScreen.-narrow .-groups #groups,
    RolloutsScreen.-narrow .-conversations #conversations,
    RolloutsScreen.-narrow .-panes ConversationPanes { display: block; }
    RolloutsScreen.-narrow .-panes Browser { display: none; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._level = 0

    # What is shown.

    def question(self) -> RolloutsQuestion | None:
        """A question about the steps of the selected task or policy."""
        return RolloutsQuestion(self.marlaas.learner) if self.marlaas.learner is not None else None

    def content(self) -> ComposeResult:
        """A line to search in, the lists and the conversation; or a hint if there are no rollouts."""
        yield FilterBar("a word in anything that was said; enter searches")
        yield Static(id="nothing", markup=False)
        with Container(id="rollouts", classes=LEVELS[0]):
            yield Browser(partial(opened, self.marlaas.home))
            yield ConversationPanes(self.marlaas.home)
        yield Search(self.marlaas.home)

    @property
    def _browser(self) -> Browser:
        return self.query_one(Browser)

    @property
    def _conversations(self) -> ConversationPanes:
        return self.query_one(ConversationPanes)

    def show_content(self, snapshot: Snapshot, answer: object) -> None:
        """Show the steps; the lists read what is below them."""
        steps = answer.steps if isinstance(answer, RolloutsAnswer) else ()
        if steps and self.marlaas.learner is not None:
            self._browser.show(self.marlaas.learner, steps)
        waits = answer is None and self.question() is not None
        self.query_one("#rollouts").display = bool(steps)
        nothing = self.query_one("#nothing", Static)
        nothing.display = not steps and not waits
        if nothing.display:
            nothing.update(_NO_ROLLOUTS if snapshot.task(self.marlaas.selected) else _NO_TASK)
        if steps and self.focused is None:
            self._enter(self._level)

    def on_browser_chosen(self, message: Browser.Chosen) -> None:
        """Show the conversation; a search ends where another step, group or task was chosen."""
        self._conversations.choose(message.conversation)
        if self._browser.hits is None and self.query_one(Search).word:
            self.query_one(FilterBar).clear()

    def on_browser_failed(self, message: Browser.Failed) -> None:
        """Show why the store could not be read; the next poll tries again."""
        self.marlaas.say(message.problem, bad=True)

    # Deeper, and back.

    def _enter(self, level: int) -> None:
        self._level = level
        self.query_one("#rollouts").set_classes(LEVELS[level])
        self._panes[level].focus()

    @property
    def _panes(self) -> tuple[Widget, ...]:
        return (*self._browser.lists, self._conversations.pane)

    def on_descendant_focus(self) -> None:
        """Follow the focus that a click or tab has moved."""
        if self.focused in self._panes:
            self._level = self._panes.index(self.focused)
            self.query_one("#rollouts").set_classes(LEVELS[self._level])

    def on_virtual_list_opened(self, message: VirtualList.Opened) -> None:
        """Go deeper on enter."""
        self.action_deeper()

    def action_deeper(self) -> None:
        """Go one level deeper, to what is under the cursor."""
        if self._level + 1 < len(LEVELS) and self.focused is not self._conversations.other:
            self._enter(self._level + 1)

    def action_back(self) -> None:
        """End a comparison or a search, or go one level back; then to the view before."""
        if self.maximized is not None:
            super().action_back()
        elif self._conversations.comparing:
            self._conversations.compare(False)
            self._enter(len(LEVELS) - 1)
        elif self._browser.hits is not None and self._level <= LEVELS.index("-conversations"):
            self.query_one(FilterBar).action_clear()
        elif self._level:
            self._enter(self._level - 1)
        else:
            super().action_back()

    # Turning pages.

    def action_turn(self, by: int) -> None:
        """Show the next conversation, or the one before."""
        if not self._browser.turn(by):
            what = "hit" if self._browser.hits is not None else "conversation"
            self.marlaas.say(f"This is the {'last' if by > 0 else 'first'} {what}.")

    def action_extreme(self, best: bool) -> None:
        """Show the group's conversation with the highest or lowest reward."""
        if not self._browser.extreme(best):
            self.marlaas.say("Go to a group first: there are no rewards here.", bad=True)

    def action_shade(self, by: int) -> None:
        """Shade the tokens by something else."""
        self._conversations.shade_by(SHADES[(SHADES.index(self._conversations.shade) + by) % len(SHADES)])

    def action_failures(self) -> None:
        """Show failures only, or everything; if no failure is stored, explain why."""
        if not self._browser.has_failures:
            task = self.marlaas.snapshot.task(self.marlaas.selected)
            self.marlaas.say(no_failures(task), bad=True)
            return
        self.marlaas.say("Failures only." if self._browser.toggle_failures() else "Everything.")

    def action_compare(self) -> None:
        """Mark the conversation, or show the marked one next to it."""
        self.marlaas.say(self._conversations.mark(self._browser.conversations.current))
        if self._conversations.comparing:
            self._enter(LEVELS.index("-panes"))

    def action_policy(self) -> None:
        """Show the next policy that the task trains."""
        self.marlaas.next_policy()
        self.ask_again()

    def action_open_logs(self) -> None:
        """Open the logs of the task."""
        if self.marlaas.selected is not None:
            self.marlaas.open_task(self.marlaas.selected, "logs")

    # Searching.

    def action_search(self) -> None:
        """Open the line for a search."""
        self.query_one(FilterBar).open()

    def on_filter_bar_changed(self, message: FilterBar.Changed) -> None:
        """End the search where the word is gone."""
        if not message.text:
            self._find("")

    def on_filter_bar_left(self, message: FilterBar.Left) -> None:
        """Search on enter, or end the search on esc."""
        self._find(self.query_one(FilterBar).text)
        self._enter(LEVELS.index("-conversations") if self.query_one(FilterBar).text else self._level)

    def _find(self, word: str) -> None:
        search, place = self.query_one(Search), self._browser.place
        if word == search.word or place is None:
            return
        self._conversations.look_for(word)
        self._browser.show_hits((), "") if word else self._browser.show_hits(None)
        search.begin(word, place.learner.task, place.failures)

    def on_search_came(self, message: Search.Came) -> None:
        """Show hits, or how far the search is."""
        if message.word != self.query_one(Search).word or self._browser.hits is None:
            return
        self.query_one(FilterBar).tell(message.words, bad=message.bad)
        self._browser.show_hits(message.hits, message.words)

    # Copying and exporting.

    def why_not(self, action: str) -> str:
        """Why an action is refused: only what is read can be copied or exported."""
        if action == "policy":
            return self.marlaas.why_no_other_policy()
        needs = action.partition("(")[0] in ("copy_row", "copy_json", "export", "compare")
        return "No conversation is open: enter goes deeper, to one." if needs and self._loaded is None else ""

    @property
    def _loaded(self) -> Loaded | None:
        return self._conversations.loaded if self.is_mounted else None

    def action_copy_row(self) -> None:
        """Copy the conversation as text, with what others said in its episode."""
        if self._loaded and self._loaded.conversation:
            self.marlaas.copy(episode_text(self._loaded.episode), f"Conversation {self._loaded.conversation.id}")

    def action_copy_json(self) -> None:
        """Copy the conversation as JSON."""
        if self._loaded and self._loaded.conversation:
            found = json.dumps(record(self._loaded.conversation), indent=2)
            self.marlaas.copy(found, f"Conversation {self._loaded.conversation.id}")

    def action_export(self) -> None:
        """Ask what to export, and where to."""
        if self.marlaas.web:
            self.marlaas.say("A browser writes no files here; y and Y copy.", bad=True)
        elif self._scopes:
            from .dialogs.questions import ExportRollouts

            names = {name: scope.words for name, scope in self._scopes.items()}
            file = Path.cwd() / f"rollouts-{self.marlaas.selected}.jsonl"
            self.app.push_screen(ExportRollouts(names, file), self._export)

    @property
    def _scopes(self) -> dict[str, Scope]:
        one = self._loaded and self._loaded.conversation
        return scopes(self._browser.place, one, self._browser.hits) if one else {}

    def _export(self, wanted: Export | None) -> None:
        if wanted is not None:
            ids = self._scopes[wanted.scope].ids
            self.marlaas.say(f"Writing {wanted.file} …")
            self.run_worker(partial(self._write, ids, wanted.file), thread=True, exit_on_error=False)

    def _write(self, ids: Ids, file: Path) -> None:
        try:
            count = export(self.marlaas.home, ids, file)
            words, bad = f"{counted(count, 'conversation')} written into {file}.", False
        except MarlaasError as error:
            words, bad = f"{error.message} {error.hint or ''}", True
        self.app.call_from_thread(self.marlaas.say, words, bad)


_NO_TASK = Content(
    "No task is selected.\n\nChoose one in the queue (1) and press t, or: ctrl+p, “Open task 17”.\n\n"
    "The same on the command line: marlaas rollouts ID"
)
_NO_ROLLOUTS = Content(
    "There are no episodes yet.\n\nThe first conversations come when a group is complete: some seconds after the task"
    " has started.\nThe queue (1) says what a task waits for."
)

"""The view of rollouts: from the trend over steps to a group, and down to one conversation and its tokens."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from marlaas.engine.errors import MarlaasError

from ..context.snapshot import Snapshot
from ..questions.views import RolloutsAnswer, RolloutsQuestion
from ..reading.opening import opened
from ..rollouts.exporting import Ids, Scope, episode_text, export, record, scopes
from ..rollouts.reading import SHADES, Loaded
from ..widgets.conversation_pane import ConversationPanes
from ..widgets.filter_bar import FilterBar
from ..widgets.rollout_lists import Browser, Search
from ..widgets.virtual_list import VirtualList
from ..words.format import counted
from ..words.lost import no_failures
from .view import View

if TYPE_CHECKING:
    from .dialogs.questions import Export

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
        """A line to search in, the lists and the conversation; or a hint where there are no rollouts."""
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
        """Show failures only, or everything; where no failure is stored, say why."""
        if not self._browser.has_failures:
            task = self.marlaas.snapshot.task(self.marlaas.selected)
            self.marlaas.say(no_failures(task), bad=True)
            return
        self.marlaas.say("Failures only." if self._browser.toggle_failures() else "Everything.")

    def action_compare(self) -> None:
        """Mark the conversation, or show the marked one beside it."""
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

"""What a person does with the version under the cursor: export, roll back to, begin from, delete, or chat with it.

Actions only; which version that is, and what is drawn, is up to the view of adapters.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType

from marlaas.engine.adapters import USE
from marlaas.engine.errors import MarlaasError
from marlaas.engine.store import FINISHED, KeptVersion, VersionRow
from marlaas.engine.submission import TRANSITIONS

from ..home.references import arguments, owner, reference
from ..lists.queue_lines import learner, learners
from ..words.format import line, size
from .view import View

if TYPE_CHECKING:
    from .dialogs.questions import ExportWish

_NEED_A_VERSION = ("chat", "beside", "export", "delete", "roll_back", "begin", "copy_row", "copy_json")
_ACTS = ("chat", "beside", "delete", "roll_back", "begin")


class VersionsView(View):
    """Keys that act on a version; where they cannot, they say why."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "beside", "beside", id="adapters.beside"),
        Binding("e", "export", "export", id="adapters.export"),
        Binding("b", "roll_back", "roll back", id="adapters.roll_back"),
        Binding("f", "begin", "train on", id="adapters.begin"),
        Binding("x", "delete", "delete", show=False, id="adapters.delete"),
        Binding("y", "copy_row", "copy", show=False, id="adapters.copy"),
        Binding("Y", "copy_json", "copy JSON", show=False, id="adapters.copy_json"),
    ]

    @property
    @abstractmethod
    def current(self) -> KeptVersion | None:
        """The version under the cursor."""

    @property
    @abstractmethod
    def marked(self) -> Sequence[KeptVersion]:
        """The marked versions."""

    def why_not(self, action: str) -> str:
        """Why an action is refused: it needs a version, and a state of its task that it can start from."""
        if action not in _NEED_A_VERSION:
            return ""
        kept = self.current
        if kept is None:
            return "There is no version under the cursor."
        if action == "export" and (self.marlaas.web or self.marlaas.readonly):
            return "This writes files on the engine's machine: not in a browser, and not in the read-only mode."
        if action in _ACTS and (reason := self.marlaas.may_act()):
            return reason
        task, state = kept.row.task, line(kept.task_state, 20)
        if action == "delete" and kept.task_state not in FINISHED:
            return f"Task {task} is {state} and goes on from its versions; those of finished tasks can be deleted."
        if action == "roll_back" and kept.task_state not in TRANSITIONS["rollback"]:
            return f"Task {task} is {state}: pause it first (p in the queue)."
        if action == "roll_back" and kept.row.number >= kept.steps:
            return f"Version {kept.row.number} is the last of task {task}: no step would be left to make."
        return ""

    # Chat. The pane is loaded on demand, and beside the screen, because it imports what the other views do not.

    def action_chat(self) -> None:
        """Open the chat with the version alone."""
        if kept := self.current:
            self._open_chat([kept.row])

    def action_beside(self) -> None:
        """Open the chat with the version beside the marked one, or else beside the base."""
        if kept := self.current:
            others = [each for each in self.marked if each.row.id != kept.row.id]
            self._open_chat([kept.row, others[0].row if others else None])

    def _open_chat(self, versions: Sequence[VersionRow | None]) -> None:
        """``versions``: whom to talk with; None is the base."""
        ended = self.marlaas.under_way("Opening the chat …")
        self.run_worker(partial(self._load_chat, versions, ended), thread=True, exclusive=True, group="chat")

    def _load_chat(self, versions: Sequence[VersionRow | None], ended: Callable[[], None]) -> None:
        from ..chat.talking import Side
        from .chat import ChatScreen

        def show() -> None:
            ended()
            if self.is_current:
                self.app.push_screen(ChatScreen([Side(version) for version in versions]))

        self.app.call_from_thread(show)

    # What the engine does.

    def action_roll_back(self) -> None:
        """Ask, then roll the task back to this version."""
        from .dialogs.questions import Confirm

        kept = self.current
        if kept is None:
            return
        row, task = kept.row, self.marlaas.snapshot.task(kept.row.task)
        made = learners(task)[learner(task, row.policy)].step if task else 0
        later = max(0, made - row.number)
        lost = f"Its {later} later step{' is' if later == 1 else 's are'} void" if later else "No step is lost"
        anew = "" if row.resumable else " It begins with a new optimizer: the old one's moments are gone."
        question = (
            f"Let task {owner(row)}, {line(row.task_name, 40)}, go on from version {row.number}? {lost}; later versions"
            f" lose their files and scores.{anew}"
        )

        def act(yes: bool | None) -> None:
            if yes:
                done = f"Task {owner(row)} goes on from version {row.number}."
                self.marlaas.command("rollback", [row.task], done, **arguments(row))

        self.app.push_screen(Confirm(question), act)

    def action_delete(self) -> None:
        """Ask for the task's number, then delete the marked versions, or the one under the cursor."""
        from .dialogs.questions import Confirm

        kept = self.current
        if kept is None:
            return
        doomed = list(self.marked) or [kept]
        task, name = doomed[0].row.task, line(doomed[0].row.task_name, 40)
        if any(each.row.task != task or each.task_state not in FINISHED for each in doomed):
            self.marlaas.say("Mark versions of one finished task: they are deleted together.", bad=True)
            return
        several = len({each.row.policy for each in doomed}) > 1
        which = ", ".join(reference(each.row) if several else str(each.row.number) for each in doomed)
        whose = str(task) if several else owner(doomed[0].row)
        named = f"version{'' if len(doomed) == 1 else 's'} {which} of task {whose}, {name}"
        taken = size(sum(each.row.size for each in doomed))
        question = f"Delete {named} ({taken})? Nothing brings back what was not exported."

        def act(yes: bool | None) -> None:
            for each in doomed if yes else ():
                done = f"Version {each.row.number} of task {owner(each.row)} is deleted."
                self.marlaas.command("delete", [task], done, **arguments(each.row))

        self.app.push_screen(Confirm(question, typed=str(task)), act)

    # What needs no engine.

    def action_export(self) -> None:
        """Ask where to, then export in a thread."""
        from .dialogs.questions import ExportDialog

        kept = self.current
        if kept is None:
            return

        def write(wish: ExportWish | None) -> None:
            if wish:
                self.marlaas.say(f"Writing {wish.folder} …")
                self.run_worker(partial(self._export, kept, wish), thread=True, exit_on_error=False)

        folder = _unused(Path.cwd() / f"task-{owner(kept.row).replace('/', '-')}-v{kept.row.number}")
        self.app.push_screen(ExportDialog(f"{named_version(kept)}, {line(kept.row.task_name, 40)},", folder), write)

    def _export(self, kept: KeptVersion, wish: ExportWish) -> None:
        from ..home.exporting import export, no_gain
        from ..reading.opening import reading

        try:
            files = export(self.marlaas.home, kept.row, wish.folder, wish.gguf)
            with reading(self.marlaas.home) as reader:
                warning = no_gain(reader, kept.row) if reader else ""
        except (MarlaasError, OSError) as error:
            self.app.call_from_thread(partial(self.marlaas.say, str(error), bad=True))
            return
        text = next(file for file in files if file.name == USE).read_text(encoding="utf-8")
        self.app.call_from_thread(self._exported, wish, text, warning)

    def _exported(self, wish: ExportWish, text: str, warning: str) -> None:
        """Say where it is, and show how to use it."""
        from .dialogs.questions import Exported

        programs = "PEFT, vLLM, llama.cpp and Ollama" if wish.gguf else "PEFT and vLLM"
        told = f"{wish.folder.name} is there, for {programs}: {USE} says how."
        self.marlaas.say(f"{told} {warning}".rstrip(), bad=bool(warning))
        self.app.push_screen(Exported(wish.folder, text))

    def action_begin(self) -> None:
        """Open the form for a task like this one's that begins from the version."""
        from .submit import SubmitScreen

        if kept := self.current:
            self.app.push_screen(SubmitScreen(copy_from=kept.row.task, start=kept.row))

    def action_copy_row(self) -> None:
        """Copy the version's name."""
        if kept := self.current:
            self.marlaas.copy(kept.row.name, f"The name of {named_version(kept)}")

    def action_copy_json(self) -> None:
        """Copy all that is known of the version."""
        if kept := self.current:
            self.marlaas.copy(json.dumps(asdict(kept), indent=2), f"What is known of {named_version(kept)}")


def named_version(kept: KeptVersion) -> str:
    """The version in words, for the middle of a sentence."""
    return f"version {kept.row.number} of task {owner(kept.row)}"


def _unused(folder: Path) -> Path:
    names = chain([folder], (folder.with_name(f"{folder.name}-{again}") for again in count(2)))
    return next(name for name in names if not name.exists())

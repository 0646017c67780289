"""What views may ask of the application that shows them. The application fits this protocol; no view imports it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from textual.screen import Screen

from marlaas.engine.home import Home

from ..lists.learners import Learner
from ..questions.question import Question
from .snapshot import Snapshot

Result = TypeVar("Result")


class ViewName(Protocol):
    """A view as the bar of views names it."""

    @property
    def name(self) -> str:
        """What it is called, and opened by."""

    @property
    def of_task(self) -> bool:
        """Whether it shows the selected task, and has its number beside its name."""


class Asking(Protocol):
    """A view that has a question."""

    def question(self) -> Question | None:
        """What it wants to know beyond the snapshot."""


class Application(Protocol):
    """The application of one home."""

    selected: int | None
    """The task that views of one task show."""
    policy: str
    """Which policy of it, where it trains several; empty: the first."""
    beside: Sequence[int]
    """Tasks that the task view is to lay over the selected one, until it has done so."""

    @property
    def home(self) -> Home:
        """The home that is shown."""

    @property
    def home_text(self) -> str:
        """Its folder, short."""

    @property
    def title(self) -> str:
        """What the top line says."""

    @property
    def views(self) -> Sequence[ViewName]:
        """All views, in the order of their number keys."""

    @property
    def current_mode(self) -> str:
        """The name of the view in sight."""

    @property
    def snapshot(self) -> Snapshot:
        """The newest one."""

    @property
    def has_read(self) -> bool:
        """Whether the store has been looked at yet."""

    @property
    def readonly(self) -> bool:
        """Whether every act is refused."""

    @property
    def web(self) -> bool:
        """Whether it is shown in a browser, which gets neither editors nor files."""

    @property
    def learner(self) -> Learner | None:
        """The selected task, or the policy of it that was chosen; None where none is selected."""

    def say(self, text: str, bad: bool = False) -> None:
        """Show a notice; ``text`` may hold foreign words."""

    def copy(self, text: str, what: str) -> None:
        """Copy, and say where it is. ``what`` begins the sentence: Task 17."""

    def may_act(self) -> str:
        """Why no act is possible; empty where they are."""

    def command(self, kind: str, tasks: Sequence[int] = (), done: str = "", **arguments: Any) -> None:
        """Ask the engine for anything; ``done`` is what is said once it is done."""

    def ask(self, view: Asking) -> None:
        """Answer the question of a view that has come into sight, or has another one."""

    def poll(self) -> None:
        """Read the store now."""

    def action_open_view(self, name: str) -> None:
        """Look at the view of that name."""

    def open_task(self, task: int, view: str = "task", beside: Sequence[int] = ()) -> None:
        """Select a task and look at it; its chart shows those beside it, too."""

    def go_back(self) -> None:
        """From a view that was opened by itself to the one before."""

    def why_no_other_policy(self) -> str:
        """Why there is no next policy; empty where there is."""

    def next_policy(self) -> None:
        """Look at the next policy that the selected task trains."""

    def action_add(self, copy_from: int | None = None) -> None:
        """Open the form for tasks, empty or as a copy of one."""

    def action_start_engine(self) -> None:
        """Start an engine in the background."""

    def push_screen(self, screen: Screen[Result], callback: Callable[[Result | None], None] | None = None) -> Any:
        """Lay a dialog over the view; ``callback`` gets its answer, None where it was left."""

    def suspend(self) -> AbstractContextManager[None]:
        """Give the terminal to another program while the block runs."""

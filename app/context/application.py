"""What views may ask of the application that shows them. The application fits this protocol; no view imports it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from textual.screen import Screen

from marlaas.engine.home import Home

from ..lists.queue_lines import Learner
from ..questions.question import Question
from .notices import Notice
from .snapshot import Snapshot

Result = TypeVar("Result")


class ViewName(Protocol):
    """A view as the bar of views names it."""

    @property
    def name(self) -> str:
        """The name by which the view is shown and opened."""

    @property
    def of_task(self) -> bool:
        """Whether it shows the selected task, with the task's number beside its name."""


class Asking(Protocol):
    """A view that has a question."""

    def question(self) -> Question | None:
        """What the view wants to know beyond the snapshot."""


class Application(Protocol):
    """The application of one home."""

    selected: int | None
    """The task that is shown in views of one task."""
    policy: str
    """Which policy of that task, where it trains several; empty: the first."""
    beside: Sequence[int]
    """Tasks that the task view is still to lay over the selected one."""
    awaited: int | None
    """A task that the queue's cursor is to go to as soon as the store has it."""

    @property
    def home(self) -> Home:
        """The home that is shown."""

    @property
    def home_text(self) -> str:
        """The home's folder, shortened."""

    @property
    def title(self) -> str:
        """The text of the top line."""

    @property
    def views(self) -> Sequence[ViewName]:
        """All views, in the order of their number keys."""

    @property
    def current_mode(self) -> str:
        """The name of the view that is shown."""

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot."""

    @property
    def readonly(self) -> bool:
        """Whether every action is refused."""

    @property
    def web(self) -> bool:
        """Whether it is shown in a browser, which gets neither editors nor files."""

    @property
    def learner(self) -> Learner | None:
        """The selected task, or the policy chosen in it; None where no task is selected."""

    @property
    def notices(self) -> Sequence[Notice]:
        """What there is to tell now."""

    def say(self, text: str, bad: bool = False) -> None:
        """Show a notice; ``text`` may come from others."""

    def under_way(self, text: str) -> Callable[[], None]:
        """Tell at once what is under way, and its seconds, until the function that is returned is called."""

    def copy(self, text: str, what: str) -> None:
        """Copy a text, and tell where the copy is. ``what`` begins that sentence: Task 17."""

    def may_act(self) -> str:
        """Why no action is possible; empty where actions are."""

    def command(self, kind: str, tasks: Sequence[int] = (), done: str = "", **arguments: Any) -> None:
        """Send a command to the engine; the text ``done`` is shown once it is carried out."""

    def ask(self, view: Asking) -> None:
        """Have the next poll answer the question of a view that has come into sight or asks another one."""

    def poll(self) -> None:
        """Read the store now."""

    def action_open_view(self, name: str) -> None:
        """Look at the view of that name."""

    def open_task(self, task: int, view: str = "task", beside: Sequence[int] = ()) -> None:
        """Select a task and look at it; its chart shows those beside it, too."""

    def go_to_task(self, task: int) -> None:
        """Look at the queue, with the cursor on a task that may have come into the store just now."""

    def go_back(self) -> None:
        """Go back from a view that another one opened."""

    def why_no_other_policy(self) -> str:
        """Why there is no next policy; empty where there is."""

    def next_policy(self) -> None:
        """Look at the next policy that the selected task trains."""

    def action_add(self, copy_from: int | None = None) -> None:
        """Open the form for tasks, empty or as a copy of one."""

    def action_start_engine(self) -> None:
        """Start an engine in the background."""

    def push_screen(self, screen: Screen[Result], callback: Callable[[Result | None], None] | None = None) -> Any:
        """Show a dialog over the view; ``callback`` gets its answer, None where the person left."""

    def suspend(self) -> AbstractContextManager[None]:
        """Give the terminal to another program while the block runs."""

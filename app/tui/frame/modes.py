"""The views in the order of their keys, and what the palette finds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider

from ...text.format import line
from ...text.tasks import state_word
from ...text.terms import TERMS, sentence

if TYPE_CHECKING:
    from ...app import MarlaasApp
    from ..screens.view import View


@dataclass(frozen=True)
class Mode:
    """A view of a number key."""

    name: str
    summary: str
    of_task: bool = False
    """True: shows the selected task."""

    def make(self) -> View:
        """Loads its module on first use."""
        module = import_module(f"..screens.{self.name}", __package__)
        return cast("View", getattr(module, f"{self.name.capitalize()}Screen")())


ALL_MODES = (
    Mode("queue", "All tasks: what runs, what waits and why"),
    Mode("task", "One task: is it learning?", of_task=True),
    Mode("rollouts", "What the model writes, from the trend down to its tokens", of_task=True),
    Mode("environments", "Plugins: which serve, which are broken, and where"),
    Mode("adapters", "Versions on the disk: chat with them, export them, roll back, train on"),
    Mode("engine", "Is the machine busy, and who uses how much of it? Start, drain, stop"),
    Mode("logs", "What happened, and what the engine and its workers say", of_task=True),
    Mode("api", "Programs from outside: at which address they ask, with which keys; open, close"),
)


_NAMED = 10.0


class Palette(Provider):
    """Views, “open task 17”, and “explain drift”."""

    @property
    def _marlaas(self) -> MarlaasApp:
        return cast("MarlaasApp", self.app)

    def _explain(self, word: str) -> None:
        from ..screens.dialogs import Explain

        self.app.push_screen(Explain(word))

    async def discover(self) -> Hits:
        for place, mode in enumerate(ALL_MODES, 1):
            yield DiscoveryHit(
                f"View {place}: {mode.name}", partial(self._marlaas.action_open_view, mode.name), help=mode.summary
            )

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for place, mode in enumerate(ALL_MODES, 1):
            title = f"View {place}: {mode.name}"
            if (found := matcher.match(title)) > 0:
                opens = partial(self._marlaas.action_open_view, mode.name)
                yield Hit(found, matcher.highlight(title), opens, help=mode.summary)
        for task in self._marlaas.snapshot.ordered:
            title = f"Open task {task.id}: {line(task.name, 40)}".replace("[", "(").replace("]", ")")
            if (found := matcher.match(title)) > 0:
                if str(task.id) in query.split():  # task 2 comes before task 20, however alike they look
                    found *= _NAMED
                about = f"{line(task.tenant, 30)}, {state_word(task.state)}".replace("[", "(")
                opens = partial(self._marlaas.open_task, task.id)
                yield Hit(found, matcher.highlight(title), opens, help=about)
        for term in TERMS:
            title = f"Explain: {term.name}"
            if (found := max(matcher.match(name) for name in (title, *term.names))) > 0:
                shows = partial(self._explain, term.name)
                yield Hit(found, matcher.highlight(title), shows, help=sentence(term.line).replace("[", "("))

"""The views in the order of their keys, and what the palette finds."""

from __future__ import annotations

from collections.abc import Callable
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

    def _views(self) -> list[tuple[str, tuple[str, ...], Callable[[], object], str, float]]:
        """Title, other names, action, help, and factor of the score."""
        opens = self._marlaas.action_open_view
        modes = enumerate(ALL_MODES, 1)
        return [(f"View {n}: {mode.name}", (), partial(opens, mode.name), mode.summary, 1.0) for n, mode in modes]

    async def discover(self) -> Hits:
        for title, _, opens, about, _ in self._views():
            yield DiscoveryHit(title, opens, help=about)

    async def search(self, query: str) -> Hits:
        matcher, words, entries = self.matcher(query), query.split(), self._views()
        for task in self._marlaas.snapshot.ordered:
            title = f"Open task {task.id}: {line(task.name, 40)}".replace("[", "(").replace("]", ")")
            about = f"{line(task.tenant, 30)}, {state_word(task.state)}"
            factor = _NAMED if str(task.id) in words else 1.0  # task 2 comes before task 20, however alike they look
            entries.append((title, (), partial(self._marlaas.open_task, task.id), about, factor))
        for term in TERMS:
            shows = partial(self._explain, term.name)
            entries.append((f"Explain: {term.name}", term.names, shows, sentence(term.line), 1.0))
        for title, names, opens, about, factor in entries:
            if (score := max(matcher.match(name) for name in (title, *names))) > 0:
                yield Hit(score * factor, matcher.highlight(title), opens, help=about.replace("[", "("))

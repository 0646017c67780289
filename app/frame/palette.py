"""What ctrl+p and ``:`` find besides commands: views by name, tasks by number or name, words and metrics."""

from __future__ import annotations

from functools import partial
from typing import cast

from textual.command import DiscoveryHit, Hit, Hits, Provider

from ..context.application import Application
from ..words.format import line
from ..words.tasks import state_word
from ..words.terms import TERMS
from ..words.terms.explaining import sentence
from .modes import ALL_MODES

_NAMED = 10.0


class Palette(Provider):
    """Views, “open task 17”, and “explain drift”."""

    @property
    def _marlaas(self) -> Application:
        return cast("Application", self.app)

    def _explain(self, word: str) -> None:
        from ..screens.dialogs.explain import Explain

        self.app.push_screen(Explain(word))

    async def discover(self) -> Hits:
        """What is listed before anything is typed: the views."""
        for place, mode in enumerate(ALL_MODES, 1):
            yield DiscoveryHit(
                f"View {place}: {mode.name}", partial(self._marlaas.action_open_view, mode.name), help=mode.summary
            )

    async def search(self, query: str) -> Hits:
        """Views, tasks and terms that match."""
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

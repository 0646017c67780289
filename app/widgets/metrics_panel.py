"""The newest step of a task in numbers."""

from __future__ import annotations

from collections.abc import Mapping

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from marlaas.engine.store.rows import StepRow

from ..format import cells, count, duration, line, number, pad, share

_NAMES = {
    "loss": "loss",
    "entropy": "entropy",
    "grad_norm": "grad norm",
    "clipped": "clipped",
    "gap_mean": "log-p gap",
    "gap_max": "largest gap",
    "staleness": "staleness",
    "tokens": "tokens",
    "seconds": "time",
    "reward_spread": "spread",
    "no_signal": "no signal",
    "replaced": "replaced",
    "errors": "errors",
    "kl": "KL",
    "learning_rate": "learning rate",
    "drift_max": "largest drift",
    "staleness_max": "oldest",
    "training_seconds": "training time",
}
"""Metrics in the order of interest, under short names; others follow by their own."""
_HIDDEN = {"reward"}
_CELL = 24


class MetricsPanel(Widget):
    """Name and value pairs in as many columns as fit, the most interesting first."""

    DEFAULT_CSS = """
    MetricsPanel { height: auto; padding: 0 1; }
    """

    step: reactive[StepRow | None] = reactive(None, layout=True)
    rows: reactive[int] = reactive(3)
    """How many lines it may take."""

    def get_content_height(self, container: object, viewport: object, width: int) -> int:
        """As many lines as there are, within ``rows``."""
        return self.rows

    def render(self) -> Content:
        """The grid."""
        if self.step is None:
            return Content.styled("No step yet: the first comes when enough groups are complete.", "$text-muted")
        pairs = metric_texts(self.step)
        columns = max(1, self.content_size.width // _CELL)
        shown = pairs[: columns * self.rows]
        lines = [shown[i : i + columns] for i in range(0, len(shown), columns)]
        return Content("\n").join([Content.assemble(*(part for pair in row for part in _cell(*pair))) for row in lines])


def metric_texts(step: StepRow) -> list[tuple[str, str]]:
    """Every metric of a step as (name, value), in order of interest."""
    metrics: Mapping[str, float] = {"seconds": step.seconds, **step.metrics}
    known = [name for name in _NAMES if name in metrics]
    others = sorted(name for name in metrics if name not in _NAMES and name not in _HIDDEN)
    return [("step", str(step.step))] + [
        (_NAMES.get(name, line(name, 12)), _value(name, metrics[name])) for name in (*known, *others)
    ]


def _value(name: str, value: float) -> str:
    if name == "tokens":
        return count(int(value))
    if name in ("clipped", "no_signal"):
        return share(value)
    return duration(value) if name.endswith("seconds") else number(value)


def _cell(name: str, value: str) -> tuple[tuple[str, str], str]:
    return (f"{name} ", "$text-muted"), pad(value, max(1, _CELL - cells(name) - 1))

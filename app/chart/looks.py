"""How the pieces of a chart look: a style for each kind, in theme variables. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from .canvas import BAND, EDGE, FAINT, WITHIN, Run

STYLES = {
    "curve0": "$text-primary",
    "curve1": "$text-success",
    "curve2": "$text-accent",
    "curve3": "$text-secondary",
    FAINT: "$primary 40%",
    BAND: "on $primary 14%",
    EDGE: "$primary 14%",
    "point": "bold $text-warning",
    "earlier": "$text-warning 60%",
    "baseline": "$text-error",
    "mark": "$text-secondary",
    "cursor": "bold $text",
    "axis": "$text-muted",
}
_SHADE = "░"


def looks(runs: Sequence[Run], colours: bool = True) -> list[tuple[str, str]]:
    """Text and style of each run. Without ``colours`` that can be mixed, characters shade the band."""
    return [_look(text, kind, colours) for text, kind in runs]


def _look(text: str, kind: str, colours: bool) -> tuple[str, str]:
    own = kind.removesuffix(WITHIN)
    if not colours:
        return (_SHADE * len(text), "dim") if kind in (BAND, EDGE) else (text, STYLES.get(own, ""))
    within = own != kind
    return text, f"{STYLES.get(own, '')} {STYLES[BAND]}" if within else STYLES.get(own, "")

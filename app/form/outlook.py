"""What the tasks of a form will take and be asked: worked out in a thread while the form is filled.

The answer is safe lines; whatever goes wrong is a sentence among them, never an exception.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from marlaas.engine.errors import ConfigError, MarlaasError
from marlaas.engine.home import Home
from marlaas.engine.store import Submission

from ..words.format import line


@dataclass(frozen=True)
class Prospect:
    """What the tasks will take."""

    rows: tuple[tuple[str, str], ...] = ()
    """Pairs of a resource and how much of it."""
    problem: str = ""


@dataclass(frozen=True)
class Prompts:
    """What the model will be asked in an environment."""

    environment: str
    lines: tuple[str, ...] = ()
    parameters: tuple[dict[str, Any], ...] = ()
    """Parameters of the environment, as the store keeps them."""


def prospect(home: Home, submissions: Sequence[Submission]) -> Prospect:
    """Estimate what the tasks will take."""
    from ..home.estimating.estimates import estimate_all
    from ..home.estimating.words import told

    try:
        estimates = estimate_all(home, submissions)
    except (MarlaasError, OSError) as error:
        return Prospect(problem=line(str(error)))
    return Prospect(tuple(told(estimates, [each.environment for each in submissions])))


def prompts(home: Home, environment: str, config: dict[str, Any], data: dict[str, Any] | None = None) -> Prompts:
    """Look at the first prompts of an environment, with ``data`` in place of its own rows; takes a second."""
    from ..home.environments.peeking import peeked, prompt_lines

    problem = ""
    try:
        try:
            peek = peeked(home, environment, config, data=data)
        except ConfigError as error:  # the parameters are wrong, but which ones there are can still be known
            problem = str(error)
            peek = peeked(home, environment, {}, count=0)
    except (MarlaasError, OSError) as error:
        return Prompts(environment, (line(str(error)),))
    shown = []
    for number, ask in enumerate(peek.asks, 1):
        shown += [f"{number}.", *prompt_lines(ask), ""]
    if problem := problem or peek.problem:
        shown.append(line(problem))
    return Prompts(environment, tuple(shown), tuple(asdict(parameter) for parameter in peek.info.parameters))

"""What an environment is: what plays it, its settings, and where its tasks come from.

Mistakes in what an author says of it are raised while the file is imported, so that no task ever meets them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .agent import MOST_AGENTS, check_name
from .class_form import play_of
from .parameters import Parameter, parameters_of, signature_of
from .rewards import finite
from .scoring import Function, checked

Data = Callable[[str], Iterable[Any]] | str
"""A function from the split, ``train``, ``eval`` or ``test``, to its rows; or the path of a file of rows beside the
plugin: JSON lines, Parquet or Arrow, or a folder that ``datasets`` has saved."""


@dataclass(frozen=True)
class Environment:
    """An environment with its name, its settings and where its tasks come from."""

    function: Callable[..., Any]
    """What plays an episode: the author's function, or the method ``play`` of the author's class."""
    name: str
    data: Data | None
    timeout: float
    """Seconds that an episode may compute and wait for what it called; the model, and others, do not count."""
    parameters: tuple[Parameter, ...]
    takes_task: bool
    blocking: bool
    """A plain ``def``: it runs in a thread, and its asks block."""
    score_timeout: float = 30.0
    """Seconds that one call of the score, or of the ranking, may take."""
    scorer: Callable[..., Any] | None = None
    ranker: Callable[..., Any] | None = None
    form: type | None = None
    """The class, in the class form: one instance of it plays all episodes of a process."""
    agents: tuple[str, ...] = ()
    """The agents that speak in it, so that a task can say who plays whom; empty if the author does not say."""
    on_error: float | None = None
    """The reward of an episode that an exception ended after a reply; None: such an episode has no reward."""

    def score(self, function: Function) -> Function:
        """Declare how an episode is scored: ``def score(task, transcript)``, which may be ``async``.

        It is given the task (the data row, or what the environment assigned to ``ep.task``) and a ``Transcript``, and
        returns what an environment may return. It runs in another process than the episodes, under ``score_timeout``,
        so that it may be slow or dangerous, and be run again on what was said long ago. The environment itself then
        returns nothing; what ``ep.reward`` earned is added.
        """
        return self._declare("scorer", function, "task", "transcript")

    def group(self, function: Function) -> Function:
        """Declare how the episodes of a training group are compared: ``def rank(episodes)``, which may be ``async``.

        It is given the ``Member``s of the group that have a reward, and returns a list of rewards (or of dicts by
        agent), one for each, which take the place of the members' own. Evaluation uses the members' own.
        """
        return self._declare("ranker", function, "episodes")

    def _declare(self, place: str, function: Function, *arguments: str) -> Function:
        if getattr(self, place) is not None:
            raise TypeError(f"the environment {self.name} has a {place} already: declare one")
        object.__setattr__(self, place, checked(function, self.name, *arguments))
        return function

    @property
    def rows(self) -> str:
        """Whose rows it draws its tasks from: its ``own``, those of the ``task`` file that trains on it, or none."""
        return "own" if self.data is not None else "task" if self.takes_task else ""

    @property
    def description(self) -> str:
        """The docstring of the function or of the class."""
        of_class = self.form.__doc__ if self.form is not None else None
        return inspect.cleandoc(of_class or self.function.__doc__ or "")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, or make an instance of the class, so that an author's test can use it as written."""
        return (self.form or self.function)(*args, **kwargs)


def environment_of(
    target: Callable[..., Any],
    name: str,
    data: Data | None,
    timeout: float,
    score_timeout: float,
    agents: Sequence[str],
    on_error: float | None = None,
) -> Environment:
    """What plays by ``target``, with all settings checked; see ``env``. Raises ``TypeError`` or ``ValueError``."""
    if not name.replace("_", "").replace("-", "").isalnum() or not name.isascii() or len(name) > 64:
        raise ValueError(f"an environment's name is made of at most 64 letters, digits, - and _, not {name!r}")
    for limit, seconds in (("timeout", timeout), ("score_timeout", score_timeout)):
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < 86_400:
            raise ValueError(f"the {limit} of {name} must be a number of seconds below a day, not {seconds!r}")
    if data is not None and not isinstance(data, str) and not callable(data):
        raise TypeError(f"the data of {name} must be a function of the split or a path, not {type(data).__name__}")
    form = target if isinstance(target, type) else None
    function, given = (target, 1) if form is None else (play_of(form), 2)
    arguments = list(signature_of(function).parameters)
    if len(arguments) < given:
        wanted = f"def {name}(ep, …)" if form is None else "def play(self, ep, …)"
        raise TypeError(f"{name} must take the episode as its first parameter: {wanted}")
    return Environment(
        function=function,
        name=name,
        data=data,
        timeout=float(timeout),
        parameters=parameters_of(function, given),
        takes_task="task" in arguments[given:],
        blocking=not inspect.iscoroutinefunction(function),
        score_timeout=float(score_timeout),
        form=form,
        agents=_distinct(agents, name),
        on_error=paid_on_error(on_error, name),
    )


def paid_on_error(value: object, of: str) -> float | None:
    """What the environment ``of`` declares as ``on_error``. Raises ``TypeError`` or ``ValueError``."""
    return None if value is None else finite(value, f"on_error of {of}")


def _distinct(agents: Sequence[str], of: str) -> tuple[str, ...]:
    """The declared agents of the environment ``of``."""
    if isinstance(agents, str) or not isinstance(agents, Sequence):
        raise TypeError(f"the agents of {of} must be a list of names, not {agents!r:.40}")
    if len(agents) > MOST_AGENTS:
        raise ValueError(f"{of} declares {len(agents)} agents; an episode has at most {MOST_AGENTS}")
    names = tuple(map(check_name, agents))
    if len(set(names)) < len(names):
        raise ValueError(f"the agents of {of} must have different names, not {', '.join(names):.80}")
    return names

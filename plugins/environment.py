"""What an environment is: what plays it, its settings, and where its tasks come from.

Mistakes in what an author says of it are raised while the file is imported, so that no task ever meets them.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from .agent import MOST_AGENTS, check_name
from .parameters import Parameter, parameters_of, signature_of
from .rewards import Function, checked, finite

if TYPE_CHECKING:
    from .programs.declaring import ProgramEnvironment

# The class form of an environment: what a class must offer to be played, for set-up that costs more than an episode.
#
#     @env
#     class Anagrams:
#         def setup(self): ...                                # once in a process, before its first episode
#         async def play(self, ep, letters: int = 5): ...     # what an environment function is elsewhere
#         def close(self): ...                                # once, when the process ends in good order
#
# ``setup`` and ``close`` may be left out; each of the three may be ``async`` or a plain ``def``. One instance plays all
# episodes of the process, many at the same time: what it holds is there to be read.


def play_of(form: type) -> Callable[..., Any]:
    """The method that plays an episode.

    Raises ``TypeError`` if there is none, or where the class cannot be made, set up or closed without arguments.
    """
    play = getattr(form, "play", None)
    if not inspect.isfunction(play):
        raise TypeError(f"the class {form.__name__} needs a method that plays: async def play(self, ep, …)")
    _check_call(form, f"the class {form.__name__} is made without arguments: what it needs, it gets in setup(self)")
    for name in ("setup", "close"):
        method = getattr(form, name, None)
        if method is not None:
            _check_call(method, f"{form.__name__}.{name} takes nothing but self: def {name}(self)", form)
    return play


def _check_call(call: Callable[..., Any], message: str, *given: object) -> None:
    try:
        inspect.signature(call).bind(*given)
    except TypeError:
        raise TypeError(message) from None


Data = Callable[[str], Iterable[Any]] | str
"""A function from the split, ``train``, ``eval`` or ``test``, to its rows; or the path of a file of rows next to the
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
    train: str = "all"
    """The conversations of a program that are trained on: ``all``, the ``main`` or the ``longest`` thread."""
    program: bool = False
    """True if an external program plays it."""
    context: int = 0
    """Tokens of a conversation that the program needs; 0: the author does not say."""

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


# ``@env``: turns a function, a class or a program into an environment that the engine can describe and run.


class Declaration:
    """Declare an environment: ``@env``, or ``@env(name=…, data=…, timeout=…, score_timeout=…, agents=…, on_error=…)``.

    It stands over an ``async def``, over a plain ``def``, which runs in a thread, or over a class with such a method
    ``play`` and, for what costs more than an episode may, ``setup`` and ``close`` (``class_form``).

    ``name`` is that of the function or class if it is not given. ``data`` is a function from ``"train"``,
    ``"eval"`` or ``"test"`` to the rows of that split, or the path of a file of rows; the row of the episode arrives as
    the parameter ``task``. Without ``data``, an environment with that parameter gets the rows that a task file names.
    The timeouts are seconds: of an episode, its waiting for the model and for a busy machine aside, and of ``setup``,
    counted apart; and of one call of a score or ranking. ``agents`` are the names of those who speak in it, if there
    are several: tasks are then checked for a policy for each of them. ``on_error`` is the reward of every agent where
    the environment, or its score function, raises an exception after a reply: what ``ep.reward`` earned is added, and
    the exception stays visible. Without it such an episode has no reward. Time limits, want of memory or files, and the
    death of the process are never paid for.

    Raises ``TypeError`` or ``ValueError``, in words for the author, if no task could play it.
    """

    @overload
    def __call__(self, function: Callable[..., Any], /) -> Environment: ...
    @overload
    def __call__(
        self,
        /,
        *,
        name: str | None = None,
        data: Data | None = None,
        timeout: float = 60.0,
        score_timeout: float = 30.0,
        agents: Sequence[str] = (),
        on_error: float | None = None,
    ) -> Callable[[Callable[..., Any]], Environment]: ...
    def __call__(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        data: Data | None = None,
        timeout: float = 60.0,
        score_timeout: float = 30.0,
        agents: Sequence[str] = (),
        on_error: float | None = None,
    ) -> Environment | Callable[[Callable[..., Any]], Environment]:
        """See the class."""

        def declare(target: Callable[..., Any]) -> Environment:
            if not callable(target):
                raise TypeError(
                    f"@env stands over a function or class, with settings by name: @env(name=…), not {target!r:.40}"
                )
            return environment_of(target, name or target.__name__, data, timeout, score_timeout, agents, on_error)

        return declare(function) if function is not None else declare

    @staticmethod
    def program(
        command: str | Sequence[str],
        *,
        reward: str | Callable[..., Any] | None = None,
        files: Mapping[str, str | Path] | Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        exit_codes: Sequence[int] = (0,),
        name: str | None = None,
        data: Data | None = None,
        timeout: float = 300.0,
        score_timeout: float = 30.0,
        agents: Sequence[str] = (),
        on_error: float | None = None,
        train: str = "all",
        context: int = 0,
        tasks: str | None = None,
        image: str = "",
    ) -> ProgramEnvironment:
        """Declare an environment that an external program plays: ``solve = env.program("python my_agent.py", …)``, or
        as a decorator.

            @env.program("python my_agent.py", data="rows.jsonl")
            def solve(ep, run, task):
                return run.stdout.strip() == task["answer"]

        The program finds the model at the addresses in ``OPENAI_BASE_URL`` and ``ANTHROPIC_BASE_URL``, with the key of
        its episode next to them; what it says there is trained on. Its task is in ``MARLAAS_TASK``, as JSON, and in the
        file that ``MARLAAS_TASK_FILE`` names; its settings are in ``MARLAAS_CONFIG``. No shell runs the ``command``.
        Each program runs in its own folder, with the ``files`` of the author, and those next to the plugin that the
        command names: a list of names next to the plugin, or a text or a path by name. ``env`` are further variables,
        ``stdin`` is what it reads. In the command, these and it, ``{prompt}``, ``{task[question]}``, ``{config[…]}``,
        ``{index}``, ``{seed}``, ``{split}``, ``{url}`` and ``{key}`` are filled in.

        ``reward`` is ``"exit"``: 1 if the exit code is 0, else 0; or the name of a file that the program writes,
        with a number or JSON such as ``{"reward": 0.5, "spelling": 1}``; or a function of the program's end, ``run`` or
        ``ep, run``. A decorated function that takes ``run`` says the reward itself. One that does not is called before
        the program, may set ``ep.task``, and returns what ``{prompt}`` is. A score function under ``@solve.score`` is
        possible, too. With ``"exit"`` every exit code is judged. Else an episode whose program leaves no reward file,
        or whose exit code is none of ``exit_codes``, has no reward, and shows what it printed last; ``on_error`` is
        paid for it, as in ``@env``.

        When the episode ends, the program is killed with all that it has started. ``timeout`` are seconds of its own,
        without the model's; ``agents`` are the names of those who speak, whose addresses are in ``MARLAAS_ENDPOINTS``,
        as JSON. ``train`` chooses among the conversations of an agent, which are told apart by their system text:
        ``"all"``; ``"main"``, the first that is offered tools, else the first; or ``"longest"``. Others are side calls,
        which are shown, but not trained on. ``context`` are the tokens that a conversation needs: a home with a smaller
        context plays no episode.

        ``tasks`` names a folder of tasks in the form of Harbor, next to the plugin or by its path. Each is a row, and
        brings its prompt, the program's root folder, and the tests that say its reward. ``podman`` or ``docker`` runs a
        program in an OCI ``image``.

        Raises ``TypeError`` or ``ValueError``, in words for the author, for what no task could play.
        """
        from .programs.declaring import program  # here, because most plugins never need it

        return program(
            command,
            beside=Path(sys._getframe(1).f_globals.get("__file__", "")).parent,
            reward=reward,
            files=files,
            variables=env,
            stdin=stdin,
            exit_codes=exit_codes,
            name=name,
            data=data,
            timeout=timeout,
            score_timeout=score_timeout,
            agents=agents,
            on_error=on_error,
            train=train,
            context=context,
            tasks=tasks,
            image=image,
        )

    @staticmethod
    def agent(
        which: str,
        *,
        flags: Sequence[str] = (),
        reward: str | Callable[..., Any] | None = None,
        files: Mapping[str, str | Path] | Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
        exit_codes: Sequence[int] = (0,),
        name: str | None = None,
        data: Data | None = None,
        timeout: float = 300.0,
        score_timeout: float = 30.0,
        agents: Sequence[str] = (),
        on_error: float | None = None,
        train: str = "main",
        context: int | None = None,
        tasks: str | None = None,
        image: str = "",
    ) -> ProgramEnvironment:
        """Declare an environment that a known coding agent plays: ``solve = env.agent("codex", data="rows.jsonl", …)``.

        It is ``env.program`` with a command, settings files and variables that are ready-made for ``which``: ``codex``,
        ``claude-code``, ``opencode``, ``pi``, ``qwen-code``, ``aider`` or ``mini-swe-agent``. The agent does what
        ``{prompt}`` asks, and needs no person. ``flags`` are further words of its command. ``files`` and ``env`` are
        added; those with a ready-made one's name, and all other settings, take its place. They are ``env.program``'s.
        Its ``main`` thread is trained on, unless ``train`` is another, and ``context`` is what its own prompt needs.

        Raises ``TypeError`` or ``ValueError``, in words for the author, for what no task could play.
        """
        from .programs.declaring import agent_program  # as above

        return agent_program(
            which,
            beside=Path(sys._getframe(1).f_globals.get("__file__", "")).parent,
            flags=flags,
            reward=reward,
            files=files,
            variables=env,
            stdin=stdin,
            exit_codes=exit_codes,
            name=name,
            data=data,
            timeout=timeout,
            score_timeout=score_timeout,
            agents=agents,
            on_error=on_error,
            train=train,
            context=context,
            tasks=tasks,
            image=image,
        )


env = Declaration()

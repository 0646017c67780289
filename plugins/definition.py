"""``@env``: turns a function, a class or a program into an environment that the engine can describe and run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from .environment import Data, Environment, environment_of

if TYPE_CHECKING:
    from .programs.declaring import ProgramEnvironment


class Declaration:
    """Declare an environment: ``@env``, or ``@env(name=…, data=…, timeout=…, score_timeout=…, agents=…, on_error=…)``.

    It stands over an ``async def``, over a plain ``def``, which runs in a thread, or over a class with such a method
    ``play`` and, for what costs more than an episode may, ``setup`` and ``close`` (``class_form``).

    ``name`` is that of the function or class where it is not given. ``data`` is a function from ``"train"``,
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
    ) -> ProgramEnvironment:
        """Declare an environment that an external program plays: ``solve = env.program("python my_agent.py", …)``, or
        as a decorator.

            @env.program("python my_agent.py", data="rows.jsonl")
            def solve(ep, run, task):
                return run.stdout.strip() == task["answer"]

        The program finds the model at the addresses in ``OPENAI_BASE_URL`` and ``ANTHROPIC_BASE_URL``, with the key of
        its episode beside them; what it says there is trained on. Its task is in ``MARLAAS_TASK``, as JSON, and in the
        file that ``MARLAAS_TASK_FILE`` names; its settings are in ``MARLAAS_CONFIG``. No shell runs the ``command``.
        Each program runs in a folder of its own, with the ``files`` of the author, and those beside the plugin that the
        command names: a list of names beside the plugin, or a text or a path by name. ``env`` are further variables,
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
        as JSON.

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
        )


env = Declaration()

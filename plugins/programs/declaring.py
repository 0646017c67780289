"""``@env.program``. Mistakes are raised at import."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..adapters.declaring import missing
from ..environment import Data, Environment, environment_of
from ..episode import Episode
from ..parameters import signature_of
from .agents import form_of
from .harbor import data_of, tasks_in
from .playing import EXIT, Files, Function, Judge, Program, called, inside, placed, played
from .words import name_of, names, words_of

_LONGEST = 500
"""Characters about refused tasks."""
THREADS = ("all", "main", "longest")
Scorer = Callable[..., Any]
"""Plain or ``async``."""
_MOST_CONTEXT = 1 << 31
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@dataclass(frozen=True)
class ProgramEnvironment(Environment):
    """A program's environment; over a function, a decorator."""

    over: Callable[[Function], Environment] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.over is not None and len(args) == 1 and callable(args[0]):
            return self.over(args[0])
        return super().__call__(*args, **kwargs)


def program(
    command: str | Sequence[str],
    *,
    beside: Path,
    reward: str | Scorer | None = None,
    files: Files = (),
    variables: Mapping[str, str] | None = None,
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
    """See ``env.program``. ``beside``: the plugin's folder; ``variables``: its ``env``.

    Raises ``TypeError`` or ``ValueError``.
    """
    words = words_of(command)
    if type(context) is not int or not 0 <= context <= _MOST_CONTEXT:
        raise ValueError(f"context is a number of tokens up to {_MOST_CONTEXT:,}, not {context!r:.40}")
    if not isinstance(image, str) or image.startswith("-") or len(image.split()) > 1:
        raise ValueError(f'image is the name of one, as "python:3.12-slim", not {image!r:.40}')
    if train not in THREADS:
        raise ValueError(f"train is one of {', '.join(THREADS)}, not {train!r:.40}")
    _check(reward, variables or {}, stdin, exit_codes)
    folders, refused = tasks_in(beside / os.path.expanduser(tasks), image) if tasks is not None else ({}, [])
    if folders:
        if reward is not None or data is not None:
            raise TypeError("tasks brings rows and rewards: leave out data= and reward=")
        timeout += max(task.test_seconds for task in folders.values())
        data = data_of(folders, tasks or "")
    declared = Program(
        name=name or name_of(words),
        words=words,
        files=placed(files, words, beside),
        environment=dict(variables or {}),
        stdin=stdin,
        reward=reward if isinstance(reward, str) else "",
        exit_codes=tuple(exit_codes),
        agents=tuple(agents),
        tasks=folders,
        image=image,
    )
    scorer = _judge(reward) if callable(reward) else None

    def made(
        of: Program,
        author: Function | None,
        prepare: Function | None,
        judge: Judge | None,
        given: Sequence[inspect.Parameter],
    ) -> Environment:
        async def play(ep: Episode, **settings: Any) -> object:
            return await played(of, lambda: environment.scorer is not None, prepare, judge, ep, settings)

        left_out = f". Tasks that it leaves out: {'; '.join(refused)}"[:_LONGEST] if refused else ""
        play.__doc__ = f"Plays {' '.join(words)}{left_out}"
        if author is not None:
            functools.update_wrapper(play, author)
        play.__signature__ = inspect.Signature([_EPISODE, *given])  # type: ignore[attr-defined]
        environment = environment_of(play, of.name, data, timeout, score_timeout, agents, on_error)
        environment = replace(environment, program=True, train=train, context=context)
        if author is None:
            fields = {field: getattr(environment, field) for field in environment.__dataclass_fields__}
            environment = ProgramEnvironment(**fields, over=over)
        return environment

    def over(function: Function) -> Environment:
        if not inspect.isfunction(function):
            raise TypeError(f"env.program stands over a function, not {function!r:.40}")
        of = replace(declared, name=name or function.__name__)
        judges = "run" in inspect.signature(function).parameters
        if judges and (reward is not None or folders):
            raise TypeError(f"{of.name}(ep, run) says the reward, and so does reward= or tasks=: declare one")
        given = _given(function, judges)
        if not judges:
            return made(of, function, function, scorer, given)
        return made(of, function, None, lambda ep, run, told: called(function, ep, run, settings=told), given)

    given = (_TASK,) if data is not None or names(declared.templates) & {"task", "prompt"} else ()
    bare = made(declared, None, None, scorer, given)
    assert isinstance(bare, ProgramEnvironment)
    return bare


def agent_program(
    which: str,
    *,
    beside: Path,
    flags: Sequence[str] = (),
    files: Files = (),
    variables: Mapping[str, str] | None = None,
    stdin: str | None = None,
    context: int | None = None,
    **settings: Any,
) -> ProgramEnvironment:
    """See ``env.agent``. What is given wins over the form's.

    Raises ``TypeError`` or ``ValueError``.
    """
    form = form_of(which)
    if isinstance(flags, str) or not all(isinstance(flag, str) for flag in flags):
        raise TypeError(f'flags are further words of the command, as ["--verbose"], not {flags!r:.40}')
    placed(files, (), beside)  # its faults are told of what the author gave
    given = files if isinstance(files, Mapping) else {file: Path(file) for file in files}
    return program(
        (*form.command, *flags),
        beside=beside,
        files={**form.files, **given},
        variables={**form.variables, **(variables or {})},
        stdin=form.stdin if stdin is None else stdin,
        context=form.context if context is None else context,
        **settings,
    )


_TASK = inspect.Parameter("task", inspect.Parameter.KEYWORD_ONLY)
_EPISODE = inspect.Parameter("ep", inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _given(function: Function, judges: bool) -> tuple[inspect.Parameter, ...]:
    parameters = list(signature_of(function).parameters.values())
    first = [parameter.name for parameter in parameters[: 1 + judges]]
    if not first or (judges and first[1:] != ["run"]):
        wanted = "ep, run, …" if judges else "ep, …"
        raise TypeError(f"{function.__name__} must take {wanted}: def {function.__name__}({wanted})")
    return tuple(parameters[1 + judges :])


def _judge(scorer: Scorer) -> Judge:
    count = len(inspect.signature(scorer).parameters)
    if count not in (1, 2):
        raise TypeError("the function that is given as reward= takes the program's end: def scorer(run), or (ep, run)")
    return lambda ep, run, _: called(scorer, ep, run, settings={}, alone=count == 1)


def _check(reward: object, variables: Mapping[str, str], stdin: object, codes: object) -> None:
    if not (reward is None or callable(reward) or (isinstance(reward, str) and reward)):
        raise TypeError(
            f'reward is "{EXIT}", the name of a file, or a function of the program\'s end, not {reward!r:.40}'
        )
    if isinstance(reward, str) and not inside(reward):
        raise ValueError(f"reward: the file {reward!r} does not lie in the program's folder")
    for name, value in variables.items():
        if not isinstance(name, str) or not name or "=" in name or not isinstance(value, str):
            raise TypeError(f"env: a variable is a text by its name, not {name!r:.40}: {value!r:.40}")
    if not isinstance(stdin, str):
        raise TypeError(f"stdin is a text that the program reads, not {stdin!r:.40}")
    if not isinstance(codes, Sequence) or not codes or any(type(code) is not int for code in codes):
        raise TypeError(f"exit_codes are the whole numbers that are an end in good order, as (0, 1), not {codes!r:.40}")


def _reward_of_toml(reward: str | None, tasks: str | None) -> str | Scorer | None:
    if reward is None and tasks is None:
        raise ValueError(
            f'the reward is missing: "{EXIT}", the file in which the program leaves it, or "module:function"'
        )
    if reward is None or not _FUNCTION.fullmatch(reward):
        return reward
    module, _, function = reward.partition(":")
    try:
        scorer = getattr(importlib.import_module(module), function, None)
    except ModuleNotFoundError as error:
        raise missing(error) from None
    if not callable(scorer):
        raise ValueError(f"reward: the module {module} has no function {function}")
    return scorer  # type: ignore[no-any-return]


def program_of_toml(
    command: str,
    *,
    folder: Path,
    reward: str | None = None,
    files: dict[str, str] | list[str] | None = None,
    env: dict[str, str] | None = None,
    stdin: str = "",
    exit_codes: list[int] | None = None,
    data: str | None = None,
    timeout: float = 300.0,
    agents: list[str] | None = None,
    train: str = "all",
    context: int = 0,
    tasks: str | None = None,
    image: str = "",
    name: str | None = None,
) -> Environment:
    """See ``env.program``. A scorer is ``package.module:function``. Raises its module's errors."""
    return program(
        command,
        beside=folder,
        reward=_reward_of_toml(reward, tasks),
        files=files or {},
        variables=env,
        stdin=stdin,
        exit_codes=exit_codes or (0,),
        name=name,
        data=data,
        timeout=timeout,
        agents=agents or (),
        train=train,
        context=context,
        tasks=tasks,
        image=image,
    )


def agent_of_toml(
    agent: str,
    *,
    folder: Path,
    flags: list[str] | None = None,
    reward: str | None = None,
    files: dict[str, str] | list[str] | None = None,
    env: dict[str, str] | None = None,
    stdin: str | None = None,
    exit_codes: list[int] | None = None,
    data: str | None = None,
    timeout: float = 300.0,
    agents: list[str] | None = None,
    train: str = "main",
    context: int | None = None,
    tasks: str | None = None,
    image: str = "",
    name: str | None = None,
) -> Environment:
    """See ``env.agent`` and ``program_of_toml``."""
    return agent_program(
        agent,
        beside=folder,
        flags=flags or (),
        reward=_reward_of_toml(reward, tasks),
        files=files or {},
        variables=env,
        stdin=stdin,
        exit_codes=exit_codes or (0,),
        name=name or agent,
        data=data,
        timeout=timeout,
        agents=agents or (),
        train=train,
        context=context,
        tasks=tasks,
        image=image,
    )

"""``@env``: turns a function into an environment that the engine can describe and run.

Flows in: the author's function and its options. Flows out: an ``Environment`` with its typed parameters. What is wrong
with the function is said here, while the file is imported, so that no task ever meets it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, overload

from .parameters import Parameter, parameters_of, signature_of

Data = Callable[[str], Sequence[Any]] | str


@dataclass(frozen=True)
class Environment:
    """An environment function with its name, its settings and where its tasks come from."""

    function: Callable[..., Any]
    name: str
    data: Data | None
    timeout: float
    """Seconds that an episode may spend in the environment itself; waiting for the model does not count."""
    parameters: tuple[Parameter, ...]
    takes_task: bool
    blocking: bool
    """A plain ``def``: it runs in a thread, and its asks block."""

    @property
    def description(self) -> str:
        """The function's docstring."""
        return inspect.cleandoc(self.function.__doc__ or "")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, as a test of the author's would."""
        return self.function(*args, **kwargs)


@overload
def env(function: Callable[..., Any], /) -> Environment: ...
@overload
def env(
    *, name: str | None = None, data: Data | None = None, timeout: float = 60.0
) -> Callable[[Callable[..., Any]], Environment]: ...
def env(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    data: Data | None = None,
    timeout: float = 60.0,
) -> Environment | Callable[[Callable[..., Any]], Environment]:
    """Declare an environment: ``@env``, or ``@env(name=…, data=…, timeout=…)``.

    ``data`` is a function from ``"train"`` or ``"eval"`` to a list of rows, or the path of a JSONL file; the row of the
    episode arrives as the parameter ``task``.
    """

    def declare(target: Callable[..., Any]) -> Environment:
        return _declared(target, name or target.__name__, data, timeout)

    return declare(function) if function is not None else declare


def _declared(function: Callable[..., Any], name: str, data: Data | None, timeout: float) -> Environment:
    if not name.replace("_", "").replace("-", "").isalnum() or not name.isascii() or len(name) > 64:
        raise ValueError(f"an environment's name is made of at most 64 letters, digits, - and _, not {name!r}")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < 86_400:
        raise ValueError(f"the timeout of {name} must be a number of seconds below a day, not {timeout!r}")
    if data is not None and not isinstance(data, str) and not callable(data):
        raise TypeError(f"the data of {name} must be a function of the split or a path, not {type(data).__name__}")
    arguments = signature_of(function).parameters
    if not arguments:
        raise TypeError(f"{name} must take the episode as its first parameter: def {name}(ep, …)")
    takes_task = "task" in list(arguments)[1:]
    if takes_task and data is None:
        raise TypeError(f"{name} takes a task but has no data: say @env(data=…)")
    return Environment(
        function=function,
        name=name,
        data=data,
        timeout=float(timeout),
        parameters=parameters_of(function),
        takes_task=takes_task,
        blocking=not inspect.iscoroutinefunction(function),
    )

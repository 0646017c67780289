"""A jinja2 environment for templates from anywhere: no way out, and an end to everything that one can count.

Template source flows in, a compiled template flows out. jinja2's immutable sandbox keeps a template from Python's
insides and from changing what it is given. Bounded here beside it: how often loops turn and things are called, how long
a range is, how large a text or list may grow, powers, and what is written. Not bounded: what a single call of Python's
builds at once (a format width of a billion). A template comes with the weights that the user chose, so that is left.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

STEPS = 2_000_000
"""Turns of loops of one rendering: a second or so; a real template makes a few for each message."""
CALL = 10
"""Turns that a call of anything counts for."""
SIZE = 1 << 24
"""Characters of a text: far above any context."""
ITEMS = 1 << 20
"""Of a list."""
_MOST = "a template may have at most"


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """jinja2's immutable sandbox, with bounds. One rendering at a time in each thread."""

    intercepted_binops = frozenset(["*", "**", "+", "%"])

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        self._count = threading.local()
        """Turns that are left to what is rendered, in each thread."""
        self.globals["range"] = _short_range
        self.filters = {name: _sized(function) for name, function in self.filters.items()}
        self.filters |= {"turns of a loop": self._turns, "size of a text": checked}

    def load(self, source: str) -> jinja2.Template:
        """Compile. Raises ``jinja2.TemplateError``."""
        tree = self.parse(source)
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = nodes.Filter(loop.iter, "turns of a loop", [], [], None, None, lineno=loop.lineno)
        for joined in list(tree.find_all(nodes.Concat)):
            copy = nodes.Concat(joined.nodes, lineno=joined.lineno)
            joined.nodes = [nodes.Filter(copy, "size of a text", [], [], None, None, lineno=joined.lineno)]
        return jinja2.Template.from_code(self, self.compile(tree), self.make_globals(None))

    def render(self, template: jinja2.Template, values: dict[str, Any]) -> str:
        """What the template writes. Raises what the template does, ``jinja2.TemplateError`` at a bound."""
        self._count.left = STEPS
        written, size = [], 0
        for piece in template.generate(values):
            written.append(piece)
            size += len(piece)
            if size > SIZE:
                raise jinja2.TemplateError(f"{_MOST} {SIZE} characters")
        return "".join(written)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """As jinja2 has it, counted, and with a bound to what comes back."""
        __self._step(CALL)
        return checked(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """As jinja2 has it, for operands whose result stays small."""
        if operator == "*":
            for some, times in ((left, right), (right, left)):
                if isinstance(some, str | list | tuple) and isinstance(times, int):
                    _check_size(some, len(some) * times)
        if operator == "**" and (abs(left) > 1 << 31 or abs(right) > 64):
            raise jinja2.TemplateError("a template may not compute large powers")
        return checked(super().call_binop(context, operator, left, right))

    @jinja2.pass_context  # so that jinja2 does not run it on constants when it compiles, uncounted
    def _turns(self, _context: Any, items: Iterable[Any]) -> Iterator[Any] | list[Any]:
        if isinstance(items, str | list | tuple | dict | range):  # these know their length, which ``loop`` asks for
            self._step(len(items))
            return list(items)
        return self._counted(items)

    def _counted(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._step()
            yield item

    def _step(self, count: int = 1) -> None:
        self._count.left -= count
        if self._count.left < 0:
            raise jinja2.TemplateError(f"{_MOST} {STEPS} turns of loops and calls")


def checked(value: Any) -> Any:
    """``value`` if it is small; raises ``jinja2.TemplateError``."""
    if isinstance(value, str | list | tuple):
        _check_size(value, len(value))
    if isinstance(value, int) and value.bit_length() > 4096:
        raise jinja2.TemplateError("a template may not compute large numbers")
    return value


def _check_size(value: str | list[Any] | tuple[Any, ...], size: int) -> None:
    most = SIZE if isinstance(value, str) else ITEMS
    if size > most:
        raise jinja2.TemplateError(f"{_MOST} {most} {'characters' if most == SIZE else 'items'} in one value")


def _short_range(*bounds: int) -> range:
    made = range(*bounds)
    if len(made) > STEPS:
        raise jinja2.TemplateError(f"{_MOST} {STEPS} turns of loops and calls")
    return made


def _sized(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose result is checked; the marks that jinja2 puts on filters are kept."""

    @functools.wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        return checked(function(*args, **kwargs))

    return bounded

"""A jinja2 environment for templates from anywhere: no way out, and an end to everything that one can count.

Template source flows in, a compiled template flows out. jinja2's immutable sandbox keeps a template from Python's
insides and from changing what it is given. Beside it: what a rendering does is counted, turn by turn of its loops, call
by call, and by the size of the texts and lists that it touches; what a single call would build is looked at before
(``template_bounds``). Nothing is computed when a template is compiled.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import loopcontrols
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from .bounds import (
    MOST,
    SIZE,
    check_filter,
    check_method,
    check_operation,
    check_size,
    weight,
)

STEPS = 100_000
"""Turns of loops of one rendering, where it is not given more: a tenth of a second or so."""
CALL = 10
"""Turns that a call of anything counts for."""
LONGEST = 1 << 18
"""Characters of a template; those of models have some thousands."""
LONGEST_RANGE = 1 << 17
_GLOBALS = ("dict", "namespace")
_NO_FILTERS = ("filesizeformat", "pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr")
"""Made for web pages; what they cost does not follow from what they are given."""


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """jinja2's immutable sandbox, with bounds. One rendering at a time in each thread."""

    intercepted_binops = frozenset(["*", "**", "+", "-", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols],
            optimized=False,
            finalize=lambda value: self._weighed(value),
        )
        self._count = threading.local()
        """Turns that are left to what is rendered, in each thread."""
        self._call = CALL
        self.globals = {name: self.globals[name] for name in _GLOBALS} | {"range": _short_range}
        for name, function in [*self.filters.items()]:
            self.add_filter(name, function)
        for name in _NO_FILTERS:
            del self.filters[name]
        self.tests = {name: self._looking(cast(Callable[..., Any], test)) for name, test in self.tests.items()}
        self.filters |= {"turns of a loop": self._turns, "weight": self._weighed, "joined": self._joined}

    def add_filter(self, name: str, function: Callable[..., Any]) -> None:
        """Let templates use a filter, within bounds. The marks that jinja2 puts on filters are kept."""
        first = hasattr(function, "jinja_pass_arg")  # the context comes before the value

        @functools.wraps(function)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            value, *given = args[first:]
            if name == "join" and not isinstance(value, str | list | tuple | dict):
                value = self._weighed(list(self._counted(value)))
            self._look(value)
            check_filter(name, value, given, kwargs)
            return self._weighed(function(*args[:first], value, *given, **kwargs))

        self.filters[name] = bounded

    def load(self, source: str) -> jinja2.Template:
        """Compile. Raises ``jinja2.TemplateError``, and whatever Python's own compiler does."""
        if len(source) > LONGEST:
            raise jinja2.TemplateError(f"{MOST} {LONGEST} characters")
        tree = _Counted().visit(self.parse(source))
        self._call = max([self._call, *(CALL + _size(macro) for macro in tree.find_all(nodes.Macro))])
        return jinja2.Template.from_code(self, self.compile(tree), self.make_globals(None))

    def render(self, template: jinja2.Template, values: dict[str, Any], steps: int = STEPS) -> str:
        """What the template writes. Raises what the template does, ``jinja2.TemplateError`` at a bound."""
        self._count.left = self._count.steps = steps
        written, size = [], 0
        for piece in template.generate(values):
            written.append(piece)
            size += len(piece)
            if size > SIZE:
                raise jinja2.TemplateError(f"{MOST} {SIZE} characters")
        return "".join(written)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """As jinja2 has it, counted, and with a bound to what comes back."""
        __self._step(__self._call)
        if isinstance(__obj, LoopContext) and args:  # a recursive loop goes on with these
            args = (__self._turns(None, args[0], 1), *args[1:])
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str | bytes | int | float | list | tuple | dict):
            if method.__name__ == "join" and args and not isinstance(args[0], str | list | tuple | dict):
                args = (__self._weighed(list(__self._counted(args[0]))), *args[1:])
            __self._look(owner)
            check_method(owner, method.__name__, args, kwargs)
        return __self._weighed(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """As jinja2 has it, for operands whose result stays small."""
        check_operation(operator, left, right)
        return self._weighed(super().call_binop(context, operator, left, right))

    @jinja2.pass_context
    def _turns(self, _context: Any, items: Iterable[Any], each: int) -> Iterator[Any] | list[Any]:
        """Of a loop, each of which counts for so many."""
        if isinstance(items, str | list | tuple | dict | range):  # these know their length, which ``loop`` asks for
            self._step(len(items) * each)
            return list(items)
        return self._counted(items, each)

    def _counted(self, items: Iterable[Any], each: int = 1) -> Iterator[Any]:
        for item in items:
            self._step(each)
            yield item

    def _weighed(self, value: Any) -> Any:
        """``value``, looked through."""
        self._step(weight(value))
        return value

    def _look(self, value: Any) -> None:
        """Count what it takes to go through a value once."""
        self._step(1 + (len(value) >> (5 if isinstance(value, str) else 3) if hasattr(value, "__len__") else 0))

    def _looking(self, test: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(test)
        def bounded(*args: Any) -> Any:
            for value in args:
                if isinstance(value, str | list | tuple | dict | range):
                    self._look(value)
            return test(*args)

        return bounded

    def _joined(self, parts: list[Any]) -> str:
        """Texts one after another, each looked at before it is joined."""
        texts, size = [], 0
        for part in parts:
            texts.append(str(self._weighed(part)))
            size += len(texts[-1])
            check_size(size)
        return str(self._weighed("".join(texts)))

    def _step(self, count: int = 1) -> None:
        self._count.left -= count
        if self._count.left < 0:
            raise jinja2.TemplateError(f"{MOST} {self._count.steps} turns of loops and calls")


class _Counted(NodeTransformer):
    """Has everything pass a filter that jinja2 would do without asking the environment."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        """A loop: each of its turns counts for what stands in it."""
        self.generic_visit(node)
        each = nodes.Const(1 + _size(node), lineno=node.lineno)
        node.iter = nodes.Filter(node.iter, "turns of a loop", [each], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        """Texts that are joined by ``~``."""
        self.generic_visit(node)
        return _through("joined", nodes.List(node.nodes, lineno=node.lineno))

    def visit_List(self, node: nodes.List) -> nodes.Node:
        """A list may hold another one twice, and so on."""
        self.generic_visit(node)
        return _through("weight", node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        """As a list."""
        self.generic_visit(node)
        return _through("weight", node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        """As a list, where it is no target."""
        self.generic_visit(node)
        return _through("weight", node) if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        """A part of a text or list is a copy."""
        self.generic_visit(node)
        return _through("weight", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_Operand(self, node: nodes.Operand) -> nodes.Node:
        """What is compared, or searched, is gone through."""
        self.generic_visit(node)
        node.expr = _through("weight", node.expr)
        return node


def _through(name: str, node: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _size(node: nodes.Node) -> int:
    """Steps that it is to go once through what stands in a loop or a macro."""
    texts = sum(len(text.data) for text in node.find_all(nodes.TemplateData))
    return (sum(1 for _ in node.find_all(nodes.Node)) >> 4) + (texts >> 5)


def _short_range(*bounds: int) -> range:
    made = range(*bounds)
    if len(made) > LONGEST_RANGE:
        raise jinja2.TemplateError(f"{MOST} {LONGEST_RANGE} numbers in a range")
    return made

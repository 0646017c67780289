"""A jinja2 environment for untrusted templates, which bounds what a rendering may do.

jinja2's immutable sandbox keeps a template from Python's internals and from changing its arguments. In addition, steps
of a rendering are counted: turns of loops, calls, and the size of the texts and lists that are used. What a single call
would build is checked before (``bounds``). No constant expressions are computed when a template is compiled.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
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
"""Default limit of steps in one rendering, if a turn of a loop is one: about a tenth of a second."""
CALL = 10
"""Steps that a call counts for."""
LONGEST = 1 << 18
"""The most characters of a template; those of models have some thousands."""
LONGEST_RANGE = 1 << 17
_GLOBALS = ("dict", "namespace", "cycler", "joiner")
_NO_FILTERS = ("filesizeformat", "pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr")
"""Filters that are left out: they are made for web pages, and their cost does not follow from their arguments."""


class Generation(Extension):
    """transformers' ``{% generation %} … {% endgeneration %}`` around assistant turns; renders what is inside."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        """As there, names that are set inside are not known outside."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """jinja2's immutable sandbox, with bounds. One rendering at a time in each thread."""

    intercepted_binops = frozenset(["*", "**", "+", "-", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[Generation, loopcontrols],
            optimized=False,
            finalize=lambda value: self._weighed(value),
        )
        self._count = threading.local()
        """Steps that are left to the rendering of each thread."""
        self._call = CALL
        self.globals = {name: self.globals[name] for name in _GLOBALS} | {"range": _short_range}
        for name, function in [*self.filters.items()]:
            self.add_filter(name, function)
        for name in _NO_FILTERS:
            del self.filters[name]
        self.tests = {name: self._looking(cast(Callable[..., Any], test)) for name, test in self.tests.items()}
        self.filters |= {"turns of a loop": self._turns, "weight": self._weighed, "joined": self._joined}

    def add_filter(self, name: str, function: Callable[..., Any]) -> None:
        """Let templates use a filter, within bounds. jinja2's attributes on the function are kept."""
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
        """Compile a template. Raises ``jinja2.TemplateError``, and what Python's own compiler raises."""
        if len(source) > LONGEST:
            raise jinja2.TemplateError(f"{MOST} {LONGEST} characters")
        tree = _Counted().visit(self.parse(source))
        self._call = max([self._call, *(CALL + _size(macro) for macro in tree.find_all(nodes.Macro))])
        return jinja2.Template.from_code(self, self.compile(tree), self.make_globals(None))

    def render(self, template: jinja2.Template, values: dict[str, Any], steps: int = STEPS) -> str:
        """The text that the template writes. Raises what it raises, and ``jinja2.TemplateError`` at a bound."""
        self._count.left = self._count.steps = steps
        written, size = [], 0
        for piece in template.generate(values):
            written.append(piece)
            size += len(piece)
            if size > SIZE:
                raise jinja2.TemplateError(f"{MOST} {SIZE} characters")
        return "".join(written)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """As in jinja2, but counted, and with a bound on the result."""
        __self._step(__self._call)
        if isinstance(__obj, LoopContext) and args:  # the items of a recursive loop
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
        """As in jinja2, but raises where the result would be large."""
        check_operation(operator, left, right)
        return self._weighed(super().call_binop(context, operator, left, right))

    @jinja2.pass_context
    def _turns(self, _context: Any, items: Iterable[Any], each: int) -> Iterator[Any] | list[Any]:
        """The items of a loop, each of which counts for ``each`` steps."""
        if isinstance(items, str | list | tuple | dict | range):  # these know their length, which ``loop`` asks for
            self._step(len(items) * each)
            return list(items)
        return self._counted(items, each)

    def _counted(self, items: Iterable[Any], each: int = 1) -> Iterator[Any]:
        for item in items:
            self._step(each)
            yield item

    def _weighed(self, value: Any) -> Any:
        """Return ``value`` after its size was checked and counted."""
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
        """Join texts, and check the size before each."""
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
    """Rewrites a template so that operations which jinja2 compiles directly go through filters that count them."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        """A loop: each of its turns counts for the nodes in its body."""
        self.generic_visit(node)
        each = nodes.Const(1 + _size(node), lineno=node.lineno)
        node.iter = nodes.Filter(node.iter, "turns of a loop", [each], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        """Texts that are joined by ``~``."""
        self.generic_visit(node)
        return _through("joined", nodes.List(node.nodes, lineno=node.lineno))

    def visit_List(self, node: nodes.List) -> nodes.Node:
        """A list, which may hold another one twice, that another one twice, and so on."""
        self.generic_visit(node)
        return _through("weight", node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        """A table, like a list."""
        self.generic_visit(node)
        return _through("weight", node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        """A tuple, like a list, except as the target of an assignment."""
        self.generic_visit(node)
        return _through("weight", node) if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        """An index or slice: a part of a text or list is a copy."""
        self.generic_visit(node)
        return _through("weight", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_Operand(self, node: nodes.Operand) -> nodes.Node:
        """An operand of a comparison or of ``in``, which may be read to its end."""
        self.generic_visit(node)
        node.expr = _through("weight", node.expr)
        return node


def _through(name: str, node: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _size(node: nodes.Node) -> int:
    """Steps for one run of the body of a loop or a macro."""
    texts = sum(len(text.data) for text in node.find_all(nodes.TemplateData))
    return (sum(1 for _ in node.find_all(nodes.Node)) >> 4) + (texts >> 5)


def _short_range(*bounds: int) -> range:
    made = range(*bounds)
    if len(made) > LONGEST_RANGE:
        raise jinja2.TemplateError(f"{MOST} {LONGEST_RANGE} numbers in a range")
    return made

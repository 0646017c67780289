"""The base's chat template: makes one text of messages.

Templates are untrusted. They run in jinja2's immutable sandbox with Hugging Face's helpers (``tojson``,
``raise_exception``, ``strftime_now``). Loop turns, calls and sizes count as steps; calls that could build something
large are checked first. Compiling computes nothing; the worst source of ``LONGEST`` characters takes six seconds and
430 MB.

The template alone decides whether to begin with bos.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from ..errors import BaseModelError

FILE = "chat_template.jinja"
SETTINGS, TOKENS = "tokenizer_config.json", "special_tokens_map.json"
FURTHER = "additional_chat_templates"
PROCESSOR = "chat_template.json"
TODAY = datetime.datetime(2025, 1, 1)
"""The templates' date: prompts must not change from day to day."""
SWITCH = "enable_thinking"
_LONGEST_REASON = 500


def load_template(folder: Path) -> ChatTemplate:
    """Read ``chat_template.jinja`` and ``additional_chat_templates``, else ``tokenizer_config.json``.

    As in transformers: ``default``, or ``tool_use``. Raises ``BaseModelError``.
    """
    settings, file = read_settings(folder), folder / FILE
    if "added_tokens_decoder" not in settings:
        settings |= read_settings(folder, TOKENS)
    source = _text(file) if file.exists() else settings.get("chat_template")
    name = FILE if file.exists() else f"chat_template in {SETTINGS}"
    named: dict[str, Any] = source if isinstance(source, dict) else {}
    if isinstance(source, list):
        named = {str(each.get("name")): each.get("template") for each in source if isinstance(each, dict)}
    further = {path.stem: _text(path) for path in (folder / FURTHER).glob("*.jinja")}
    if further:  # files take the place of what tokenizer_config.json has, but for a default that they lack
        named = {"default": named.get("default", source)} | further
    if named:
        source = named.get("default")
    if not isinstance(source, str):
        raise BaseModelError(
            f"the base model has no chat template{' named default' if named else ''}.",
            f"Copy the template in {PROCESSOR} into a file {FILE}."
            if (folder / PROCESSOR).exists()
            else f"Add a {FILE}, or use an instruct model.",
            where=str(folder),
        )
    with_tools = named.get("tool_use") if isinstance(named.get("tool_use"), str) else None
    tokens = {key: token_name(value) for key, value in settings.items() if key.endswith("_token")}
    tokens = {key: value for key, value in tokens.items() if value}
    template = ChatTemplate(source, tokens, name, with_tools)
    prompt = [{"role": role, "content": "Hello"} for role in ("system", "user")]
    try:
        template.render(prompt[1:], None)
    except BaseModelError as refusal:  # some want a system prompt
        try:
            template.render(prompt, None)
        except BaseModelError:
            raise refusal from None
    return template


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise BaseModelError(f"cannot be read: {error}.", where=str(file)) from error


def read_settings(folder: Path, name: str = SETTINGS) -> dict[str, Any]:
    """Read a JSON file of the base's folder; empty: none."""
    try:
        settings = json.loads((folder / name).read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise BaseModelError(f"cannot be read: {error}.", where=str(folder / name)) from error
    return settings if isinstance(settings, dict) else {}


def token_name(token: Any) -> str:
    """The text of a special token, given as text or table; else empty."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else ""


STEPS = 100_000
"""About a tenth of a second."""
STEPS_EACH = 2000
STEPS_CHARACTER = 4
"""About a hundred reads of each."""


class ChatTemplate:
    """One model's template, compiled."""

    def __init__(self, source: str, tokens: dict[str, str], name: str = FILE, with_tools: str | None = None) -> None:
        """``tokens``: special tokens, such as ``bos_token``; ``with_tools``: the source with tools. Raises
        ``BaseModelError`` if one does not compile."""
        self.tokens = tokens
        self.sources = {"": source} if with_tools is None else {"": source, "tool_use": with_tools}
        """By transformers' names; the default has none."""
        self.source = "".join(self.sources.values())
        """All sources together, to search for words."""
        self._environment = BoundedEnvironment()
        self._environment.globals |= {"raise_exception": _raise, "strftime_now": TODAY.strftime, **tokens}
        self._template = self._compile(source, name)
        self._with_tools = self._template if with_tools is None else self._compile(with_tools, name)

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        thinking: bool | None = None,
        asks: bool = True,
    ) -> str:
        """``asks``: with the generation prompt; ``thinking`` None: the template's default.

        Raises ``BaseModelError`` if the template refuses, e.g. two user turns in a row.
        """
        values: dict[str, Any] = {"messages": messages, "tools": tools or None, "add_generation_prompt": asks}
        values["documents"] = None
        if thinking is not None:
            values[SWITCH] = thinking
        size = sum(len(message["content"]) for message in messages)
        steps = STEPS + STEPS_EACH * (len(messages) + len(tools or ())) + STEPS_CHARACTER * size
        try:
            return self._environment.render(self._with_tools if tools else self._template, values, steps)
        except RecursionError as error:
            raise BaseModelError("The base model's chat template calls itself without end.") from error
        except MemoryError as error:
            raise BaseModelError("The base model's chat template builds more than fits into memory.") from error
        except Exception as error:  # what a template calls may raise anything
            raise BaseModelError(
                f"The base model's chat template refuses this conversation: {_reason(error)}.",
                "Its rules are in the base's folder: an environment must keep to them, or they have a mistake.",
            ) from error

    def _compile(self, source: str, name: str) -> jinja2.Template:
        try:
            return self._environment.load(source)
        except Exception as error:  # Python's compiler has limits of its own: nested loops, memory
            line = f", line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
            raise BaseModelError(
                f"The base model's chat template does not compile: {name}{line}: {_reason(error)}.",
                "Mend the template, or take the model's files again from where they came.",
            ) from error


def _reason(error: Exception) -> str:
    text = str(error.message if isinstance(error, jinja2.TemplateSyntaxError) else error)
    reason = " ".join(text[:_LONGEST_REASON].split()).rstrip(".") or type(error).__name__
    return reason if len(text) <= _LONGEST_REASON else f"{reason}…"


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


SIZE = 1 << 22
"""Above any context."""
ITEMS = 1 << 18
"""Nested ones included."""
LONGEST = 1 << 17
"""Models' templates have some thousands."""
CALL = 10
MOST = "a template may have at most"
_FILTERS = """
abs capitalize count d default dictsort e escape first float format groupby indent int items join last length
list lower map max min reject rejectattr replace reverse round safe select selectattr sort string title tojson
trim truncate unique upper wordcount
"""
FILTERS = frozenset(_FILTERS.split())
_METHODS = """
capitalize count endswith find format get index isalnum isalpha isascii isdecimal isdigit islower isnumeric
isspace isupper items join keys lower lstrip partition removeprefix removesuffix replace rfind rindex
rpartition rsplit rstrip split splitlines startswith strip swapcase title upper values
"""
METHODS = frozenset(_METHODS.split())
"""What they build follows from what they are given."""
_WIDTH = re.compile(r"\d{5,}|%[^a-zA-Z%]*\*|:[^}]*\{")
"""Refused in a format: a large or computed width."""


def weight(value: Any) -> int:
    """Raise unless ``value`` is small; returns the steps for looking at it."""
    if isinstance(value, str):
        check_size(len(value))
        return len(value) >> 5
    if isinstance(value, int) and value.bit_length() > 4096:
        raise jinja2.TemplateError("a template may not compute large numbers")
    if not isinstance(value, list | tuple | dict):
        return 0
    entries, size = 1, 0
    inside: list[Any] = [value]
    while inside:
        part = inside.pop()
        if isinstance(part, str):
            size += len(part)
            continue
        entries += len(part)
        if entries > ITEMS:
            raise jinja2.TemplateError(f"{MOST} {ITEMS} items in one value")
        inner = [*part.keys(), *part.values()] if isinstance(part, dict) else part
        inside.extend(each for each in inner if isinstance(each, str | list | tuple | dict))
    check_size(size)
    return entries >> 2


def check_size(size: int) -> None:
    """Raise if a text of ``size`` characters is too long."""
    if size > SIZE:
        raise jinja2.TemplateError(f"{MOST} {SIZE} characters in one value")


def check_growth(name: str, value: Any, given: Sequence[Any]) -> None:
    """Raise if a filter or method, ``given`` these values, would build something large."""
    first = given[0] if given else None
    match name:
        case "replace" if len(given) > 1:
            old, new = map(str, given[:2])
            check_size((str(value).count(old) if old else len(value) + 1) * len(new))
        case "join":  # of a text its parts, of parts the text between them
            parts, between = (first, value) if isinstance(value, str) and first is not None else (value, first)
            check_size(len(parts) * len(between) if isinstance(between, str) and hasattr(parts, "__len__") else 0)
        case "format" | "%":
            if _WIDTH.search(str(value)):
                raise jinja2.TemplateError("a template may not format with such a width")
            check_size(len(re.findall("[%{]", str(value))) * sum(map(_length, given)))
        case "indent":
            width = 4 if first is None else first
            check_size((str(value).count("\n") + 1) * (len(width) if isinstance(width, str) else int(width)))
        case "round" if any(isinstance(digits, int) and abs(digits) > 64 for digits in given):
            raise jinja2.TemplateError(f"{MOST} 64 digits that it rounds to")


def _length(value: Any) -> int:
    """Characters as text; at least those of the texts in it."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    return sum(map(_length, value)) if isinstance(value, list | tuple) else 32


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Like Hugging Face's: not escaped for HTML."""
    if indent is not None and not (isinstance(indent, int) and 0 <= indent <= 16):
        raise jinja2.TemplateError("a template may indent JSON by 0 to 16 spaces")
    if separators is not None and max(map(len, separators)) > 16:
        raise jinja2.TemplateError("a template may not write JSON with long separators")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class Generation(Extension):
    """transformers' ``{% generation %} … {% endgeneration %}``; renders the inside."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """jinja2's immutable sandbox with bounds, for one rendering per thread."""

    intercepted_binops = frozenset(["*", "**", "+", "-", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[Generation, loopcontrols],
            optimized=False,  # no constant expressions are computed when a template is compiled
            finalize=lambda value: self._weighed(value),
        )
        self._count = threading.local()
        """Steps that are left to the rendering of each thread."""
        self._call = CALL
        del self.globals["lipsum"]
        filters = {name: function for name, function in self.filters.items() if name in FILTERS} | {"tojson": _tojson}
        self.filters = {name: self._bounded(name, function) for name, function in filters.items()}
        self.filters |= {"weight": self._weighed, "turns of a loop": self._turns}
        self.tests = {name: self._bounded(name, test) for name, test in self.tests.items()}

    def load(self, source: str) -> jinja2.Template:
        """Raises ``jinja2.TemplateError``, and what Python's compiler raises."""
        if len(source) > LONGEST:
            raise jinja2.TemplateError(f"{MOST} {LONGEST} characters")
        tree = _Counted().visit(self.parse(source))
        self._call = max([self._call, *(CALL + _size(macro) for macro in tree.find_all(nodes.Macro))])
        return jinja2.Template.from_code(self, self.compile(tree), self.make_globals(None))

    def render(self, template: jinja2.Template, values: dict[str, Any], steps: int) -> str:
        """Raises what the template raises, and ``jinja2.TemplateError`` at a bound."""
        self._count.left = steps
        pieces, size = [], 0
        for piece in template.generate(values):
            pieces.append(piece)
            size += len(piece)
            check_size(size)
        return "".join(pieces)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        __self._step(__self._call)
        if isinstance(__obj, LoopContext) and args:  # the items of a recursive loop
            args = (__self._turns(None, args[0], 1), *args[1:])
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str | int | float | list | tuple | dict):
            if method.__name__ not in METHODS:
                raise jinja2.TemplateError(f"a template may not call {method.__name__}")
            args = tuple(__self._looked(method.__name__, owner, args, kwargs))
        return __self._weighed(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            raise jinja2.TemplateError("a template may not compute powers")
        if operator == "*":
            for part, times in ((left, right), (right, left)):
                if isinstance(part, str | list | tuple) and isinstance(times, int):
                    check_size(len(part) * times * (1 if isinstance(part, str) else SIZE // ITEMS))
        elif operator == "%" and isinstance(left, str):
            check_growth("%", left, [right])
        return self._weighed(super().call_binop(context, operator, left, right))

    def _bounded(self, name: str, function: Any) -> Callable[..., Any]:
        """Keeps jinja2's attributes."""
        first = hasattr(function, "jinja_pass_arg")  # the context comes before the value

        @functools.wraps(function)
        def bounded(*args: Any, **options: Any) -> Any:
            value, *given = args[first:]
            if name == "join":
                value = self._listed(value)
            return self._weighed(function(*args[:first], value, *self._looked(name, value, given, options), **options))

        return bounded

    def _looked(self, name: str, value: Any, given: Sequence[Any], options: dict[str, Any]) -> list[Any]:
        values = [self._listed(each) if name == "join" else each for each in given]
        for each in (value, *values):
            self._step(1 + (len(each) >> (5 if isinstance(each, str) else 3) if hasattr(each, "__len__") else 0))
        check_growth(name, value, [*values, *options.values()])
        return values

    def _listed(self, items: Any) -> Any:
        return self._weighed(list(self._counted(items, 1))) if isinstance(items, Iterator) else items

    @jinja2.pass_context
    def _turns(self, _context: Any, items: Iterable[Any], each: int) -> Iterable[Any]:
        if isinstance(items, str | list | tuple | dict | range):  # these know their length, which ``loop`` asks for
            self._step(len(items) * each)
            return list(items)
        return self._counted(items, each)

    def _counted(self, items: Iterable[Any], each: int) -> Iterator[Any]:
        for item in items:
            self._step(each)
            yield item

    def _weighed(self, value: Any) -> Any:
        self._step(weight(value))
        return value

    def _step(self, count: int) -> None:
        self._count.left -= count
        if self._count.left < 0:
            raise jinja2.TemplateError("a template may not take so many turns of loops and calls")


class _Counted(NodeTransformer):
    """Sends operations that jinja2 compiles directly through counting filters."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        """A turn counts for the nodes in its body."""
        self.generic_visit(node)
        node.iter = _through("turns of a loop", node.iter, nodes.Const(1 + _size(node), lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _through("join", _through("weight", nodes.List(node.nodes, lineno=node.lineno)))

    def visit_List(self, node: Any) -> nodes.Node:
        """May hold a large value twice; not an assignment's target."""
        self.generic_visit(node)
        copies = isinstance(node.arg, nodes.Slice) if isinstance(node, nodes.Getitem) else True
        return _through("weight", node) if copies and getattr(node, "ctx", "load") == "load" else node

    visit_Dict = visit_Tuple = visit_Getitem = visit_List

    def visit_Operand(self, node: nodes.Operand) -> nodes.Node:
        """May be read to the end."""
        self.generic_visit(node)
        node.expr = _through("weight", node.expr)
        return node


def _through(name: str, node: Any, *given: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, [*given], [], None, None, lineno=node.lineno)


def _size(node: nodes.Node) -> int:
    texts = sum(len(text.data) for text in node.find_all(nodes.TemplateData))
    return (sum(1 for _ in node.find_all(nodes.Node)) >> 4) + (texts >> 5)

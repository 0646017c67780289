"""Tools: a plain function becomes a schema in the OpenAI form, and a call becomes a result.

Whatever goes wrong in a call is shown to the model as text.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, get_args, get_origin

from .messages import ToolCall
from .parameters import signature_of
from .rewards import Invalid, Skip

Tool = Callable[..., Any]
Apart = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a function where it may block, and waits for its result."""
Schemas = Mapping[str, dict[str, Any]]
_JSON_TYPES: dict[object, str] = {
    int: "integer",
    float: "number",
    str: "string",
    bool: "boolean",
    list: "array",
    dict: "object",
    "int": "integer",
    "float": "number",
    "str": "string",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
}
_PYTHON_TYPES: dict[str, type | tuple[type, ...]] = {
    "integer": int,
    "number": (int, float),
    "string": str,
    "boolean": bool,
    "array": list,
    "object": dict,
}


def schema_of(tool: Tool) -> dict[str, Any]:
    """The tool's signature and docstring in the OpenAI form; ``TypeError`` if a parameter has no usable type."""
    properties: dict[str, Any] = {}
    required = []
    for name, parameter in signature_of(tool).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"parameter {name!r} of the tool {tool.__name__} must be a plain parameter")
        properties[name] = _property(parameter.annotation, f"parameter {name!r} of the tool {tool.__name__}")
        if parameter.default is parameter.empty:
            required.append(name)
    return {
        "type": "function",
        "function": {
            "name": tool.__name__,
            "description": inspect.cleandoc(tool.__doc__ or ""),
            "parameters": {"type": "object", "properties": properties, "required": required},
        },
    }


class ToolRunner:
    """Runs the tools of one episode, one after the other."""

    __slots__ = ("_turn", "apart")

    def __init__(self, apart: Apart | None = None) -> None:
        """``apart``: runs a plain tool, which may block; None to run it at once."""
        self.apart = apart
        self._turn: asyncio.Lock | None = None

    async def result_of(self, call: ToolCall, tools: Mapping[str, Tool], schemas: Schemas) -> str:
        """Run one call. ``Invalid`` and ``Skip`` are raised; any other exception becomes the text of the result."""
        if call.name not in tools:
            return f"error: there is no tool {call.name!r}; there are: {', '.join(tools) or 'none'}"
        if wrong := _mismatch(call.arguments, schemas[call.name]["function"]["parameters"]):
            return f"error: {wrong}"
        try:
            return str(await self._run(tools[call.name], call.arguments))
        except (Invalid, Skip):
            raise
        except Exception as error:
            if self.apart is not None and _misplaced(error):
                raise TypeError(f"the tool {call.name} runs in a thread of its own: make it an async def") from error
            return f"error: {type(error).__name__}: {error}"

    async def _run(self, tool: Tool, arguments: Mapping[str, Any]) -> object:
        if self.apart is None or inspect.iscoroutinefunction(tool):
            result = tool(**arguments)
        else:
            self._turn = self._turn or asyncio.Lock()
            async with self._turn:
                result = await self.apart(functools.partial(tool, **arguments))
        return await result if inspect.isawaitable(result) else result


def result_here(call: ToolCall, tools: Mapping[str, Tool], schemas: Schemas) -> str:
    """Run one call of a plain tool in this thread, as ``ToolRunner`` does.

    Raises ``TypeError`` if the tool has something to await.
    """
    running = ToolRunner().result_of(call, tools, schemas)
    try:
        running.send(None)
    except StopIteration as done:
        return str(done.value)
    running.close()
    raise TypeError("a tool that has something to await must be an async def")


def _misplaced(error: Exception) -> bool:
    """Whether a plain tool wanted the thread of its episode: for the loop, or for what may be used there alone."""
    kind, says = type(error).__name__, str(error)
    return (kind, says) == ("RuntimeError", "no running event loop") or (
        kind == "ProgrammingError" and "same thread" in says
    )


def _property(annotation: Any, what: str) -> dict[str, Any]:
    if annotation in (inspect.Parameter.empty, Any):
        return {}
    if get_origin(annotation) is Literal:
        return {"enum": list(get_args(annotation))}
    origin = get_origin(annotation) or annotation
    kind = _JSON_TYPES.get(origin) if isinstance(origin, type | str) else None
    if kind is None:
        raise TypeError(f"{what} may be int, float, str, bool, list, dict or a Literal")
    described: dict[str, Any] = {"type": kind}
    if kind == "array" and get_args(annotation):
        described["items"] = _property(get_args(annotation)[0], what)
    return described


def _mismatch(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    properties = schema["properties"]
    for name in schema["required"]:
        if name not in arguments:
            return f"the argument {name!r} is missing"
    for name, value in arguments.items():
        if name not in properties:
            return f"there is no argument {name!r}; there are: {', '.join(properties) or 'none'}"
        allowed = properties[name].get("enum")
        if allowed is not None and value not in allowed:
            return f"the argument {name!r} must be one of {allowed}"
        kind = properties[name].get("type")
        if kind and (not isinstance(value, _PYTHON_TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
            return f"the argument {name!r} must be of type {kind}"
    return ""

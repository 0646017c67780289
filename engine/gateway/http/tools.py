"""Tools as clients send them, and as the functions that the model is shown."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ...wire import ToolCall
from .bodies import Part, check, text_of, unsupported, wrong

LONGEST_NAME = 128
TEXT = "input"
"""The only parameter of a tool of free text."""


@dataclass(frozen=True)
class ClientTool:
    """A tool by the name that the client knows."""

    name: str
    namespace: str = ""
    text: bool = False
    """It takes free text instead of JSON."""


@dataclass(frozen=True)
class ClientCall:
    """A call of the model in the client's words."""

    id: str
    tool: ClientTool
    arguments: str
    """JSON, or the free text."""


class Tools:
    """The tools of one request. ``notes`` gets what is left out: what a server would have to run, or show."""

    def __init__(self, notes: list[str]) -> None:
        self.functions: tuple[dict[str, Any], ...] = ()
        """As in chat completions."""
        self._notes = notes
        self._sent: dict[str, ClientTool] = {}
        """By the function's name."""

    def add(self, name: Any, description: Any, parameters: Any, where: str, namespace: str = "") -> None:
        """Raises ``Refusal`` without name or schema."""
        check(
            (
                not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME,
                wrong(f"{where} has no name of 1 to {LONGEST_NAME} characters.", where),
            ),
            (
                not isinstance(parameters, dict | None),
                wrong(f"The parameters of {where} must be a JSON schema, an object.", where),
            ),
        )
        about = {"description": description} if isinstance(description, str) and description else {}
        schema = {"type": "object", "properties": {}} if parameters is None else parameters
        shown = f"{namespace}__{name}" if namespace and name in self._sent else name
        self._sent[shown] = ClientTool(name, namespace)
        function = {"type": "function", "function": {"name": shown, **about, "parameters": schema}}
        self.functions = (*self.functions, function)

    def add_text(self, name: Any, description: Any, form: Any, where: str, namespace: str = "") -> None:
        """A tool of free text, with its grammar in the description. Raises ``Refusal``."""
        grammar = form.get("grammar", form) if isinstance(form, dict) else {}
        words = [description] if isinstance(description, str) and description else []
        if isinstance(grammar, dict) and isinstance(grammar.get("definition"), str):
            words.append(f"The text follows this grammar ({grammar.get('syntax')}):\n{grammar['definition']}")
        parameters = {"type": "object", "properties": {TEXT: {"type": "string"}}, "required": [TEXT]}
        self.add(name, "\n\n".join(words), parameters, where, namespace)
        shown = self.functions[-1]["function"]["name"]
        self._sent[shown] = ClientTool(name, namespace, text=True)

    def leave_out(self, what: str, kind: object) -> None:
        """Note that something of a type is left out: ``what`` is its plural."""
        self._notes.append(f"{what} of type {str(kind)[:LONGEST_NAME]}")

    def keep(self, names: Collection[str]) -> None:
        """Only the allowed ones."""
        self.functions = tuple(each for each in self.functions if each["function"]["name"] in names)

    def shown(self, name: str, namespace: str = "") -> str:
        """The function's name."""
        sent = (shown for shown, tool in self._sent.items() if (tool.name, tool.namespace) == (name, namespace))
        return next(sent, name)

    def sent(self, call: ToolCall) -> ClientCall:
        tool = self._sent.get(call.name, ClientTool(call.name))
        return ClientCall(call.id, tool, _text(call.arguments) if tool.text else call.arguments)

    def call(self, id: str, name: str, arguments: str, namespace: str = "") -> ToolCall:
        """A call that the client sends back."""
        return ToolCall(id, self.shown(name, namespace), arguments)

    def text_call(self, id: str, name: str, text: str, namespace: str = "") -> ToolCall:
        return self.call(id, name, msgspec.json.encode({TEXT: text}).decode(), namespace)

    def result(self, content: str | Sequence[Part] | None, where: str) -> str:
        """A result's text, with a mark for each part that the model cannot read. Raises ``Refusal``."""
        if content is None or isinstance(content, str):
            return content or ""
        parts = []
        for part in content:
            if part.type == "tool_reference":
                part = Part("text", part.tool_name or "")
            elif part.text is None and part.refusal is None:
                self.leave_out("parts of results", part.type)
                part = Part("text", f"[{part.type[:LONGEST_NAME]}: left out, since this model reads text alone]")
            parts.append(part)
        return text_of(parts, where)

    def choice(self, kind: str | None, name: str | None = None) -> str:
        """The wire's ``tool_choice``; ``name``: for ``kind`` *tool*. Raises ``Refusal``."""
        names = {each["function"]["name"] for each in self.functions}
        check(
            (
                kind not in (None, "auto", "none", "required", "tool"),
                wrong("tool_choice must be auto, none, required, or name a function.", "tool_choice"),
            ),
            (
                kind == "required" and not names,
                wrong("tool_choice is 'required', and there are no tools.", "tool_choice"),
            ),
            (
                kind == "tool" and name not in names,
                wrong(f"tool_choice names {name!r}, which is not among the tools.", "tool_choice"),
            ),
        )
        return f"tool:{name}" if kind == "tool" else kind or ""

    def openai_choice(self, choice: str | dict[str, Any] | None) -> str:
        """As ``choice``, of OpenAI's forms."""
        if not isinstance(choice, dict):
            return self.choice(choice if choice != "tool" else "")
        kind = choice.get("type", "function")
        inner = choice.get(kind, choice) if isinstance(kind, str) else choice
        if kind == "allowed_tools" and isinstance(inner, dict) and isinstance(inner.get("tools"), list):
            self.keep({self._name(tool) for tool in inner["tools"] if isinstance(tool, dict)})
            return self.choice(inner.get("mode", "auto"))
        if kind not in ("function", "custom", "allowed_tools"):
            sentence = f"tool_choice forces a tool of type {kind!r:.100}, which nobody here could run."
            raise unsupported(sentence, "tool_choice")
        name = self._name(choice)
        return self.choice("tool" if name else "", name)

    def _name(self, tool: dict[str, Any]) -> str:
        inner = tool.get(str(tool.get("type", "function")), tool)
        name = inner.get("name") if isinstance(inner, dict) else None
        namespace = tool.get("namespace")
        return self.shown(name, namespace if isinstance(namespace, str) else "") if isinstance(name, str) else ""


def _text(arguments: str) -> str:
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return arguments
    text = value.get(TEXT) if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments

"""Borders at which people's files and models' words come in: task files, settings, templates, tool calls."""

from __future__ import annotations

import json
from pathlib import Path

from marlaas.engine.errors import LONGEST, BaseModelError, ConfigError
from marlaas.engine.home.paths import TINY_BASE, Home
from marlaas.engine.home.settings import load_settings
from marlaas.engine.models.templates import ChatTemplate
from marlaas.engine.queue.submission.taskfile import load
from marlaas.engine.rollout.toolcalls import split_hermes, split_llama

from .border import FOLDER, Border

ROOT = Path(__file__).parents[2]
_TOML = [b"=", b"[", b"]", b"[[x]]", b"\n", b'"', b"'''", b"true", b"1979-05-27", b"inf", b"0x", b"{", b"}", b"#", b"."]
SETTINGS = b"""
base = "tiny"
[engine]
tasks = 4
[rollout]
sampler = "auto"
sequences = 16
devices = ["gpu 0"]
[resources]
gpus = [0, "GPU-3f2a"]
active_hours = "22:00-07:00"
nice = 5
[notify]
command = "notify-send 'marlaas'"
[environments]
wheels = "wheels"
"""
TASK = b"""
tenant = "ada"
name = "addition"
environment = "addition"
steps = [5, 10]
[environment_config]
digits = 2
[policy]
rank = [4, 8]
[train]
loss = "grpo"
learning_rate = 1e-4
[sampling]
temperature = 0.9
[eval]
every = 5
[queue]
priority = 1
depends_on = ["other", 3]
[sweep]
"environment_config.digits" = [1, 2]
"""


def _file(name: str, data: bytes) -> Path:
    path = FOLDER / name
    path.write_bytes(data)
    return path


def task(data: bytes) -> None:
    """A task file: tasks that can be stored as JSON, or ``ConfigError``."""
    try:
        found = load(_file("task.toml", data))
    except ConfigError as error:
        _sentence(error.message)
        return
    assert len(found) <= 1000
    for submission in found:
        json.dumps(submission.spec.to_json(), allow_nan=False)


def settings(data: bytes) -> None:
    """``marlaas.toml``: settings, or ``ConfigError``."""
    try:
        load_settings(Home(_file("marlaas.toml", data).parent))
    except ConfigError as error:
        _sentence(error.message)


def template(data: bytes) -> None:
    """A chat template: what it writes for a conversation, or ``BaseModelError``."""
    said = [{"role": role, "content": text} for role, text in (("user", "Hello"), ("assistant", "Hi"), ("user", "?"))]
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    try:
        made = ChatTemplate(data.decode("utf-8", "replace"), {"bos_token": "<s>"})
        for given in (None, tools):
            written = made.render(said, given)
            assert len(written) <= 1 << 24
    except BaseModelError as error:
        _sentence(error.message)


def tool_calls(data: bytes) -> None:
    """What a model wrote: text and calls, always; the calls are JSON that anybody can read."""
    text = data.decode("utf-8", "replace")
    for split in (split_hermes, split_llama):
        for tools in (True, False):
            rest, calls = split(text, tools)
            assert len(rest) <= len(text)
            for call in calls:
                json.loads(json.dumps(call.arguments, allow_nan=False))
                call.name.encode()


def _sentence(message: str) -> None:
    assert message and len(message) <= LONGEST
    message.encode()


def _examples(pattern: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((ROOT / "examples").glob(pattern))]


_JINJA = [
    *(b"{{", b"}}", b"{%", b"%}", b"for m in messages", b"endfor", b"if", b"endif", b"set x =", b"namespace(x=1)"),
    *(b"x ~ x", b"* 9999999", b"** 99", b"range(99999)", b"|join", b"|tojson", b".format(", b"[x, x]", b"f(x)", b"|"),
    *(b"macro f(x)", b"endmacro", b"loop.index", b"loop(x)", b"recursive", b"is defined", b"|map('upper')", b"|list"),
]
_CALL = b'<tool_call>\n{"name": "look", "arguments": {"text": "x", "many": [1, 2.5, null, true]}}\n</tool_call>'

TEXTS = (
    Border("task files", [TASK, *_examples("**/*.toml")], [*_TOML, b"steps", b"train.", b"[sweep]"], task),
    Border("settings", [SETTINGS], [*_TOML, b"[rollout]", b"gpus", b"command"], settings),
    Border(
        "templates",
        [
            (TINY_BASE / "chat_template.jinja").read_bytes(),
            b"{% for m in messages %}{{ '<|' ~ m.role ~ '|>' + m['content'] | trim }}{% endfor %}",
            b"{% macro f(x) %}{{ x * 2 }}{% endmacro %}{% set n = namespace(x=[]) %}{% for m in messages recursive %}"
            b"{% set n.x = n.x + [m.content] %}{{ f(n.x | join(', ')) }}{% endfor %}{{ tools | tojson(indent=2) }}",
        ],
        _JINJA,
        template,
    ),
    Border(
        "tool calls",
        [b"So: " + _CALL + b" and " + _CALL, b'<|python_tag|>{"name": "look", "parameters": {"text": "x"}}'],
        [b"<tool_call>", b"</tool_call>", b'"arguments"', b"{", b"}", b"[", b"]", b'"', b"\\ud800", b",", b":"],
        tool_calls,
    ),
)

"""Borders at which foreign bytes come in: task files, settings, templates, tool calls, state files, GGUF, frames.

Of an input comes a value that the project can use, or the error that it documents. A border has samples of what is
right, the words that mean something to it, and a check, which raises where anything else comes of an input. Inputs are
samples with some of their bytes changed, left out, doubled, or put somewhere else.
"""

from __future__ import annotations

import asyncio
import atexit
import dataclasses
import json
import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from hypothesis import strategies as st

from marlaas.engine.adapters.statefile import PolicyState, StateHeader, checksum, read_state, write_state
from marlaas.engine.environments.process.wire import Hello, Received, WireError, decode_body, parse_message
from marlaas.engine.errors import LONGEST, AdapterError, BaseModelError, ConfigError
from marlaas.engine.home.paths import TINY_BASE, Home
from marlaas.engine.home.settings import load_settings
from marlaas.engine.models.config import read_config
from marlaas.engine.models.gguf import brought_names
from marlaas.engine.models.templates import ChatTemplate
from marlaas.engine.queue.submission.taskfile import load
from marlaas.engine.rollout.toolcalls import split_hermes, split_llama
from marlaas.plugins.host.channel import Channel, Record
from marlaas.plugins.messages import MOST_VALUES
from marlaas.plugins.parameters import complete

FOLDER = Path(tempfile.mkdtemp(prefix="marlaas-fuzz-"))
"""For inputs that are files; it goes with the process."""

atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)

SECONDS = 10.0
"""Of a processor that one input may take; what is bounded takes less than one, what is not takes minutes."""
_LARGEST = 1 << 20
_NESTED = [open_ * 3000 for open_ in (b"[", b"{", b"(", b'{"a":', b"[[", b"a.")]
_COMMON = [b"", b"\0", b"\n", b"\xff", b"\xed\xa0\x80", b"9" * 5000, b"-1", b"1e999", b"NaN", b"A" * 70_000, *_NESTED]


@dataclass(frozen=True)
class Border:
    """A place at which foreign bytes come in."""

    name: str
    samples: Sequence[bytes]
    words: Sequence[bytes]
    """Tokens of its language."""
    check: Callable[[bytes], object]
    """Reads an input. Raises nothing, whatever it is given, unless something is wrong."""

    def inputs(self) -> st.SearchStrategy[bytes]:
        """Samples, changed in some places; now and then bytes that are no sample's."""
        return st.binary(max_size=64) | _changed(self.samples, [*self.words, *_COMMON])

    def meet(self, data: bytes) -> None:
        """Check one input, and that it did not take long."""
        began = time.process_time()
        self.check(data)
        spent = time.process_time() - began
        assert spent < SECONDS, f"it took {spent:.1f} s of a processor"


@st.composite
def _changed(draw: st.DrawFn, samples: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    data = draw(st.sampled_from(samples))
    for _ in range(draw(st.integers(0, 5))):
        start = draw(st.integers(0, len(data)))
        stop = min(len(data), start + draw(st.integers(0, 24)))
        way = draw(st.sampled_from(("put", "put", "word", "word", "double", "move", "cut")))
        part = data[start:stop]
        match way:
            case "put":
                part = draw(st.binary(max_size=8))
            case "word":
                part = draw(st.sampled_from(words))
            case "double":
                part *= draw(st.sampled_from((2, 40, 4000)))
            case "move":
                other = draw(st.integers(0, len(data)))
                part = data[other : other + 40]
            case _:
                stop = draw(st.sampled_from((stop, len(data))))
                part = b""
        data = (data[:start] + part + data[stop:])[:_LARGEST]
    return data


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
_CONFIG = read_config(TINY_BASE / "config.json")


def _state() -> bytes:
    adapter = {"q.lora_A": np.arange(6, dtype=np.float32).reshape(2, 3), "q.lora_B": np.ones((4, 2), np.float32)}
    path = FOLDER / "sample.safetensors"
    write_state(path, PolicyState(StateHeader(2, 4.0, 7, "abc"), adapter, adapter, adapter), sync=False)
    return path.read_bytes()


def state(meta: str, dtype: str = "F32", bits: int = 32) -> bytes:
    """A file of one tensor of eight numbers, by hand."""
    tensor = {"dtype": dtype, "shape": [8], "data_offsets": [0, bits]}
    head = json.dumps({"__metadata__": {"marlaas": meta}, "adapter/q.lora_A": tensor}).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + bytes(bits)


META = json.dumps({"rank": 2, "alpha": 4.0, "step": 7, "base": "abc", "format": 1, "updates": 9})


def _text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def gguf_of(more: dict[bytes, bytes], axes: int = 2) -> bytes:
    """The header of a file of the shipped base's sizes, with a list, some other fields, and one tensor."""
    fields = {
        b"general.architecture": struct.pack("<I", 8) + _text(b"qwen3"),
        b"general.alignment": struct.pack("<II", 4, 32),
        b"qwen3.block_count": struct.pack("<II", 4, _CONFIG.layers),
        b"qwen3.embedding_length": struct.pack("<II", 4, _CONFIG.hidden_size),
        b"tokenizer.ggml.tokens": struct.pack("<IIQ", 9, 8, 2) + _text(b"a") + _text(b"b"),
    } | more
    shape = struct.pack("<I", axes) + struct.pack("<Q", _CONFIG.vocab_size) * axes
    tensor = _text(b"token_embd.weight") + shape + struct.pack("<IQ", 0, 0)
    written = b"".join(_text(key) + value for key, value in fields.items())
    return b"GGUF" + struct.pack("<IQQ", 3, 1, len(fields)) + written + tensor + bytes(64)


def state_file(data: bytes) -> None:
    """A state file: a policy whose numbers are what they say they are, or ``AdapterError``."""
    for moments in (False, True):
        try:
            found = read_state(_file("state.safetensors", data), moments)
        except AdapterError as error:
            error.message.encode()
            continue
        json.dumps(vars(found.header), allow_nan=False)
        numbers = (found.header.rank, found.header.step, found.header.updates or 0)
        assert all(type(number) is int for number in numbers) and isinstance(found.header.base, str)
        assert all(array.dtype == np.float32 for array in found.adapter.values())
        assert len(checksum(found.adapter)) == 16


def gguf(data: bytes) -> None:
    """A GGUF file: names for the base's tensors, or ``BaseModelError``."""
    try:
        brought_names(_file("base.gguf", data), _CONFIG)
    except BaseModelError as error:
        error.message.encode()


_NUMBERS = [struct.pack("<I", 1 << shift) for shift in range(0, 32, 5)] + [b"\xff" * 8, b"\x7f" + b"\xff" * 7]
BINARIES = (
    Border(
        "state files",
        [_state(), state(META), state(META, "BF16", 16), state(META, "F8_E5M2", 8)],
        [*_NUMBERS, b'"shape":[', b'"F32"', b'"F64"', b'"BF16"', b'"x"', b"null"],
        state_file,
    ),
    Border(
        "gguf",
        [gguf_of({})],
        [*_NUMBERS, _text(b"split.count"), struct.pack("<IIQ", 9, 9, 1) * 300, _text(b"general.alignment")],
        gguf,
    ),
)
PARAMETER: Record = {
    "name": "n",
    "type": "int",
    "default": 1,
    "required": False,
    "low": 0,
    "high": 9.5,
    "choices": [1, 2],
}
ENVIRONMENT: Record = {"name": "e", "timeout": 60, "description": "d", "parameters": [PARAMETER], "agents": ["a"]}
_FAILURE = {"message": "m", "file": "f.py", "line": 3, "traceback": "t"}
_CALL_FRAMES = {"name": "f", "arguments": {"x": [1, {"y": None}]}}
_RECORDS: list[Record] = [
    {"op": "hello", "environments": [ENVIRONMENT]},
    {"op": "hello", "environments": [ENVIRONMENT], "refused": [{"name": "b", "failure": _FAILURE}]},
    {"op": "broken", "failure": _FAILURE},
    {
        "op": "ask",
        "id": 1,
        "episode": 2,
        "agent": "a",
        "messages": [
            {"role": "user", "content": "é\ud800"},
            {"role": "assistant", "content": "", "tool_calls": [_CALL_FRAMES]},
        ],
        "tools": [{"type": "function"}],
        "max_tokens": 5,
        "stop": ["x"],
        "branch": 1,
        "fork": {"agent": "a", "branch": 0, "turns": 1},
    },
    {"op": "end", "episode": 2, "status": "ok", "rewards": {"a": 1.5}, "parts": {"p": 1}, "metrics": {"m": "x"}},
    {"op": "end", "episode": 2, "status": "played", "task": {"row": [1, "x"]}, "paid": [{"agent": "a", "turns": 1}]},
    {"op": "end", "episode": 2, "status": "error", "failure": _FAILURE, "seconds": 0.5},
    {"op": "ranked", "episode": 2, "rewards": [{"a": 1}, {"a": 0.5}]},
    {"op": "ready"},
    {"op": "loaded", "episode": 2, "left": True},
]


def framed(record: Record) -> bytes:
    """As a plugin's process sends it."""
    body = json.dumps(record).encode()
    return struct.pack("<I", len(body)) + body


def frames(data: bytes) -> None:
    """Messages of ours, or ``WireError``; their length is given to what lacks one."""
    asyncio.run(_receive(data))
    asyncio.run(_receive(struct.pack("<I", len(data[4:])) + data[4:]))


async def _receive(data: bytes) -> None:
    def heard(record: Record) -> None:
        try:
            received = parse_message(record, clean=True)
        except WireError as error:
            assert len(str(error)) < 1000
            return
        _usable(received)

    Channel(heard, lambda reason: None, 3 * MOST_VALUES, 1 << 25, decode_body).data_received(data)


def _usable(received: Received) -> None:
    """The engine copies it, keeps it as JSON, and fills in parameters."""
    json.dumps(dataclasses.asdict(received) if dataclasses.is_dataclass(received) else msgspec.to_builtins(received))
    if isinstance(received, Hello):
        for found in received.environments:
            try:
                complete(found.parameters, {}, found.name)
            except ValueError as error:
                assert str(error)


_WORDS = [
    b'"op"',
    b'"hello"',
    b'"ask"',
    b'"end"',
    b'"default":',
    b'"tools":',
    b"[]",
    b"{}",
    b'"',
    b",",
    b":",
    b"[[[[",
    b"null",
]
FRAMES = (Border("frames", [framed(record) for record in _RECORDS], _WORDS, frames),)

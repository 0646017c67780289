"""Homes for programs that no one here wrote, and what the store has of what these were told."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.real.base import smollm2
from marlaas.engine.daemon import control
from marlaas.engine.daemon.control import holder
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries import episodes
from marlaas.engine.store.queries.episodes import StoredConversation
from tests.end_to_end.conftest import Lab
from tests.slow.waiting import unfinished
from tools.environments import client
from tools.random_base.make import make_base
from tools.steps import python_of

PROGRAMS = Path(__file__).parent / "programs"
CONTEXT = 49_152
"""Claude Code's prompt has 42,000 tokens of the random base, which has 4,096 different ones."""
LONG = """\
base = {base}
[rollout]
sampler = "torch"
sequences = 8
context = {context}
[api]
port = 0
"""
REAL = """\
base = {base}
[rollout]
context = 4096
[api]
port = 0
"""
SHIPPED = """\
[rollout]
sampler = "torch"
[api]
port = 0
"""


@dataclass(frozen=True)
class Open:
    """The API of a home, open to clients, and a key."""

    url: str
    """Without a path."""
    key: str

    def variables(self) -> dict[str, str]:
        """By which clients find it; nothing else of this environment may lead them elsewhere."""
        return {
            name: value for name, value in os.environ.items() if not name.startswith(("OPENAI", "ANTHROPIC", "HF_"))
        } | {
            "OPENAI_BASE_URL": f"{self.url}/v1",
            "OPENAI_API_BASE": f"{self.url}/v1",
            "OPENAI_API_KEY": self.key,
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": self.key,
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_OFFLINE": "1",
        }


def python(library: str) -> Path:
    """The interpreter of a library's environment; skips the test where that is not there."""
    if not (client(library) / ".installed").exists():
        pytest.skip(f"`python -m tools.environments clients {library}` makes its environment")
    return python_of(client(library))


def ran(library: str, program: str, api: Open, *words: str, seconds: float = 300.0) -> str:
    """What a program prints that talks with the open API."""
    done = subprocess.run(
        [str(python(library)), str(PROGRAMS / program), *words],
        env=api.variables(),
        capture_output=True,
        text=True,
        timeout=seconds,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def opened(lab: Lab, tenant: str = "lab") -> Open:
    """Open the API of a running home, with a new key of a tenant."""
    started = json.loads(lab.marlaas("api", "start", "--json"))
    key = json.loads(lab.marlaas("api", "key", "new", tenant, "--json"))
    return Open(started["url"], key["key"])


def trained(lab: Lab, task: int, seconds: float) -> None:
    """Wait until a task is done; why it is not after so many seconds is the failure's text."""
    assert not unfinished(lab, [task], seconds)


def stored(lab: Lab, task: int, split: str = "train") -> list[StoredConversation]:
    """All conversations of a task's split, oldest first, with their tokens."""
    from marlaas.engine.store.queries.reader import Reader

    with Reader(lab.home.database) as reader:
        ids = sorted(episodes.conversation_ids(reader, task))
        found = [episodes.conversation(reader, id) for id in ids]
    return [one for one in found if one is not None and one.split == split]


def metric(lab: Lab, task: int, name: str) -> list[float]:
    """Of each step of a task, in order."""
    return [row["metrics"][name] for row in _rows(lab, task) if row["kind"] == "step"]


def scores(lab: Lab, task: int) -> list[float]:
    """Of each evaluation of a task, in order."""
    return [row["score"] for row in _rows(lab, task) if row["kind"] != "step"]


def _rows(lab: Lab, task: int) -> list[dict[str, Any]]:
    return lines(lab.marlaas("metrics", str(task), "--jsonl"))


def _served(folder: Path, settings: str) -> Iterator[Lab]:
    lab = Lab(Home(folder / "home").create())
    lab.home.config.write_text(settings)
    control.ensure_running(lab.home)
    yield lab
    if holder(lab.home.lock) is not None:
        control.stop(lab.home)


@pytest.fixture(scope="module")
def long_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A random base with room for long prompts, and its engine."""
    folder = tmp_path_factory.mktemp("long")
    base = make_base(folder / "base", "qwen2.5", "mini", rows=4096).path
    config = base / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": CONTEXT}))
    yield from _served(folder, LONG.format(base=json.dumps(str(base)), context=CONTEXT))


@pytest.fixture(scope="module")
def real_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """SmolLM2-135M with room for a short agent, and its engine."""
    yield from _served(tmp_path_factory.mktemp("real"), REAL.format(base=json.dumps(str(smollm2()))))


@pytest.fixture(scope="module")
def shipped_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The shipped base, and its engine."""
    yield from _served(tmp_path_factory.mktemp("shipped"), SHIPPED)


def add_program(lab: Lab, name: str, library: str, program: str, judge: str) -> None:
    """An environment in the home: that library's program in an episode each, judged by the lines of a function."""
    text = f"""
import json
import os
import uuid
import zlib
from pathlib import Path

from marlaas.plugins import env


@env.program(
    {[str(python(library)), program]!r},
    files={{{program!r}: {(PROGRAMS / program).read_text()!r}}},
    timeout=240,
)
def {name}(ep, run):
{judge}
"""
    saved = lab.home.plugins / f"{name}.py"
    draft = saved.with_suffix(".draft")
    draft.write_text(text)
    draft.rename(saved)


def lines(text: str) -> list[dict[str, Any]]:
    """What a program wrote, reply by reply."""
    return [json.loads(line) for line in text.splitlines()]

"""One scoring in its process: whatever the function does, there is exactly one answer, with the author's own line."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import cast

import pytest

from marlaas.plugins.host.blame import Blame
from marlaas.plugins.host.channel import Record
from marlaas.plugins.host.loading import load
from marlaas.plugins.host.process import PluginHost
from marlaas.plugins.host.runner import Running, ScoringRun

PLUGIN = """
import asyncio
from marlaas.plugins import Score, Skip, env

@env
async def task(ep):
    await ep.ask("x")

@task.score
async def score(task, transcript):
    match task:
        case "right":
            return Score(0.5, said=len(transcript.text))
        case "slow":
            await asyncio.sleep(600)
        case "gives up":
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                raise ValueError("no verdict") from None
        case "raises":
            raise KeyError("lost")
        case "skips":
            raise Skip
        case "leaves":
            raise SystemExit
    return task

@task.group
def rank(episodes):
    return [episode.reward for episode in episodes][:len(episodes[0].task)]
"""
SAID: Record = {"agent": [{"role": "assistant", "content": "abc"}]}


class Host:
    """Collects answers."""

    def __init__(self, folder: Path) -> None:
        self.blame = Blame(folder)
        self.answers: list[Record] = []

    def ended(self, run: Running, record: Record) -> None:
        self.answers.append(record | {"episode": run.number})


pytestmark = pytest.mark.usefixtures("watched")


async def answer(folder: Path, request: Record) -> Record:
    (folder / "p.py").write_text(PLUGIN)
    host = Host(folder)
    run = ScoringRun(cast(PluginHost, host), {"episode": 7, "timeout": 0.01, **request}, load(folder / "p.py")["task"])
    await run.task
    (record,) = host.answers
    assert record["episode"] == 7
    return record


async def scored(folder: Path, task: object, **more: object) -> Record:
    request = {"op": "score", "task": task, "transcript": SAID, "earned": {"agent": 1.0}}
    return await answer(folder, request | more)


async def test_a_score(tmp_path: Path) -> None:
    record = await scored(tmp_path, "right")
    assert (record["status"], record["rewards"]) == ("ok", {"agent": 1.5})
    assert record["parts"] == {"said": 3.0}
    assert (await scored(tmp_path, "skips"))["status"] == "skip"


@pytest.mark.parametrize(
    ("task", "status", "says", "line"),
    [
        (None, "error", "returned None", "async def score"),
        ("text", "error", "must be a number, not str", "async def score"),
        ("raises", "error", "KeyError: 'lost'", "raise KeyError"),
        ("leaves", "error", "SystemExit", "raise SystemExit"),
        ("slow", "timeout", "the score of task took longer than 0.01 s", "await asyncio.sleep"),
        ("gives up", "timeout", "the score of task took longer than 0.01 s", "raise ValueError"),
    ],
)
async def test_what_goes_wrong_has_its_place(tmp_path: Path, task: object, status: str, says: str, line: str) -> None:
    record = await scored(tmp_path, task)
    assert record["status"] == status and says in record["failure"]["message"]
    lines = PLUGIN.splitlines()
    assert record["failure"]["file"] == "p.py" and line in lines[record["failure"]["line"] - 1]


def member(reward: float, task: str) -> Record:
    return {
        "task": task, "transcript": SAID, "rewards": {"agent": reward}, "parts": {}, "logged": {}, "invalid": ""
    }  # fmt: skip


async def test_a_ranking(tmp_path: Path) -> None:
    record = await answer(tmp_path, {"op": "rank", "members": [member(0.5, "ab"), member(1.0, "ab")]})
    assert (record["op"], record["rewards"]) == ("ranked", [{"agent": 0.5}, {"agent": 1.0}])
    record = await answer(tmp_path, {"op": "rank", "members": [member(0.5, "a"), member(1.0, "a")]})
    assert record["status"] == "error" and "1 rewards for 2 episodes" in record["failure"]["message"]
    assert "def rank" in PLUGIN.splitlines()[record["failure"]["line"] - 1]


async def test_a_function_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "q.py").write_text("from marlaas.plugins import env\n@env\nasync def bare(ep): ...\n")
    host = Host(tmp_path)
    request = {"op": "score", "episode": 1, "timeout": 1.0, "task": 0, "transcript": SAID, "earned": {}}
    await asyncio.wait_for(ScoringRun(cast(PluginHost, host), request, load(tmp_path / "q.py")["bare"]).task, 50)
    assert "bare has no score function" in host.answers[0]["failure"]["message"]


@pytest.mark.parametrize(
    ("task", "said", "status"),
    [("raises", SAID, "ok"), ("raises", {}, "error"), ("slow", SAID, "timeout"), ("leaves", SAID, "error")],
)
async def test_an_exception_is_paid_for_where_it_is_declared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, said: Record, status: str
) -> None:
    """Not where nothing was said, nor where the time is up."""
    monkeypatch.setattr(sys.modules[__name__], "PLUGIN", PLUGIN.replace("@env\n", "@env(on_error=-1)\n"))
    end = await answer(tmp_path, {"op": "score", "task": task, "transcript": said, "earned": {"": 0.25}})
    assert end["status"] == status and "failure" in end
    assert end.get("rewards") == ({"agent": -0.75} if status == "ok" else None)

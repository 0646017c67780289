"""env replay: recorded episodes on another version of their environment, in lines that can be read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from marlaas.engine.environments.files.source import read_source
from marlaas.engine.home.paths import Home
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.spec.task import ComponentSpec, TaskSpec
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import submit
from marlaas.engine.trajectories import Episode, Group, Span, Trajectory, Transcript, Transcripts

from ...commanding import Commander, Said

pytestmark = pytest.mark.processes

COUNTING = """
from marlaas.plugins import env

@env
async def counting(ep, first: int = 0):
    reply = await ep.ask(f"say {ep.index + first}")
    return float(reply.text == str(ep.index + first))
"""
Save = Callable[[str], Path]


@pytest.fixture
def save(home: Home) -> Save:
    """Puts an edition of the environment into the home."""

    def write(text: str) -> Path:
        path = home.plugins / "counting.py"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def replay(home: Home, marlaas: Commander, save: Save) -> Callable[..., Said]:
    """Three groups of two, of whom the first said what it was told to."""
    home.create()
    store = Store(home.database, "tiny")
    submit(home.database, [submission(TaskSpec("lab", "numbers", "counting"))])
    policy = store.versions.policy(1, "policy", {})
    version = read_source(save(COUNTING)).version
    for number in range(3):
        said = (str(number), "no")
        episodes = tuple(episode(member, float(member == 0)) for member in range(2))
        transcripts: Transcripts = {
            (member, "agent", 0): Transcript((("user", f"say {number}"), ("assistant", text)))
            for member, text in enumerate(said)
        }
        store.experience.add_group(policy, "train", Group(number, number, 0, version, episodes), transcripts)
    store.close()
    return lambda *words: marlaas("env", "replay", "1", *words)


def test_one_component_of_a_mixture(replay: Callable[..., Said], home: Home, marlaas: Commander) -> None:
    store = Store(home.database, "tiny")
    parts = (ComponentSpec("counting", name="low"), ComponentSpec("counting", config={"first": 5}, name="high"))
    submit(home.database, [submission(TaskSpec("lab", "both", "", mixture=parts))])
    policy = store.versions.policy(2, "policy", {})
    for number in range(4):
        low = number % 2 == 0
        index, heard = number // 2, number // 2 + (0 if low else 5)
        text = {(0, "agent", 0): Transcript((("user", f"say {heard}"), ("assistant", str(heard))))}
        group = Group(number, index, 0, "v", (episode(0, 1.0),), component="low" if low else "high")
        store.experience.add_group(policy, "train", group, text)
    store.close()
    for name in ("low", "high"):
        document = marlaas("env", "replay", "2", "--component", name, "--json").json
        assert (document["rewards"], document["unchanged"]) == (2, 2)
    said = marlaas("env", "replay", "2")
    assert said.code == 2 and "both is trained on a mixture: low, high." in said.err and "--component low" in said.err
    assert "has no component 'lwo'" in marlaas("env", "replay", "2", "--component", "lwo").err


def episode(member: int, reward: float) -> Episode:
    arrays = np.zeros(3, np.int32), np.ones(3, np.uint8), np.zeros(3, np.float32)
    return Episode(member, "ok", (Trajectory("agent", *arrays, spans=(Span(1, 3, 0),), reward=reward),))


def test_the_same_content_changes_nothing(replay: Callable[..., Said]) -> None:
    said = replay()
    assert said.code == 0 and "6 rewards: 6 unchanged, 0 changed, 0 not comparable, 0 failing." in said.out
    assert "STEP" not in said.out and "0.5 before, 0.5 after" in said.out
    said = replay("--split", "eval")
    assert said.code == 0 and "has no eval episodes yet" in said.err and "0 rewards" in said.out


def test_changed_rewards_are_listed(replay: Callable[..., Said], save: Save) -> None:
    save(COUNTING.replace("float(", "0.25 * float("))
    said = replay()
    assert said.code == 0 and "6 rewards: 3 unchanged, 3 changed" in said.out and "0.5 before, 0.125 after" in said.out
    rows = [text.split() for text in said.out.splitlines() if "agent" in text]
    assert rows == [["-", str(group), "0", "agent", "1", "0.25", "changed"] for group in range(3)]
    document = replay("--last", "1", "--json").json
    assert (document["rewards"], document["changed"], document["mean_after"]) == (2, 1, 0.125)
    assert document["environment"] == "counting/counting" and [document["version"]] != document["recorded_versions"]
    assert [(one["group"], one["old"], one["new"]) for one in document["verdicts"]] == [(2, 1.0, 0.25)]


def test_another_prompt_is_no_comparison(replay: Callable[..., Said], save: Save) -> None:
    save(COUNTING.replace("say", "\x1b[31mtell"))
    said = replay()
    assert said.code == 0 and "6 not comparable" in said.out and "where it said 'say 0'" in said.out
    assert "\x1b" not in said.out and "before" not in said.out


def test_an_earlier_version(replay: Callable[..., Said], save: Save, home: Home) -> None:
    source = read_source(save(COUNTING))
    source.write(home.scratch / "snapshots")
    save(COUNTING.replace("float(", "0.25 * float("))
    document = replay("--version", source.version[:6], "--json").json
    assert (document["version"], document["unchanged"]) == (source.version, 6)
    said = replay("--version", "nothing")
    assert said.code == 2 and "No version that is kept begins with 'nothing'" in said.err


def test_what_cannot_be_replayed(replay: Callable[..., Said], save: Save, marlaas: Commander) -> None:
    save(COUNTING.replace("return", "return 1 / 0 +"))
    said = replay()
    assert said.code == 0 and "6 failing" in said.out and "ZeroDivisionError: division by zero" in said.out
    save(COUNTING + "def broken(:")
    said = replay()
    assert said.code not in (0, 3) and "counting.py" in said.err and "Traceback" not in said.err
    save(COUNTING.replace("first: int = 0", "first: int"))
    said = replay()
    assert said.code == 2 and "refuses what the task is played with" in said.err and "needs 'first'" in said.err
    assert marlaas("env", "replay", "9").code == 2

"""What the engine says of itself, whatever a plugin wrote and wherever the words go."""

from __future__ import annotations

import io
import sys

import pytest

from marlaas.engine.daemon.main import describe, in_words, names_of, say
from marlaas.engine.environments.protocol import EnvironmentEvent, EnvironmentInfo
from marlaas.engine.models.memory import MemoryPlan
from marlaas.engine.trajectories import Failure


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_hostile_words_are_words(capsys: pytest.CaptureFixture[str]) -> None:
    event = EnvironmentEvent("rejected", "p", "1", Failure("\x1b[2J\x1b]0;mine\x07\nerror: forged", "p.py", 3))
    say(describe(event))
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "\x1b" not in said and "\x07" not in said
    assert said.startswith("Environment p: broken, ") and "(p.py:3), version 1" in said


def test_the_log_has_the_words_of_the_screens() -> None:
    failure = Failure("KeyError: '329!', on all of 20 instances; rests for 60 s", "nightly.py", 7)
    said = describe(EnvironmentEvent("quarantined", "nightly", "ea683a70563c", failure))
    assert said == (
        "Environment nightly: failing, KeyError: '329!', on all of 20 instances; rests for 60 s (nightly.py:7), version"
        " ea683a70563c"
    )
    assert describe(EnvironmentEvent("removed", "nightly", "")) == "Environment nightly: removed"


def test_a_log_on_a_full_disk_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", FullDisk())
    say("The engine serves.")


def test_what_was_planned_is_said() -> None:
    plan = MemoryPlan(64, 2048, "q8_0", 1 << 30, 32, 0, (("one", 1_000_000_000), ("two", 500_000_000)))
    assert in_words([plan]) == "Planned are up to 64 conversations of 2,048 tokens and 1.5 GB of memory."


def test_tasks_may_mean_an_environment_by_two_names() -> None:
    infos = [EnvironmentInfo(name, "v", "ready") for name in ("games/guess", "games/add", "gamesome/x", "broken")]
    assert names_of("games", infos) == {"games/guess", "guess", "games/add", "add"}
    assert names_of("broken", infos) == {"broken"}

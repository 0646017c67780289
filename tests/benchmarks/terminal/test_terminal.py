"""What the benchmark of the terminal application stands on: a program at a pseudo-terminal, and filled homes."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.terminal.application import empty_paint, engine
from benchmarks.terminal.home import filled, name, serve
from benchmarks.terminal.session import Session
from marlaas.engine.store.queries.reader import Reader

ECHO = """
import sys, time
while time.process_time() < 0.05:  # the system counts in hundredths of a second
    pass
print("\\x1b[1mhel\\x1b[0mlo", flush=True)
for line in sys.stdin:
    print("said " + line, flush=True)
"""


@pytest.mark.processes
def test_text_is_found_between_escapes_and_keys_are_answered() -> None:
    with Session((sys.executable, "-c", ECHO)) as session:
        assert session.until("hello") > session.began
        assert 0 < session.press("a") < 60
        assert session.show("b\n", "said ab") > 0
        assert session.received > len("hello") and session.megabytes > 1 and session.spent > 0


@pytest.mark.processes
def test_a_program_that_ends_is_no_quick_one() -> None:
    with Session((sys.executable, "-c", "print('oh dear')")) as session, pytest.raises(RuntimeError, match="oh dear"):
        session.until("hello")


@pytest.mark.processes
def test_the_empty_programs_show_their_word() -> None:
    assert empty_paint() > 0 and empty_paint("furnished") > 0


def test_a_filled_home_reads_like_a_real_one(tmp_path: Path) -> None:
    home = filled(tmp_path / "home", 2, steps=3, trajectories=16)
    with Reader(home.database) as reader:
        tasks = reader.tasks()
        assert [(task.name, task.state, task.step) for task in tasks] == [(name(i), "running", 3) for i in (1, 2)]
        assert len(reader.trajectories(1)) == 16 and len(reader.evals(1)) == 1 and reader.steps(2)[-1].metrics["loss"]


def test_the_pretended_engine_makes_steps_in_turn(tmp_path: Path) -> None:
    home = filled(tmp_path / "home", 2, steps=1)
    assert list(islice(serve(home, 0.0), 3)) == [1, 2, 3]
    with Reader(home.database) as reader:
        assert [task.step for task in reader.tasks()] == [3, 2]


@pytest.mark.processes
def test_an_engine_that_dies_is_told(tmp_path: Path) -> None:
    home = filled(tmp_path / "home", 1, steps=1)
    home.database.unlink()
    home.database.mkdir()
    with pytest.raises(RuntimeError, match="died"), engine(home, 1.0) as process:
        process.wait()

"""How a worker's end is put into words, and how exceptions cross the border."""

from pathlib import Path

import pytest

from marlaas.engine.errors import AdapterError, CallFailed
from marlaas.engine.machine.workers.child import last_line, sentence
from marlaas.engine.machine.workers.wire import describe, rebuild_error


@pytest.mark.parametrize(
    ("code", "starting", "line", "words"),
    [
        (1, False, "boom", "Worker w ended with exit status 1: boom."),
        (0, False, "", "Worker w ended."),
        (-9, False, "", "Worker w ended by signal SIGKILL."),
        (-4, True, "loading.", "Worker w could not start by signal SIGILL (illegal instruction): loading."),
        (-200, False, "", "Worker w ended by signal 200."),
        (None, True, "x", "Worker w could not start: x."),
        (None, False, "", "Worker w ended."),
        (12, False, "no room.", "Worker w ran out of memory: no room."),
        (12, True, "", "Worker w could not start with exit status 12."),
    ],
)
def test_an_end_is_one_sentence(code: int | None, starting: bool, line: str, words: str) -> None:
    assert sentence("w", code, starting, line)[0] == words


def test_deadly_signals_come_with_a_hint() -> None:
    assert "another processor" in sentence("w", -4, True, "")[1]
    assert "memory" in sentence("w", -9, False, "")[1]
    assert sentence("w", -11, False, "")[1] == sentence("w", 1, False, "")[1] == ""


def test_the_last_line_is_this_runs_own(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_line(log) == ""
    log.write_bytes(b"an older run\n")
    assert last_line(log, log.stat().st_size) == ""
    with open(log, "ab") as file:
        file.write(b"x" * 9000 + b"\nhalf \xff of it \n\n")
    assert last_line(log, 13) == "half \ufffd of it"


def test_exceptions_come_back_as_themselves_or_as_call_failed() -> None:
    for error in (AdapterError("What.", "How."), ValueError("What."), RuntimeError("What.")):
        back = rebuild_error(describe(3, error), "w")
        assert type(back) is (CallFailed if isinstance(error, RuntimeError) else type(error))
        assert "What." in str(back) and "Traceback" not in str(back) and type(error).__name__ in back.__notes__[0]

"""The quiet line about llama.cpp: how long it takes, that it is there, or why not and where the log is."""

from __future__ import annotations

import pytest

from marlaas.app.words.machine import DONE, FAILED, llama_note
from marlaas.engine.devices.software import LlamaBuild

BROKEN = LlamaBuild("failed", 8.0, 1000.0, "There is no C++ compiler.", "/src/.venv-llama.log")


@pytest.mark.parametrize(
    ("build", "now", "watched", "said"),
    [
        (None, 1000.0, False, ""),
        (LlamaBuild("compiling", 130.4), 1000.0, False, "compiling llama.cpp in the background, 2 min 10 s"),
        (LlamaBuild("done", 312.0, 1000.0), 1010.0, True, "llama.cpp is compiled, after 5 min 12 s"),
        (LlamaBuild("done", 312.0, 1000.0), 1000.0 + DONE, True, ""),
        (LlamaBuild("done", 312.0, 1000.0), 1010.0, False, ""),
        (BROKEN, 1000.0 + FAILED + 1, True, ""),
        (
            LlamaBuild("failed", 0.0, 0.0, "it was interrupted"),
            9e9,
            False,
            "llama.cpp could not be compiled: it was",
        ),
    ],
)
def test_the_line(build: LlamaBuild | None, now: float, watched: bool, said: str) -> None:
    found = llama_note(build, now, watched)
    assert found.startswith(said) if said else found == ""


def test_a_failure_says_why_and_where_the_log_is() -> None:
    said = llama_note(BROKEN, 1010.0, False)
    assert said == "llama.cpp could not be compiled (log /src/.venv-llama.log): There is no C++ compiler."

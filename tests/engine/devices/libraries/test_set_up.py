"""What the set-up leaves of its attempt at llama.cpp: read as it is, and never trusted further than its lock."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine.devices.software import INTERRUPTED, LOCK, STATE, LlamaBuild, llama_build, why_missing
from tools import llama as setup


@pytest.fixture
def held(tmp_path: Path) -> Iterator[None]:
    """A process that is at work."""
    with open(tmp_path / LOCK, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def left(folder: Path, **facts: Any) -> None:
    (folder / STATE).write_text(json.dumps({"began": 100.0, "log": "/x/log", **facts}))


def test_one_that_is_under_way(tmp_path: Path, held: None) -> None:
    left(tmp_path, state="compiling")
    assert llama_build(tmp_path, now=230.0) == LlamaBuild("compiling", 130.0, log="/x/log")
    assert why_missing(llama_build(tmp_path, now=230.0)) == (
        "it is still being compiled, 2 min so far",
        "Try again once it is there. The log is /x/log.",
    )


def test_one_whose_process_is_gone_was_interrupted(tmp_path: Path) -> None:
    left(tmp_path, state="compiling")
    found = llama_build(tmp_path, now=230.0)
    assert found is not None and (found.state, found.reason) == ("failed", INTERRUPTED)
    (tmp_path / LOCK).touch()
    assert llama_build(tmp_path, now=230.0) == found


def test_one_that_failed_and_one_that_is_done(tmp_path: Path) -> None:
    left(tmp_path, state="failed", ended=140.0, reason="There is no C++ compiler.")
    found = llama_build(tmp_path, now=999.0)
    assert found == LlamaBuild("failed", 40.0, 140.0, "There is no C++ compiler.", "/x/log")
    why, hint = why_missing(found)
    assert why == "it could not be compiled: There is no C++ compiler" and hint.startswith("`make install` tries again")
    left(tmp_path, state="done", ended=400.0)
    assert why_missing(llama_build(tmp_path)) == ("", "")


@pytest.mark.parametrize("text", ["", "[]", '{"state": "odd"}', '{"state": 1}', '{"began": "x"'])
def test_what_makes_no_sense_is_none(tmp_path: Path, text: str) -> None:
    assert llama_build(tmp_path) is None
    (tmp_path / STATE).write_text(text)
    assert llama_build(tmp_path) is None and why_missing(None) == ("", "")


def test_the_set_up_writes_what_is_read_here() -> None:
    assert (setup.STATE, setup.LOCK) == (STATE, LOCK)

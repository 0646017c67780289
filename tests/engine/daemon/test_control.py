"""Why an engine did not start, in words, whatever the last line of its log is about."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.engine.daemon.control import _why_not
from marlaas.engine.errors import ConfigError, EngineUnreachable


@pytest.mark.parametrize(
    ("code", "line", "kind", "words"),
    [
        (2, "marlaas: The base is gone.", ConfigError, "The base is gone."),
        (1, "marlaas: The disk is full.", EngineUnreachable, "The engine did not start: The disk is full."),
        (0, "info: A plugin was loaded.", EngineUnreachable, "The engine did not start: it was asked to stop."),
        (-9, "info: A plugin was loaded.", EngineUnreachable, "it was ended by signal SIGKILL."),
        (-99, "", EngineUnreachable, "it was ended by signal 99."),
    ],
)
def test_the_reason_is_the_engines_own(tmp_path: Path, code: int, line: str, kind: type[Exception], words: str) -> None:
    log = tmp_path / "engine.log"
    log.write_text(f"info: earlier\n{line}\n")
    error = _why_not(code, log)
    assert type(error) is kind and words in error.message and "plugin" not in error.message

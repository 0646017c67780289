"""Programs that are run for what they print."""

import sys

import pytest

from marlaas.engine.programs import run_program


def test_all_that_it_prints_is_told_with_its_status() -> None:
    code = "import os, sys; print(os.environ['WORD']); print('and', file=sys.stderr); sys.exit(3)"
    status, said = run_program([sys.executable, "-c", code], 60, {"WORD": "this"})
    assert status == 3 and sorted(said.split()) == ["and", "this"]


def test_one_that_hangs_or_is_missing_says_so() -> None:
    with pytest.raises(TimeoutError, match=r"no answer within 0\.1 s"):
        run_program([sys.executable, "-c", "import time; time.sleep(60)"], 0.1)
    with pytest.raises(FileNotFoundError):
        run_program(["/nowhere/at/all"], 1)

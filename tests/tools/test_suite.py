"""Both rounds run whatever becomes of the first, and the last line counts all their tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools.suite import ROOT, files_with_processes, rounds

pytestmark = pytest.mark.processes
GREEN = "def test_one():\n    pass\n"
MIXED = """
import pytest

@pytest.fixture
def breaks():
    yield
    raise OSError

def test_passes(): pass
def test_fails(): assert False
def test_ends_badly(breaks): pass
def test_has_no_machine(): pytest.skip("no machine")
"""


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of tests of its own, and as little of pytest as there is."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name, text in {"green": GREEN, "mixed": MIXED, "unreadable": "import nothing_of_this_name\n"}.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]")


@pytest.mark.parametrize(
    ("calls", "code", "says"),
    [
        ([["test_green.py"], ["test_green.py"]], 0, "2 passed, 0 failed, 0 skipped"),
        ([["test_mixed.py"], ["test_green.py"]], 1, "2 passed, 2 failed, 1 skipped"),
        ([["test_unreadable.py"], ["test_green.py"]], 1, "1 passed, 1 failed, 0 skipped"),
        ([["test_green.py"], ["test_green.py", "-k", "nothing"]], 1, "1 passed, 1 failed, 0 skipped"),
    ],
    ids=["all pass", "some fail", "a file cannot be read", "no tests"],
)
def test_the_last_line_counts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], calls: list[list[str]], code: int, says: str
) -> None:
    assert rounds(calls, tmp_path) == code
    assert capfd.readouterr().out.splitlines()[-1] == says


def test_a_round_that_dies_is_a_failure(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_dies.py").write_text("import os\ndef test_dies(): os.abort()\n")
    assert rounds([["test_dies.py"], ["test_green.py"]], tmp_path) == 1
    assert capfd.readouterr().out.splitlines()[-2:] == [
        "A round did not end by its tests: pytest's exit code was -6.",
        "1 passed, 1 failed, 0 skipped",
    ]


def test_an_interrupt_ends_both_rounds(tmp_path: Path) -> None:
    (tmp_path / "test_waits.py").write_text(
        "import pathlib, signal\ndef test_waits():\n    pathlib.Path('waits').touch()\n    signal.pause()\n"
    )
    code = "import pathlib, sys; from tools.suite import rounds\n"
    code += "sys.exit(rounds([['test_green.py', 'test_waits.py'], ['test_green.py']], pathlib.Path()))"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True, process_group=0
    ) as suite:
        while not (tmp_path / "waits").exists():
            time.sleep(0.01)  # another process: there is nothing to await
        os.killpg(suite.pid, signal.SIGINT)
        said, _ = suite.communicate()
    assert suite.returncode == 130
    assert said.splitlines()[-1] == "1 passed, 0 failed, 0 skipped"


def test_the_second_round_has_the_files_that_start_processes() -> None:
    found = files_with_processes()
    assert found[0].startswith("tests/end_to_end/") and "tests/test_examples.py" in found
    assert "tests/test_layout.py" not in found

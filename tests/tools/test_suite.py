"""All files run whatever becomes of others, each once, and the last line counts all their tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from marlaas.engine.faults import VARIABLE, Point
from tests.arming import arm, recorded
from tests.kills import Lab, exact, finish
from tests.oracle.audit import audit
from tools.suite import ROOT, in_order, run

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

SHARED = """
import pytest

@pytest.fixture(scope="session")
def made():
    with open("made", "a") as file:
        file.write("once ")
    yield 1
    with open("made", "a") as file:
        file.write("ended ")

@pytest.fixture
def own(everywhere): return everywhere + 6
"""

EVERYWHERE = "import pytest\n@pytest.fixture\ndef everywhere(): return 1\n"


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of tests of its own, and as little of pytest as there is."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name, text in {"green": GREEN, "mixed": MIXED, "unreadable": "import nothing_of_this_name\n"}.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]")


@pytest.mark.processes
@pytest.mark.usefixtures("small")
def test_what_failed_is_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["test_mixed.py"], tmp_path, 1, []) == 1
    said = capfd.readouterr().out
    assert said.startswith("100 % of 1 files begun after ")
    assert "def test_fails(): assert False" in said


@pytest.mark.processes
@pytest.mark.usefixtures("small")
def test_what_a_session_shares_is_made_once_for_all_files(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "conftest.py").write_text(EVERYWHERE)
    (tmp_path / "sub" / "conftest.py").write_text(SHARED)
    files = [f"sub/test_{name}.py" for name in "abc"]
    for file in files:
        (tmp_path / file).write_text("def test_it(made, own): assert (made, own) == (1, 7)\n")
    assert run(files, tmp_path, 1, []) == 0
    assert (tmp_path / "made").read_text() == "once ended "


@pytest.mark.processes
@pytest.mark.usefixtures("small")
def test_a_process_that_dies_is_a_failure(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It costs the rest of its file, and what it would have run is run by another."""
    (tmp_path / "test_dies.py").write_text("import os\ndef test_dies(): os.abort()\n")
    assert run(["test_dies.py", "test_green.py"], tmp_path, 2, []) == 1
    assert capfd.readouterr().out.splitlines()[-2:] == [
        "A process did not end by its tests, in test_dies.py: its exit code was -6.",
        "1 passed, 1 failed, 0 skipped",
    ]


@pytest.mark.processes
@pytest.mark.usefixtures("small")
def test_an_interrupt_ends_all(tmp_path: Path) -> None:
    (tmp_path / "test_waits.py").write_text(
        "import pathlib, signal\ndef test_waits():\n    pathlib.Path('waits').touch()\n    signal.pause()\n"
    )
    code = "import pathlib, sys; from tools.suite import run\n"
    code += "sys.exit(run(['test_green.py', 'test_waits.py', 'test_mixed.py'], pathlib.Path(), 1, []))"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True, process_group=0
    ) as suite:
        while not (tmp_path / "waits").exists():
            time.sleep(0.01)  # another process: there is nothing to await
        os.killpg(suite.pid, signal.SIGINT)
        said, _ = suite.communicate()
    assert suite.returncode == 130
    assert said.splitlines()[-1] == "1 passed, 0 failed, 0 skipped"


@pytest.mark.processes
@pytest.mark.usefixtures("small")
def test_files_that_start_processes_come_first() -> None:
    found = in_order(ROOT)
    assert found[0].startswith("tests/end_to_end/") and len(found) == len({*found})
    assert found.index("tests/test_examples.py") < found.index("tests/test_source.py")
    assert not [file for file in found if file.startswith(("tests/slow/", "tests/libraries/"))]


STEPS = 6


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_deaths_at_named_points_change_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    calm, stormy = Lab.make(tmp_path / "calm", 0, faults=False), Lab.make(tmp_path / "stormy", 0, faults=True)
    deadly = {Point.GROUP_INSIDE: 2, Point.SAMPLER_LOADED: 1, Point.COMMIT_DONE: 1, Point.STATE_NAMED: 2}
    for point, count in deadly.items():
        arm(stormy.folder, point, count, "once")
    for lab in (stormy, calm):
        lab.submit([exact(STEPS)])
        finish_without_disarming(lab)
        lab.stop()
    record = recorded(stormy.folder)
    assert {one.point for one in record if one.died} == set(deadly)
    assert stormy.checksums(1) == calm.checksums(1) and len(set(calm.checksums(1))) == STEPS + 1
    assert stormy.lost() == []
    report = audit(stormy.home.root)
    assert report.problems == [] and report.proven["updates"] == STEPS


def finish_without_disarming(lab: Lab) -> None:
    """As a person would: start the engine again until the task is done."""
    while any(row.unfinished for row in lab.look()):
        lab.start()
    finish(lab)

"""Homes as people have them: of the last release, moved, copied and backed up, on other bases, and from the wheel."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from marlaas.engine.daemon import control
from marlaas.engine.daemon.control import holder
from marlaas.engine.errors import MarlaasError
from marlaas.engine.home.paths import Home
from marlaas.engine.store.schema import is_current
from tests.oracle.audit import audit
from tools.random_base.make import make_base

from ..old_homes import unpack
from .conftest import Lab, configured, consumed_once, task_file

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
QUIET = {"learning_rate": 1e-6, "patience": 100_000, "max_staleness": 1}
"""A task that does not end before its steps are made."""


@pytest.fixture
def new_lab(tmp_path: Path) -> Iterator[Callable[[str], Lab]]:
    """Labs in folders of these names; their engines end with the test."""
    labs: list[Lab] = []

    def new(name: str) -> Lab:
        labs.append(Lab(Home(tmp_path / name)))
        return labs[-1]

    yield new
    for lab in labs:
        if holder(lab.home.lock) is not None:
            control.stop(lab.home)


def test_a_home_of_the_first_release_goes_on(new_lab: Callable[[str], Lab], tmp_path: Path) -> None:
    unpack(tmp_path / "home")
    lab = new_lab("home")
    tasks = {task["name"]: task for task in json.loads(lab.marlaas("list", "--json"))}
    assert {name: task["step"] for name, task in tasks.items()} == {"finished": 5, "paused": 3, "queued": 0}
    assert is_current(lab.home.database), "no engine ran: the first who read it has brought it up to date"
    assert "best" in lab.marlaas("adapters", "list")
    lab.marlaas("show", "1")
    control.ensure_running(lab.home)
    lab.marlaas("resume", "2")
    lab.marlaas("wait", "2", "3")
    for task, steps in ((2, 8), (3, 3)):
        assert lab.row(task).state == "done" and lab.row(task).step == steps
        consumed_once(lab.home, task)
    log = lab.marlaas("logs", "2")
    assert "void" not in log and "begins anew" not in log, "it went on from step 3"


def files(root: Path) -> dict[str, str]:
    """Every state file of a home, by its place in it."""
    found = (path for path in (root / "adapters").rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


@pytest.mark.slow
def test_a_home_goes_on_where_it_was_backed_up_while_it_trained(new_lab: Callable[[str], Lab], tmp_path: Path) -> None:
    """Versions are pruned all the time: with two kept, a file lives for two steps. Daily: ``tests/app/operations``."""
    lab, new, archive = new_lab("home"), new_lab("new"), str(tmp_path / "backup.tar")
    lab.marlaas("home", "new")
    task = lab.submit("sums", steps=5_000, train=QUIET)
    before = lab.until(task, 4).step
    lab.marlaas("home", "backup", archive)
    assert json.loads(lab.marlaas("home", "check", "--json"))["ok"] and audit(lab.home.root, updates=False).sound
    after = lab.until(task, lab.row(task).step + 1).step
    control.stop(lab.home)
    original = files(lab.home.root)

    new.marlaas("home", "restore", archive)
    step, report = new.row(task).step, audit(new.home.root, updates=False)
    assert before <= step <= after
    assert report.sound and not report.spare and report.proven["state files"] >= 2
    control.ensure_running(new.home)
    new.until(task, step + 2)
    control.stop(new.home)
    consumed_once(new.home, task)
    assert audit(new.home.root).lines()[-1] == "Nothing is wrong."
    assert files(lab.home.root) == original


def goes_on(lab: Lab, task: int) -> None:
    """An engine on this home makes three more steps, voids nothing and stops."""
    stood = lab.row(task).step
    control.ensure_running(lab.home)
    lab.until(task, stood + 3)
    control.stop(lab.home)
    with closing(sqlite3.connect(lab.home.database)) as database:
        (void,) = database.execute("SELECT count(*) FROM versions WHERE state = 'void'").fetchone()
        (first,) = database.execute(
            "SELECT min(number) FROM steps WHERE incarnation = (SELECT max(incarnation) FROM engines)"
        ).fetchone()
    assert (void, first) == (0, stood + 1) and not lab.home.lost.exists()
    consumed_once(lab.home, task)


@pytest.mark.slow
def test_a_moved_home_goes_on_and_a_copy_harms_nothing(tmp_path: Path) -> None:
    """Moved, linked to, spelled oddly and copied, a home goes on from where it stood."""
    with configured(tmp_path, "") as lab:
        task = lab.submit("travels", steps=5_000, train=QUIET, eval={"prompts": 4, "every": 0})
        lab.until(task, 3)
    (tmp_path / "elsewhere").mkdir()
    original, copy = tmp_path / "elsewhere" / "50% of #1? ünd %41", tmp_path / "copy"
    lab.home.root.rename(original)
    (tmp_path / "link").symlink_to("elsewhere")
    goes_on(Lab(Home(tmp_path / "elsewhere" / ".." / "link" / original.name)), task)
    before = files(original)
    shutil.copytree(original, copy, symlinks=True)  # as cp -a does
    goes_on(Lab(Home(copy)), task)
    assert files(original) == before and set(before) - set(files(copy)), "the copy pruned its own"
    for root in (original, copy):
        assert audit(root, updates=False).problems == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A base in the layout of Qwen2.5, in two shards, with random weights."""
    return make_base(tmp_path / "qwen", "qwen2.5", "mini", rows=2048).path


def used(lab: Lab) -> list[str]:
    return [row["name"] for row in json.loads(lab.marlaas("base", "list", "--json")) if row["used"]]


@pytest.mark.slow
def test_another_base_gets_a_home_of_its_own_or_waits(new_lab: Callable[[str], Lab], folder: Path) -> None:
    lab, second = new_lab("home"), new_lab("second")
    lab.marlaas("home", "new")
    task = lab.submit("long", steps=100_000)
    assert lab.until(task, 1).step >= 1
    refused = lab.marlaas("base", "use", str(folder), code=2)
    assert f"task {task} (lab/long)" in refused and "marlaas --home DIR base use" in refused
    lab.until(task, lab.row(task).step + 1)  # it goes on
    assert used(lab) == ["tiny"]
    lab.marlaas("engine", "stop")

    second.marlaas("base", "use", str(folder))
    assert used(second) == [str(folder)]
    with pytest.raises(MarlaasError, match="is meant for the base 'tiny', but this home's base is"):
        second.submit("other", base="tiny")

    documented = lab.home.config.read_text()
    lab.home.config.write_text(documented.replace('# base = "tiny"', f"base = {json.dumps(str(folder))}"))
    refused = lab.marlaas("engine", "start", code=2)
    assert f"the unfinished task {task} (lab/long) of another base (tiny)" in refused
    assert "marlaas --home DIR base use" in refused and "`marlaas base use tiny`" in refused
    assert holder(lab.home.lock) is None

    lab.marlaas("base", "use", "tiny")
    assert "cannot be deleted" in lab.marlaas("adapters", "delete", str(task), code=2)
    lab.marlaas("cancel", str(task))
    assert f"the adapters of task {task}" in lab.marlaas("base", "use", str(folder), code=2)
    deleted = json.loads(lab.marlaas("adapters", "delete", str(task), "--json"))
    assert deleted["bytes"] > 0 and deleted["deleted"]
    assert not list(lab.home.adapters.rglob("*.safetensors"))
    lab.marlaas("base", "use", str(folder))
    assert holder(lab.home.lock) is None and used(lab) == [str(folder)]


@pytest.mark.slow
def test_another_base_is_checked_and_trained(new_lab: Callable[[str], Lab], folder: Path) -> None:
    lab = new_lab("checked")
    found = json.loads(lab.marlaas("base", "check", str(folder), "--weights", "f32,q8_0,bf16", "--json"))
    exact, rounded, halved = found["tried"]
    assert [row["weights"] for row in found["tried"]] == ["f32", "q8_0", "bf16"]
    assert exact["agreement"]["gap_max"] < 1e-3 < rounded["agreement"]["gap_max"]
    assert exact["agreement"]["gap_max"] < halved["agreement"]["gap_max"], "torch samples in bfloat16"
    assert exact["file_bytes"] > 2 * rounded["file_bytes"] > halved["file_bytes"] == 0
    assert all(row["seconds"] > 0 and row["trial"]["training"] > 0 for row in found["tried"])
    assert found["verdict"] == "fit" and "a step on this CPU" in found["text"]
    assert not list(lab.home.scratch.iterdir()) and not lab.home.database.exists()
    lab.marlaas("base", "use", str(folder))
    task = lab.submit("sums", base=str(folder), steps=1)
    lab.marlaas("wait", str(task))
    assert (lab.show(task)["state"], lab.show(task)["step"]) == ("done", 1)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """What the wheel is built from: all that git has or would take, but for the tests."""
    copy = tmp_path / "source"
    listing = ["git", "ls-files", "-z", "-co", "--exclude-standard"]
    tracked = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, tracked.split("\0")):
        if not name.startswith("tests/") and (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    return copy


def test_the_wheel_holds_what_the_program_reads(source: Path, tmp_path: Path) -> None:
    build = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path / "built")]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    built = tmp_path / "built"
    names = {path.relative_to(built).as_posix() for path in built.rglob("*") if path.is_file()}
    assert {
        "marlaas/app/app.tcss",
        "marlaas/engine/models/tiny/model.safetensors",
        "marlaas/engine/models/tiny/chat_template.jinja",
        "marlaas/plugins/bundled/guess.py",
        "marlaas/plugins/templates/rows.jsonl",
        "marlaas/plugins/py.typed",
    } <= names
    assert not any(name.startswith(("tests", "tools", "app/", "engine/")) for name in names)


@pytest.mark.slow
def test_it_trains_from_another_folder(source: Path, tmp_path: Path) -> None:
    """The wheel in an environment that borrows what it needs, in a folder where another ``marlaas`` lies in the way."""
    pip = [sys.executable, "-m", "pip"]
    wheel = [*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path / "wheel"), str(source)]
    subprocess.run(wheel, check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"

    def runs(code: str) -> str:
        command = [str(python), "-P", "-c", code]
        return subprocess.check_output(command, cwd=tmp_path, text=True).strip()

    purelib = runs("import sysconfig; print(sysconfig.get_path('purelib'))")
    (built,) = (tmp_path / "wheel").glob("*.whl")
    install = [*pip, "install", "-q", "--no-deps", "--no-index", "--target", purelib, str(built)]
    subprocess.run(install, check=True, capture_output=True)
    (Path(purelib) / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")

    (tmp_path / "marlaas" / "engine").mkdir(parents=True)
    for package in ("marlaas", "marlaas/engine"):
        (tmp_path / package / "__init__.py").write_text("raise ImportError('the wrong marlaas')\n")
    (tmp_path / "task.toml").write_text(task_file("wheel", steps=2))

    def marlaas(*words: str) -> str:
        environment = {**os.environ, "MARLAAS_HOME": str(tmp_path / "home")}
        command = [str(python), "-P", "-m", "marlaas.app.cli.main", *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        (task,) = json.loads(marlaas("submit", "task.toml", "--json"))["ids"]
        marlaas("wait", str(task))
        assert json.loads(marlaas("show", str(task), "--json"))["step"] == 2
        assert str(tmp_path / "venv") in runs("import marlaas.engine; print(marlaas.engine.__file__)")
    finally:
        marlaas("engine", "stop")

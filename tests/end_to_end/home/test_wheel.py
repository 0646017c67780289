"""The wheel trains from a stranger's folder, where another ``marlaas`` lies in the way: that in ``make test-slow``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    copy = tmp_path_factory.mktemp("source") / "marlaas"
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    ).stdout.decode()
    for name in filter(None, tracked.split("\0")):
        if not name.startswith("tests/") and (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run([*command, str(copy)], check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of its own with the wheel; what marlaas needs is borrowed from this one, marlaas itself is not."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    purelib = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", purelib, str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    (Path(purelib) / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_the_wheel_holds_what_the_program_reads(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
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
def test_it_trains_from_another_folder(program: Path, tmp_path: Path) -> None:
    (tmp_path / "marlaas" / "engine").mkdir(parents=True)
    for package in ("marlaas", "marlaas/engine"):
        (tmp_path / package / "__init__.py").write_text("raise ImportError('the wrong marlaas')\n")
    (tmp_path / "task.toml").write_text(
        'tenant = "a"\nname = "b"\nenvironment = "arithmetic"\nsteps = 2\n'
        "[train]\ngroups_per_step = 2\ngroup_size = 4\n[sampling]\nmax_tokens = 8\n[eval]\nprompts = 8\nevery = 0\n"
    )
    environment = {**os.environ, "MARLAAS_HOME": str(tmp_path / "home")}

    def marlaas(*words: str) -> str:
        command = [str(program.parent / "python"), "-P", "-m", "marlaas.app.cli.main", *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        (task,) = json.loads(marlaas("submit", "task.toml", "--json"))["ids"]
        marlaas("wait", str(task))
        assert json.loads(marlaas("show", str(task), "--json"))["step"] == 2
        where = subprocess.run(
            [program, "-P", "-c", "import marlaas.engine; print(marlaas.engine.__file__)"],
            capture_output=True, text=True, check=True, cwd=tmp_path,
        )  # fmt: skip
        assert str(program.parent.parent) in where.stdout
    finally:
        marlaas("engine", "stop")

"""``make install`` into an empty environment, from a folder of wheels and without a network; then a task trains there.

The wheels are made anew from what is installed here, so that their hashes, and nothing else, are others.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..end_to_end.conftest import task_file
from .wheel_folder import fill

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
NOWHERE = "http://127.0.0.1:9"
"""A proxy at which nobody answers: whoever asks the network fails."""


def test_it_installs_and_trains_without_a_network(tmp_path: Path) -> None:
    checkout, wheels, home = tmp_path / "checkout", tmp_path / "wheels", tmp_path / "home"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, tracked.split("\0")):
        if not name.startswith("tests/") and (ROOT / name).is_file():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, checkout / name)
    wheels.mkdir()
    left_out = ("TORCH_INDEX", "LLAMA_INDEX", "CMAKE_ARGS", "PYTHONPATH", "MARLAAS_HOME", "MARLAAS_BASE")
    environment = {name: value for name, value in os.environ.items() if name not in left_out and "PIP_" not in name}
    environment |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    environment |= {name: NOWHERE for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")}
    environment |= {"PROFILE": "cpu", "PIP_CONFIG_FILE": os.devnull}

    def said(*command: str) -> str:
        done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=1500)
        log = checkout / ".venv-setup.log"
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{log.read_text() if log.exists() else ''}"
        return done.stdout

    fill(wheels, checkout / "constraints" / "hashes")
    kept = "from tools.llama import build_key, kept_builds; print(kept_builds(build_key('')))"
    folder = Path(said(sys.executable, "-c", kept).strip())
    folder.mkdir(parents=True)
    (wheel,) = wheels.glob("llama_cpp_python-*.whl")
    shutil.move(wheel, folder)  # compiled for this processor, as it would be kept

    assert "Set-up is done" in said("make", "install", f"PYTHON={sys.executable}")
    marlaas = (str(checkout / ".venv" / "bin" / "marlaas"), "--home", str(home))
    said(*marlaas, "home", "new")
    (home / "marlaas.toml").write_text('[rollout]\nsampler = "llama.cpp"\n')
    (tmp_path / "task.toml").write_text(task_file("offline", steps=2))
    try:
        said(*marlaas, "submit", str(tmp_path / "task.toml"))
        said(*marlaas, "wait", "1")
        assert json.loads(said(*marlaas, "show", "1", "--json"))["step"] == 2
        where = said(str(checkout / ".venv/bin/python"), "-c", "import torch, llama_cpp; print(torch.__file__)")
        assert where.startswith(str(checkout))
    finally:
        said(*marlaas, "engine", "stop")

"""llama.cpp in the background, with real processes and locks; a stand-in for pip compiles as long as a test wants.

A real compilation takes minutes; everything around it is what ``make`` runs.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from marlaas.engine.devices.software import INTERRUPTED, LlamaBuild, llama_build
from tools.llama import LOCK, STATE
from tools.locks import holder

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0
PIP = """
import os, pathlib, subprocess, sys, time
words, site = sys.argv[1:], pathlib.Path(__file__).parent.parent
scratch = pathlib.Path(os.environ["SCRATCH"])
with open(scratch / "calls", "a") as calls:
    calls.write(" ".join(words) + "\\n")
if "wheel" in words:
    if (scratch / "broken").exists():
        sys.exit("a.cpp:3:10: fatal error: no such header\\nERROR: Failed building wheel")
    compiler = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (scratch / "compiler").write_text(str(compiler.pid))
    while not (scratch / "go").exists():
        time.sleep(0.02)
    compiler.kill()
    out = pathlib.Path(words[words.index("-w") + 1])
    out.mkdir()
    (out / "llama.whl").touch()
elif words[-1].endswith("llama.whl"):
    (site / "llama_cpp.py").write_text("def llama_backend_init(): pass")
elif "uninstall" in words:
    (site / "llama_cpp.py").unlink()
"""
"""Compiles until there is a file ``go``, with a child as CMake has; fails where there is one ``broken``."""


@dataclass
class Checkout:
    """A copy of the set-up beside an environment that is made."""

    root: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    @property
    def build(self) -> LlamaBuild | None:
        return llama_build(self.venv)

    @property
    def state(self) -> str:
        """Of the newest attempt; empty where there is none."""
        return self.build.state if self.build else ""

    def make(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        """What ``make`` runs, in a session of its own as a terminal has."""
        kept = {name: value for name, value in os.environ.items() if name not in ("CC", "CXX", "CMAKE_ARGS")}
        own = {"PROFILE": "cpu", "SCRATCH": str(self.root), "XDG_CACHE_HOME": str(self.root / "cache")}
        process = subprocess.Popen(
            [sys.executable, "-m", "tools.install", *words],
            cwd=self.root,
            env=kept | own | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def made(self, *words: str, code: int = 0, **variables: str) -> str:
        """All that it says."""
        process = self.make(*words, **variables)
        said, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == code, said
        return said

    def calls(self, word: str) -> int:
        """How often pip was called so."""
        file = self.root / "calls"
        return sum(word in line.split() for line in file.read_text().splitlines()) if file.exists() else 0

    def compiler(self) -> int:
        """The process id of the compiler, once it runs."""
        until(lambda: (self.root / "compiler").exists() and (self.root / "compiler").read_text() != "")
        return int((self.root / "compiler").read_text())

    def go(self) -> None:
        """Let compilers come to their end."""
        (self.root / "go").touch()


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Checkout]:
    made = Checkout(tmp_path)
    (tmp_path / "tools").mkdir()
    for file in (ROOT / "tools").glob("*.py"):
        shutil.copy(file, tmp_path / "tools")
    shutil.copytree(ROOT / "constraints", tmp_path / "constraints")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    venv.create(made.venv, symlinks=True)
    pip = next(made.venv.glob("lib/python3*/site-packages")) / "pip"
    pip.mkdir()
    (pip / "__main__.py").write_text(PIP)
    yield made
    made.go()
    behind = holder(made.venv / LOCK)
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    if behind:
        os.kill(behind, signal.SIGKILL)


def test_the_demo_does_not_wait_and_the_tests_do(checkout: Checkout) -> None:
    said = checkout.made("--llama-behind")
    assert "llama.cpp is compiled meanwhile, in the background" in said and ".venv-llama.log" in said
    assert checkout.state == "compiling"
    assert "still being compiled in the background" in checkout.made("--llama-behind")
    waiting = checkout.make("dev")
    assert waiting.stdout is not None
    heard = next(line for line in waiting.stdout if "another `make`" in line)
    assert f"(process {holder(checkout.venv / LOCK)})" in heard and waiting.poll() is None
    checkout.go()
    assert waiting.wait(PATIENCE) == 0
    assert checkout.calls("wheel") == 1 and checkout.state == "done"
    assert checkout.made("--llama-behind") == "", "nothing is done twice"


def test_ctrl_c_ends_the_compiler_and_leaves_nothing_half(checkout: Checkout) -> None:
    process = checkout.make("dev")
    compiler = checkout.compiler()
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    until(lambda: ended(compiler))
    assert checkout.build is None and holder(checkout.venv / LOCK) is None
    checkout.go()
    checkout.made("dev")
    assert checkout.state == "done"


def test_one_that_was_killed_is_known_and_begun_again(checkout: Checkout) -> None:
    checkout.made("--llama-behind")
    compiler, behind = checkout.compiler(), holder(checkout.venv / LOCK)
    assert behind
    os.killpg(behind, signal.SIGKILL)
    until(lambda: ended(compiler))
    until(lambda: holder(checkout.venv / LOCK) is None)
    assert checkout.build is not None
    assert (checkout.build.state, checkout.build.reason) == ("failed", INTERRUPTED)
    assert "in the background" in checkout.made("--llama-behind")
    assert checkout.state == "compiling"


def test_the_background_ends_with_all_its_compilers(checkout: Checkout) -> None:
    checkout.made("--llama-behind")
    compiler, behind = checkout.compiler(), holder(checkout.venv / LOCK)
    assert behind
    os.kill(behind, signal.SIGTERM)
    until(lambda: ended(behind) and ended(compiler))
    assert not (checkout.venv / STATE).exists()


def test_a_compiler_that_fails_is_told_with_its_words(checkout: Checkout) -> None:
    (checkout.root / "broken").touch()
    said = checkout.made("dev", code=1)
    cause = "a.cpp:3:10: fatal error: no such header"
    assert f"Set-up stopped while compiling llama.cpp for this processor: {cause}" in said
    assert ".venv-setup.log" in said and checkout.build is not None and cause in checkout.build.reason
    (checkout.venv / STATE).unlink()
    assert "in the background" in checkout.made("--llama-behind"), "the demo is to go on"
    until(lambda: checkout.build is not None and checkout.build.state == "failed" and checkout.build.ended)
    assert checkout.build and cause in checkout.build.reason and checkout.build.log.endswith(".venv-llama.log")

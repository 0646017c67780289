"""The command that hides homes and the network; and bwrap itself, where this machine lets it work."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from marlaas.engine.environments.process.launch import Confinement, inner, layers, links, obstacle, readable_for


def binds(words: list[str], kind: str) -> list[str]:
    return [words[place + 1] for place, word in enumerate(words) if word == kind]


def test_only_scratch_is_writable_and_homes_are_empty(tmp_path: Path) -> None:
    home, snapshot, scratch, python = (tmp_path / name for name in ("home", "home/s/1", "home/work", "home/venvs/k"))
    for folder in (home, snapshot, scratch, python):
        folder.mkdir(parents=True, exist_ok=True)
    words = Confinement((home,), (python, Path("/usr"), tmp_path / "gone")).command(snapshot, scratch)
    assert {"--die-with-parent", "--unshare-all"} <= set(words) and words[-1] == "--"
    assert binds(words, "--bind") == [str(scratch)] == binds(words, "--chdir")
    assert binds(words, "--ro-bind") == ["/", str(snapshot), str(python)], "what is hidden and needed, nothing more"
    hidden = binds(words, "--tmpfs")
    assert str(Path("/tmp").resolve()) in hidden and str(Path.home().resolve()) in hidden
    assert any(home.is_relative_to(folder) for folder in hidden)
    assert all(words.index(folder) < words.index(str(snapshot)) for folder in hidden), "bound after it was hidden"


def test_of_what_a_path_lies_in_the_innermost_decides() -> None:
    me, python, home, venv = (Path(f"/me{rest}") for rest in ("", "/python", "/python/lib/home", "/python/lib/home/v"))
    assert layers({me, home}, {python / "bin", python / "lib", venv}) == [
        *(me, python / "bin", python / "lib", home, venv)
    ]
    assert layers({me, me / "in it"}, {Path("/usr"), me / "x", me / "x" / "y"}) == [me, me / "x"], "nothing twice"


def test_a_home_that_a_python_reads_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "venv" / "lib"
    (home / "plugin").mkdir(parents=True)
    sound = Confinement((home,), (tmp_path / "venv" / "bin", home / "plugin"))
    assert sound.contradiction() == ""
    assert Confinement((home,), (home,)).contradiction() == (
        f"Python's own files lie in {home}, which is to be out of sight: choose another home"
    )


def test_links_on_the_way(tmp_path: Path) -> None:
    (tmp_path / "python-3.12.1").mkdir()
    (tmp_path / "python-3.12").symlink_to("python-3.12.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to("../python-3.12/python")
    (tmp_path / "loop").symlink_to("loop")
    assert links(tmp_path / "bin" / "python") == [
        (tmp_path / "bin" / "python", "../python-3.12/python"),
        (tmp_path / "python-3.12", "python-3.12.1"),
    ]
    assert len(links(tmp_path / "loop")) == 40, "as the kernel does, it gives up"


def test_a_home_elsewhere_is_hidden_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marlaas.engine.environments.process.launch._HIDDEN", (tmp_path / "none",))
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    for name in ("me", "marlaas", "link"):
        (tmp_path / name).mkdir()
    (tmp_path / "to").symlink_to(tmp_path / "marlaas")
    words = Confinement((tmp_path / "to",), ()).command(tmp_path / "me", tmp_path / "marlaas")
    assert binds(words, "--tmpfs") == [str(tmp_path / "marlaas"), str(tmp_path / "me")]


def test_what_a_python_reads(tmp_path: Path) -> None:
    real, venv, loose = tmp_path / "pythons" / "3.12", tmp_path / "venv", tmp_path / "me" / "bin" / "python"
    for folder in (real / "bin", venv / "bin", loose.parent):
        folder.mkdir(parents=True)
    (real / "bin" / "python3.12").touch()
    (venv / "bin" / "python").symlink_to(real / "bin" / "python3.12")
    (venv / "pyvenv.cfg").touch()
    loose.symlink_to(real / "bin" / "python3.12")
    own = (venv / "bin", venv / "lib", venv / "lib64", venv / "pyvenv.cfg")
    base = (real / "bin", real / "lib", real / "lib64")
    assert readable_for(venv / "bin" / "python") == (venv / "bin" / "python", *own, *base)
    assert readable_for(loose) == (loose, *base), "what lies beside a link is not of Python"


@dataclass
class Person:
    """Somebody whose Python lies where all that is theirs lies."""

    prefix: Path
    home: Path

    @property
    def python(self) -> Path:
        return self.prefix / "bin" / "python"

    def sees(self, confinement: Confinement) -> set[str]:
        """The files below the person's folder that a confined process finds."""
        me, scratch = Path.home(), self.home / "work"
        search = (
            "import os, sys\nfor at, _, files in os.walk(sys.argv[1]): print(*(os.path.join(at, one) for one in files))"
        )
        command = [*confinement.command(self.home / "snapshot", scratch), str(self.python), "-I", "-c", search, str(me)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return {str(Path(found).relative_to(me)) for found in done.stdout.split()}


@pytest.fixture
def person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Person:
    """With ``~/.local`` as a virtual environment, reached by a link, and the state folder in it."""
    if reason := obstacle():
        pytest.skip(reason)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    made = Person(tmp_path / "me" / ".local", tmp_path / "me" / ".local" / "state" / "marlaas")
    secrets = (Path.home() / ".ssh" / "id", made.home / "marlaas.db", made.home / "plugins" / "other.py")
    library = made.prefix / "lib" / "library.py"
    for file in (*secrets, library, made.home / "snapshot" / "x.py", made.home / "work" / "mine", made.python):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    base = Path(sys.executable).resolve()
    (tmp_path / "me" / "pythons").symlink_to(base.parent)
    made.python.unlink()
    made.python.symlink_to(f"../../pythons/{base.name}")
    (made.prefix / "pyvenv.cfg").write_text(f"home = {tmp_path / 'me' / 'pythons'}\n")
    return made


NEEDED = {
    *(f".local/{name}" for name in ("bin/python", "pyvenv.cfg", "lib/library.py")),
    *(f".local/state/marlaas/{name}" for name in ("snapshot/x.py", "work/mine")),
}


@pytest.mark.processes
def test_a_home_beside_its_python_stays_hidden(person: Person) -> None:
    assert person.sees(Confinement((person.home,), readable_for(person.python))) == NEEDED


@pytest.mark.processes
def test_a_home_within_its_python_stays_hidden(person: Person) -> None:
    moved = person.prefix / "lib" / "marlaas"
    person.home.rename(moved)
    person.home = moved
    seen = person.sees(Confinement((moved,), readable_for(person.python)))
    assert seen == {name.replace("state/", "lib/") for name in NEEDED}


def test_no_process_is_inside_of_one_that_has_no_children() -> None:
    assert inner(1 << 30) is None


@pytest.mark.processes
def test_why_nothing_can_be_confined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert obstacle() == "bwrap (bubblewrap) is not installed"
    bwrap = tmp_path / "bwrap"
    bwrap.write_text("#!/bin/sh\necho 'bwrap: No permissions to create a new\nnamespace' >&2\nexit 1\n")
    bwrap.chmod(0o755)
    assert obstacle() == "bwrap: No permissions to create a new namespace"
    bwrap.write_text("#!/bin/sh\nexit 0\n")
    assert obstacle() == ""

"""Large derived files: written once, and never left half."""

import resource
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from marlaas.engine.errors import BaseModelError
from marlaas.engine.models.gguf import ensure, forget_others

GOOD = bytes(range(256)) * 16


def write(path: Path) -> None:
    path.write_bytes(GOOD)


def test_a_file_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "a.gguf"
    assert ensure(path, 1, write) == path and path.read_bytes() == GOOD
    before = path.stat().st_mtime_ns
    ensure(path, 1, lambda _: pytest.fail("written again"))
    assert path.stat().st_mtime_ns == before
    assert sorted(each.name for each in path.parent.iterdir()) == ["a.gguf"]


def test_a_disk_that_refuses_is_named_and_nothing_stays(tmp_path: Path) -> None:
    def half(path: Path) -> None:
        path.write_bytes(GOOD[:100])
        raise OSError(28, "No space left on device")

    with pytest.raises(BaseModelError, match=r"a\.gguf: .* not be written: No space left on device\. Free some"):
        ensure(tmp_path / "a.gguf", 1, half)
    assert list(tmp_path.iterdir()) == []

    def part(path: Path) -> None:
        with open(path, "wb") as file:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
            np.frombuffer(GOOD, np.uint8).tofile(file)

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with pytest.raises(BaseModelError, match=r"a\.gguf: .* not be written: the disk took a part of it only"):
            ensure(tmp_path / "a.gguf", 1, part)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(BaseModelError, match=r"takes 1e\+09 GB to make, and .* GB are free there"):
        ensure(tmp_path / "a.gguf", 10**18, write)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("where a folder should be")
    with pytest.raises(BaseModelError, match="could not be written"):
        ensure(tmp_path / "file" / "a.gguf", 1, write)


def test_space_is_checked_before_anything_is_written(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(BaseModelError, match="free"):
        ensure(tmp_path / "a.gguf", free * 2, lambda _: pytest.fail("was begun"))


def test_two_at_once_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    inside = threading.Barrier(2, timeout=20)
    script = "import sys; from pathlib import Path; from marlaas.engine.models.gguf import ensure\n"
    script += f"ensure(Path({str(path)!r}), 1, lambda p: p.write_bytes(bytes(range(256)) * 16) and None)"

    def slowly(target: Path) -> None:
        target.write_bytes(GOOD[:7])
        inside.wait()  # until the other has finished
        target.write_bytes(GOOD)

    def other() -> None:
        subprocess.run([sys.executable, "-P", "-c", script], check=True)
        assert path.read_bytes() == GOOD
        inside.wait()

    thread = threading.Thread(target=other)
    thread.start()
    assert ensure(path, 1, slowly).read_bytes() == GOOD
    thread.join()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.gguf"]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left = [tmp_path / f".a.gguf.{ended.pid}", tmp_path / f".a.gguf.{ended.pid}.f32"]
    other = [tmp_path / ".a.gguf.1", tmp_path / ".b.gguf.notes"]
    for each in left + other:
        each.write_bytes(b"half")
    ensure(tmp_path / "a.gguf", 1, write)
    assert [each.exists() for each in left + other] == [False, False, True, True]


def test_files_of_other_bases_are_forgotten_and_nothing_else(tmp_path: Path) -> None:
    mine, other = (ensure(tmp_path / f"{name}-f32.gguf", 1, write) for name in ("aaaa", "bbbb"))
    (tmp_path / "notes.json").write_text("{}")
    other.with_suffix(".json").write_text("the checksum that 0.1.0 wrote")
    (tmp_path / "own.gguf").write_bytes(b"a person's")
    assert forget_others(tmp_path, "aaaa") == len(GOOD)
    assert mine.exists() and not other.exists() and not other.with_suffix(".json").exists()
    assert (tmp_path / "notes.json").exists() and (tmp_path / "own.gguf").exists()
    assert forget_others(tmp_path, "aaaa") == 0
    assert forget_others(tmp_path / "gone", "aaaa") == 0

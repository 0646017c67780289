"""Where a control group may be made, and that it ends all that is in it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from marlaas.plugins import sandbox as cgroups
from marlaas.plugins.sandbox import new_group, place_of

UNIFIED = "31 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
HYBRID = (
    "30 23 0:25 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n40 23 0:26 / /sys/fs/cgroup/unified rw - cgroup2 x rw"
)


@pytest.mark.parametrize(
    ("own", "mounts", "place"),
    [
        ("0::/user.slice/app-1.scope", UNIFIED, "/sys/fs/cgroup/user.slice/app-1.scope"),
        ("0::/", UNIFIED, "/sys/fs/cgroup"),
        ("8:pids:/\n0::/a", HYBRID, "/sys/fs/cgroup/unified/a"),
        ("0::/docker/1/a", UNIFIED.replace(" / /", " /docker/1 /"), "/sys/fs/cgroup/a"),
        ("0::/elsewhere", UNIFIED.replace(" / /", " /docker/1 /"), None),
        ("8:pids:/", HYBRID, None),
        ("0::/a", "", None),
    ],
)
def test_the_group_of_a_process(own: str, mounts: str, place: str | None) -> None:
    assert place_of(own, mounts) == place


@pytest.mark.processes
def test_a_group_ends_with_all_that_is_in_it() -> None:
    group = new_group(8)
    if group is None:
        pytest.skip("no control group can be made here")
    os.mkdir(os.path.join(group.path, "below"))
    command = "import os, sys; open(sys.argv[1], 'w').write('0'); print(flush=True); os.fork(); os.setsid(); input()"
    inside = os.path.join(group.path, "below", "cgroup.procs")
    with subprocess.Popen(
        [sys.executable, "-c", command, inside], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as one:
        assert one.stdout is not None and one.stdout.readline() == b"\n"
        group.end()
        assert one.stdout.read() == b"", "it and its child are gone"
        assert one.wait() == -9 and not os.path.exists(group.path)


def test_its_files_are_written_without_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel lets a group's owner write ``cgroup.kill``, and not read it; root may do both."""
    user = os.geteuid() or 65534
    mkdir = os.mkdir

    def made(path: str) -> None:
        mkdir(path)
        for name, mode in (("cgroup.kill", 0o200), ("pids.max", 0o644)):
            os.close(os.open(os.path.join(path, name), os.O_WRONLY | os.O_CREAT, mode))

    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        monkeypatch.setattr(cgroups, "parent_group", lambda: place)
        monkeypatch.setattr(os, "mkdir", made)
        os.chown(place, user, -1)
        before = os.geteuid()
        os.seteuid(user)
        try:
            group = new_group(8)
            assert group is not None
            with pytest.raises(PermissionError):
                Path(group.path, "cgroup.kill").read_bytes()
            group.end()
        finally:
            os.seteuid(before)
        os.chmod(os.path.join(group.path, "cgroup.kill"), 0o600)
        assert [Path(group.path, name).read_bytes() for name in ("pids.max", "cgroup.kill")] == [b"8", b"1"]


@pytest.mark.parametrize("place", [None, "/proc"], ids=["no place", "a place that refuses"])
def test_none_to_be_had(place: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "parent_group", lambda: place)
    assert new_group(8) is None

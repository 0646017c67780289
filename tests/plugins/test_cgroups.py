"""Where a control group may be made, and that it ends all that is in it."""

from __future__ import annotations

import os
import subprocess
import sys

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


@pytest.mark.parametrize("place", [None, "/proc"], ids=["no place", "a place that refuses"])
def test_none_to_be_had(place: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "parent_group", lambda: place)
    assert new_group(8) is None

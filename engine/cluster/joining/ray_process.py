"""This machine's Ray: started for a home, known by a lock that the kernel drops with it, and ended.

``ray start --block`` is the parent of Ray's processes here and inherits the lock on ``node.lock``. So ``ray stop``,
which ends everybody's, is never needed. Imports no ray.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

import psutil

from ...errors import ClusterUnreachable, ConfigError
from ...home import ClusterSettings, Home
from ...locks import said_by_holder, try_lock
from .addresses import HEAD_FLAGS, Address, in_the_way, port_flags, ray_environment, ray_flags

START_SECONDS = 120.0
"""Seconds that Ray may take to start: 3 to 7 on a quiet machine."""
END_SECONDS = 20.0
POLL = 0.1
FREE_SECONDS = 5.0
ATTEMPTS = 3
STARTED = "Ray runtime started"
SIZE = 4096
LONGEST_FOLDER = 48
"""Characters of Ray's folder: with the names of its sockets it must fit into 107."""
EXTRA = "cluster"
started: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True)
class LocalNode:
    """The Ray of a home on this machine."""

    pid: int
    head: str
    is_head: bool
    name: str
    ip: str


def check_ray() -> None:
    """Raise ``ConfigError`` if ray is not installed, or does not run on this system."""
    if find_spec("ray") is None:
        raise ConfigError(
            "Several machines need Ray, which is not installed.",
            f"`make install EXTRAS={EXTRA}`, or `pip install 'marlaas[{EXTRA}]'`.",
        )
    if sys.platform != "linux":
        raise ConfigError("Ray joins several machines on Linux only.", "This machine can still work alone.")


def ray_folder(home: Home) -> Path:
    """Folder of Ray's sockets and logs: outside of the home, since that path may be too long for a socket; 0700."""
    name = hashlib.sha256(os.fsencode(home.root)).hexdigest()[:10]
    folder = Path(tempfile.gettempdir()) / f"marlaas-{name}"
    return folder if len(str(folder)) <= LONGEST_FOLDER else Path("/tmp") / folder.name


def local_node(home: Home) -> LocalNode | None:
    """The living Ray of this home on this machine."""
    text = said_by_holder(home.node_lock, SIZE)
    if text is None:
        return None
    try:
        return LocalNode(**json.loads(text))
    except (ValueError, TypeError):
        return LocalNode(0, "", False, "", "")


def start_ray(
    home: Home,
    cluster: ClusterSettings,
    node: LocalNode,
    *,
    seconds: float = START_SECONDS,
    starting: Callable[[], None] = lambda: None,
) -> LocalNode:
    """Start this machine's Ray in the background and wait until it serves; ``node.pid`` is filled in.

    ``starting`` is called about every 0.1 s. Raises ``ConfigError`` if one runs already, if its ports are in use or if
    Ray refuses; ``ClusterUnreachable`` if it does not come up in time.
    """
    environment = os.environ | ray_environment(home, cluster)
    folder = _made(ray_folder(home))
    end_rest(home)
    log = home.logs / "node.log"
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = _locked(home)
    try:
        _check_ports(cluster, node)
        with open(log, "ab") as output:
            begun = output.tell()
            process = subprocess.Popen(
                command(cluster, node, folder),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd=home.root,
                env=environment,
                pass_fds=(lock,),
            )
        started[process.pid] = process
        node = LocalNode(process.pid, node.head, node.is_head, node.name, node.ip)
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps(asdict(node)).encode(), 0)
    finally:
        os.close(lock)
    deadline = time.monotonic() + seconds
    while STARTED not in (said := _said(log, begun)):
        if process.poll() is not None:
            del started[process.pid]
            raise ConfigError(f"Ray did not start: {why_not(said)}", f"See {log}.")
        if time.monotonic() > deadline:
            stop_ray(home, grace=0.0)
            raise ClusterUnreachable(f"Ray did not start within {seconds:g} s: {why_not(said)}", f"See {log}.")
        starting()
        time.sleep(POLL)
    return node


def command(cluster: ClusterSettings, node: LocalNode, folder: Path) -> list[str]:
    """The command line that starts this machine's Ray."""
    head = Address(*_parts(node.head))
    place = ["--head", f"--port={head.port}", *HEAD_FLAGS] if node.is_head else [f"--address={node.head}"]
    return [
        *(sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--block", *place),
        *(f"--node-ip-address={node.ip}", f"--node-name={node.name}", f"--temp-dir={folder}"),
        *ray_flags(cluster),
        *port_flags(cluster.ports),
    ]


def stop_ray(home: Home, grace: float = END_SECONDS) -> bool:
    """End only this machine's Ray; False if this home has none.

    After ``grace`` seconds Ray's processes are killed with their parent.
    """
    node = local_node(home)
    if node is None:
        end_rest(home)
        return False
    if node.pid:
        _signal(node.pid, signal.SIGTERM if grace else signal.SIGKILL)
    deadline = time.monotonic() + grace
    while local_node(home) is not None:
        if time.monotonic() > deadline and node.pid:
            _signal(node.pid, signal.SIGKILL)
        time.sleep(POLL)
    if node.pid in started:
        started.pop(node.pid).wait()
    end_rest(home)
    return True


def end_rest(home: Home) -> None:
    """Kill the rest of an earlier, killed Ray of this home: its agents take a minute to notice.

    They share the session of ``ray start``; its number is not reused while one of them lives.
    """
    if local_node(home) is not None:
        return
    try:
        session = int(json.loads(home.node_lock.read_text())["pid"])
    except (OSError, ValueError, TypeError, KeyError):
        return
    for process in psutil.pids():
        with contextlib.suppress(OSError):
            if process != os.getpid() and os.getsid(process) == session:
                os.kill(process, signal.SIGKILL)


def why_not(said: str) -> str:
    """The reason in the output of a failed ``ray start``, in one sentence."""
    for sign, sentence in _SIGNS:
        if sign in said:
            return sentence
    last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "it left no word")
    return f"{last.rstrip('.')}."


_SIGNS = (
    ("already running at", "another Ray listens at that address; choose another `port` under [cluster]."),
    ("timed out during startup", "this machine is too busy for it; the same command may do it in a while."),
    ("Version mismatch", "the cluster runs another version of Python or Ray."),
    ("AuthenticationError", "the head does not accept this machine's token."),
    ("Unauthenticated", "the head does not accept this machine's token."),
    ("Address already in use", "a port is taken; `port` and `ports` under [cluster] name others."),
    ("Only one usage of each socket", "a port is taken; `port` and `ports` under [cluster] name others."),
    ("No space left on device", "its disk, or /dev/shm, is full."),
)


def _parts(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            raise ConfigError(
                "This is another account's, but Ray's sockets belong here.", "Remove it.", where=str(folder)
            )
        folder.chmod(0o700)
    except OSError as error:
        raise ConfigError(f"Ray's folder cannot be made: {error.strerror}.", where=str(folder)) from error
    return folder


def _check_ports(cluster: ClusterSettings, node: LocalNode) -> None:
    head = Address(*_parts(node.head)).port if node.is_head else None
    deadline = time.monotonic() + FREE_SECONDS
    while busy := in_the_way(listening(), cluster.ports, head):
        if time.monotonic() > deadline:
            told = f"port {busy[0]}" if len(busy) == 1 else f"ports {', '.join(map(str, busy))}"
            raise ConfigError(
                f"Another program of this machine listens at {told}, which Ray needs.",
                "End it, or name others with `port` and `ports` under [cluster].",
            )
        time.sleep(POLL)


def listening() -> set[int]:
    """The TCP ports in use on this machine."""
    sockets = psutil.net_connections("tcp")
    return {each.laddr.port for each in sockets if each.status == psutil.CONN_LISTEN and each.laddr}


def _locked(home: Home) -> int:
    lock = os.open(home.node_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        for _ in range(ATTEMPTS):
            if try_lock(lock, home.node_lock):
                return lock
            time.sleep(POLL)
        raise already(local_node(home))
    except BaseException:
        os.close(lock)
        raise


def already(node: LocalNode | None) -> ConfigError:
    """The error for a machine that joins twice."""
    head = f" at {node.head}" if node is not None and node.head else ""
    return ConfigError(f"This machine is in a cluster{head} already.", "`marlaas cluster leave` leaves it.")


def _said(log: Path, begun: int) -> str:
    with open(log, "rb") as file:
        file.seek(begun)
        return file.read().decode("utf-8", "replace")


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)

"""Joining and leaving a cluster: addresses, ports, token, and this machine's Ray."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from ...errors import ClusterUnreachable, ConfigError
from ...home.paths import Home
from ...home.settings import PORTS, ClusterSettings
from ...locks import said_by_holder, try_lock
from ...programs import run_program
from .node import reason_in, refuses_token

# Ray's ports are a fixed range, so that a firewall can name it.


FIGURES = 6
RANGE = (  # options of ``ray start`` that set the first and the last port, these two, and what they are for
    (("--node-manager-port",), 0, 0, "Ray's node manager: starts the node host, tells which machines live"),
    (("--object-manager-port",), 1, 1, "Ray's object manager: versions' files between machines"),
    (("--runtime-env-agent-port",), 2, 2, "an agent of Ray, asked by its own machine"),
    (("--dashboard-agent-grpc-port",), 3, 3, "another, likewise"),
    (("--dashboard-agent-listen-port",), 4, 4, "the same one, over HTTP"),
    (("--metrics-export-port",), 5, 5, "Ray's figures, which nobody here reads"),
    ((), FIGURES, FIGURES, "further figures of the head's"),
    (("--min-worker-port", "--max-worker-port"), 10, PORTS - 1, "the bridge and the node hosts: all calls"),
)
HEAD = "the head alone: where machines join, and Ray's own records"


def port_flags(first: int) -> list[str]:
    """``ray start``'s options for a range from ``first``."""
    return [
        f"{flag}={first + place}"
        for flags, begin, end, _ in RANGE
        for flag, place in zip(flags, (begin, end), strict=False)
    ]


def listed_ports(head: int, first: int) -> list[tuple[str, str]]:
    """All ports and their purposes, for people."""
    rows = [(f"{first + begin}{f'-{first + end}' if end > begin else ''}", what) for _, begin, end, what in RANGE]
    return [(str(head), HEAD), *rows]


def in_the_way(listening: Iterable[int], first: int, head: int | None) -> list[int]:
    """Used ports that Ray needs. ``head``: its port; None: another machine."""
    needed = {first + begin for flags, begin, end, _ in RANGE if flags and end == begin}
    return sorted((needed | ({head} if head else set())) & set(listening))


AUTO = "auto"
SECONDS = 3.0
VIRTUAL = ("docker", "br-", "veth", "virbr", "tun", "tap", "wg", "cni", "flannel", "podman", "lxc")
"""Networks that lead to no other machine, or not by the shortest way."""


@dataclass(frozen=True)
class Address:
    """The address of a head."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, port: int) -> Address:
    """``HOST`` or ``HOST:PORT``. Raises ``ConfigError``."""
    host, separator, given = text.strip().rpartition(":")
    if not separator or text.strip().endswith("]") or (":" in host and not host.endswith("]")):
        host, given = text.strip(), str(port)
    host = host.removeprefix("[").removesuffix("]")
    number = int(given) if given.isascii() and given.isdigit() else 0
    if not host or any(not c.isprintable() or c.isspace() or c in "/@" for c in host) or not 0 < number < 65536:
        raise ConfigError(f"{text!r} is no address.", "An address is a machine and a port: 192.168.1.10:6379.")
    return Address(host, number)


def check_listens(address: Address, seconds: float = SECONDS) -> None:
    """Raise ``ClusterUnreachable`` if nobody listens."""
    hint = "On the head, `marlaas cluster status` says its address; a firewall must let its ports through."
    try:
        socket.create_connection((address.host, address.port), timeout=seconds).close()
    except socket.gaierror as error:
        raise ClusterUnreachable(f"No machine is called {address.host!r}.", hint) from error
    except TimeoutError as error:
        raise ClusterUnreachable(f"Nothing answers at {address} within {seconds:g} s.", hint) from error
    except OSError as error:
        raise ClusterUnreachable(f"No Ray is at {address}: {(error.strerror or str(error)).lower()}.", hint) from error


def address_towards(address: Address) -> str:
    """This machine's address on the route to another; nothing is sent."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as way:
            way.connect((address.host, address.port))
            return str(way.getsockname()[0])
    except OSError as error:
        raise ClusterUnreachable(f"No network leads to {address}: {error.strerror}.", "Check the address.") from error


def own_addresses() -> list[tuple[str, str]]:
    """IPv4 addresses with networks; virtual ones last."""
    alive = {name for name, state in psutil.net_if_stats().items() if state.isup}
    found = [
        (one.address, name)
        for name, many in psutil.net_if_addrs().items()
        for one in many
        if name in alive and one.family == socket.AF_INET and not one.address.startswith(("127.", "169.254."))
    ]
    return sorted(found, key=lambda one: one[1].startswith(VIRTUAL))


def own_address(given: str = "") -> str:
    """``given``, or the only address: a wrong guess would make a cluster that nobody can join.

    Raises ``ConfigError``.
    """
    here = own_addresses()
    if given:
        if given not in (*(address for address, _ in here), "127.0.0.1"):
            told = ", ".join(f"{address} ({name})" for address, name in here) or "127.0.0.1 alone"
            raise ConfigError(f"{given} is no address of this machine.", f"It has {told}.")
        return given
    real = [one for one in here if not one[1].startswith(VIRTUAL)] or here
    if len(real) == 1:
        return real[0][0]
    if not real:
        raise ConfigError(
            "This machine is on no network.", "`--ip 127.0.0.1` makes a cluster of homes on this machine alone."
        )
    told = ", ".join(f"{address} ({name})" for address, name in real)
    raise ConfigError(
        f"This machine has several addresses: {told}.", "Name the one that the other machines reach, with --ip."
    )


# Anybody who reaches a Ray without a token runs programs as its account.

TOKEN_BYTES = 32
LONGEST = 4096
LEAST_STORE = 75 * 2**20

FIXED = {
    # Else Ray reports use to its makers.
    "RAY_USAGE_STATS_ENABLED": "0",
    # Code goes by name, not by value; ``Versions`` compares the rest.
    "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor",
    # At 95 % of memory Ray would kill the node host with all workers; the kernel ends one worker.
    "RAY_memory_monitor_refresh_ms": "0",
    # Ray would hide all cards from the node host.
    "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
    "RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES": "1",
    "RAY_EXPERIMENTAL_NOSET_ROCR_VISIBLE_DEVICES": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Children would inherit Ray's niceness 15.
    "RAY_worker_niceness": "0",
    # Milliseconds. Ray ends a node with a silent agent after 30,000: too few for imports on a busy machine.
    "RAY_agent_register_timeout_ms": "120000",
    # The engine has drained the machine.
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    # See ``prepare``.
    "RAY_START_HOOK": "marlaas.engine.machine.cluster.joining.prepare",
}


def ray_environment(home: Home, cluster: ClusterSettings) -> dict[str, str]:
    """Raises ``ConfigError`` as ``check_token``."""
    check_token(home, cluster)
    environment = (
        FIXED
        | {"DASHBOARD_METRIC_PORT": str(cluster.ports + FIGURES), "MARLAAS_HOME": str(home.root)}
        | {"RAY_AUTH_MODE": "disabled" if cluster.insecure else "token"}
    )
    if cluster.insecure:
        return environment
    # Ray prefers a token in the variable, perhaps of another cluster.
    return environment | {"RAY_AUTH_TOKEN": "", "RAY_AUTH_TOKEN_PATH": str(token_file(home, cluster))}


def ray_flags(cluster: ClusterSettings) -> list[str]:
    """Options of ``ray start`` besides addresses and ports."""
    return [
        "--num-cpus=0",
        "--num-gpus=0",
        # Ray's default, 30 % of the memory, is unplanned.
        f"--object-store-memory={max(LEAST_STORE, int(cluster.object_store_gb * 1e9))}",
        "--include-log-monitor=false",
        "--disable-usage-stats",
    ]


HEAD_FLAGS = (
    # A web page that can start programs, and 400 MB.
    "--include-dashboard=false",
    "--no-monitor",
)


def token_file(home: Home, cluster: ClusterSettings) -> Path:
    """This machine's copy."""
    return Path(cluster.token) if cluster.token else home.cluster_token


def check_token(home: Home, cluster: ClusterSettings) -> None:
    """Raise ``ConfigError`` unless there is a private token, or ``insecure = true``."""
    if cluster.insecure:
        return
    path = token_file(home, cluster)
    try:
        status = path.stat()
        text = path.read_bytes()[:LONGEST].strip()
    except FileNotFoundError:
        raise ConfigError(
            "This machine has no token of the cluster.",
            "Copy the head's file there, with mode 0600: `marlaas cluster join` on the head tells how.",
            where=str(path),
        ) from None
    except OSError as error:
        raise ConfigError(f"The token cannot be read: {error.strerror}.", where=str(path)) from error
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise ConfigError(
            f"Others may read the cluster's token (mode {mode:04o}).",
            f"`chmod 600 {path}` keeps it to yourself; make another if somebody has read it.",
            where=str(path),
        )
    if not text:
        raise ConfigError("The file of the cluster's token is empty.", "Copy the head's file.", where=str(path))


def make_token(home: Home, cluster: ClusterSettings) -> Path:
    """Make a missing token. Raises ``ConfigError``."""
    path = token_file(home, cluster)
    if not path.exists():
        keep_token(path, secrets.token_hex(TOKEN_BYTES))
    check_token(home, cluster)
    return path


def keep_token(path: Path, token: str) -> None:
    """Private and atomic. Raises ``ConfigError``."""
    token = token.strip()
    if not token or len(token) > LONGEST or not token.isprintable() or " " in token:
        raise ConfigError("What was given is no token.", "A token is one word, as the head's file has it.")
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(token)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ConfigError(f"The token cannot be written: {error.strerror}.", where=str(path)) from error


# Ray's clients wait long and may end their process: ``ask`` runs this module as a program. The last printed line is
# JSON.

ASKING_SECONDS = 45.0
KEY = b"marlaas/head"
SPACE = b"marlaas"
MARK = "marlaas-answer "
PATIENCE = 10
HASTE = {"RAY_gcs_rpc_server_reconnect_timeout_s": "3"}


def ask(
    what: str, address: str, environment: Mapping[str, str], given: object = None, seconds: float = ASKING_SECONDS
) -> dict[str, Any]:
    """Run ``look``, ``tell`` or ``meet``; ``tell`` writes ``given``.

    Never raises: ``failed`` in the answer is ``token``, ``time`` or ``other``, and ``why`` the last message.
    """
    command = [
        sys.executable,
        "-P",
        "-m",
        "marlaas.engine.machine.cluster.joining",
        what,
        address,
        json.dumps(given),
    ]
    try:
        status, said = run_program(command, seconds, {**HASTE, **environment})
    except TimeoutError as error:
        return {"failed": "time", "why": str(error)}
    except OSError as error:
        return {"failed": "other", "why": str(error)}
    return answer_in(said, status)


def answer_in(said: str, status: int) -> dict[str, Any]:
    """The answer in the program's output."""
    for line in reversed(said.splitlines()):
        if line.startswith(MARK):
            found = json.loads(line.removeprefix(MARK))
            return found if isinstance(found, dict) else {"failed": "other", "why": "no answer"}
    failed = "token" if refuses_token(said) else "other"
    return {"failed": failed, "why": reason_in(said if said.strip() else f"status {status}")}


def look(address: str, given: object) -> dict[str, Any]:
    """The cluster's members, and the head's record."""
    from ray._raylet import GcsClient

    client = GcsClient(address=address)
    record = client.internal_kv_get(KEY, SPACE, timeout=PATIENCE)
    nodes = [
        {
            "id": node_id.hex(),
            "name": info.node_name,
            "address": info.node_manager_address,
            "alive": info.state == 0,
            "head": info.is_head_node,
        }
        for node_id, info in client.get_all_node_info(timeout=PATIENCE).items()
    ]
    return {"nodes": nodes, "record": json.loads(record) if record else {}}


def tell(address: str, given: object) -> dict[str, Any]:
    """Store the head's record for joining machines."""
    from ray._raylet import GcsClient

    GcsClient(address=address).internal_kv_put(KEY, json.dumps(given).encode(), True, SPACE, timeout=PATIENCE)
    return {}


def meet(address: str, given: object) -> dict[str, Any]:
    """Run a function on the head: all ports must be open both ways."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.init(address=address, namespace="marlaas", log_to_driver=False, configure_logging=False)
    head = next(
        node["NodeID"] for node in ray.nodes() if node["Alive"] and "node:__internal_head__" in node["Resources"]
    )
    place = NodeAffinitySchedulingStrategy(head, soft=False)
    answer = ray.remote(num_cpus=0, max_retries=0)(lambda: None).options(scheduling_strategy=place)
    ray.get(answer.remote())
    begun = time.perf_counter()
    ray.get(answer.remote())
    return {"seconds": time.perf_counter() - begun}


PROGRAM = {"look": look, "tell": tell, "meet": meet}


def prepare(parameters: Any, head: bool) -> None:
    """Disable the server for outside programs and the end of slow nodes; ``ray start`` has no such options."""
    parameters.ray_client_server_port = None
    tell_listen_port()


def tell_listen_port() -> None:
    """Publish a node agent's port before it listens.

    A node ends without it after 15 s (ray#65983): on a busy machine the agent's imports take as long.
    """
    try:
        from ray._private.node import Node
        from ray._raylet import persist_port

        start = Node.start_raylet
    except (ImportError, AttributeError):
        return

    def start_raylet(node: Any, *args: Any, **kwargs: Any) -> None:
        name = "dashboard_agent_listen_port"
        persist_port(node._session_dir, node._node_id, name, getattr(node._ray_params, name))
        start(node, *args, **kwargs)

    Node.start_raylet = start_raylet


# ``ray start --block`` is the parent of Ray's processes and inherits the lock on ``node.lock``. ``ray stop`` ends
# everybody's, and is never needed. Imports no ray.

START_SECONDS = 120.0
"""3 to 7 on a quiet machine."""
END_SECONDS = 20.0
POLL = 0.1
FREE_SECONDS = 5.0
ATTEMPTS = 3
STARTED = "Ray runtime started"
SIZE = 4096
LONGEST_FOLDER = 48
"""With its sockets' names it must fit into 107 characters."""
EXTRA = "cluster"
started: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True)
class LocalNode:
    """A home's Ray."""

    pid: int
    head: str
    is_head: bool
    name: str
    ip: str


def check_ray() -> None:
    """Raise ``ConfigError`` if ray is missing, or unsupported here."""
    if find_spec("ray") is None:
        raise ConfigError(
            "Several machines need Ray, which is not installed.",
            f"`make install EXTRAS={EXTRA}`, or `pip install 'marlaas[{EXTRA}]'`.",
        )
    if sys.platform != "linux":
        raise ConfigError("Ray joins several machines on Linux only.", "This machine can still work alone.")


def ray_folder(home: Home) -> Path:
    """0700; outside of the home: its path may be too long for a socket."""
    name = hashlib.sha256(os.fsencode(home.root)).hexdigest()[:10]
    folder = Path(tempfile.gettempdir()) / f"marlaas-{name}"
    return folder if len(str(folder)) <= LONGEST_FOLDER else Path("/tmp") / folder.name


def local_node(home: Home) -> LocalNode | None:
    """This home's Ray, if it lives."""
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
    """Start Ray in the background, and fill in ``node.pid``.

    ``starting``: called about every 0.1 s. Raises ``ConfigError`` if one runs, ports are in use or Ray refuses;
    ``ClusterUnreachable`` if late.
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
            raise ConfigError(f"Ray did not start: {reason_in(said)}.", f"See {log}.")
        if time.monotonic() > deadline:
            stop_ray(home, grace=0.0)
            raise ClusterUnreachable(f"Ray did not start within {seconds:g} s: {reason_in(said)}.", f"See {log}.")
        starting()
        time.sleep(POLL)
    return node


def command(cluster: ClusterSettings, node: LocalNode, folder: Path) -> list[str]:
    """The command line of this machine's Ray."""
    head = parse_address(node.head, 0)
    place = ["--head", f"--port={head.port}", *HEAD_FLAGS] if node.is_head else [f"--address={node.head}"]
    return [
        *(sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--block", *place),
        *(f"--node-ip-address={node.ip}", f"--node-name={node.name}", f"--temp-dir={folder}"),
        *ray_flags(cluster),
        *port_flags(cluster.ports),
    ]


def stop_ray(home: Home, grace: float = END_SECONDS) -> bool:
    """End this machine's Ray, killed after ``grace`` seconds; False if this home has none."""
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
    """Kill the rest of a killed Ray, known by the session of ``ray start``: its agents take a minute to notice."""
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
    head = parse_address(node.head, 0).port if node.is_head else None
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
    """Used TCP ports."""
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


if __name__ == "__main__":
    answered = PROGRAM[sys.argv[1]](sys.argv[2], json.loads(sys.argv[3]))
    print(f"\n{MARK}{json.dumps(answered)}", flush=True)
    os._exit(0)  # Ray's own threads have nothing to finish

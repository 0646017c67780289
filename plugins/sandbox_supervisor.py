"""Supervises a program: ``python sandbox_supervisor.py SECONDS MEMORY_MB PARENT GROUP
[FOLDER BYTES MOUNT CONTAINER COMMAND]``.

The child becomes the program; the parent then kills what it started. It exits as the program did: 128 + n for signal n,
SIGALRM if time was up, SIGVTALRM if the machine was too busy to judge, SIGUSR1 if it took too much memory, SIGUSR2 if
too much of the disk.

SECONDS: processor seconds of all processes. Waiting is bounded separately, without time that lacked a core. The program
is a model's ``main.py``; the system keeps its limits. Or it is the author's COMMAND in its own session: others bound
its time; the memory of all its processes (0: no limit) and the BYTES in FOLDER are measured. The program sees FOLDER at
MOUNT, too, unless that is empty; if it is ``/``, nothing else but the system. If COMMAND runs a container, its name is
CONTAINER, and it is removed unless COMMAND ends by itself. GROUP: control group, or empty.

If a program kills its supervisor, the supervisor's parent knows its processes by a limit that none can raise again.
Imports nothing of marlaas.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from time import monotonic, thread_time
from types import FrameType, ModuleType

_LARGEST_FILE = 16 << 20
_OPEN_FILES = 64
MORE_PROCESSES = 128
"""With threads."""
_SWEEPING = 1.0
"""Processor seconds, since a busy machine may give none for a second; ``sandbox`` tries again."""
STARVED = signal.SIGVTALRM
NO_MEMORY = signal.SIGUSR1
NO_DISK = signal.SIGUSR2
_VERDICTS = (STARVED, NO_MEMORY, NO_DISK)
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SOONEST, _LATEST = 0.02, 0.25
"""Seconds between two looks."""
_REST = 20.0
"""Times as long as a look took, until the next one: a folder may hold very many files."""
_CLONE_NEWNS, _CLONE_NEWUSER, _MS_BIND, _MS_REC = 0x20000, 0x10000000, 4096, 16384
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY, _MNT_DETACH = 442, -100, 0x8000, 1, 2
_WRITABLE = ("dev", "proc", "sys")
SYSTEM = ("bin", "etc", "lib", "lib32", "lib64", "libx32", "nix", "run/systemd/resolve", "sbin", "usr", *_WRITABLE)
"""Folders of the host for a program with a root of its own."""
_UNMARKED = {name: value for name, value in os.environ.items() if name != "MARLAAS_PROGRAM"}
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_LANDLOCK_CREATE, _LANDLOCK_RESTRICT = 444, 446
"""Numbers of system calls, on every processor."""
_SCOPE_SIGNALS = 2


class Ended(Exception):
    """Time is up, or nobody waits."""


class Used:
    """With all that it started."""

    def __init__(self, wall: float, processor: float, delays: dict[int, float]) -> None:
        """Seconds: monotonic, processor, and each thread's (id) wait for a core."""
        self.wall = wall
        self.processor = processor
        self.delays = delays


def wall_limit(seconds: float) -> float:
    """Seconds for ``seconds`` of its own: a tenth of a core, and half a minute to be scheduled."""
    return 10.0 * seconds + 30.0


def waited(before: Used, after: Used) -> float:
    """Seconds without computing or waiting for a core; 0 if threads began or ended."""
    if before.delays.keys() != after.delays.keys():
        return 0.0
    delayed = sum(max(0.0, after.delays[thread] - before.delays[thread]) for thread in before.delays)
    return max(0.0, after.wall - before.wall - (after.processor - before.processor) - delayed)


class Watch:
    """One program's time limits."""

    def __init__(self, seconds: float, look: Callable[[], Used], cores: int) -> None:
        self._seconds = seconds
        self._look = look
        self._cores = cores
        self._first = self._last = look()
        self._waited = 0.0

    def look(self) -> float:
        """Seconds until the next look; raises ``Ended`` with SIGALRM or ``STARVED``."""
        now = self._look()
        self._waited += waited(self._last, now)
        self._last = now
        left = self._seconds - (now.processor - self._first.processor)
        if left <= 0 or self._waited >= 2.0 * self._seconds + 1.0:  # it waits above all for a cold disk
            raise Ended(signal.SIGALRM)
        if now.wall - self._first.wall >= wall_limit(self._seconds):
            raise Ended(STARVED)
        return max(_SOONEST, min(_LATEST, left / self._cores))


class Space:
    """One command's memory and disk space."""

    def __init__(self, memory: int, folder: str, disk: int) -> None:
        """Both in bytes."""
        self._memory = memory
        self._folder = folder
        self._disk = disk

    def look(self) -> float:
        """Seconds until the next look; raises ``Ended`` with ``NO_MEMORY`` or ``NO_DISK``."""
        began = monotonic()
        if self._memory and resident(self._memory) > self._memory:
            raise Ended(NO_MEMORY)
        if size_of(self._folder) > self._disk:
            raise Ended(NO_DISK)
        return max(_LATEST, _REST * (monotonic() - began))


def main() -> None:
    """The child becomes the program, the parent waits."""
    seconds, memory_mb, parent, group = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    container, command = "".join(sys.argv[8:9]), sys.argv[9:]
    _tell_kernel(_PR_SET_PDEATHSIG, signal.SIGTERM)
    adopt_orphans(True)
    if os.getppid() != parent:
        os._exit(1)
    signal.signal(signal.SIGTERM, _end)
    for verdict in _VERDICTS:
        signal.signal(verdict, signal.SIG_IGN)  # the program must not be able to say so
    supervisor, program = os.getpid(), os.fork()
    if program:
        if command:
            _keep(program, Space(memory_mb << 20, sys.argv[5], int(sys.argv[6])), group, True, command[0], container)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        _keep(program, Watch(seconds, used, cores), group, False)
    for number in (signal.SIGTERM, *_VERDICTS):
        signal.signal(number, signal.SIG_DFL)
    if command and sys.argv[7]:
        mount(sys.argv[5], sys.argv[7], command[0])
    _tell_kernel(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        os._exit(1)
    if not container:  # podman needs newuidmap
        _tell_kernel(_PR_SET_NO_NEW_PRIVS, 1)  # else it could start something as another user, which nobody can kill
    if group:
        _tell_group(group, "cgroup.procs", b"0")
    if command:
        _become(command)
    _limit(int(seconds) + 2, memory_mb)
    _run()


def mount(folder: str, place: str, program: str = "") -> None:
    """Show a folder at another place to this process and what it starts, and go there. Raises ``OSError``.

    At ``/``, it is the root, with ``SYSTEM``, this Python and the ``program``. Linux with namespaces for every user;
    the caller keeps its user and group.
    """
    import ctypes

    libc, user, group = ctypes.CDLL(None, use_errno=True), os.getuid(), os.getgid()

    def bind(source: str, target: str) -> None:
        if libc.mount(os.fsencode(source), os.fsencode(target), None, _MS_BIND | _MS_REC, None):
            raise OSError(ctypes.get_errno(), "no mount", target)

    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "no namespace of its own")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    here = os.path.relpath(os.getcwd(), folder)
    bind(folder, folder if place == "/" else place)
    if place == "/":
        read_only = (ctypes.c_uint64 * 4)(_MOUNT_ATTR_RDONLY)
        for source in (*(f"/{name}" for name in SYSTEM), *_installed(folder, program)):
            target = folder + source
            if os.path.lexists(source):
                os.makedirs(os.path.dirname(target), exist_ok=True)
            if os.path.islink(source) and not os.path.lexists(target):
                os.symlink(os.readlink(source), target)
            elif os.path.exists(source) and not os.path.islink(source):
                if os.path.isdir(source):
                    os.makedirs(target, exist_ok=True)
                else:
                    os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
                bind(source, target)
                if source[1:] not in _WRITABLE:
                    words = os.fsencode(target), _AT_RECURSIVE, ctypes.byref(read_only), ctypes.sizeof(read_only)
                    libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, *words)  # Linux 5.12; else root could change its system
        os.chdir(folder)
        if libc.pivot_root(b".", b".") or libc.umount2(b".", _MNT_DETACH):
            raise OSError(ctypes.get_errno(), "no root of its own")
    os.chdir(os.path.join(place, here))


_NODE = "/node_modules/"


def _installed(folder: str, program: str) -> list[str]:
    """Where this Python and the program lie, unless the system's folders or ``folder`` have them."""
    files = [sys.executable] if not program or os.path.lexists(folder + program) else [sys.executable, program]
    files = [path for file in files for path in (file, os.path.realpath(file))]
    folders = {os.path.dirname(file) for file in files if os.path.basename(os.path.dirname(file)) == "bin"}
    above = {sys.base_prefix, os.path.realpath(sys.base_prefix), *map(os.path.dirname, folders)}
    prefixes = {place for place in above if os.path.isdir(os.path.join(place, "lib"))}
    alone = {file for file in files if os.path.dirname(file) not in folders and _NODE not in file}
    packages = {file.partition(_NODE)[0] + _NODE for file in files if _NODE in file}  # a package looks there for others
    return [place for place in sorted(alone | folders | prefixes | packages) if place.split("/")[1] not in SYSTEM]


def _end(number: int, _frame: FrameType | None) -> None:
    _ignore_signals()
    raise Ended(number)


def _ignore_signals() -> None:
    """A second end must not interrupt the first: the program's processes would stay."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)


def _keep(program: int, watch: Watch | Space, group: str, session: bool, client: str = "", container: str = "") -> None:
    def look(_number: int, _frame: FrameType | None) -> None:
        try:
            signal.setitimer(signal.ITIMER_REAL, watch.look())
        except Ended:
            _ignore_signals()
            raise

    verdict = 0
    try:
        signal.signal(signal.SIGALRM, look)
        signal.setitimer(signal.ITIMER_REAL, _SOONEST)
        code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
        _ignore_signals()
    except Ended as end:
        verdict = end.args[0]
        code = -signal.SIGTERM
        with contextlib.suppress(OSError):
            os.kill(program, signal.SIGKILL)
    if group:
        _tell_group(group, "cgroup.kill", b"1")
    if session:
        with contextlib.suppress(OSError):
            os.killpg(program, signal.SIGKILL)
    sweep()
    if container and verdict:
        _remove(client, container)
    if verdict in (signal.SIGALRM, *_VERDICTS):
        signal.signal(verdict, signal.SIG_DFL)
        os.kill(os.getpid(), verdict)
    os._exit(code if code >= 0 else 128 - code)


def _remove(client: str, container: str) -> None:
    """In its own session: this process may be killed meanwhile."""
    silent = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_WRONLY, 0) for stream in (1, 2)]
    words = [client, "rm", "--force", "--volumes", container]
    os.waitpid(os.posix_spawn(client, words, _UNMARKED, file_actions=silent, setsid=True), 0)


def used() -> Used:
    """This process's descendants, ended ones included."""
    import resource

    ended, delays = resource.getrusage(resource.RUSAGE_CHILDREN), {}
    processor = ended.ru_utime + ended.ru_stime
    for pid in _with_descendants(children()):
        with contextlib.suppress(OSError, IndexError, ValueError):  # it has just ended, or the kernel does not say
            with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
                processor += sum(map(int, file.read().rpartition(b")")[2].split()[11:15])) / _TICKS
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/schedstat", "rb", buffering=0) as file:
                    delays[int(thread)] = int(file.read().split()[1]) / 1e9
    return Used(monotonic(), processor, delays)


def resident(most: int) -> int:
    """Bytes of this process's descendants in memory. Shared pages count once if the sum is above ``most``."""
    sizes = {pid: _resident_of(pid) for pid in _with_descendants(children())}
    if sum(sizes.values()) > most:  # the kernel takes its time for the shares
        sizes = {pid: _share_of(pid, size) for pid, size in sizes.items()}
    return sum(sizes.values())


def _resident_of(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/statm", "rb", buffering=0) as file:
        return int(file.read().split()[1]) * _PAGE
    return 0


def _share_of(pid: int, otherwise: int) -> int:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:
        return next((int(line.split()[1]) << 10 for line in file if line.startswith(b"Pss:")), otherwise)
    return otherwise


def size_of(folder: str) -> int:
    """Bytes that it takes of the disk. Follows no links."""
    total, waiting, linked = 0, [folder], set[int]()
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # it is gone
                    status = entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif status.st_nlink > 1:
                        if status.st_ino in linked:
                            continue
                        linked.add(status.st_ino)
                    total += status.st_blocks * 512
    return total


def adopt_orphans(adopt: bool) -> None:
    """Make orphans children of this process, or no longer."""
    _tell_kernel(_PR_SET_CHILD_SUBREAPER, int(adopt))


def sweep(chosen: Callable[[int], bool] = lambda pid: True) -> None:
    """Kill ``chosen`` children and all below them.

    All are stopped first: a stopped process counts, so no new one takes its place.
    """
    until = thread_time() + _SWEEPING
    while (heads := [pid for pid in children() if chosen(pid)]) and thread_time() < until:
        stopped: set[int] = set()
        while (new := set(_with_descendants(heads)) - stopped) and thread_time() < until:
            _signal(new, signal.SIGSTOP)
            stopped |= new
        _signal(stopped, signal.SIGKILL)
        for pid in heads:
            with contextlib.suppress(OSError):
                os.waitpid(pid, os.WNOHANG)


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def _with_descendants(pids: Iterable[int]) -> Iterator[int]:
    waiting = list(pids)
    while waiting:
        yield (pid := waiting.pop())
        waiting += children(pid)


def stray(pid: int) -> bool:
    """A dead supervisor's program has the low hard limit of open files."""
    import resource

    try:
        return resource.prlimit(pid, resource.RLIMIT_NOFILE)[1] <= _OPEN_FILES
    except OSError:  # it has ended
        return False


def children(parent: int | None = None) -> list[int]:
    """This process's by default; empty if the system lists none."""
    if sys.platform != "linux":
        return []
    parent, found = parent or os.getpid(), b""
    try:  # quick, because a program may go on in a new process thousands of times a second
        for thread in os.listdir(f"/proc/{parent}/task"):
            with open(f"/proc/{parent}/task/{thread}/children", "rb") as file:
                found += file.read()
    except OSError:  # it or one of its threads has ended, or the kernel keeps no such lists
        return children_by_search(parent) if os.path.exists(f"/proc/{parent}") else []
    return [int(pid) for pid in found.split()]


def children_by_search(parent: int) -> list[int]:
    """From all processes."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{int(name)}/stat", "rb") as file:
                above = file.read().rpartition(b")")[2].split()[1]  # the name before it may hold any character
            if int(above) == parent:
                found.append(int(name))
    return found


def _tell_kernel(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _keep_signals_inside() -> None:
    """Neither this process nor those that it starts can end any other; Linux 6.12."""
    if sys.platform != "linux":
        return
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        call = ctypes.CDLL(None).syscall
        rules = (ctypes.c_uint64 * 3)(0, 0, _SCOPE_SIGNALS)  # of files, of ports, of what it may reach
        if (ruleset := call(_LANDLOCK_CREATE, rules, ctypes.sizeof(rules), 0)) >= 0:
            call(_LANDLOCK_RESTRICT, ruleset, 0)
            os.close(ruleset)


def _tell_group(group: str, name: str, value: bytes) -> None:
    with contextlib.suppress(OSError), open(os.path.join(group, name), "wb", buffering=0) as file:
        file.write(value)


def _limit(cpu_seconds: int, memory_mb: int) -> None:
    import resource

    bounds = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: cpu_seconds,
        resource.RLIMIT_FSIZE: _LARGEST_FILE,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_AS: memory_mb << 20,
    }
    if sys.platform == "linux":
        bounds[resource.RLIMIT_NPROC] = _threads_of(os.getuid()) + MORE_PROCESSES  # the limit counts all of the user
    for kind, bound in bounds.items():
        with contextlib.suppress(OSError, ValueError):
            hard = resource.getrlimit(kind)[1]
            allowed = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
            resource.setrlimit(kind, (allowed, allowed))


def _threads_of(user: int) -> int:
    found = 0
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            if os.stat(f"/proc/{int(name)}").st_uid == user:
                found += len(os.listdir(f"/proc/{name}/task"))
    return found


def _become(command: list[str]) -> None:
    """Exits 127 if there is none, 126 if it cannot be run."""
    import resource

    os.setsid()
    _keep_signals_inside()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))  # Node reserves far more than it uses
    for number in (signal.SIGPIPE, getattr(signal, "SIGXFSZ", signal.SIGPIPE)):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, and what it starts would, too
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def _run() -> None:
    with open("main.py", "rb") as file:
        source = file.read()
    module = sys.modules["__main__"] = ModuleType("__main__")
    sys.argv[:] = ["main.py"]
    try:
        exec(compile(source, "main.py", "exec"), module.__dict__)
    except Exception as error:
        import traceback

        below = error.__traceback__.tb_next if error.__traceback__ is not None else None  # without this file's frame
        traceback.print_exception(type(error), error, below)
        sys.exit(1)


if __name__ == "__main__":
    main()

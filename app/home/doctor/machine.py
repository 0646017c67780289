"""What this machine has and lacks: the findings of ``marlaas doctor``.

Each check is a small function that returns a finding and never raises. Whatever may crash or take long (a library
built for another processor, torch) is tried in a child process.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from marlaas.engine.errors import ConfigError, MarlaasError
from marlaas.engine.home import Home
from marlaas.engine.locks import check_lockable
from marlaas.engine.programs import run_program

from ...words.format import line, size
from .devices import Devices
from .finding import Finding
from .placement import decided

PROBE_SECONDS = 120.0
LOW_DISK = 2e9


def base_folder(home: Home) -> Path:
    """Where the base model of a home lies. Raises ``ConfigError`` where it cannot be used."""
    from marlaas.engine.base import load_base
    from marlaas.engine.home import load_settings

    return load_base(load_settings(home).base).path.resolve()


def examine(home: Home, devices: Devices) -> list[Finding]:
    """Every check, in the order in which a person would ask; ``devices`` were looked at before."""
    checks: tuple[Callable[[Home], Finding], ...] = (
        _disk, _compiler, _torch, _llama, _home, _lost, _plugins, _libraries, _sandbox, _notify, _base, _engine,
        _cluster,
    )  # fmt: skip
    return [_python(home), *devices.findings, *decided(home, devices.seen), *(check(home) for check in checks)]


def _python(home: Home) -> Finding:
    return Finding("python", "ok", f"{'.'.join(map(str, sys.version_info[:3]))} ({sys.executable})")


def _disk(home: Home) -> Finding:
    folder = home.root
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < LOW_DISK:
        return Finding("disk", "note", f"{size(free)} free", f"Make room at {folder}, or give another --home.")
    return Finding("disk", "ok", f"{size(free)} free")


def _compiler(home: Home) -> Finding:
    for name in ("c++", "g++", "clang++"):
        if found := shutil.which(name):
            return Finding("compiler", "ok", found)
    return Finding("compiler", "note", "none", "A C++ compiler is needed once, to build llama-cpp-python.")


def _torch(home: Home) -> Finding:
    return _probe(
        "torch",
        "import torch; print(torch.__version__, 'with CUDA' if torch.cuda.is_available() else 'on the CPU')",
        "Training needs it: run `make install` again.",
    )


def _llama(home: Home) -> Finding:
    from marlaas.engine.devices import llama_build, why_missing

    found = _probe(
        "llama.cpp",
        "import llama_cpp; llama_cpp.llama_backend_init(); print('llama-cpp-python', llama_cpp.__version__)",
        "Rollouts without a GPU need it: CMAKE_ARGS=-DLLAVA_BUILD=OFF pip install --no-binary llama-cpp-python"
        " llama-cpp-python builds it for this processor.",
    )
    build = llama_build()
    why, advice = why_missing(build)
    if found.verdict == "ok" or not why or build is None:
        return found
    return Finding("llama.cpp", "note" if build.state == "compiling" else "missing", line(why, 160), line(advice))


def _probe(name: str, code: str, advice: str) -> Finding:
    try:
        status, text = run_program([sys.executable, "-P", "-c", code], PROBE_SECONDS)
    except OSError as error:
        status, text = 1, str(error)
    last = line(text.strip().splitlines()[-1] if text.strip() else "", 160)
    if status == 0:
        return Finding(name, "ok", last)
    if status == -4:  # SIGILL
        return Finding(name, "missing", "crashes: it was built for another processor", advice)
    return Finding(name, "missing", last or f"ends with status {status}", advice)


def _home(home: Home) -> Finding:
    folder = next(path for path in (home.root, *home.root.parents) if path.exists())
    if not folder.is_dir():
        return Finding("home", "missing", f"{folder} is no folder", "Give another --home.")
    if not home.root.exists() and os.access(folder, os.W_OK):
        return Finding("home", "ok", f"{home.root} (not made yet)")
    if not os.access(home.root, os.W_OK):
        return Finding("home", "missing", str(home.root), "It cannot be written: mend its permissions, or give --home.")
    if home.database.exists() and not home.adapters.is_dir():
        advice = "Tasks wait for it: bring it back, or mount its disk; where it is gone for good, make an empty one."
        return Finding("home", "note", f"{home.adapters} is not there", advice)
    try:
        check_lockable(home.lock)
    except ConfigError as error:
        return Finding("home", "missing", error.message, error.hint)
    return Finding("home", "ok", str(home.root))


def _lost(home: Home) -> Finding:
    """A finding about files kept when versions turned out to be damaged; only a person removes them."""
    from marlaas.engine.adapters import lost_files

    found = lost_files(home.lost)
    if not found:
        return Finding("lost+found", "ok", "nothing")
    files, taken = sum(one.files for one in found), size(sum(one.size for one in found))
    value = f"{files} {'file' if files == 1 else 'files'}, {taken} in {home.lost}"
    return Finding("lost+found", "note", value, "Damaged versions, and files beside them; `marlaas clean` shows them.")


def _plugins(home: Home) -> Finding:
    return Finding("plugins", "ok", str(home.plugins))


def _libraries(home: Home) -> Finding:
    """A finding about the libraries of plugins; they are never removed automatically."""
    from marlaas.engine.environments import installed
    from marlaas.engine.home import BUNDLED_PLUGINS

    sets = installed(home.venvs, (BUNDLED_PLUGINS, home.plugins))
    value = (
        f"{len(sets)} of plugins, {size(sum(one.size for one in sets))} in {home.venvs}" if sets else "none installed"
    )
    spare = [one for one in sets if not one.claimed]
    if not spare:
        return Finding("libraries", "ok", value)
    advice = (
        f"No plugin asks for {', '.join(one.folder.name for one in spare)} ({size(sum(one.size for one in spare))}):"
        " delete them there, unless a task is pinned to an older version of its environment."
    )
    return Finding("libraries", "note", value, advice)


def _sandbox(home: Home) -> Finding:
    from marlaas.engine.environments import obstacle
    from marlaas.engine.home import load_settings

    reason = line(obstacle(), 160)
    if not reason:
        return Finding("sandbox", "ok", "bwrap")
    try:
        wanted = load_settings(home).environments.sandbox
    except MarlaasError:  # the finding about the base reports it
        wanted = False
    if wanted:
        return Finding(
            "sandbox", "missing", reason, "Install bubblewrap, or take `sandbox = true` out of marlaas.toml."
        )
    return Finding("sandbox", "ok", f"none: {reason}", "Only environments that ask for it need it.")


def _notify(home: Home) -> Finding:
    """A finding about the command for notifications, looked for as the engine does: else its lack shows too late."""
    from marlaas.engine.home import load_settings

    try:
        words = shlex.split(load_settings(home).notify.command)
    except MarlaasError:  # the finding about the base reports it
        words = []
    if not words:
        return Finding("notify", "ok", "no command is set, so nobody is told when tasks end")
    program = os.path.expanduser(words[0])
    if found := shutil.which(program):
        return Finding("notify", "ok", line(found, 160))
    advice = "It must be a program that may be executed: its whole path, or a name on the engine's PATH."
    return Finding("notify", "missing", f"{line(program, 160)} is not there", advice)


def _base(home: Home) -> Finding:
    from marlaas.engine.base import check_base, load_base
    from marlaas.engine.home import load_settings

    try:
        name = load_settings(home).base
        base = load_base(name)
        check_base(base)
    except MarlaasError as error:
        return Finding("base", "missing", line(error.message), error.hint)
    return Finding("base", "ok", f"{line(name)} ({base.path})")


def _engine(home: Home) -> Finding:
    import time

    from ...reading.opening import opened
    from ...words.tasks import liveness

    try:
        if not home.database.exists():
            return Finding("engine", "ok", "never started; the first `marlaas submit` starts it")
        with opened(home) as reader:
            alive = liveness(reader.engine(), time.time())
    except MarlaasError as error:
        return Finding("engine", "missing", line(error.message), error.hint)
    if alive.word == "silent":
        return Finding("engine", "note", alive.text, f"Its log is in {home.logs}; `marlaas engine stop` ends it.")
    return Finding("engine", "ok", alive.text)


def _cluster(home: Home) -> Finding:
    """A finding about the cluster that this machine is in: by files and locks, for Ray's own answer takes seconds."""
    from marlaas.engine.home import load_settings

    from ..cluster.standing import standing

    try:
        verdict, value, advice = standing(home, load_settings(home).cluster)
    except MarlaasError as error:  # of the settings, which the finding about the base reports, or of the token
        return Finding("cluster", "missing", line(error.message), line(error.hint))
    return Finding("cluster", verdict, line(value, 160), line(advice))

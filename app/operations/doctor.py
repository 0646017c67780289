"""``marlaas doctor``: what the machine has, what is missing, and what to do."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from marlaas.engine.devices.machine import Cpu
from marlaas.engine.devices.software import notes
from marlaas.engine.devices.survey import NO_DRIVER, Survey, survey_machine
from marlaas.engine.devices.usable import Ours, ResourceSettings, UsableResources
from marlaas.engine.errors import MarlaasError
from marlaas.engine.home.paths import BUNDLED_PLUGINS, Home
from marlaas.engine.home.settings import Settings, load_settings
from marlaas.engine.locks import check_lockable
from marlaas.engine.machine.placement.place import cards_in_words
from marlaas.engine.models.find import BaseModel, load_base
from marlaas.engine.models.weights import check_base
from marlaas.engine.programs import run_program

from ..reading import opened
from ..text import machine as words
from ..text.format import counted, line, size
from ..text.tasks import liveness


@dataclass(frozen=True)
class Finding:
    """A line of the report."""

    name: str
    verdict: str
    """ok, note (works, worth knowing) or missing (something will not work)."""
    value: str
    advice: str = ""


# What may hang or crash runs in a child process with a time limit; nothing raises.

LOW_MEMORY = 2e9


def devices_json(seen: Survey) -> dict[str, Any]:
    """The devices in bytes, operations a second and bytes a second."""
    reasons = {gpu.uuid: seen.usable.left_out.get(gpu.uuid, "") for gpu in seen.found.machine.gpus}
    return {
        "cpu": asdict(seen.usable.machine.cpu),
        "gpus": [
            {**asdict(gpu), "label": gpu.label, "reason": reasons[gpu.uuid], "used": not reasons[gpu.uuid]}
            for gpu in seen.found.machine.gpus
        ],
        "driver": seen.found.driver,
        "cuda": seen.found.cuda,
    }


def settings_of(home: Home) -> Settings:
    """The settings, or defaults if they cannot be read, which another finding reports."""
    try:
        return load_settings(home)
    except MarlaasError:
        return Settings()


def surveyed(home: Home, resources: ResourceSettings, measure: bool = False, missing: bool = False) -> Survey:
    """The devices. What the home's engine holds counts as free.

    ``measure`` measures each device again, for some seconds; ``missing`` only those that were not measured.
    """
    workers: frozenset[int] = frozenset()
    with contextlib.suppress(MarlaasError):  # the finding about the engine reports it
        if home.database.exists():
            with opened(home) as reader:
                workers = frozenset(row.pid for row in reader.workers() if row.pid is not None)
    return survey_machine(resources, home.rates, Ours(workers), anew=measure, missing=missing)


def findings(seen: Survey) -> Iterator[Finding]:
    """Lines on the processor, its memory, and every card."""
    yield _cores(seen.found.machine.cpu, seen.usable.machine.cpu)
    yield _memory(seen.usable.machine.cpu)
    found, usable = seen.found, seen.software
    if found.driver:
        cuda = f"{line(found.driver, 30)} with {f'CUDA {line(found.cuda, 20)}' if found.cuda else 'no CUDA'}"
        yield Finding("driver", "ok" if found.cuda else "note", cuda)
    if not found.machine.gpus:
        quiet = found.reason in ("", NO_DRIVER)
        value = f"none: {line(found.reason, 160) or 'this machine has none'}; all runs on the processor"
        yield Finding("gpu", "ok" if quiet else "note", value)
    for gpu in found.machine.gpus:
        reason = seen.usable.left_out.get(gpu.uuid, "")
        yield Finding(gpu.label, "note" if reason else "ok", words.card(gpu, seen.account), line(reason, 400))
    for note in (*found.notes, *seen.usable.notes, *seen.notes):
        yield Finding("gpu", "note", line(note, 200))
    if seen.usable.machine.gpus:
        for reason in notes(usable):
            yield Finding("software", "note", line(reason, 400))


def _cores(cpu: Cpu, left: Cpu) -> Finding:
    there = os.cpu_count() or cpu.count
    rates = words.rates(left.rates)
    parts = [
        str(left.count) if left.count == there else f"{left.count} of {there}",
        "" if cpu.count >= (len(cpu.cores) or there) else f"a quota leaves the time of {counted(cpu.count, 'core')}",
        "" if left.count == cpu.count else f"`cores` under [resources] leaves {left.count}",
        line(cpu.name, 60),
        f"{rates} a core" if rates else "not measured: `marlaas doctor --measure` does",
    ]
    value = " · ".join(part for part in parts if part)
    few = "Sampling and training take turns on one core; two or more overlap them."
    return Finding("cores", "note", value, few) if left.count < 2 else Finding("cores", "ok", value)


def _memory(left: Cpu) -> Finding:
    import psutil

    value = f"{size(left.memory)} free of {size(psutil.virtual_memory().total)}"
    few = "Less than 2 GB are free; larger bases will not fit."
    return Finding("memory", "note", value, few) if left.memory < LOW_MEMORY else Finding("memory", "ok", value)


PROBE_SECONDS = 120.0
LOW_DISK = 2e9
TORCH = "import torch; print(torch.__version__, 'with CUDA' if torch.cuda.is_available() else 'on the CPU')"
LLAMA = "import llama_cpp; llama_cpp.llama_backend_init(); print('llama-cpp-python', llama_cpp.__version__)"

Answer: TypeAlias = tuple[str, str] | tuple[str, str, str]
"""Verdict, value and advice of a finding."""


def examine(home: Home, seen: Survey) -> list[Finding]:
    """Every check, in the order in which a person asks."""
    checks: dict[str, Callable[[Home], Answer]] = {
        "disk": _disk,
        "compiler": _compiler,
        "torch": lambda home: _probe(TORCH, "Training needs it: run `make install` again."),
        "llama.cpp": _llama,
        "home": _home,
        "lost+found": _lost,
        "plugins": lambda home: ("ok", str(home.plugins)),
        "libraries": _libraries,
        "sandbox": _sandbox,
        "notify": _notify,
        "base": _base,
        "engine": _engine,
        "cluster": _cluster,
    }
    version = ".".join(map(str, sys.version_info[:3]))
    found = [Finding("python", "ok", f"{version} ({sys.executable})"), *findings(seen), *decided(home, seen)]
    for name, check in checks.items():
        try:
            found.append(Finding(name, *check(home)))
        except MarlaasError as error:
            found.append(Finding(name, "missing", line(error.message), line(error.hint)))
    return found


def _disk(home: Home) -> Answer:
    folder = next(path for path in (home.root, *home.root.parents) if path.exists())
    free = shutil.disk_usage(folder).free
    if free < LOW_DISK:
        return "note", f"{size(free)} free", f"Make room at {folder}, or give another --home."
    return "ok", f"{size(free)} free"


def _compiler(home: Home) -> Answer:
    found = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    return ("ok", found) if found else ("note", "none", "A C++ compiler is needed once, to build llama-cpp-python.")


def _llama(home: Home) -> Answer:
    from marlaas.engine.devices.software import llama_build, why_missing

    found = _probe(
        LLAMA,
        "Rollouts without a GPU need it: CMAKE_ARGS=-DLLAVA_BUILD=OFF pip install --no-binary llama-cpp-python"
        " llama-cpp-python builds it for this processor.",
    )
    build = llama_build()
    why, advice = why_missing(build)
    if found[0] == "ok" or not why or build is None:
        return found
    return "note" if build.state == "compiling" else "missing", line(why, 160), line(advice)


def _probe(code: str, advice: str) -> Answer:
    """Run Python in a child, for libraries that may hang or crash."""
    try:
        status, text = run_program([sys.executable, "-P", "-c", code], PROBE_SECONDS)
    except OSError as error:
        status, text = 1, str(error)
    last = line(text.strip().splitlines()[-1] if text.strip() else "", 160)
    if status == 0:
        return "ok", last
    if status == -4:  # SIGILL
        return "missing", "crashes: it was built for another processor", advice
    return "missing", last or f"ends with status {status}", advice


def _home(home: Home) -> Answer:
    folder = next(path for path in (home.root, *home.root.parents) if path.exists())
    if not folder.is_dir():
        return "missing", f"{folder} is no folder", "Give another --home."
    if not home.root.exists() and os.access(folder, os.W_OK):
        return "ok", f"{home.root} (not made yet)"
    if not os.access(home.root, os.W_OK):
        return "missing", str(home.root), "It cannot be written: mend its permissions, or give --home."
    if home.database.exists() and not home.adapters.is_dir():
        advice = "Tasks wait for it: bring it back, or mount its disk; where it is gone for good, make an empty one."
        return "note", f"{home.adapters} is not there", advice
    check_lockable(home.lock)
    return "ok", str(home.root)


def _lost(home: Home) -> Answer:
    """Files of damaged versions; only a person removes them."""
    from marlaas.engine.adapters.statefile import lost_files

    found = lost_files(home.lost)
    if not found:
        return "ok", "nothing"
    files, taken = counted(sum(one.files for one in found), "file"), size(sum(one.size for one in found))
    return (
        "note",
        f"{files}, {taken} in {home.lost}",
        "Damaged versions, and files beside them; `marlaas clean` shows them.",
    )


def _libraries(home: Home) -> Answer:
    """Libraries of plugins; they are never removed automatically."""
    from marlaas.engine.environments.dependencies import installed

    sets = installed(home.venvs, (BUNDLED_PLUGINS, home.plugins))
    if not sets:
        return "ok", "none installed"
    value = f"{len(sets)} of plugins, {size(sum(one.size for one in sets))} in {home.venvs}"
    spare = [one for one in sets if not one.claimed]
    if not spare:
        return "ok", value
    advice = (
        f"No plugin asks for {', '.join(one.folder.name for one in spare)} ({size(sum(one.size for one in spare))}):"
        " delete them there, unless a task is pinned to an older version of its environment."
    )
    return "note", value, advice


def _sandbox(home: Home) -> Answer:
    from marlaas.engine.environments.process.launch import obstacle

    reason = line(obstacle(), 160)
    if not reason:
        return "ok", "bwrap"
    if settings_of(home).environments.sandbox:
        return "missing", reason, "Install bubblewrap, or take `sandbox = true` out of marlaas.toml."
    return "ok", f"none: {reason}", "Only environments that ask for it need it."


def _notify(home: Home) -> Answer:
    """The command for notifications, looked up as the engine does it."""
    words = shlex.split(settings_of(home).notify.command)
    if not words:
        return "ok", "no command is set, so nobody is told when tasks end"
    program = os.path.expanduser(words[0])
    if found := shutil.which(program):
        return "ok", line(found, 160)
    advice = "It must be a program that may be executed: its whole path, or a name on the engine's PATH."
    return "missing", f"{line(program, 160)} is not there", advice


def _base(home: Home) -> Answer:
    name = load_settings(home).base
    base = load_base(name)
    check_base(base)
    return "ok", f"{line(name)} ({base.path})"


def _engine(home: Home) -> Answer:
    if not home.database.exists():
        return "ok", "never started; the first `marlaas submit` starts it"
    with opened(home) as reader:
        alive = liveness(reader.engine(), time.time())
    if alive.word == "silent":
        return "note", alive.text, f"Its log is in {home.logs}; `marlaas engine stop` ends it."
    return "ok", alive.text


def _cluster(home: Home) -> Answer:
    """This machine's cluster, from files and locks: Ray's answer takes seconds."""
    from .cluster import standing

    verdict, value, advice = standing(home, load_settings(home).cluster)
    return verdict, line(value, 160), line(advice)


# The engine's own placement, for ``doctor`` and estimates. Starts nothing, never raises.


def decided(home: Home, seen: Survey) -> Iterator[Finding]:
    """A line for each reason; nothing if base or settings cannot be read."""
    from marlaas.engine.machine.plan import placed

    try:
        settings = load_settings(home)
        base = load_base(settings.base)
    except MarlaasError:
        return
    try:
        placement = placed(base, settings, UsableResources(seen.usable.machine), seen.software)
    except MarlaasError as error:
        yield Finding("placement", "missing", line(error.message), line(error.hint))
        return
    for reason in placement.reasons:
        yield Finding("placement", "ok", line(reason))


def cards_used(base: BaseModel, settings: Settings, seen: Survey) -> str:
    """The cards that an engine would use, ``gpu 0 and gpu 1``; empty: none."""
    from marlaas.engine.machine.plan import placed

    try:
        placement = placed(base, settings, seen.usable, seen.software)
    except MarlaasError:  # the engine reports it when it starts
        return ""
    used = [gpu for gpu in seen.usable.machine.gpus if gpu.uuid in placement.cards]
    return cards_in_words(used) if used else ""

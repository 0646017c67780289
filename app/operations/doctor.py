"""``marlaas doctor``: what the machine has, what is missing, and what to do."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marlaas.engine.devices.machine import Cpu
from marlaas.engine.devices.survey import NO_DRIVER, Survey, survey_machine
from marlaas.engine.devices.usable import Ours, ResourceSettings, UsableResources
from marlaas.engine.errors import ConfigError, MarlaasError
from marlaas.engine.home.paths import BUNDLED_PLUGINS, Home
from marlaas.engine.home.settings import Settings, load_settings
from marlaas.engine.locks import check_lockable
from marlaas.engine.machine.placement.place import cards_in_words
from marlaas.engine.models.find import load_base
from marlaas.engine.models.weights import check_base
from marlaas.engine.programs import run_program

from ..reading import opened
from ..text import machine as words
from ..text.format import counted, line, size
from ..text.tasks import liveness

if TYPE_CHECKING:
    from marlaas.engine.models.find import BaseModel


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
    return survey_machine(resources, home.rates, Ours(_engine(home)), anew=measure, missing=missing)


def _engine(home: Home) -> frozenset[int]:
    """Process ids of this home's engine."""
    with contextlib.suppress(MarlaasError):  # the finding about the engine reports it
        if home.database.exists():
            with opened(home) as reader:
                return frozenset(row.pid for row in reader.workers() if row.pid is not None)
    return frozenset()


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
        for reason in filter(None, (usable.vllm_reason, usable.torch_reason, usable.llama_reason)):
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
    if left.memory < LOW_MEMORY:
        return Finding("memory", "note", value, "Less than 2 GB are free; larger bases will not fit.")
    return Finding("memory", "ok", value)


PROBE_SECONDS = 120.0
LOW_DISK = 2e9


def base_folder(home: Home) -> Path:
    """The folder of a home's base. Raises ``ConfigError``."""

    return load_base(load_settings(home).base).path.resolve()


def examine(home: Home, seen: Survey) -> list[Finding]:
    """Every check, in the order in which a person asks."""
    version = ".".join(map(str, sys.version_info[:3]))
    return [
        Finding("python", "ok", f"{version} ({sys.executable})"),
        *findings(seen),
        *decided(home, seen),
        _disk(home),
        _compiler(),
        _probe(
            "torch",
            "import torch; print(torch.__version__, 'with CUDA' if torch.cuda.is_available() else 'on the CPU')",
            "Training needs it: run `make install` again.",
        ),
        _llama(),
        _home(home),
        _lost(home),
        Finding("plugins", "ok", str(home.plugins)),
        _libraries(home),
        _sandbox(home),
        _notify(home),
        _base(home),
        _engine_of_machine(home),
        _cluster(home),
    ]


def _disk(home: Home) -> Finding:
    folder = next(path for path in (home.root, *home.root.parents) if path.exists())
    free = shutil.disk_usage(folder).free
    if free < LOW_DISK:
        return Finding("disk", "note", f"{size(free)} free", f"Make room at {folder}, or give another --home.")
    return Finding("disk", "ok", f"{size(free)} free")


def _compiler() -> Finding:
    for name in ("c++", "g++", "clang++"):
        if found := shutil.which(name):
            return Finding("compiler", "ok", found)
    return Finding("compiler", "note", "none", "A C++ compiler is needed once, to build llama-cpp-python.")


def _llama() -> Finding:
    from marlaas.engine.devices.software import llama_build, why_missing

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
    """Files of damaged versions; only a person removes them."""
    from marlaas.engine.adapters.statefile import lost_files

    found = lost_files(home.lost)
    if not found:
        return Finding("lost+found", "ok", "nothing")
    files, taken = sum(one.files for one in found), size(sum(one.size for one in found))
    value = f"{files} {'file' if files == 1 else 'files'}, {taken} in {home.lost}"
    return Finding("lost+found", "note", value, "Damaged versions, and files beside them; `marlaas clean` shows them.")


def _libraries(home: Home) -> Finding:
    """Libraries of plugins; they are never removed automatically."""
    from marlaas.engine.environments.dependencies.interpreters import installed

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
    from marlaas.engine.environments.process.launch import obstacle

    reason = line(obstacle(), 160)
    if not reason:
        return Finding("sandbox", "ok", "bwrap")
    if settings_of(home).environments.sandbox:
        advice = "Install bubblewrap, or take `sandbox = true` out of marlaas.toml."
        return Finding("sandbox", "missing", reason, advice)
    return Finding("sandbox", "ok", f"none: {reason}", "Only environments that ask for it need it.")


def _notify(home: Home) -> Finding:
    """The command for notifications, looked up as the engine does it."""

    words = shlex.split(settings_of(home).notify.command)
    if not words:
        return Finding("notify", "ok", "no command is set, so nobody is told when tasks end")
    program = os.path.expanduser(words[0])
    if found := shutil.which(program):
        return Finding("notify", "ok", line(found, 160))
    advice = "It must be a program that may be executed: its whole path, or a name on the engine's PATH."
    return Finding("notify", "missing", f"{line(program, 160)} is not there", advice)


def _base(home: Home) -> Finding:

    try:
        name = load_settings(home).base
        base = load_base(name)
        check_base(base)
    except MarlaasError as error:
        return Finding("base", "missing", line(error.message), error.hint)
    return Finding("base", "ok", f"{line(name)} ({base.path})")


def _engine_of_machine(home: Home) -> Finding:

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
    """This machine's cluster, from files and locks: Ray's answer takes seconds."""

    from .cluster import standing

    try:
        verdict, value, advice = standing(home, load_settings(home).cluster)
    except MarlaasError as error:  # of the settings, which the finding about the base reports, or of the token
        return Finding("cluster", "missing", line(error.message), line(error.hint))
    return Finding("cluster", verdict, line(value, 160), line(advice))


# The engine's own placement, for ``doctor`` and estimates. Starts nothing, never raises.

NAME = "placement"


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
        yield Finding(NAME, "missing", line(error.message), line(error.hint or ""))
        return
    for reason in placement.reasons:
        yield Finding(NAME, "ok", line(reason))


def cards_used(base: BaseModel, settings: Settings, seen: Survey) -> str:
    """The cards that an engine would use, ``gpu 0 and gpu 1``; empty: none."""
    from marlaas.engine.machine.plan import placed

    try:
        placement = placed(base, settings, seen.usable, seen.software)
    except MarlaasError:  # the engine reports it when it starts
        return ""
    used = [gpu for gpu in seen.usable.machine.gpus if gpu.uuid in placement.cards]
    return cards_in_words(used) if used else ""

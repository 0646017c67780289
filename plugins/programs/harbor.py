"""Tasks in the form of Harbor: folders with ``task.toml``, ``instruction.md``, ``environment/`` and ``tests/``.

The rules: https://www.harborframework.com/docs/tasks. Without a container, the task's folders are the program's root.
"""

from __future__ import annotations

import asyncio
import json
import os
import posixpath
import re
import shlex
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from ..data.rows import canonical, held_out
from ..environment import Data
from ..sandbox_supervisor import SYSTEM
from .playing import (
    CLIENTS,
    FIXED,
    LARGEST,
    MOUNT,
    Placed,
    ProgramFailed,
    Reward,
    container_of,
    read_text,
    reward_of,
    run,
)

_WORKDIR = "/app"
_TEST_SECONDS = 600.0
_VERIFIER = "logs/verifier"
_REWARDS = ("reward.json", "reward.txt")
"""The first counts."""
_TEST = """
rm -rf /tests; rm -f /logs /logs/verifier /logs/verifier/reward.* 2>/dev/null
mkdir -p /logs/verifier; mv "$0" /tests; cd "$1"; chmod +x /tests/test.sh; exec /tests/test.sh
"""
"""Runs in the program's root: a link that it left leads nowhere else."""
_COPIES = "copies"
"""Below ``FIXED``: what goes into the image."""
_BEGIN_OF_IMAGE = f"cp -R {MOUNT}/{FIXED}/{_COPIES}/. /; rm -rf /logs; ln -s {MOUNT}/logs /logs; "
_TEST_OF_IMAGE = f"""
rm -rf /tests /logs; ln -s {MOUNT}/logs /logs; rm -f /logs/verifier /logs/verifier/reward.* 2>/dev/null
mkdir -p /logs/verifier; cp -R {MOUNT}/{FIXED}/tests /tests; chmod +x /tests/test.sh; /tests/test.sh
code=$?; chown -R $(stat -c %u:%g {MOUNT}/{FIXED}) {MOUNT}/* 2>/dev/null; exit $code
"""
_CANARY = re.compile(r"(\s*(<!--.*canary.*-->|#.*canary.*)\s*\n)+\s*", re.IGNORECASE)
"""Marks at the top of an instruction, which no agent sees."""
_VARIABLE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}", re.DOTALL)


@dataclass(frozen=True)
class Task:
    """One task's folder."""

    folder: Path
    prompt: str
    workdir: str
    """Empty: the image's."""
    files: tuple[Placed, ...]
    """By names relative to ``/``."""
    variables: Mapping[str, str]
    test_variables: Mapping[str, str]
    test_seconds: float
    image: str
    """Empty: the program's root is a folder."""

    def work(self, top: str) -> str:
        """Where the program works."""
        return os.path.join(self._root(top), self.workdir[1:])

    def _root(self, top: str) -> str:
        return os.path.join(top, FIXED, _COPIES) if self.image else top

    def prepare(self, top: str) -> None:
        """Fill the program's root. Raises ``OSError``."""
        for name in ("logs/agent", "logs/artifacts", _VERIFIER, self.work(top)):
            os.makedirs(os.path.join(top, name), exist_ok=True)
        for placed in self.files:
            placed.put(self._root(top), {})
        if self.image:
            script = f'{_BEGIN_OF_IMAGE}cd {shlex.quote(self.workdir or ".")}; exec "$@"'
            Path(top, FIXED, "main").write_text(script)

    async def test(self, top: str, variables: Mapping[str, str], client: str) -> Reward:
        """Run ``tests/test.sh`` on what the program left. Raises ``ProgramFailed``, ``TypeError`` or ``ValueError``."""
        name = self.folder.name
        try:
            brought = os.path.join(top, FIXED, "tests") if self.image else mkdtemp(dir=top)
            await asyncio.to_thread(Placed(os.path.relpath(brought, top), self.folder / "tests").put, top, {})
            words, mount, container = ["sh", "-c", _TEST, f"/{os.path.basename(brought)}", self.workdir], "/", ""
            variables = {**variables, **self.variables, **self.test_variables}
            if self.image:
                exports = [f"export {key}={shlex.quote(value)}" for key, value in self.test_variables.items()]
                script = "\n".join((*exports, f"cd {shlex.quote(self.workdir or '.')}", _TEST_OF_IMAGE))
                Path(top, FIXED, "main").write_text(script)
                mount, container, variables = "", container_of(top), {**os.environ}
                words = [client, "start", "--attach", container]
            async with asyncio.timeout(self.test_seconds):
                ended = await run(words, top, variables, "", top, mount, container)
        except TimeoutError:
            limit = f"{self.test_seconds:g} s, its timeout_sec under [verifier] in task.toml"
            raise ProgramFailed(f"tests/test.sh of {name} took longer than {limit}") from None
        except OSError as error:
            raise ProgramFailed(f"the tests of {name} cannot be put next to the program's work: {error}") from error
        for file in _REWARDS:
            if (text := read_text(os.path.join(top, _VERIFIER), file, LARGEST)) is not None:
                return reward_of(text, f"{file} of {name}")
        raise ended.failure(f"(tests/test.sh of {name}) and left no /logs/verifier/{_REWARDS[-1]}")


def data_of(tasks: Mapping[str, Task], name: str) -> Data:
    """A tenth of the tasks is for evaluation, as of other rows."""
    rows = [{"name": task.folder.name, "prompt": task.prompt} for task in tasks.values()]
    return lambda split: held_out(rows, [canonical(row) for row in rows], split, name)


def tasks_in(folder: Path, image: str) -> tuple[dict[str, Task], list[str]]:
    """By name; and why others cannot be played. ``image``: of all. Raises ``ValueError`` if none can."""
    tasks: dict[str, Task] = {}
    refused: list[str] = []
    for path in sorted(folder.glob("*/task.toml")):
        try:
            tasks[path.parent.name] = _task(path.parent, image)
        except (OSError, ValueError) as error:
            refused.append(f"{path.parent.name}/{error}")
    if not tasks:
        raise ValueError(f"tasks: {'; '.join(refused)[:500] or f'{folder} has no folder with a task.toml'}")
    return tasks, refused


def _task(folder: Path, image: str) -> Task:
    for name in ("instruction.md", "tests/test.sh"):
        if not (folder / name).is_file():
            raise ValueError(f"{name} is missing")
    for path in folder.rglob("*"):
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"{path.relative_to(folder)} is a link that leads out of the task: put a copy there")
    try:
        settings = tomllib.loads((folder / "task.toml").read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"task.toml is no TOML: {error}") from None
    environment, verifier = _table(settings, "environment"), _table(settings, "verifier")
    unplayed = {
        "several steps": settings.get("steps"),
        "tests in another container": "environment" in verifier or verifier.get("environment_mode") == "separate",
        "MCP servers": environment.get("mcp_servers"),
        "Windows": str(environment.get("os", "linux")).lower() != "linux",
    }
    if parts := [part for part, present in unplayed.items() if present]:
        raise ValueError(f"task.toml: a task with {' and '.join(parts)} cannot be played")
    seconds = verifier.get("timeout_sec", _TEST_SECONDS)
    if type(seconds) not in (int, float) or not 0 < seconds < 86_400:
        raise ValueError(f"task.toml: timeout_sec under [verifier] is a number of seconds, not {seconds!r:.40}")
    prebuilt = str(environment.get("docker_image", "")) if any(map(shutil.which, CLIENTS)) else ""
    try:
        workdir, files, variables = _built(folder / "environment", bool(image))
    except ValueError:
        if image or not prebuilt:
            raise
        image, workdir, files, variables = prebuilt, "", (), {}
    if within := environment.get("workdir"):
        workdir = posixpath.normpath(posixpath.join("/", str(within)))
        if workdir.split("/")[1] in _HIDDEN and not image:
            raise ValueError(f"task.toml: the workdir {workdir} needs an image")
    return Task(
        folder=folder,
        prompt=_CANARY.sub("", (folder / "instruction.md").read_text("utf-8"), count=1),
        workdir=workdir,
        files=files,
        variables=variables | _variables(environment),
        test_variables=_variables(verifier),
        test_seconds=float(seconds),
        image=image,
    )


def _table(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = settings.get(name, {})
    if not isinstance(table, dict):
        raise ValueError(f"task.toml: {name} is a table, not {table!r:.40}")
    return table


def _variables(table: Mapping[str, Any]) -> dict[str, str]:
    """``${NAME}`` and ``${NAME:-default}`` come from this process."""
    variables = {name: str(value) for name, value in _table(table, "env").items()}
    for name, value in variables.items():
        if place := _VARIABLE.fullmatch(value):
            if place[1] not in os.environ and place[2] is None:
                raise ValueError(f"task.toml: {name} needs the variable {place[1]}, which is not set here")
            variables[name] = os.environ.get(place[1], place[2])
    return variables


# A Dockerfile that only names folders, files and variables needs no container.

_INSTRUCTION = re.compile(r"^[ \t]*([A-Za-z]+)[ \t]+((?:.*\\[ \t]*\n)*.*)$", re.MULTILINE)
_PLAIN = re.compile(
    r"(?!.*(\$|\s<<|\s--(?!chmod|chown)))"  # variables, texts in place, other stages
    r"(FROM (?!.* AS )|WORKDIR |ENV |COPY |ADD (?!.*(://|git@|\.tar\b|\.t[bgx]z)))",
    re.IGNORECASE | re.DOTALL,
)
_HIDDEN = {"", "tests", *(name.split("/")[0] for name in SYSTEM)}
"""Folders below ``/`` that a task cannot fill."""


def _built(folder: Path, within_image: bool) -> tuple[str, tuple[Placed, ...], dict[str, str]]:
    """The folder to work in, files and variables. Raises ``ValueError``."""
    if not (folder / "Dockerfile").is_file():
        raise ValueError("environment/Dockerfile is missing")
    if others := [name for name in ("docker-compose.yaml", ".dockerignore") if (folder / name).exists()]:
        raise ValueError(f"environment/{others[0]} needs an image")
    workdir, text = _WORKDIR, (folder / "Dockerfile").read_text("utf-8")
    files: list[Placed] = []
    variables: dict[str, str] = {}
    for found in _INSTRUCTION.finditer(text):
        rest = re.sub(r"\s*\\\s*\n\s*", " ", found[2]).strip()
        line = f"{found[1].upper()} {rest}"
        what = found[1].upper() if _PLAIN.match(line) else ""
        try:
            if what == "WORKDIR":
                workdir = posixpath.normpath(posixpath.join("/", workdir, rest))
            elif what == "ENV":
                pairs = shlex.split(rest) if "=" in rest.split(" ")[0] else [rest.replace(" ", "=", 1)]
                variables |= {name: value.strip() for name, _, value in (pair.partition("=") for pair in pairs)}
            elif what in ("COPY", "ADD"):
                files += _copied(folder, workdir, rest)
            heads = {workdir.split("/")[1], *(placed.name.split("/")[0] for placed in files)}
            if (not what or heads & _HIDDEN) and not within_image:
                raise ValueError(f"{line:.40} needs an image")
        except ValueError as error:
            number = text.count("\n", 0, found.start()) + 1
            raise ValueError(f"environment/Dockerfile, line {number}: {error}") from None
    return workdir, tuple(files), variables


def _copied(folder: Path, workdir: str, rest: str) -> list[Placed]:
    words = json.loads(rest) if rest.startswith("[") else shlex.split(rest)
    *sources, to = [word for word in words if not word.startswith("--")]
    target = posixpath.normpath(posixpath.join(workdir, to))
    into = to.endswith("/") or len(sources) > 1 or target == workdir
    patterns = [posixpath.normpath("/" + source.lstrip("/"))[1:] or "." for source in sources]
    names = [name for pattern in patterns for name in glob(pattern, root_dir=folder, include_hidden=True)]
    if not names:
        raise ValueError(f"there is no {' or '.join(sources)} in environment/")
    paths = [folder / name for name in sorted(names)]
    return [Placed(f"{target}/{path.name}"[1:] if into and path.is_file() else target[1:], path) for path in paths]

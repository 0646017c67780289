"""Libraries of plugins: what is declared, the Python to run on, a person's consent, the build, what is waited for.

Plugins that declare the same libraries for the same Python share one (``Requirements.key``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Literal

import uv
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

import marlaas.plugins
from marlaas.plugins.adapters.declaring import dependencies_of

from ..errors import ConfigError
from ..home.disk import folder_size
from ..home.settings import EnvironmentSettings
from ..locks import try_lock
from ..spec.toml_text import read_toml
from ..spec.validation import between, build as build_settings
from ..trajectories import Failure
from .files import Source, SourceError, plugin_paths, read_source
from .process.launch import EPISODES, MEMORY_MB, NICE, Confinement, Runtime, Workers, obstacle, readable_for

MOST_WORKERS = 256
_MARLAAS = "marlaas"


class BadRequirements(ValueError):
    """An impossible value in a declaration; ``near``: a text in the error's line."""

    def __init__(self, message: str, near: str) -> None:
        super().__init__(message)
        self.near = near


@dataclass(frozen=True)
class Limits:
    """The table ``[tool.marlaas]``."""

    memory_mb: int = between(MEMORY_MB, 64, 1 << 20)
    """Address space of the process."""
    network: bool = True
    """False: no network or other files (``process.launch``)."""
    workers: tuple[int, ...] | int = between((), 1, MOST_WORKERS)
    """Least and most processes of each kind and version, or one number; empty: one to the cores of the home."""
    episodes: int = between(EPISODES, 1, 1 << 16)
    shared_scoring: bool = True
    """Without effect; read for plugins of version 0.1."""

    def __post_init__(self) -> None:
        ends = self.workers if isinstance(self.workers, tuple) else ()
        if ends and (len(ends) != 2 or ends[0] > ends[1]):
            wrong = f"[tool.marlaas]: 'workers' must be a number or [least, most], not {list(ends)}"
            raise ValueError(f"{wrong:.200}.")

    @property
    def processes(self) -> Workers | None:
        if isinstance(self.workers, int):
            return Workers(self.workers, self.workers)
        return Workers(*self.workers) if self.workers else None


@dataclass(frozen=True)
class Requirements:
    """The defaults are those without a declaration."""

    dependencies: tuple[str, ...] = ()
    """PEP 508, sorted, each once."""
    requires_python: str = ""
    """PEP 440 specifier set; empty: any."""
    limits: Limits = Limits()

    def key(self, python: str) -> str:
        """Twelve hexadecimal digits of the set, for a Python ("3.11") on this platform."""
        content = "\n".join((f"python={python}", f"platform={sysconfig.get_platform()}", *self.dependencies))
        return sha256(content.encode()).hexdigest()[:12]


def requirements(dependencies: object, requires_python: object, limits: object) -> Requirements:
    """Check a declaration's parts. Raises ``BadRequirements``."""
    return Requirements(_normalised(dependencies), _specifiers(requires_python), _limits(limits))


def named(dependencies: tuple[str, ...], most: int = 3) -> str:
    """The first few for a sentence."""
    shown = ", ".join(dependencies[:most])
    return shown if len(dependencies) <= most else f"{shown} and {len(dependencies) - most} more"


def _normalised(entries: object) -> tuple[str, ...]:
    if entries is None:
        return ()
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise BadRequirements("dependencies must be a list of texts", "dependencies")
    normalised = set()
    for entry in entries:
        try:
            requirement = Requirement(entry)
        except InvalidRequirement as error:
            reason = str(error).partition("\n")[0]
            raise BadRequirements(f"{entry!r:.80} is no requirement: {reason}", entry) from None
        requirement.name = canonicalize_name(requirement.name)
        if requirement.name != _MARLAAS:
            normalised.add(str(requirement))
    return tuple(sorted(normalised))


def _specifiers(value: object) -> str:
    if value is None:
        return ""
    try:
        return str(SpecifierSet(value if isinstance(value, str) else repr(value)))
    except InvalidSpecifier:
        raise BadRequirements(
            f'requires-python must be a text like ">=3.11", not {value!r:.80}', "requires-python"
        ) from None


def _limits(table: object) -> Limits:
    if table is None:
        return Limits()
    if not isinstance(table, Mapping):
        raise BadRequirements("tool.marlaas must be a table", "marlaas")
    try:
        return build_settings(Limits, dict(table), "[tool.marlaas]")
    except ValueError as error:
        wrong = next((key for key in table if repr(key) in str(error)), "tool.marlaas")
        raise BadRequirements(str(error), wrong) from None


_TOML = ".toml"
_OPENING = "# /// script"
_BLOCK = re.compile(r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)*)^# ///$")
_POSITION = re.compile(r" ?\(at (?:line (\d+), column (\d+)|end of document)\)$")


class DeclarationError(SourceError):
    """A declaration cannot be read."""

    def __init__(self, message: str, file: str, line: int) -> None:
        super().__init__(message)
        self.file = file
        self.line = line


@dataclass(frozen=True)
class _Declaration:
    file: str
    text: str
    before: int = 0
    """Lines of the file before it."""
    indent: int = 0
    """Characters before each line of it."""
    table: str = ""

    def error(self, message: str, line: int) -> DeclarationError:
        return DeclarationError(message, self.file, self.before + line)


def requirements_of(source: Source) -> Requirements:
    """A plugin's declaration, with defaults. Raises ``DeclarationError``."""
    declaration = _declaration(source)
    if declaration is None:
        return Requirements()
    try:
        content = read_toml(declaration.text)
    except ValueError as error:
        message, line = _split_position(str(error), declaration)
        raise declaration.error(f"what it declares is no TOML: {message}", line) from None
    table = content.get(declaration.table, {}) if declaration.table else content
    tool = content.get("tool", {})
    if not isinstance(table, dict) or not isinstance(tool, dict):
        raise declaration.error("project and tool must be tables", 1)
    try:
        libraries = list(dependencies_of(content)) if source.entry.endswith(_TOML) else table.get("dependencies")
        return requirements(libraries, table.get("requires-python"), tool.get("marlaas"))
    except BadRequirements as error:
        lines = enumerate(declaration.text.split("\n"), 1)
        line = next((number for number, text in lines if error.near in text), 1)
        raise declaration.error(str(error), line) from None
    except ValueError as error:
        raise declaration.error(str(error), 1) from None


def _declaration(source: Source) -> _Declaration | None:
    files = dict(source.files)

    def text(file: str) -> str:
        return files[file].decode("utf-8", "replace").replace("\r\n", "\n")

    if source.entry in files:
        return _Declaration(source.entry, text(source.entry)) if source.entry.endswith(_TOML) else _block(source, text)
    project = f"{source.entry}/pyproject.toml"
    return _Declaration(project, text(project), table="project") if project in files else None


def _block(source: Source, text: Callable[[str], str]) -> _Declaration | None:
    content = text(source.entry)
    opened = [number for number, line in enumerate(content.split("\n"), 1) if line == _OPENING]
    blocks = list(_BLOCK.finditer(content))
    if not opened:
        return None
    if len(opened) > 1:
        raise DeclarationError("a second block `# /// script`: there may be one", source.entry, opened[1])
    if not blocks:
        raise DeclarationError(f"the block `{_OPENING}` has no end: close it with `# ///`", source.entry, opened[0])
    lines = blocks[0]["content"].splitlines()
    return _Declaration(source.entry, "\n".join(line[2:] for line in lines), before=opened[0], indent=2)


def _split_position(message: str, declaration: _Declaration) -> tuple[str, int]:
    position = _POSITION.search(message)
    if position is None or not position[1]:
        return _POSITION.sub("", message), max(1, declaration.text.rstrip("\n").count("\n") + 1)
    return f"{_POSITION.sub('', message)} (column {int(position[2]) + declaration.indent})", int(position[1])


_OLDEST_MINOR, _NEWEST_MINOR = 11, 30
_VERSION_TIMEOUT = 10.0
BUILD_TIMEOUT = 3600.0
"""Seconds: gigabytes may come over slow lines."""
_POLL = 0.1
_STAMP_POLL = 0.5
_CHUNK = 1 << 16
_COMPLETE = "complete"
"""The file of a finished build, with the list of its libraries."""
_BUILD_VARIABLES = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
)
_UV_ERROR = re.compile(r"(?m)^(?:error|  cause): (.+)")
_LONGEST_ERROR = 400
INSTALLED = Path(marlaas.plugins.__file__).resolve().parent

Stamp = tuple[bool, int]
"""Whether a virtual environment is built, and the time of the consent in ns."""
OnLine = Callable[[str], None]
Warn = Callable[[str], None]


class NoPython(ValueError):
    """This machine has no such Python."""


class BuildFailed(Exception):
    """The message is the reason, without a full stop."""


class Refused(Exception):
    """The plugin cannot run here as it is."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Waiting(Exception):
    """The plugin can run later; the message is a sentence."""

    def __init__(
        self, state: Literal["waiting", "building"], message: str, over: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__(message)
        self.state = state
        """``waiting`` for a person, or ``building``."""
        self.over = over


@dataclass(frozen=True)
class Python:
    """An interpreter."""

    executable: Path
    version: str


OWN = Python(Path(sys.executable), ".".join(platform.python_version_tuple()[:2]))


def suitable(requires: str) -> Python:
    """An interpreter for ``requires`` (PEP 440; empty: any): marlaas's own, else the oldest on the PATH that fits.

    Most libraries have wheels for it. Raises ``NoPython``. May start processes.
    """
    wanted = SpecifierSet(requires)
    if _fits(platform.python_version(), wanted):
        return OWN
    for minor in range(_OLDEST_MINOR, _NEWEST_MINOR):
        executable = shutil.which(f"python3.{minor}")
        if executable is not None and _fits(_version_of(executable), wanted):
            return Python(Path(executable), f"3.{minor}")
    raise NoPython(
        f"it needs Python {requires}, but marlaas runs on {platform.python_version()} and no `python3.N` on the PATH"
        " will do"
    )


def _fits(version: str, wanted: SpecifierSet) -> bool:
    try:
        return wanted.contains(version, prereleases=True)
    except InvalidVersion:  # a custom build
        return False


def _version_of(executable: str) -> str:
    code = "import platform; print(platform.python_version())"
    try:
        completed = subprocess.run(
            [executable, "-I", "-c", code], capture_output=True, text=True, timeout=_VERSION_TIMEOUT, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return completed.stdout.strip()


@dataclass(frozen=True)
class Venv:
    """A set of libraries for one Python, built or not."""

    folder: Path
    """Named by the set's key; built in place, since installed files contain its path."""
    dependencies: tuple[str, ...]
    base: Python = OWN

    @classmethod
    def of(cls, requirements: Requirements, base: Python, folder: Path) -> Venv:
        return cls(folder / requirements.key(base.version), requirements.dependencies, base)

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def log(self) -> Path:
        return self.folder.with_suffix(".log")

    @property
    def lock(self) -> Path:
        """One build at a time in a home."""
        return self.folder.parent / "lock"

    @property
    def built(self) -> bool:
        return _holds(self._complete, self.dependencies) and self.python.exists()

    @property
    def allowed(self) -> bool:
        """A person consented to this very list: it stands in ``KEY.allowed``."""
        return not self.dependencies or _holds(self._consent, self.dependencies)

    def allow(self) -> None:
        """A second consent retries a failed build."""
        self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(self._consent, self.dependencies)

    def clear(self) -> None:
        self._complete.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def finish(self) -> None:
        """The sync keeps a power cut from leaving a half build with this mark."""
        os.sync()
        _write(self._complete, self.dependencies)

    def stamp(self) -> Stamp:
        try:
            return self.built, self._consent.stat().st_mtime_ns
        except FileNotFoundError:
            return self.built, 0

    @property
    def _complete(self) -> Path:
        return self.folder / _COMPLETE

    @property
    def _consent(self) -> Path:
        return self.folder.with_suffix(".allowed")


def _write(path: Path, lines: tuple[str, ...]) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(_text(lines), encoding="utf-8")
    unfinished.replace(path)


def _holds(path: Path, lines: tuple[str, ...]) -> bool:
    """Compares the content: two lists can share a key."""
    try:
        return path.read_bytes() == _text(lines).encode()
    except OSError:
        return False


def _text(lines: tuple[str, ...]) -> str:
    return "".join(f"{line}\n" for line in lines)


async def build(venv: Venv, settings: EnvironmentSettings, on_line: OnLine = lambda line: None) -> None:
    """Install missing libraries; ``on_line`` gets each line of uv.

    One build at a time in a home. Cancelling ends all that uv started. Only marlaas's own uv: another may have other
    options or messages.
    """
    try:
        venv.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        async with _build_lock(venv.lock, on_line) as lock:
            if venv.built:
                return
            await asyncio.to_thread(venv.clear)
            try:
                async with asyncio.timeout(BUILD_TIMEOUT):
                    await _install(venv, settings, lock, on_line)
            except TimeoutError:
                raise BuildFailed(f"it took longer than {BUILD_TIMEOUT:g} s (log: {venv.log})") from None
            venv.finish()
    except (OSError, ConfigError) as error:
        raise BuildFailed(str(error).rstrip(".")) from error


@contextlib.asynccontextmanager
async def _build_lock(lock: Path, on_line: OnLine) -> AsyncIterator[int]:
    """Installers inherit the lock: one that outlives a killed engine keeps the next one out."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not try_lock(descriptor, lock):
            on_line("Another installation of this home is running; this one comes after it.")
            while not try_lock(descriptor, lock):
                await asyncio.sleep(_POLL)
        yield descriptor
    finally:
        os.close(descriptor)


async def _install(venv: Venv, settings: EnvironmentSettings, lock: int, on_line: OnLine) -> None:
    with venv.log.open("wb") as log:
        for command in commands(venv, settings):
            if await _run(command, venv.folder.parent, lock, log, on_line):
                words = venv.log.read_text(encoding="utf-8", errors="replace")
                raise BuildFailed(f"{uv_error(words)} (log: {venv.log})")


async def _run(command: Sequence[str], folder: Path, lock: int, log: BinaryIO, on_line: OnLine) -> int:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=folder,  # outside of any project's settings
        env=variables_for_build(os.environ),
        pass_fds=(lock,),
        start_new_session=True,
    )
    try:
        if process.stdout is not None:
            await _listen(process.stdout, log, on_line)
        return await process.wait()
    except BaseException:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise


async def _listen(output: asyncio.StreamReader, log: BinaryIO, on_line: OnLine) -> None:
    rest = b""
    while piece := await output.read(_CHUNK):
        log.write(piece)
        log.flush()
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            on_line(line.decode("utf-8", "replace"))
        rest = rest[-_CHUNK:]


def commands(venv: Venv, settings: EnvironmentSettings) -> list[list[str]]:
    """Calls of uv, in order."""
    program = uv.find_uv_bin()
    create = [program, "venv", "--quiet", "--no-project", "--python", str(venv.base.executable), str(venv.folder)]
    if not venv.dependencies:
        return [create]
    install = [program, "pip", "install", "--python", str(venv.python), "--compile-bytecode"]
    return [create, [*install, *_sources(settings), *venv.dependencies]]


def _sources(settings: EnvironmentSettings) -> list[str]:
    folder = ["--find-links", settings.wheels] if settings.wheels else []
    if not settings.offline:
        return folder
    return ["--offline", "--no-index", *folder] if folder else ["--offline"]  # without an index its cache is empty


def in_words(settings: EnvironmentSettings, variables: Mapping[str, str]) -> str:
    """The libraries' source, for the person who is asked."""
    places = [f"the folder {settings.wheels}"] if settings.wheels else []
    if settings.offline:
        return places[0] if places else "uv's cache"
    index = variables.get("UV_DEFAULT_INDEX") or variables.get("UV_INDEX_URL")
    usual = "the index in uv's settings, else PyPI (pip's settings do not count)"
    return " and ".join([*places, f"the index {_without_password(index)}" if index else usual])


def variables_for_build(variables: Mapping[str, str]) -> dict[str, str]:
    """The engine's variables for uv; no plugin sees them."""
    return {
        name: value
        for name, value in variables.items()
        if name in _BUILD_VARIABLES or name.startswith("UV_") or name.lower().endswith("_proxy")
    }


def _without_password(address: str) -> str:
    scheme, mark, rest = address.partition("://")
    host = rest.partition("/")[0]
    return f"{scheme}{mark}{rest[host.rfind('@') + 1 :]}" if mark else address


def uv_error(output: str) -> str:
    """Uv's error with its causes, else its last line."""
    reason = ": ".join(_UV_ERROR.findall(output) or output.strip().splitlines()[-1:])
    return reason if len(reason) <= _LONGEST_ERROR else f"{reason[: _LONGEST_ERROR - 1]}…"


class Interpreters:
    """The Pythons of one home's plugins. Never waits: it raises ``Waiting``."""

    def __init__(self, folder: Path, settings: EnvironmentSettings, nice: int = 0) -> None:
        """``folder``: virtual environments. ``nice``: added to the processes' niceness."""
        self.settings = settings
        self._folder = folder
        self._nice = NICE + nice
        self._failed: dict[Path, tuple[Stamp, str]] = {}

    async def of(self, source: Source, warn: Warn = lambda message: None) -> Runtime:
        """Raises ``Refused`` and ``Waiting``; ``warn`` gets a refused wish."""
        requirements, venv = await asyncio.to_thread(needs_of, source, self._folder)
        python, api = OWN.executable, None
        if venv is not None:
            if not venv.built:
                raise self._why_not_built(venv, source.name)
            python, api = venv.python, author_api(self._folder)
        confined = not requirements.limits.network or self.settings.sandbox
        confinement = await self._confinement(python, api, warn) if confined else None
        limits = requirements.limits
        return Runtime(python, api, limits.memory_mb, confinement, self._nice, limits.processes, limits.episodes)

    def _why_not_built(self, venv: Venv, plugin: str) -> Exception:
        wanted = f"needs {named(venv.dependencies)}" if venv.dependencies else f"needs Python {venv.base.version}"
        again = f"`marlaas env allow {plugin}`"
        stamp = venv.stamp()  # before the look, so that no later change is missed
        failed_at, failure = self._failed.get(venv.folder, (None, ""))
        if self.settings.allow == "never":
            return Refused(Failure(f'{wanted}, which `allow = "never"` under [environments] in marlaas.toml forbids'))
        changed = partial(_changed, venv, stamp)
        if self.settings.allow == "ask" and not venv.allowed:
            return Waiting("waiting", f"{wanted}: allow with {again}", changed)
        if failed_at == stamp:
            return Waiting("waiting", f"{wanted}, which cannot be installed: {failure}; {again} tries again", changed)
        return Waiting("building", f"{wanted}, which is being installed", partial(self._build, venv))

    async def _build(self, venv: Venv) -> None:
        before = venv.stamp()
        try:
            await build(venv, self.settings)
        except BuildFailed as error:
            self._failed[venv.folder] = before, str(error)

    async def _confinement(self, python: Path, api: Path | None, warn: Warn) -> Confinement | None:
        readable = (*readable_for(python), INSTALLED, *([api] if api is not None else []))
        confinement = Confinement((self._folder.parent,), readable)
        reason = confinement.contradiction() or await asyncio.to_thread(obstacle)
        if not reason:
            return confinement
        if self.settings.sandbox:
            raise Refused(
                Failure(f"`sandbox = true` under [environments] in marlaas.toml cannot be kept here: {reason}")
            )
        warn(f"it asks to run without a network, which cannot be kept here: {reason}")
        return None


def needs_of(source: Source, folder: Path) -> tuple[Requirements, Venv | None]:
    """A plugin's declaration, and its virtual environment below ``folder``, if any.

    Raises ``Refused``. May start processes.
    """
    try:
        requirements = requirements_of(source)
        base = suitable(requirements.requires_python)
    except DeclarationError as error:
        raise Refused(Failure(str(error), error.file, error.line)) from None
    except NoPython as error:
        raise Refused(Failure(str(error))) from None
    builtin = base == OWN and not requirements.dependencies
    return requirements, None if builtin else Venv.of(requirements, base, folder)


def author_api(folder: Path) -> Path:
    """A ``PYTHONPATH`` below ``folder`` with only ``marlaas.plugins``.

    A link to its author API: an import cannot reach the packages next to it.
    """
    api = folder / f"api-{sha256(str(INSTALLED).encode()).hexdigest()[:12]}"
    package = api / "marlaas"
    package.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (package / "plugins").symlink_to(INSTALLED, target_is_directory=True)
    return api


async def _changed(venv: Venv, before: Stamp) -> None:
    while venv.stamp() == before:
        await asyncio.sleep(_STAMP_POLL)


@dataclass(frozen=True)
class Installed:
    """One set of libraries, complete or not."""

    folder: Path
    size: int
    """Bytes."""
    claimed: bool


def installed(venvs: Path, plugins: Sequence[Path]) -> list[Installed]:
    """Sets below ``venvs``, by name, with the claims of ``plugins``. None is ever removed: a pinned task may need it.

    May start processes.
    """
    with contextlib.suppress(OSError), os.scandir(venvs) as entries:
        folders = sorted(Path(e.path) for e in entries if e.is_dir() and not e.name.startswith((".", "api-")))
        claims = _claims(venvs, plugins) if folders else set()
        return [Installed(folder, folder_size(folder), folder in claims) for folder in folders]
    return []


def _claims(venvs: Path, plugins: Sequence[Path]) -> set[Path]:
    claims = set()
    for path in (path for folder in plugins for path in plugin_paths(folder).values()):
        with contextlib.suppress(OSError, SourceError, Refused):
            _, venv = needs_of(read_source(path), venvs)
            if venv is not None:
                claims.add(venv.folder)
    return claims

"""Compiles ``decode.c`` for this processor, once for each user of a machine, with the C compiler that is there.

A file's name says what it was made of and for (source, flags, processor, system) and the digest of its bytes: so a
damaged file is known before it is loaded, and processes that compile at once do not disturb each other. A home keeps a
copy of its own, so that its bits stay what they are when another compiler comes; one without takes the user's, and who
has compiled leaves a copy there for the next home. A folder that comes from another machine has files for that one,
which are left alone. Knows no torch.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ....devices import processor_name
from .library import Library

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("decode.c")
COMPILERS = ("cc", "gcc", "clang")
"""Tried in this order, after the one that the variable CC names."""
FLAGS = ("-std=c11", "-O3", "-ffp-contract=fast", "-fPIC", "-shared")
NATIVE = (("-march=native",), ("-mcpu=native",), ())
"""How a compiler is told to use all instructions of this processor, which differs; the first that it takes."""
SECONDS = 60.0
"""For one call of the compiler, which takes one or two."""
CPUINFO = Path("/proc/cpuinfo")
INSTRUCTIONS = ("flags", "Features", "isa")
"""What Linux calls the line of instruction sets, on Intel and AMD, on ARM, and on RISC-V."""


class NotCompiled(Exception):
    """Why there is no library, in a sentence."""


def compiled(cache: Path, shared: Path | None = None) -> tuple[Library, str]:
    """The library for this processor, and its name, from ``cache``.

    Where it is missing or damaged there, it is copied from the folder ``shared``; where it is missing there, too, it is
    compiled and kept in both. A shared folder that cannot be used is done without. Raises ``NotCompiled``.
    """
    key = key_of(SOURCE, FLAGS)
    if found := loaded(cache, key):
        return found
    if shared and copied(shared, cache, key) and (found := loaded(cache, key)):
        return found
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="compiling-") as folder:
            made = compile_to(Path(folder, "decode.so"), SOURCE)
            tried(made)
            path = cache / f"{key}-{digest(made)}.so"
            made.replace(path)
        library = Library(path)
    except (OSError, AttributeError) as error:
        raise NotCompiled(f"What was compiled in {cache} cannot be used: {error}.") from error
    if shared:
        copied(cache, shared, key)
    return library, path.stem


def loaded(cache: Path, key: str) -> tuple[Library, str] | None:
    """A library with this key, and its name; files that cannot be loaded are removed."""
    for path in kept(cache, key):
        try:
            return Library(path), path.stem
        except (OSError, AttributeError) as error:
            log.warning("%s cannot be loaded: %s", path, error)
            path.unlink(missing_ok=True)
    return None


def copied(source: Path, target: Path, key: str) -> bool:
    """Copy whole files with this key from one folder into another; whether there was one. A copy appears as a whole."""
    found = False
    try:
        for path in kept(source, key):
            target.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target, prefix="copying-") as folder:
                shutil.copyfile(path, Path(folder, path.name)).replace(target / path.name)
            found = True
    except OSError as error:
        log.info("%s cannot be copied to %s: %s", source, target, error)
    return found


def kept(cache: Path, key: str) -> Iterator[Path]:
    """Whole files with this key; damaged ones are removed."""
    for path in sorted(cache.glob(f"{key}-*.so")):
        try:
            if path.stem == f"{key}-{digest(path)}":
                yield path
            else:
                log.warning("%s is damaged and is compiled again.", path)
                path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s cannot be read: %s", path, error)


def key_of(source: Path, flags: tuple[str, ...]) -> str:
    """What decides which file is the right one."""
    parts = (source.read_text("utf-8"), *flags, sys.platform, platform.machine(), *platform.libc_ver())
    told = hashlib.sha256("\0".join((*parts, processor_name(), instructions())).encode())
    return f"decode-{told.hexdigest()[:16]}"


def instructions() -> str:
    """The instruction sets of this processor as the system names them; empty where it does not say."""
    try:
        lines = CPUINFO.read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    found = (line.partition(":") for line in lines)
    return next((sets.strip() for name, _, sets in found if name.strip() in INSTRUCTIONS), "")


def digest(path: Path) -> str:
    """16 hex digits of SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def compile_to(target: Path, source: Path, natives: tuple[tuple[str, ...], ...] = NATIVE) -> Path:
    """Compile ``source`` to ``target`` and return it. Raises ``NotCompiled`` with the compiler's last line."""
    command = compiler()
    if not command:
        raise NotCompiled("There is no C compiler.")
    told = ""
    for native in natives:
        whole = [*command, *FLAGS, *native, "-o", str(target), str(source), "-lm"]
        try:
            done = subprocess.run(whole, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NotCompiled(f"The C compiler {command[0]} does not work: {error}.") from error
        if done.returncode == 0 and target.exists():
            return target
        told = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
    raise NotCompiled(f"The C compiler {command[0]} failed: {told[-200:] or 'it says nothing'}")


def compiler() -> list[str]:
    """The words that call a C compiler; empty without one."""
    named = shlex.split(os.environ.get("CC", ""))
    found = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    return named or ([found] if found else [])


def tried(path: Path) -> None:
    """Let another process compute with it first, which may die of it. Raises ``NotCompiled``."""
    command = [sys.executable, "-P", "-m", f"{__package__}.trial", str(path)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS)
    except subprocess.TimeoutExpired as error:
        raise NotCompiled("What the C compiler makes does not end.") from error
    if done.returncode:
        told = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise NotCompiled(f"What the C compiler makes ends with {done.returncode}: {told}")

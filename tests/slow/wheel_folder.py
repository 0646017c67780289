"""Wheels made anew from what is installed here, with lists of their hashes: a package index that needs no network."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from importlib.metadata import Distribution, distributions
from pathlib import Path, PurePosixPath

from packaging.tags import sys_tags
from packaging.utils import canonicalize_name

LEFT_OUT = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
"""Files in ``*.dist-info`` that the installer writes."""
BLOCK = re.compile(r"(?m)^(?=[A-Za-z0-9])")
"""Where a package begins in a list of hashes."""


def fill(folder: Path, lists: Path) -> None:
    """Make a wheel in ``folder`` of everything that is installed, and put its hash into the ``lists`` that name it.

    A list loses what is not installed: it is for other platforms.
    """
    hashes = {name: _digest(wheel) for name, wheel in _made(folder)}
    for file in lists.glob("*.txt"):
        head, *blocks = BLOCK.split(file.read_text())
        kept = (_with_hash(block, hashes) for block in blocks)
        file.write_text(head + "".join(block for block in kept if block))


def _made(folder: Path) -> Iterator[tuple[str, Path]]:
    for found in distributions():
        if found.files and found.read_text("WHEEL") and canonicalize_name(found.name) != "marlaas":
            yield f"{canonicalize_name(found.name)}=={found.version.partition('+')[0]}", wheel_of(found, folder)


def wheel_of(found: Distribution, folder: Path) -> Path:
    """The wheel from which a distribution could have been installed; nothing is compressed."""
    stem = f"{re.sub(r'[-_.]+', '_', found.name)}-{found.version}"
    scripts = {point.name for point in found.entry_points if point.group == "console_scripts"}
    (info,) = {file.parts[0] for file in found.files or () if file.name == "WHEEL" and len(file.parts) == 2}
    record = []
    path = folder / f"{stem}-{_tag(found)}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as wheel:
        for file in found.files or ():
            inside = PurePosixPath(file)
            if "__pycache__" in inside.parts or (inside.parts[0] == info and inside.name in LEFT_OUT):
                continue
            if inside.parts[0] == "..":
                inside = inside.relative_to(PurePosixPath(*[part for part in inside.parts if part == ".."]))
                if inside.parts[0] == "bin" and inside.name in scripts:
                    continue
                kind = PurePosixPath("scripts", *inside.parts[1:]) if inside.parts[0] == "bin" else "data" / inside
                inside = PurePosixPath(f"{stem}.data") / kind
            wheel.write(str(file.locate()), str(inside))
            record.append(f"{inside},,")
        wheel.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,", ""]))
    return path


def _tag(found: Distribution) -> str:
    """One of its tags that fits this Python."""
    named = Parser().parsestr(found.read_text("WHEEL") or "").get_all("Tag", [])
    usable = {str(tag) for tag in sys_tags()}
    return next(tag for tag in named if tag in usable)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _with_hash(block: str, hashes: dict[str, str]) -> str:
    """A package of a list with the hash of its wheel here; empty where there is none."""
    requirement = block.partition("\\")[0].strip()
    name = requirement.partition(";")[0].strip()
    return f"{requirement} --hash=sha256:{hashes[name]}\n" if name in hashes else ""

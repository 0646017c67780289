"""Which context a torch sampler computes in: compiled passes for a small base, where this machine can have them."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from ....base import SMALL, BaseModel, linear_shapes
from ....devices import LentCores
from ...batching.context import Context
from ..context import TorchContext, TorchWeights
from .build import NotCompiled, compiled
from .check import refusal
from .context import CompiledContext
from .library import Library

log = logging.getLogger(__name__)

USED = "used"
"""What the file of a verdict says where compiled passes are used; any other text is the reason why not."""


def context_of(
    base: BaseModel,
    sequences: int,
    length: int,
    weights: TorchWeights,
    cache: str,
    threads: int = 1,
    cores: LentCores | None = None,
) -> Context:
    """A context for ``base``; compiled files and verdicts are kept in ``cache``, and without one nothing is compiled.
    What holds for all homes is in ``users_folder``, too. Passes on torch may borrow ``cores``.

    Bases of up to ``SMALL`` bytes in float32 are compiled for: the smaller they are, the more of a pass of torch is no
    arithmetic; with 60 MB it takes one and a half times as long with 64 rows. Raises ``BaseModelError`` where the base
    cannot be read.
    """
    if cache and weights == "f32" and nbytes(base) <= SMALL:
        try:
            users = users_folder()
            library, name = compiled(Path(cache), users)
            told = Path(f"{name}-{base.fingerprint}-{threads}.verdict")
            if not (reason := verdict(Path(cache) / told, base, library, threads, users and users / told)):
                return CompiledContext(base, sequences, length, library, threads)
        except NotCompiled as error:
            reason = str(error)
        log.warning("Passes are not compiled, torch computes them more slowly: %s", reason)
    return TorchContext(base, sequences, length, weights, cores)


def users_folder() -> Path | None:
    """Where a user's homes leave for each other what was compiled; None for a user without a folder for caches."""
    from platformdirs import user_cache_path

    path = user_cache_path("marlaas", appauthor=False) / "passes"
    return path if path.is_absolute() else None


def nbytes(base: BaseModel) -> int:
    """Of all matrices in float32, the output matrix included."""
    config = base.config
    linear = sum(out * into for module, (out, into) in linear_shapes(config).items() if module != "lm_head")
    return 4 * (linear + config.vocab_size * config.hidden_size)


def verdict(path: Path, base: BaseModel, library: Library, threads: int, shared: Path | None = None) -> str:
    """Why ``library`` is not used for ``base``; empty where it is.

    Found once and kept in ``path``: speeds were measured for it, and a home's bits should not change with them. That it
    is used is kept in ``shared``, too, for other homes, and taken from there: it takes a second to find. That it is not
    may be due to a moment in which the machine was busy, so each home finds that by itself.
    """
    known = _told(path)
    if known is None and shared and _told(shared) == USED:
        known = USED
        _tell(path, known)
    if known is None:
        known = refusal(base, library, threads) or USED
        for file in (path, shared if known == USED else None):
            if file:
                _tell(file, known)
    return "" if known == USED else known


def _told(path: Path) -> str | None:
    """What the file of a verdict says; None where there is none."""
    try:
        return path.read_text("utf-8", "replace").strip() or None
    except OSError:
        return None


def _tell(path: Path, text: str) -> None:
    """Write the file of a verdict, which appears as a whole."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished.write_text(f"{text}\n", "utf-8")
        unfinished.replace(path)
    except OSError as error:
        log.warning("%s cannot be written: %s", path, error)

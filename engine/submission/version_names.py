"""Finds the version that a person means by a task's number or name, by a version's own name, and by ``--version``.

Pure. Raises ``AdapterError`` where there is none, and ``ConfigError`` where the words are ambiguous.
"""

from __future__ import annotations

from ..errors import AdapterError, ConfigError
from ..store import VersionRow

LONGEST_NUMBER = 18
"""Digits of a task's number."""


def choose(versions: list[VersionRow], adapter: str, which: str | None) -> VersionRow:
    """The version that ``adapter``, a task's number or name or a version's name, and ``which`` (``--version``) mean."""
    named = named_by(versions, adapter)
    policies = list(dict.fromkeys(v.policy for v in named))
    if len(policies) > 1:
        raise ConfigError(
            f"The task {adapter!r} has the policies {', '.join(policies)}.", f"Say which: {adapter}/{policies[-1]}."
        )
    kept = sorted((v for v in named if v.state == "committed"), key=lambda v: v.number)
    wanted = _pick(kept, which)
    if wanted is None:
        numbers = ", ".join(str(v.number) for v in kept) or "none"
        version = f"version {which!r}" if which else "version"
        raise AdapterError(f"Adapter {adapter!r} has no {version} on disk.", f"On disk: {numbers}.")
    return wanted


def choose_at(versions: list[VersionRow], said: str) -> VersionRow:
    """The version that ``said`` means: an adapter as ``choose`` takes it, with or without @VERSION behind it."""
    adapter, _, which = said.partition("@")
    return choose(versions, adapter, which or None)


def named_by(versions: list[VersionRow], adapter: str) -> list[VersionRow]:
    """All versions that a task's number or name means, or the one of that name; they belong to one task.

    /POLICY behind it means those of one policy of the task.
    """
    found = [v for v in versions if v.name == adapter] or _of_task(versions, adapter)
    if not found:
        whose, _, policy = adapter.rpartition("/")
        found = [v for v in _of_task(versions, whose) if v.policy == policy]
    if not found:
        raise AdapterError(f"There is no adapter {adapter!r}.", "`marlaas adapters list` shows them.")
    if len({v.task for v in found}) > 1:
        numbers = ", ".join(str(number) for number in sorted({v.task for v in found}))
        raise ConfigError(f"Several tasks are named {adapter!r}: {numbers}.", "Give the task's number.")
    return found


def _of_task(versions: list[VersionRow], said: str) -> list[VersionRow]:
    if said.isascii() and said.isdigit():
        return [v for v in versions if v.task == int(said)] if len(said) <= LONGEST_NUMBER else []
    return [v for v in versions if said in (v.task_name, f"{v.tenant}/{v.task_name}")]


def _pick(kept: list[VersionRow], which: str | None) -> VersionRow | None:
    """One of the versions (oldest first) by number or label, or the newest; with None the best, else the last."""
    best, last = ([v for v in kept if label in v.label] for label in ("best", "last"))
    if which == "newest":
        return kept[-1] if kept else None
    if which in (None, "best", "last"):
        among = {None: best or last or kept, "best": best, "last": last or kept}[which]
        return among[-1] if among else None
    return next((v for v in kept if str(v.number) == which), None)

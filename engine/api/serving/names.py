"""What a client's word for a model means: the base, a version of the tenant's own tasks, or a name that it gave.

Nothing else can be named: whatever a key asks for, only rows of its own tenant are looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ...errors import ConfigError, MarlaasError
from ...gateway import Refusal
from ...gateway.wire import Model
from ...spec import BASE, ONLY, nearest
from ...store import ServedTable, VersionRow
from ...submission import choose_at

NEWEST = "newest"
LONGEST_NUMBER = 18
"""Digits of a task's number."""
LONGEST = 500
"""Characters of a name."""
SHOWN = 80
"""Characters of a wrong name that an error repeats."""
LISTS = "GET /v1/models lists what there is."


@dataclass(frozen=True)
class Named:
    """What a name means."""

    name: str
    """In full: ``17@12``, ``17/player@12``, or the base's name."""
    version: VersionRow | None = None
    """None: the base."""


@dataclass(frozen=True)
class Names:
    """The names that one tenant may say."""

    table: ServedTable
    tenant: str
    base: str
    """The base's name for people."""
    aliases: Collection[str] = (BASE,)
    """Further names of the base."""

    def find(self, said: str) -> Named:
        """What ``said`` means. Raises ``Refusal`` with the nearest of the tenant's own names, and ``StoreError``."""
        if said == self.base or said in self.aliases:
            return Named(self.base)
        for base in (self.base, *self.aliases):  # as some clients write it: BASE:ADAPTER
            said = said.removeprefix(f"{base}:")
        if not said.isprintable() or len(said) > LONGEST:
            raise self._unknown(said)
        version, given = self.table.named(self.tenant, said)
        if given and version is None:
            raise self._unknown(said, "The version of that name is not on the disk any more.")
        if version is None:
            try:
                version = choose_at(self.table.versions(self.tenant, _task(said)), said)
            except ConfigError as error:  # it fits several
                raise self._unknown(said, str(error)) from None
            except MarlaasError:
                raise self._unknown(said) from None
        return Named(reference(version), version)

    def models(self) -> tuple[Model, ...]:
        """The base, the best and the newest version of each policy, and the names given. Raises ``StoreError``."""
        rows = self.table.versions(self.tenant)
        by_id = {row.id: row for row in rows}
        found = [self._model(words, row) for words, row in _of_policies(rows)]
        names = self.table.names(self.tenant).items()
        found += [self._model(name, by_id[version]) for name, version in names if version in by_id]
        return (Model(self.base, owner="marlaas"), *found)

    def _model(self, name: str, row: VersionRow) -> Model:
        return Model(name, self.base, int(row.created), self.tenant)

    def _unknown(self, said: str, why: str = "") -> Refusal:
        known = [model.id for model in self.models()] + [reference(row) for row in self.table.versions(self.tenant)]
        near = nearest(said[:SHOWN], known)
        hint = f"{near} {LISTS}" if near.startswith("Did you mean") else LISTS
        shown = said if len(said) <= SHOWN else f"{said[:SHOWN]}…"
        message = " ".join(part for part in (f"There is no model {shown!r}.", why, hint) if part)
        return Refusal(404, "model_not_found", message, "model")


def reference(row: VersionRow) -> str:
    """The version in the words of verbs: 17@12, or 17/player@12."""
    return f"{_owner(row)}@{row.number}"


def _owner(row: VersionRow) -> str:
    return str(row.task) if row.policy == ONLY else f"{row.task}/{row.policy}"


def _of_policies(rows: Iterable[VersionRow]) -> list[tuple[str, VersionRow]]:
    """The best, if one is known, and the newest of each policy, under their names; rows are newest first."""
    best: dict[str, VersionRow] = {}
    newest: dict[str, VersionRow] = {}
    for row in rows:
        owner = _owner(row)
        newest.setdefault(owner, row)
        if "best" in row.label:
            best.setdefault(owner, row)
    return [
        (f"{owner}@{word}", known[owner])
        for owner in newest
        for word, known in (("best", best), (NEWEST, newest))
        if owner in known
    ]


def _task(said: str) -> int | None:
    """The task of which versions are to be looked at; None where that is not said by a number."""
    word = said.partition("@")[0].partition("/")[0]
    return int(word) if word.isascii() and word.isdigit() and len(word) <= LONGEST_NUMBER else None

"""The form itself, as a value: what was typed, and which fields there are because of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from marlaas.engine.errors import MarlaasError
from marlaas.engine.store import VersionRow
from marlaas.engine.submission import find_environment

from ..home.references import reference
from .checking import Checked, check
from .choices import Choice, of_field, players
from .fields import AGENTS, PARAMETERS, POLICIES, FormField, name_fields, named_fields, parameter_fields, task_fields
from .sources import Sources
from .texts import beyond, names_in, texts_of


@dataclass(frozen=True)
class Form:
    """A form at one moment."""

    sources: Sources = field(default_factory=Sources)
    texts: Mapping[str, str] = field(default_factory=dict)
    """What was typed, by key."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """What its task file says that no field has."""
    touched: bool = False
    """Whether a person has typed anything."""
    looked_up: tuple[str, tuple[dict[str, Any], ...]] = ("", ())
    """An environment that no engine serves yet, and its parameters."""

    @classmethod
    def begun(cls, sources: Sources) -> Form:
        """A form as it opens: a copy of a task, or empty but for the tenant."""
        if sources.table is not None:
            return cls(sources).taken_over(sources.table, touched=False)
        return cls(sources, {"tenant": sources.tenants[0]} if sources.tenants else {})

    @property
    def parameters(self) -> tuple[FormField, ...]:
        """Fields of the environment that is named; none while there is no such environment."""
        named = self.texts.get("environment", "").strip()
        if not self.sources.environments:
            return parameter_fields(self.looked_up[1]) if named == self.looked_up[0] else ()
        try:
            return parameter_fields(find_environment(named, list(self.sources.environments)).parameters)
        except MarlaasError:
            return ()

    @property
    def declared(self) -> tuple[str, ...]:
        """The agents of the environment that is named, where it is served and declares them."""
        try:
            return find_environment(self.texts.get("environment", "").strip(), list(self.sources.environments)).agents
        except MarlaasError:
            return ()

    @property
    def policies(self) -> tuple[str, ...]:
        """The names of the task's policies, where it has several."""
        return names_in(self.texts.get(POLICIES, ""))

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents that policies act as: those that the environment declares, and those that were named."""
        return tuple(dict.fromkeys((*self.declared, *names_in(self.texts.get(AGENTS, "")))))

    @property
    def named(self) -> tuple[FormField, ...]:
        """Fields of several policies, and of who acts as which agent."""
        return named_fields(self.policies, self.agents)

    @property
    def fields(self) -> tuple[FormField, ...]:
        """All fields of the form."""
        return (*task_fields(), *self.named, *self.parameters)

    def choices(self, field: FormField) -> tuple[Choice, ...]:
        """What may be chosen in a field; nothing where anything may be typed."""
        versions = self.sources.starts
        own = {
            "tenant": tuple(map(Choice, self.sources.tenants)),
            "environment": self.sources.choices,
            "base": self.sources.bases,
            "policy.start": versions,
        }
        if field.key in own:
            return own[field.key]
        if field.table == AGENTS:
            return tuple(map(Choice, self.policies))
        if field.table.startswith(f"{POLICIES}."):
            others = [name for name in self.policies if name != field.table.partition(".")[2]]
            of_policy = {
                "start": versions,
                "pool": tuple(map(Choice, others)),
                "frozen": players(others, versions),
            }
            return of_policy.get(field.name, of_field(field))
        return of_field(field)

    def typed(self, key: str, text: str) -> Form:
        """The form with another text in a field."""
        return replace(self, texts={**self.texts, key: text}, touched=True)

    def taken_over(self, table: Mapping[str, Any], touched: bool = True) -> Form:
        """The form with what a task file says."""
        environment = replace(self, texts=texts_of((*task_fields(), *name_fields()), table))
        fields = environment.fields
        return replace(environment, texts=texts_of(fields, table), more=beyond(fields, table), touched=touched)

    def beginning_with(self, version: VersionRow) -> Form:
        """The form of a task that begins from this version; of several policies, the version's own begins from it."""
        several = version.policy in self.policies
        key = f"{POLICIES}.{version.policy}.start" if several else "policy.start"
        return replace(self.typed(key, reference(version)), touched=self.touched)

    def on(self, environment: str) -> Form:
        """The form of a task on this environment."""
        return replace(self.typed("environment", environment), touched=self.touched)

    def found(self, environment: str, parameters: tuple[dict[str, Any], ...]) -> Form:
        """The form with the parameters of an environment that no engine serves yet."""
        return replace(self, looked_up=(environment, parameters))

    def checked(self) -> Checked:
        """What is wrong with it, and the tasks that it means."""
        known = self.fields
        keys = {entry.key for entry in known}
        strangers = (key for key in self.texts if key.startswith(f"{PARAMETERS}.") and key not in keys)
        texts = {key: text for key, text in self.texts.items() if key not in set(strangers)}
        return check(known, texts, self.sources.environments, Path.cwd(), self.more)

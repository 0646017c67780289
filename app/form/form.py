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
from .fields import PARAMETERS, FormField, parameter_fields, task_fields
from .sources import Sources
from .texts import beyond, texts_of


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
    def agents(self) -> tuple[str, ...]:
        """The agents of the environment that is named, where it is served and declares them."""
        try:
            return find_environment(self.texts.get("environment", "").strip(), list(self.sources.environments)).agents
        except MarlaasError:
            return ()

    @property
    def fields(self) -> tuple[FormField, ...]:
        """All fields of the form."""
        return (*task_fields(), *self.parameters)

    def typed(self, key: str, text: str) -> Form:
        """The form with another text in a field."""
        return replace(self, texts={**self.texts, key: text}, touched=True)

    def taken_over(self, table: Mapping[str, Any], touched: bool = True) -> Form:
        """The form with what a task file says."""
        environment = replace(self, texts=texts_of(task_fields(), table))
        fields = environment.fields
        return replace(environment, texts=texts_of(fields, table), more=beyond(fields, table), touched=touched)

    def beginning_with(self, version: VersionRow) -> Form:
        """The form of a task that begins from this version; of several policies, the version's own begins from it."""
        policies = self.more.get("policies", {})
        if version.policy not in policies:
            return replace(self.typed("policy.start", reference(version)), touched=self.touched)
        own = {**policies[version.policy], "start": reference(version)}
        return replace(self, more={**self.more, "policies": {**policies, version.policy: own}})

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

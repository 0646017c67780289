"""Which version a task plays on: it follows as far as its parameters fit, or stays pinned; and what it says of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from marlaas.engine.environments.protocol import DataFacts
from marlaas.engine.environments.service import EnvironmentService
from marlaas.engine.errors import Blocked, ConfigError, EnvironmentMissing
from marlaas.engine.spec.task import DataSpec, NamedPolicySpec, PolicySpec, TaskSpec
from marlaas.engine.train.environment import TaskEnvironment

from .test_learning import SPEC

TASK = replace(SPEC, environment="sums", environment_config={"digits": 2})
PINNED = replace(TASK, environment_version="pin")


@dataclass
class PublishedVersions:
    """A service with versions of some plugins, each taking some parameters and declaring some agents; no process."""

    takes: dict[str, set[str]] = field(default_factory=lambda: {"v1": {"digits"}})
    served: dict[str, str] = field(default_factory=lambda: {"math/sums": "v1"})
    """The newest version by full name."""
    agents: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What versions declare; others declare none."""
    released: list[str] = field(default_factory=list)
    stamp: str = ""
    """Of the file that a task names."""
    saved: dict[str, str] = field(default_factory=dict)
    """The versions by full name that files have become, and that nobody has looked at yet."""

    async def refresh(self, name: str) -> None:
        self.served |= self.saved

    def resolve(self, name: str) -> Any:
        found = [full for full in self.served if name in (full, full.rpartition("/")[2])]
        if len(found) != 1:
            raise EnvironmentMissing(f"{len(found)} environments are called {name!r}.")
        return SimpleNamespace(name=found[0], agents=self.agents.get(self.served[found[0]], ()))

    def known(self, name: str) -> bool:
        return name in self.served

    def full_name(self, name: str, version: str | None) -> str:
        return f"math/{name.rpartition('/')[2]}" if version in self.takes else name

    def validate(self, name: str, config: Mapping[str, Any], version: str | None = None) -> Mapping[str, Any]:
        wanted = version or self.served[self.resolve(name).name]
        if wanted not in self.takes:
            raise EnvironmentMissing(f"There is no version {wanted}.")
        if not set(config) <= self.takes[wanted]:
            raise ConfigError(f"{wanted} does not take it.")
        return config

    async def facts(self, lease: Any) -> DataFacts:
        return DataFacts(1, 1, f"of {self.stamp}")

    async def bind(
        self, name: str, version: str | None = None, config: Mapping[str, Any] | None = None, data: Any = None
    ) -> Any:
        config = self.validate(name, config or {}, version)
        full = self.resolve(name).name if version is None else self.full_name(name, version)
        wanted = version or self.served[full]
        return SimpleNamespace(
            environment=full,
            environment_version=wanted,
            code=wanted,
            data=data,
            rows=(wanted, self.stamp),
            digest="",
            declared=SimpleNamespace(name=full, agents=self.agents.get(wanted, ())),
            config=config,
            ends="",
            rest=None,
            release=lambda: self.released.append(wanted),
        )


@dataclass
class Told:
    """A task's environment, and what it told."""

    published: PublishedVersions
    sentences: list[str] = field(default_factory=list)

    def of(self, spec: TaskSpec = TASK, first: str | None = None, last: str | None = None) -> TaskEnvironment:
        service = cast(EnvironmentService, self.published)
        return TaskEnvironment(service, spec, (first, last), self.sentences.append)


@pytest.fixture
def told() -> Told:
    return Told(PublishedVersions())


async def version_of(environment: TaskEnvironment) -> str:
    await environment.check()
    async with environment.bound() as lease:
        assert lease.config == TASK.environment_config and environment.version == lease.environment_version
        return lease.environment_version


def edit(told: Told, version: str, *parameters: str) -> None:
    told.published.takes[version] = set(parameters)
    told.published.served["math/sums"] = version


async def test_what_was_saved_before_it_begins_is_played(told: Told) -> None:
    told.published.takes["v2"] = {"digits"}
    told.published.saved["math/sums"] = "v2"
    assert await version_of(told.of(PINNED, first="v1", last="v1")) == "v1"
    assert told.published.served["math/sums"] == "v1", "whoever is pinned looks at no file"
    assert await version_of(told.of()) == "v2"


async def test_other_rows_in_the_file_are_another_digest(told: Told) -> None:
    environment = told.of(replace(TASK, data=DataSpec("rows.jsonl")))
    digests = []
    for told.published.stamp in ("1", "1", "2"):
        async with environment.bound() as lease:
            digests.append(lease.digest)
    assert digests == ["of 1", "of 1", "of 2"]


@pytest.mark.parametrize("engine", ["the same", "a new one"])
async def test_it_stays_where_newer_versions_refuse_parameters(told: Told, engine: str) -> None:
    environment = told.of()
    await version_of(environment)
    edit(told, "v2", "width")
    if engine == "a new one":
        environment = told.of(first="v1", last="v1")
    for _ in range(3):
        assert await version_of(environment) == "v1"
    (sentence,) = told.sentences
    assert "stays on version v1" in sentence and "v2 does not take it" in sentence
    edit(told, "v3", "digits")
    assert await version_of(environment) == "v3"


TALK = replace(
    TASK,
    policy=PolicySpec(),
    policies={"solver": NamedPolicySpec(), "critic": NamedPolicySpec()},
    agents={"solver": "solver", "critic": "critic"},
)


@pytest.mark.parametrize("others", [("solver", "judge"), ("solver", "critic", "judge"), ("solver",)])
@pytest.mark.parametrize("engine", ["the same", "a new one"])
async def test_it_stays_where_a_newer_version_has_other_agents(
    told: Told, engine: str, others: tuple[str, ...]
) -> None:
    told.published.agents = {"v1": ("solver", "critic"), "v2": others, "v4": ("critic", "solver")}
    environment = told.of(TALK)
    assert await version_of(environment) == "v1"
    edit(told, "v2", "digits")
    if engine == "a new one":
        environment = told.of(TALK, first="v1", last="v1")
    assert [await version_of(environment) for _ in range(3)] == ["v1"] * 3
    (sentence,) = told.sentences
    assert "stays on version v1" in sentence and ("judge" in sentence or "critic" in sentence)
    edit(told, "v3", "digits")
    assert await version_of(environment) == "v3", "one that declares none is taken at its word"
    edit(told, "v4", "digits")
    assert await version_of(environment) == "v4"
    assert len(told.sentences) == 1 and sorted(told.published.released)[-2:] == ["v3", "v4"]


async def test_with_nothing_to_stay_on_it_waits(told: Told) -> None:
    edit(told, "v2", "width")
    for environment in (told.of(), told.of(last="v0")):  # v0 was removed from the disk
        with pytest.raises(Blocked, match=r"^v2 does not take it"):
            await environment.check()
        with pytest.raises(Blocked, match=r"^v2 does not take it"):
            async with environment.bound():
                pass


async def test_a_second_environment_of_that_name_is_ignored(told: Told) -> None:
    environment = told.of()
    await version_of(environment)
    told.published.served["games/sums"] = "v1"
    assert await version_of(environment) == "v1"
    assert await version_of(told.of(last="v1")) == "v1", "also for the next engine"
    with pytest.raises(Blocked, match="2 environments are called 'sums'"):
        await told.of().check()


async def test_a_plugin_that_was_renamed_is_found_by_the_short_name(told: Told) -> None:
    environment = told.of()
    await version_of(environment)
    told.published.served = {"arithmetic/sums": "v1"}
    assert await version_of(environment) == "v1"
    whole = told.of(replace(TASK, environment="math/sums"))
    with pytest.raises(Blocked, match="0 environments are called 'math/sums'"):
        await whole.check()

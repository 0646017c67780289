"""What the screen says of a plugin's environments: one entry each, with a state and the reason for it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..trajectories import Failure
from .files.source import shown
from .protocol import EnvironmentInfo
from .served_version import ServedVersion


def never_served(
    plugin: str, path: Path, waiting: str, failure: Failure | None, names: Sequence[str] = ()
) -> tuple[EnvironmentInfo, ...]:
    """The entries of a plugin that never served. ``waiting``: its state, if it waits; ``names``: the environments that
    its files seem to declare. Where they are not known, and where the plugin is broken, there is one entry for it."""
    state = waiting or ("broken" if failure is not None else "loading")
    known = [f"{plugin}/{name}" for name in names] if state != "broken" else []
    return tuple(EnvironmentInfo(name, "", state, failure=failure, path=shown(str(path))) for name in known or [plugin])


def served(
    plugin: str, path: Path, serving: ServedVersion, rejected: Failure | None, loading: bool = False
) -> tuple[EnvironmentInfo, ...]:
    """The entries of a version that serves; ``rejected``: why the newest content does not, ``loading``: not yet.

    Environments of a ``.toml`` file that are wrong beside others that serve have one, too.
    """
    found = []
    for environment in serving.environments.values():
        state, failure = ("loading", None) if loading else _state(serving, environment.name, rejected)
        found.append(
            EnvironmentInfo(
                name=f"{plugin}/{environment.name}",
                version=serving.version,
                state=state,
                parameters=environment.parameters,
                agents=environment.agents,
                rows=environment.rows,
                failure=failure,
                path=shown(str(path)),
                description=environment.description,
                crew=serving.crew,
            )
        )
    refused = (
        EnvironmentInfo(f"{plugin}/{name}", serving.version, "broken", failure=failure, path=shown(str(path)))
        for name, failure in serving.refused.items()
    )
    return (*found, *refused)


def _state(serving: ServedVersion, environment: str, rejected: Failure | None) -> tuple[str, Failure | None]:
    """See ``EnvironmentInfo.state``."""
    if rest := serving.health.resting:
        return "broken", rejected or rest
    if rejected is not None:
        return "stale", rejected
    if failing := serving.health.failing(environment):
        return "failing", failing
    return "ready", None

"""The checks of promoted environments: findings go to the store, and errors to the log as well."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from ..environments import CROWD, PROMPTS, REST, SECONDS, Background, EnvironmentService, Finding, Ruler, Scope, count
from ..errors import StoreError
from ..home import BUNDLED_PLUGINS
from ..store import Store

Log = Callable[[str, str, str], None]


def background(environments: EnvironmentService, store: Store, ruler: Ruler, log: Log) -> Background:
    """The checks of an engine, without environments that ship with marlaas: its tests check them."""

    def known(environment: str, version: str) -> bool:
        return store.conformance.known(environment, version, store.fingerprint)

    def found(environment: str, version: str, findings: list[Finding]) -> None:
        with contextlib.suppress(StoreError):
            store.conformance.add(environment, version, store.fingerprint, findings)
        if count(findings, "error"):
            log("environment", sentence(environment, version, findings), "warning")

    scope = Scope(PROMPTS, SECONDS, REST, CROWD, ruler=ruler)
    return Background(environments, scope, known, found, spare=(BUNDLED_PLUGINS,))


def sentence(environment: str, version: str, findings: list[Finding]) -> str:
    """One sentence on the errors among findings, with the first of them."""
    first = next(finding for finding in findings if finding.level == "error")
    more = count(findings, "error") - 1
    others = f" (and {more} more: `marlaas env list`)" if more else ""
    return f"The environment {environment} ({version}) has an error: {first.message}{others}"

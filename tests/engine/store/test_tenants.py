"""Tenants: what a person set is there at once, and after a restart."""

from __future__ import annotations

from pathlib import Path

from marlaas.engine.store.store import Store
from marlaas.engine.store.tasks import Tenant


def test_a_tenant_that_nobody_set_up_has_the_usual_share(store: Store) -> None:
    assert store.tenants.get("lab") == Tenant(weight=1.0, tasks=0, tokens_per_day=0)


def test_changes_add_up_and_outlive_the_engine(store: Store, database: Path) -> None:
    assert store.tenants.set("bio", weight=2.5) == Tenant(2.5)
    assert store.tenants.set("bio", tasks=3, tokens_per_day=10**12) == Tenant(2.5, 3, 10**12)
    assert store.tenants.get("bio") == Tenant(2.5, 3, 10**12)
    again = Store(database, "tiny")
    assert again.tenants.get("bio") == Tenant(2.5, 3, 10**12)
    again.close()

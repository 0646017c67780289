"""Carries out *name* and *unname*: a tenant's own names for versions, under which clients find them."""

from __future__ import annotations

from ..errors import AdapterError, ConfigError
from ..spec import served_name
from ..store import Store


def name_version(store: Store, task: int, name: object, number: int | None, policy: str | None = None) -> None:
    """Let ``name`` mean a version of a task from now on, for clients of the task's tenant.

    Raises ``ConfigError`` for a name that cannot be, ``AdapterError`` where the version is not on the disk.
    """
    name = served_name(name)
    versions = [one for one in store.versions.on_disk(task, policy) if one.number == number]
    if not versions:
        raise AdapterError(
            f"Task {task} has no version {number} on disk.", "`marlaas adapters list` shows what there is."
        )
    if len(versions) > 1:
        raise ConfigError(f"Several policies of task {task} have a version {number}.", "Say which policy is meant.")
    tenant = store.tasks.spec(task).tenant
    store.served.give(tenant, name, versions[0].id)
    store.telemetry.event("adapter", f"Clients of {tenant} find {versions[0].name} as {name}.", task)


def unname(store: Store, tenant: object, name: object) -> None:
    """Take a name away. Raises ``ConfigError`` where the tenant has not given it."""
    if not isinstance(tenant, str) or not isinstance(name, str) or not store.served.take(tenant, name):
        raise ConfigError(f"Tenant {tenant!r} has given no version the name {name!r}.")
    store.telemetry.event("adapter", f"The name {name} of tenant {tenant} means no version any more.")

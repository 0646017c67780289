"""Fills what the view of the API shows: its state, keys of several tenants, names of adapters."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path

from .filling import HOSTILE, NOW, Filling

URL = "http://127.0.0.1:8777"
CLEAN = HOSTILE.replace("\ud800", "?")


def fill_api(path: Path) -> Filling:
    """An open API with three keys, one of which was revoked, and two names."""
    filling = Filling(path)
    filling.engine()
    filling.task("physics-lab", "two-digit sums", state="running", made=12)
    filling.task("bio", "proteins", state="done", made=60)
    opened(filling)
    key(filling, "physics-lab", "tml-physics-lab-Qx71Zc", "notebook", requests=1204, tokens=(1_234_567, 310_222))
    key(filling, "bio", "tml-bio-aa01Bd", "", used=None)
    key(
        filling,
        "physics-lab",
        "tml-physics-lab-0lDk3y",
        "old agent",
        requests=7,
        tokens=(900, 80),
        used=NOW - 4000,
        revoked=NOW - 3600,
    )
    name(filling, "physics-lab", "helper", 12)
    name(filling, "physics-lab", "careful-helper", 13)
    name(filling, "bio", "folder", 74)
    asked(path, "tml-physics-lab-Qx71Zc", 3, tokens=(412, 64))
    asked(path, "tml-bio-aa01Bd", 20, model="17@twelve", status=404, error="model_not_found")
    asked(path, "tml-physics-lab-Qx71Zc", 95, route="/v1/messages", model="helper", status=429, error="quota_exceeded")
    return filling


def fill_hostile_api(path: Path) -> Filling:
    """Whatever others write is hostile."""
    filling = Filling(path)
    filling.engine()
    filling.task(CLEAN, CLEAN, CLEAN, state="running", made=3)
    opened(filling, is_open=0, note=CLEAN * 5)
    key(filling, CLEAN, f"tml-{CLEAN}", CLEAN, scopes=("chat", CLEAN), requests=10**15, tokens=(10**18, 10**18))
    key(filling, "x" * 10_000, "y" * 10_000, "z" * 10_000, used=NOW + 1e9)
    name(filling, CLEAN, CLEAN, 1)
    asked(path, f"tml-{CLEAN}", -1e12, model=CLEAN * 50, status=10**30, error=CLEAN, tokens=(10**30, -5), route=CLEAN)
    return filling


def opened(filling: Filling, is_open: int = 1, note: str = "") -> None:
    """The API as its engine wrote it."""
    url = URL if is_open else ""
    filling.insert("api", id=1, open=is_open, url=url, note=note, since=NOW - 750)


def key(
    filling: Filling,
    tenant: str,
    prefix: str,
    name: str,
    *,
    scopes: tuple[str, ...] = ("chat",),
    requests: int = 0,
    tokens: tuple[int, int] = (0, 0),
    used: float | None = NOW - 95,
    revoked: float | None = None,
) -> int:
    """A key."""
    return filling.insert(
        "api_keys", tenant=tenant, name=name, hash=hashlib.sha256(prefix.encode()).digest(), prefix=prefix,
        scopes=json.dumps(scopes), created=NOW - 86_400, last_use=used, revoked=revoked, requests=requests,
        tokens_in=tokens[0], tokens_out=tokens[1],
    )  # fmt: skip


def asked(
    path: Path,
    prefix: str,
    ago: float,
    *,
    route: str = "/v1/chat/completions",
    model: str = "12@best",
    status: int = 200,
    error: str = "",
    tokens: tuple[int, int] = (0, 0),
) -> None:
    """A request, as the gateway writes it into its log."""
    began = datetime.fromtimestamp(max(0.0, min(NOW - ago, 4e9)), UTC).isoformat(timespec="milliseconds")
    told = {"time": began, "route": route, "status": status, "ms": 84.1, "key": prefix, "model": model, "error": error}
    line = told | {"prompt_tokens": tokens[0], "completion_tokens": tokens[1]}
    log = path.parent / "logs" / "api.log"
    log.parent.mkdir(exist_ok=True)
    with log.open("a") as file:
        file.write(json.dumps(line) + "\n")


def name(filling: Filling, tenant: str, name: str, version: int) -> None:
    """A name of a version, by the version's id."""
    filling.insert("adapter_names", tenant=tenant, name=name, version=version, created=NOW - 60)

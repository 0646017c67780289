"""Fills a database with environments in every state, and with findings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from marlaas.engine.home.paths import Home

from .filling import HOSTILE, NOW, Filling, fill_full, fill_hostile

FINDINGS = (
    {"check": "baseline", "level": "warning", "message": "One answer to everything, “42”, earns 0.61 on average."},
    {"check": "lengths", "level": "note", "message": "Prompts have 9 to 14 tokens."},
)
BROKEN = "SyntaxError: '(' was never closed"


def fill_environments(path: Path) -> Filling:
    """Four environments, one of them broken."""
    filling = fill_full(path)
    filling.environment("arithmetic/arithmetic")
    filling.environment("shop/buy", "stale", BROKEN)
    filling.environment("games/guess", "waiting", "It needs libraries; `marlaas env allow games` shows them.")
    filling.execute("DELETE FROM environments WHERE name = 'arithmetic'")
    findings(filling, "arithmetic/arithmetic", FINDINGS)
    episodes(filling, "arithmetic/arithmetic", "9f2c41aa", {("ok", -5): 1180, ("ok", 2): 60, ("timeout", 16): 8})
    episodes(filling, "arithmetic/arithmetic", "03bb9d17", {("ok", -5): 600, ("cancelled", -5): 8})
    episodes(filling, "shop/buy", "9f2c41aa", {("error", -16): 412, ("ok", -8): 3})
    failure(filling, "shop/buy", "KeyError: 'price'", "shop.py", 31)
    return filling


def fill_broken(home: Home) -> Filling:
    """An environment that serves beside one whose file is there, and wrong in its third line."""
    home.create()
    filling = fill_full(home.database)
    filling.environment("arithmetic/arithmetic")
    path = home.plugins / "spell.py"
    path.write_text("async def spell(ep):\n    word = 'ozzi'\n    return wrod[::-1]\n")
    filling.environment("spell/spell", "broken", "NameError: name 'wrod' is not defined")
    filling.execute(
        "UPDATE environments SET path = ?, file = 'spell.py', line = 3 WHERE name = 'spell/spell'", str(path)
    )
    filling.execute("DELETE FROM environments WHERE name = 'arithmetic'")
    return filling


def fill_hostile_environments(path: Path) -> Filling:
    """Every text is somebody's bad joke."""
    filling = fill_hostile(path)
    findings(filling, "[/env]\x1b[31m", [{"check": "[/c]", "level": "error", "message": HOSTILE.replace("\ud800", "")}])
    hostile = {"name": "[/p]\x1b[2J", "type": "[b", "default": "[/]\x1b[1m" * 50, "choices": ["[/c]\x1b[0m"]}
    filling.execute(
        "UPDATE environments SET parameters = ?, description = ?", json.dumps([hostile]), "[/d]\x1b[31m\n" * 40
    )
    episodes(filling, "[/env]\x1b[31m", "[/v]\x1b[1m", {("[/status]\x1b[31m", 0): 10**9, ("error", 0): 1})
    failure(filling, "[/env]\x1b[31m", HOSTILE.replace("\ud800", ""), "[/file]\x1b[2J", 2**40)
    return filling


def findings(filling: Filling, environment: str, found: object) -> None:
    """What the checks found with the version that serves."""
    filling.insert(
        "conformance",
        environment=environment,
        version="9f2c41aa",
        base="b",
        findings=json.dumps(found),
        created=NOW - 90,
    )


def episodes(filling: Filling, environment: str, version: str, ended: Mapping[tuple[str, int], int]) -> None:
    """How many episodes ended within the last hour, by status and bucket of seconds."""
    for (status, bucket), count in ended.items():
        row = {"environment": environment, "version": version, "status": status, "bucket": bucket, "episodes": count}
        filling.insert("outcomes", begun=NOW - 300, **row)


def failure(filling: Filling, environment: str, message: str, file: str, line: int) -> None:
    """What went wrong last."""
    row = {"environment": environment, "version": "9f2c41aa", "message": message, "file": file, "line": line}
    filling.insert("failures", created=NOW - 42, **row)

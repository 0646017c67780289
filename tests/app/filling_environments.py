"""Fills a database with environments in every state, and with findings."""

from __future__ import annotations

import json
from pathlib import Path

from .filling import HOSTILE, NOW, Filling, fill_full, fill_hostile

FINDINGS = (
    {"check": "floor", "level": "warning", "message": "One answer to everything, “42”, earns 0.61 on average."},
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
    return filling


def fill_hostile_environments(path: Path) -> Filling:
    """Every text is somebody's bad joke."""
    filling = fill_hostile(path)
    findings(filling, "[/env]\x1b[31m", [{"check": "[/c]", "level": "error", "message": HOSTILE.replace("\ud800", "")}])
    hostile = {"name": "[/p]\x1b[2J", "type": "[b", "default": "[/]\x1b[1m" * 50, "choices": ["[/c]\x1b[0m"]}
    filling.execute(
        "UPDATE environments SET parameters = ?, description = ?", json.dumps([hostile]), "[/d]\x1b[31m\n" * 40
    )
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

"""``env check``: is this environment fit to train on? Plays it without a model and without an engine."""

from __future__ import annotations

import argparse
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from dataclasses import asdict
from typing import TYPE_CHECKING

from ... import output
from ...words.format import line
from ..verbs import Verbs, add_verb, home_of
from .config import add_config
from .rows import add_rows, rows_named

if TYPE_CHECKING:
    from marlaas.engine.environments import EnvironmentInfo, Finding, Meant, Ruler
    from marlaas.engine.home import Home

    Checks = AsyncGenerator[tuple[str, list[Finding]], None]

PROMPTS = 64
MOST_PROMPTS = 4096
ALIVE = 192
"""Episodes that a task with default settings has alive; the engine's number, which costs an import."""


def register(family: Verbs) -> None:
    """Add the verb."""
    check = add_verb(
        family,
        "check",
        run,
        "look for mistakes in an environment before you train on it for hours",
        json=True,
        epilog="Needs no engine. Plays the environment in its process: are instances repeatable, do held-out ones stay"
        " held out, what happens with nonsense replies, can rewards be earned without reading the prompt, how long are"
        " prompts, how long does it take, and what blocks when 64 episodes are played at once? Exits with 1 where it"
        " finds an error.",
    )
    check.add_argument(
        "name", metavar="NAME", help="an environment, a plugin (all of its environments), or a path (./my_env.py)"
    )
    add_config(check)
    add_rows(check)
    check.add_argument(
        "--prompts",
        type=_prompts,
        default=PROMPTS,
        metavar="N",
        help=f"instances of each split that are looked at (default {PROMPTS})",
    )
    check.add_argument(
        "--alive",
        type=_prompts,
        default=ALIVE,
        metavar="N",
        help="episodes that your task has alive at once, to tell what blocking costs it: groups_per_step × group_size ×"
        f" (max_staleness + 1); default {ALIVE}, as in a task file that says nothing",
    )


def run(args: argparse.Namespace) -> int:
    """Print findings as environments are checked, or all at the end as JSON."""
    import asyncio

    found = asyncio.run(_report(args))
    failed = any(finding.level == "error" for findings in found.values() for finding in findings)
    if args.json:
        rows = [{"name": name, "findings": [asdict(one) for one in findings]} for name, findings in found.items()]
        output.result_json({"ok": not failed, "environments": rows})
    return output.FAILED if failed else output.OK


async def _report(args: argparse.Namespace) -> dict[str, list[Finding]]:
    """Findings by environment."""
    from ...words.environments.facts import spoken, verdict

    found: dict[str, list[Finding]] = {}
    async with aclosing(_checked(home_of(args), args)) as checks:
        async for name, findings in checks:
            if not args.json:
                output.result(f"{line(name)}: {verdict(findings)}")
                for finding in findings:
                    heard = f"{finding.level}: {finding.check}, {line(finding.message)}"
                    output.result(heard if output.is_plain() else f"  {spoken(finding)}")
            found[name] = findings
    return found


async def _checked(home: Home, args: argparse.Namespace) -> Checks:
    """Serve the environments in a temporary folder, and check one after the other."""
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from marlaas.engine.environments import EnvironmentService, Interpreters, Scope, check, meant, settled
    from marlaas.engine.home import BUNDLED_PLUGINS, load_settings

    from .config import typed

    wish = meant(args.name, (BUNDLED_PLUGINS, home.plugins))
    with TemporaryDirectory(prefix="marlaas-check-", ignore_cleanup_errors=True) as folder:
        interpreters = Interpreters(home.venvs, load_settings(home).environments)
        service = EnvironmentService(wish.folders, Path(folder), only=wish.plugins, interpreters=interpreters)
        try:
            await settled(service)
            scope = Scope(args.prompts, alive=args.alive, ruler=_ruler(home))
            for info in _chosen(wish, service.infos()):
                config, data = typed(args.config, info.parameters), rows_named(args.rows, info.name)
                yield info.name, await check(service, info.name, config, scope, data)
        finally:
            await service.stop()


def _chosen(wish: Meant, infos: Collection[EnvironmentInfo]) -> list[EnvironmentInfo]:
    """All environments of the plugin that was named, else the one."""
    from marlaas.engine.environments import find

    own = [info for info in infos if info.name.partition("/")[0] == wish.plugin]
    return own if own and wish.environment == wish.plugin else [find(wish.environment, own or list(infos))]


def _ruler(home: Home) -> Ruler | None:
    """What counts tokens for the home's base; None where that base cannot be used, which other checks report."""
    from marlaas.engine.base import load_base
    from marlaas.engine.devices import available_memory
    from marlaas.engine.errors import ConfigError
    from marlaas.engine.fleet import plan_of
    from marlaas.engine.home import load_settings
    from marlaas.engine.rollout import PromptRuler, Renderer

    try:
        settings = load_settings(home)
        base = load_base(settings.base)
        plan = plan_of(base, settings, available_memory(settings.resources.memory))
        return PromptRuler(Renderer(base.path), plan.context)
    except ConfigError as error:
        output.talk(f"Prompts are not measured in tokens: {line(error.message)}")
        return None


def _prompts(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 6 or not 1 <= int(text) <= MOST_PROMPTS:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to {MOST_PROMPTS:,}")
    return int(text)

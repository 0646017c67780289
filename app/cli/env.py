"""``env``: environments, their checks, configurations, rows and prompts."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NoReturn

from marlaas.engine.daemon import control
from marlaas.engine.errors import ConfigError, EngineUnreachable, EnvironmentFailure, EnvironmentMissing
from marlaas.engine.home.paths import BUNDLED_PLUGINS, Home
from marlaas.engine.home.settings import load_settings
from marlaas.engine.queue.submission import taskfile
from marlaas.engine.queue.submission.queue import missing_rows
from marlaas.engine.queue.submission.taskfile import environments_of
from marlaas.engine.spec.task import DataSpec
from marlaas.engine.spec.validation import nearest
from marlaas.engine.store.queries import machine
from marlaas.engine.store.queries.machine import EnvironmentUse
from marlaas.engine.store.rows import EnvironmentRow

from .. import output
from ..operations.commands import refuse, send
from ..operations.environments.source_lines import source_lines
from ..operations.environments.templates import SHAPES, write_template
from ..reading import opened, reading
from ..text.environments import (
    facts,
    failed_share,
    lately_json,
    mark,
    named,
    place_of,
    plugin_of,
    short,
    spoken,
    takes,
    troubles,
    verdict,
)
from ..text.format import clip, line, plain
from ..tui.chat.sampling_options import add_sampling
from .parser import Verbs, add_family, add_task, add_verb, arg, one_of, whole
from .terminal import Waiting, agreed

if TYPE_CHECKING:
    from marlaas.engine.environments.conformance.finding import Finding
    from marlaas.engine.environments.files import Source
    from marlaas.engine.environments.protocol import EnvironmentInfo


TAIL, WIDTH = 5, 160
LINES = 50


def run_show(home: Home, args: argparse.Namespace) -> int:
    """Print one environment, or those of a plugin."""
    rows = matching(home, args.name)
    with opened(home) as reader:
        uses = machine.environment_use(reader, time.time())
    if args.json:
        return _json(rows, uses)
    for number, row in enumerate(rows):
        use = uses.get(row.name, EnvironmentUse())
        output.result(f"{chr(10) * bool(number)}{line(row.name)}: {line(_first(row.description))}".rstrip(": "))
        for fact in facts(row, use, time.time(), source_lines(row, use)):
            output.fact(fact.label or "", fact.text, 10)
        for text in plain(row.description).strip().split("\n")[1:]:
            output.result(f"  {text}".rstrip())
    printed = tail(home, plugin_of(rows[0]), TAIL)
    if printed:
        output.result("  printed lately")
        for text in printed:
            output.quote(f"    {clip(text, WIDTH)}")
    return output.OK


def _json(rows: Sequence[EnvironmentRow], uses: Mapping[str, EnvironmentUse]) -> int:
    return output.result_json(
        [asdict(row) | {"last_hour": lately_json(uses.get(row.name, EnvironmentUse()))} for row in rows]
    )


def run_log(home: Home, args: argparse.Namespace) -> int:
    """Print the end of a plugin's log."""
    plugin = plugin_of(matching(home, args.name)[0])
    printed = tail(home, plugin, max(0, args.lines))
    for text in printed:
        output.quote(text)
    return output.OK if printed else output.done(f"The plugin {line(plugin)} has printed nothing lately.")


def matching(home: Home, name: str) -> list[EnvironmentRow]:
    """Environments of that name, as the engine last saw them. Raises ``EnvironmentMissing``."""
    with reading(home) as reader:
        rows = reader.environments() if reader else []
    if not rows:
        raise EnvironmentMissing(NEVER)
    watched(home)
    return named(name, rows)


def watched(home: Home) -> bool:
    """True if an engine is alive; else warns that states are old."""
    alive = control.alive(home)
    if not alive:
        folder = line(str(home.plugins))
        output.talk(f"No engine looks at {folder}: this is what the last one saw; `marlaas engine start` starts one.")
    return alive


def tail(home: Home, plugin: str, lines: int) -> list[str]:
    """A plugin's last printed lines, made safe."""
    from marlaas.engine.environments.process.launch import Folders

    try:
        with Folders.of(home.scratch, plugin).log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - (1 << 20)))  # a megabyte is enough
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return plain(text).rstrip("\n").split("\n")[-lines:] if text.strip() and lines else []


COUNT, MOST = 3, 100


def run_prompts(home: Home, args: argparse.Namespace) -> int:
    """Print the first training instances' first prompts."""
    from ..operations.environments.peeking import peeked, prompt_lines

    config = typed(args.config, kinds_of(peeked(home, args.name, {}, count=0).info)) if args.config else {}
    seen = peeked(home, args.name, config, args.n)
    if args.json:
        asks = [asdict(ask) for ask in seen.asks]
        output.result_json({"environment": seen.info.name, "prompts": asks, "problem": seen.problem})
    else:
        for number, ask in enumerate(seen.asks):
            output.result(f"{chr(10) * bool(number)}instance {number}")
            for row in prompt_lines(ask):
                output.quote(f"  {row}")
    if seen.problem:
        output.complain(seen.problem)
    return output.FAILED if seen.problem else output.OK


ROWS = arg(
    "--rows",
    metavar="FILE",
    default="",
    help="the rows to draw tasks from: a file of rows, or a task file that names some below [data]",
)


def rows_named(file: str, environment: str) -> dict[str, Any] | None:
    """Rows in the form of ``plugins.data.Source.record``; None if ``file`` is empty. Raises ``ConfigError`` if no rows
    are found."""
    if not file:
        return None
    path = Path(file).expanduser().absolute()
    record = DataSpec(path=str(path)).record
    if path.suffix == ".toml":  # a task file: the first rows that it names for the environment
        names = {environment, environment.rpartition("/")[2]}
        played = (one for task in taskfile.load(path) for one in environments_of(task))
        record = next((one.data for one in played if one.name in names and one.data), None)
    if record is None:
        raise ConfigError(f"names no rows for {environment}.", "Name some as 'path' below its [data].", where=file)
    if missing := missing_rows(record):
        raise ConfigError(missing, "--rows takes a file of rows, or a task file that names some.")
    return record


# ``env check``: plays the environment without model and engine.

PROMPTS = 64
MOST_PROMPTS = 4096


def run_check(home: Home, args: argparse.Namespace) -> int:
    """Print findings per environment, or all at the end as JSON."""
    import asyncio

    found = asyncio.run(_check(home, args))
    failed = any(finding.level == "error" for findings in found.values() for finding in findings)
    if args.json:
        rows = [{"name": name, "findings": [asdict(one) for one in findings]} for name, findings in found.items()]
        output.result_json({"ok": not failed, "environments": rows})
    return output.FAILED if failed else output.OK


async def _check(home: Home, args: argparse.Namespace) -> dict[str, list[Finding]]:
    """For a named plugin, all its environments."""
    from marlaas.engine.environments.conformance.check import Scope, check
    from marlaas.engine.environments.dependencies import Interpreters
    from marlaas.engine.environments.service import find, meant, served
    from marlaas.engine.gateway.api import check_installed, open_gateways

    from ..operations.environments.peeking import Programs, find_room

    found: dict[str, list[Finding]] = {}
    wish = meant(args.name, (BUNDLED_PLUGINS, home.plugins))
    with TemporaryDirectory(prefix="marlaas-check-", ignore_cleanup_errors=True) as folder:
        interpreters = Interpreters(home.venvs, load_settings(home).environments)
        async with (
            served(wish.folders, wish.plugins, Path(folder), interpreters) as service,
            open_gateways(Path(folder), lambda _, text, level: output.talk(text)) as gateways,
        ):
            infos = list(service.infos())
            own = [info for info in infos if info.name.partition("/")[0] == wish.plugin]
            whole_plugin = own and wish.environment == wish.plugin
            for info in own if whole_plugin else [find(wish.environment, own or infos)]:
                config, data = typed(args.config, kinds_of(info)), rows_named(args.rows, info.name)
                if info.program:
                    check_installed()
                programs = Programs(gateways)
                findings = await check(service, info.name, config, Scope(args.prompts), data, programs.serve)
                findings += [*programs.findings(), *await find_room(home, programs.longest, info.context)]
                found[info.name] = findings
                if args.json:
                    continue
                output.result(f"{line(info.name)}: {verdict(findings)}")
                for finding in findings:
                    heard = f"{finding.level}: {finding.check}, {line(finding.message)}"
                    output.result(heard if output.is_plain() else f"  {spoken(finding)}")
    return found


# The environment's parameters give the type.
#
# Unreadable text stays text; ``EnvironmentService.validate`` then refuses it.


CONFIG = arg(
    "--config",
    action="extend",
    nargs="+",
    default=[],
    metavar="NAME=VALUE",
    help='parameters of the environment, as in digits=3 verbose=true \'words=["ink", "pen"]\'',
)


def typed(pairs: Sequence[str], kinds: Mapping[str, str]) -> dict[str, Any]:
    """Values by name, by the kinds of the environment's parameters; the last wins.

    Raises ``ConfigError`` for a non-pair or broken JSON.
    """
    values = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not name or not equals:
            raise ConfigError(f"--config {pair!r} is no NAME=VALUE.", "Write, for example, --config digits=3.")
        try:
            values[name] = value_of(text, kinds.get(name, "str"))
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                f"The parameter {name!r} is a list or a table in JSON, and {text!r} is not: {error}.",
                'Write, for example, [1, 2], {"ink": 3} or "a text".',
            ) from error
    return values


def kinds_of(info: EnvironmentInfo) -> dict[str, str]:
    """The kind of each parameter of an environment."""
    return {parameter.name: parameter.type for parameter in info.parameters}


def value_of(text: str, kind: str) -> Any:
    """``text`` as a parameter of that kind, or unchanged. Raises ``ValueError`` for broken JSON of kind ``json``."""
    match kind:
        case "int" | "float":
            try:
                return int(text) if kind == "int" else float(text)
            except ValueError:
                return text
        case "bool":
            return {"true": True, "false": False}.get(text.lower(), text)
        case "json":
            return strict_json(text)
    return text


def strict_json(text: str) -> Any:
    """A value in JSON, without NaN and infinities. Raises ``ValueError``."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


# The virtual environment and the consent are files in the home; a running engine notices them. No plugin code runs.


def run_allow(home: Home, args: argparse.Namespace) -> int:
    """Show the list, ask, install."""
    import asyncio

    from marlaas.engine.environments.dependencies import BuildFailed, Refused, build, in_words, needs_of
    from marlaas.engine.environments.plugin import said

    control.make_home(home, notice=output.talk)
    settings = load_settings(home).environments
    source = _source(args.name, home)
    try:
        _, venv = needs_of(source, home.venvs)
    except Refused as error:
        raise ConfigError(f"{source.name} cannot run here: {said(error.failure)}.") from error
    if venv is None:
        return output.done(f"{line(source.name)} needs no libraries: it runs on marlaas's own Python.")
    output.result(f"{line(source.name)} needs, on Python {venv.base.version}:")
    for dependency in venv.dependencies:
        output.result(f"  {line(dependency)}")
    if venv.dependencies:
        output.result(f"with what they need themselves, from {line(in_words(settings, os.environ))}.")
    output.result(f"Place: {line(str(venv.folder))}")
    if venv.built:
        return output.done("They are installed; nothing is to be done.")
    if settings.allow == "never":
        raise ConfigError(
            'Nothing may be installed: `allow = "never"` stands under [environments] in marlaas.toml.',
            'Change it to "ask" to be asked.',
        )
    if not args.yes and not agreed("Install them?"):
        output.talk("Nothing was installed.")
        return output.FAILED
    began = time.monotonic()
    output.talk(f"Installing; large libraries take minutes. The log is {line(str(venv.log))}.")
    try:
        asyncio.run(build(venv, settings, lambda text: output.talk(f"  {line(text, 100)}") if text.strip() else None))
    except BuildFailed as error:
        venv.allow()
        raise EnvironmentFailure(
            f"The libraries of {source.name} cannot be installed: {error}.",
            "The consent is kept; the command tries again.",
        ) from error
    venv.allow()
    took = time.monotonic() - began
    return output.done(f"Installed in {took:.1f} s. An engine that runs serves {line(source.name)} at once.")


def _source(name: str, home: Home) -> Source:
    """Runs no plugin code."""
    from marlaas.engine.environments.files import SourceError, plugin_paths, read_source
    from marlaas.engine.environments.service import meant

    wish = meant(name, [BUNDLED_PLUGINS, home.plugins])
    paths = {plugin: path for folder in wish.folders for plugin, path in plugin_paths(folder).items()}
    if wish.plugin not in paths:
        raise EnvironmentMissing(f"There is no environment plugin {name!r}.", nearest(name, sorted(paths)))
    try:
        return read_source(paths[wish.plugin])
    except SourceError as error:
        raise ConfigError(f"cannot be read: {error}.", where=str(paths[wish.plugin])) from error


def run_new(home: Home, args: argparse.Namespace) -> int:
    """Write a template into the plugins folder; print the next steps."""

    if args.to is None:
        control.make_home(home, notice=output.talk)
    folder = home.plugins if args.to is None else Path(os.path.expanduser(args.to))
    for path in write_template(args.name, args.shape, folder, home):
        output.result(str(path))
    served = folder.resolve() == home.plugins.resolve()
    name = args.name if served else str(folder / f"{args.name}.py")
    submit = f'  marlaas submit TASK.toml    with environment = "{args.name}" in the task file'
    last = submit if served else f"To train on it, put it into {home.plugins}."
    for text in ("It runs as it is. Next:", f"  marlaas env check {name}", f"  marlaas env play {name}", last):
        output.talk(text)
    return output.OK


def run_reload(home: Home, args: argparse.Namespace) -> int:
    """Restart a plugin even if the engine sees no change."""

    if not control.alive(home):
        raise EngineUnreachable(f"No engine serves {home.root}.", "`marlaas engine start` starts one.")
    plugin = plugin_of(matching(home, args.name)[0])
    refuse(send(home, "reload", about=f"the plugin {plugin}", plugin=plugin))
    return output.done(f"The plugin {line(plugin)} was read again; it serves.")


LARGEST = (1 << 53) - 1
"""Largest instance number or seed that a plugin accepts."""


def run_play(home: Home, args: argparse.Namespace) -> int:
    """Play until the person stops: as a person, a policy, or both."""
    with Waiting(f"Loading {args.name}") as waiting:  # importing what plays takes a while by itself
        import asyncio

        from .env_play import play

        agents, watches = dict(args.agents), bool(args.agents or args.policy or args.base)
        if args.mine and not watches:
            raise ConfigError("--as needs somebody who plays the other agents.", "Add --policy TASK or --base.")
        for agent in args.mine:
            if agent in agents:
                raise ConfigError(f"You and {agents[agent]} cannot both play the agent {agent!r}.", "Keep one of them.")
        try:
            code = asyncio.run(play(home, args, waiting))
        except KeyboardInterrupt:
            code = output.INTERRUPTED
        if code == output.INTERRUPTED:
            waiting.say("Interrupted; nothing of it goes on.")
        return code


NEVER = "No engine has looked for environments in this home yet; `marlaas engine start` starts one."
GROUPS = 64


def run_replay(home: Home, args: argparse.Namespace) -> int:
    """Replay recorded episodes on what lies in the plugins folder now."""
    from .env_play import replay  # loads numpy

    return replay(home, args)


def run(home: Home, args: argparse.Namespace) -> int:
    """Print the environments as the engine last saw them."""
    with reading(home) as reader:
        environments = reader.environments() if reader else []
        uses = machine.environment_use(reader, time.time()) if reader else {}
    if not environments:
        return _json((), uses) if args.json else output.done(NEVER)
    alive = watched(home)
    if args.name is not None:
        with_name = [row for row in environments if args.name.lower() in row.name.lower()]
        environments = with_name or named(args.name, environments)  # raises its error with the nearest name
    if args.json:
        return _json(environments, uses)
    output.result_table(
        (
            *("NAME", "STATE", "VERSION", "PROCESSES", "CHECKED"),
            *("EPISODES", "FAILED", "MEDIAN", "P95", "PARAMETERS", "DESCRIPTION"),
        ),
        [_columns(row, uses.get(row.name)) for row in environments],
    )
    for environment in environments:
        if environment.message:
            output.talk(line(f"{environment.name}: {environment.message}{place_of(environment)}"))
        for finding in troubles(environment.findings):
            output.talk(f"{line(environment.name)}: {spoken(finding)}")
    if uses:
        output.talk("Episodes, failures and times are those of the last hour.")
    if alive:
        output.talk(f"Files dropped into {home.plugins} are served at once.")
    return output.OK


def _columns(row: EnvironmentRow, use: EnvironmentUse | None) -> tuple[str, ...]:
    """Blank numbers if no episode ended in the last hour."""
    times = (takes(use.median), takes(use.slow)) if use and use.statuses.get("ok") else ("", "")
    processes = str(row.playing + row.scoring or "")
    return (
        row.name,
        row.state,
        row.version[:8],
        f"{processes} ({row.waiting:,} wait)" if row.waiting else processes,
        mark(row),
        *((f"{use.episodes:,}", failed_share(use)) if use else ("", "")),
        *times,
        " ".join(line(short(parameter), 60) for parameter in row.parameters),
        line(_first(row.description), 60),
    )


def _first(text: str) -> str:
    return text.partition("\n")[0]


def register(verbs: Verbs) -> None:
    """Add the verbs."""
    family = add_family(verbs, "env", "write, try, see and reload environments")
    add_verb(
        family,
        "list",
        run,
        "list environments, their parameters and errors",
        arg("name", metavar="NAME", nargs="?", help="only those with this in their name"),
        json=True,
    )
    add_verb(
        family,
        "new",
        run_new,
        "write a template that runs at once",
        arg("name", metavar="NAME", help="of the environment and its file: letters, digits and _"),
        arg("--shape", choices=tuple(SHAPES), default="single", help="what it does (default single)"),
        arg("--to", type=Path, metavar="FOLDER", help="where to write (default: the home's plugins folder)"),
        epilog="\n".join(("shapes:", *(f"  {name:<8} {what}" for name, what in SHAPES.items()))),
    ).formatter_class = argparse.RawDescriptionHelpFormatter
    add_verb(
        family,
        "prompts",
        run_prompts,
        "show the first prompts of an environment",
        arg("name", metavar="NAME", help="an environment, or the path of a plugin (./my_env.py)"),
        CONFIG,
        arg("-n", type=whole(1, MOST), default=COUNT, metavar="N", help=f"how many (default {COUNT})"),
        json=True,
    )
    add_verb(
        family,
        "check",
        run_check,
        "look for mistakes in an environment before you train on it for hours",
        arg("name", metavar="NAME", help="an environment, a plugin (all of its environments), or a path (./my_env.py)"),
        CONFIG,
        ROWS,
        arg(
            "--prompts",
            type=whole(1, MOST_PROMPTS),
            default=PROMPTS,
            metavar="N",
            help=f"instances of each split that are looked at (default {PROMPTS})",
        ),
        arg("--alive", type=whole(1, MOST_PROMPTS), help=argparse.SUPPRESS),  # read without effect
        json=True,
        epilog="Needs no engine. Plays the environment in its process: are instances repeatable, do held-out ones stay"
        " held out, what happens with nonsense replies, can rewards be earned without reading the prompt, and how long"
        " does it take? Exits with 1 where it finds an error.",
    )
    add_verb(
        family,
        "play",
        run_play,
        "play an environment yourself, or let a policy play it",
        arg("name", metavar="NAME", help="an environment, or the path of a plugin (./my_env.py)"),
        CONFIG,
        ROWS,
        arg("--split", choices=("train", "eval", "test"), default="train", help="whose instances"),
        arg("--index", type=whole(0, LARGEST), default=0, metavar="N", help="the first instance (default 0)"),
        arg("--seed", type=whole(0, LARGEST), default=0, metavar="S", help="the run's seed (default 0)"),
        arg(
            "--as",
            dest="mine",
            action="append",
            default=[],
            metavar="AGENT",
            help="an agent that you play, not a policy",
        ),
        one_of(
            arg(
                "--policy",
                metavar="TASK[/POLICY][@VERSION]",
                help="the newest version of a task's adapter plays, or that one; of several policies each as in"
                " training",
            ),
            arg("--base", action="store_true", help="the home's base model plays, without an adapter"),
        ),
        arg(
            "--agent",
            dest="agents",
            action="append",
            nargs=2,
            default=[],
            metavar=("AGENT", "POLICY"),
            help="who plays one agent, as for --policy, or base: --agent second 17/player@12",
        ),
        add_sampling,
        epilog="Needs no engine. Prompts, tools, results, rewards and errors are shown as the episode goes; /help says"
        " what can be typed. From a pipe it reads line by line what you would type, also between two episodes, and"
        " ends with the input.",
    )
    add_verb(
        family,
        "replay",
        run_replay,
        "show which rewards of a task a changed environment would give differently",
        add_task,
        arg("--component", metavar="NAME", help="which environment, of a task with a [[mixture]]"),
        arg("--version", metavar="V", help="an earlier version of the environment, by how its name begins"),
        arg(
            "--split",
            choices=("train", "eval", "test"),
            help="which episodes (default train; of an evaluation, those that it measured)",
        ),
        arg(
            "--last",
            type=whole(1, 1_000_000),
            default=GROUPS,
            metavar="N",
            help=f"the last N groups of them (default {GROUPS})",
        ),
        json=True,
        epilog="Plays recorded episodes again, with the replies that were recorded, on what lies in the plugins folder"
        " now. Where the environment says something else than it did then, the reply was to another prompt, and the"
        " rewards cannot be compared. Exits with 0 whether or not rewards change.",
    )
    add_verb(
        family,
        "allow",
        run_allow,
        "see and allow the libraries that an environment needs, and install them",
        arg("name", metavar="NAME", help="a plugin or one of its environments, or the path of its file"),
        arg("--yes", action="store_true", help="allow it without being asked"),
        epilog="Libraries run with your rights, and some run code while they are installed. Plugins that need the same"
        " set share it, and you are asked once.",
    )
    add_verb(
        family,
        "show",
        run_show,
        "print all that is known of an environment",
        arg("name", metavar="NAME", help="an environment, or a plugin for all of its environments"),
        json=True,
    )
    add_verb(
        family,
        "log",
        run_log,
        "print what a plugin has printed, newest last",
        arg("name", metavar="NAME", help="a plugin, or one of its environments"),
        arg("-n", "--lines", type=int, default=LINES, metavar="N", help=f"at most the last N (default {LINES})"),
    )
    add_verb(
        family,
        "reload",
        run_reload,
        "read a plugin again and start its processes anew",
        arg("name", metavar="NAME", help="a plugin, or one of its environments"),
        epilog="Edits are noticed by themselves. This is for what a plugin read elsewhere, and for one that rests"
        " because it failed too often: it is tried again at once. Groups under way end on the process that they have.",
    )

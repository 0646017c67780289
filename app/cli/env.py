"""``env``: environments, their checks, configurations, rows and prompts; the verb that plays them."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NoReturn

from marlaas.engine.devices.limits import available_memory
from marlaas.engine.errors import ConfigError, EngineUnreachable, EnvironmentFailure, EnvironmentMissing
from marlaas.engine.home.paths import BUNDLED_PLUGINS, Home
from marlaas.engine.home.settings import EnvironmentSettings, load_settings
from marlaas.engine.queue.submission import taskfile
from marlaas.engine.queue.submission.queue import missing_rows
from marlaas.engine.queue.submission.taskfile import environments_of
from marlaas.engine.spec.task import DataSpec
from marlaas.engine.spec.validation import nearest
from marlaas.engine.store.queries.machine import EnvironmentUse
from marlaas.engine.store.rows import EnvironmentRow
from marlaas.engine.store.submissions import command

from .. import output
from ..operations.commands import unanswered, wait_for_outcomes
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
from ..tui.chat.sampling_options import add_sampling, truncation
from .env_replay import GROUPS, groups_word, run_replay
from .parser import Verbs, add_family, add_task, add_verb, arg, home_of, one_of
from .tasks import Waiting
from .terminal import agreed

if TYPE_CHECKING:
    from marlaas.engine.environments.alone import Meant
    from marlaas.engine.environments.conformance.check import Ruler
    from marlaas.engine.environments.conformance.finding import Finding
    from marlaas.engine.environments.protocol import EnvironmentInfo

    Checks = AsyncGenerator[tuple[str, list[Finding]], None]
    from marlaas.engine.environments.dependencies.venv import Venv
    from marlaas.engine.environments.files.source import Source
    from marlaas.plugins.parameters import Parameter


# ``env show`` and ``env log``: all that is known of one environment, and what its plugin has printed.

TAIL, WIDTH = 5, 160
"""Lines of the log that ``show`` prints, and how much of each."""
LINES = 50
LONGEST_TAIL = 1 << 20
"""Bytes of a log that are looked at."""


def run_show(args: argparse.Namespace) -> int:
    """Print one environment, or those of a plugin."""

    home = home_of(args)
    rows = found(home, args.name)
    with reading(home) as reader:
        uses = reader.environment_use(time.time()) if reader else {}
    if args.json:
        return output.result_json(
            [asdict(row) | {"last_hour": lately_json(uses.get(row.name, EnvironmentUse()))} for row in rows]
        )
    for number, row in enumerate(rows):
        if number:
            output.result("")
        _show(row, uses.get(row.name, EnvironmentUse()))
    printed = tail(home, plugin_of(rows[0]), TAIL)
    if printed:
        output.result("  printed lately")
        for text in printed:
            output.quote(f"    {clip(text, WIDTH)}")
    return output.OK


def run_log(args: argparse.Namespace) -> int:
    """Print the end of a plugin's log."""

    home = home_of(args)
    plugin = plugin_of(found(home, args.name)[0])
    printed = tail(home, plugin, max(0, args.lines))
    for text in printed:
        output.quote(text)
    if not printed:
        output.talk(f"The plugin {line(plugin)} has printed nothing lately.")
    return output.OK


def found(home: Home, name: str) -> list[EnvironmentRow]:
    """The environments that a name means, as the engine last saw them. Raises ``EnvironmentMissing``."""

    with reading(home) as reader:
        rows = reader.environments() if reader else []
    if not rows:
        raise EnvironmentMissing(
            "No engine has looked for environments in this home yet.", "`marlaas engine start` starts one."
        )
    if reason := unwatched(home):
        output.talk(reason)
    return named(name, rows)


def unwatched(home: Home) -> str:
    """A warning if no engine is alive, so that what is shown is what the last one saw; else empty."""
    from marlaas.engine.daemon import control

    if control.alive(home):
        return ""
    where = line(str(home.plugins))
    return f"No engine looks at {where}: this is what the last one saw; `marlaas engine start` starts one."


def tail(home: Home, plugin: str, lines: int) -> list[str]:
    """The last lines that a plugin has printed, each made safe."""
    from marlaas.engine.environments.process.launch import Folders

    try:
        with Folders.of(home.scratch, plugin).log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - LONGEST_TAIL))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return plain(text).rstrip("\n").split("\n")[-lines:] if text.strip() and lines else []


def _show(row: EnvironmentRow, use: EnvironmentUse) -> None:

    output.result(f"{line(row.name)}: {line(row.description.partition(chr(10))[0])}".rstrip(": "))
    for fact in facts(row, use, time.time(), source_lines(row, use)):
        output.fact(fact.label, fact.text, 10)
    for text in plain(row.description).strip().split("\n")[1:]:
        output.result(f"  {text}".rstrip())


# ``env prompts``: what the model would be asked, before anything is trained; needs no engine and no model.

COUNT, MOST = 3, 100


def count(text: str) -> int:
    """An argument that is a number of prompts."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to {MOST}")
    return int(text)


def run_prompts(args: argparse.Namespace) -> int:
    """Play the first training instances up to their first question."""
    from ..operations.environments.peeking import peeked, prompt_lines

    home = home_of(args)
    config = typed(args.config, peeked(home, args.name, {}, count=0).info.parameters) if args.config else {}
    seen = peeked(home, args.name, config, args.n)
    if args.json:
        asks = [asdict(ask) for ask in seen.asks]
        output.result_json({"environment": seen.info.name, "prompts": asks, "problem": seen.problem})
    else:
        for number, ask in enumerate(seen.asks):
            output.result(f"{'' if not number else chr(10)}instance {number}")
            for row in prompt_lines(ask):
                output.quote(f"  {row}")
    if seen.problem:
        output.complain(seen.problem)
    return output.FAILED if seen.problem else output.OK


# ``--rows FILE``: what an environment draws its tasks from, in place of its own rows.


def add_rows(parser: argparse.ArgumentParser) -> None:
    """Add the option."""
    parser.add_argument(
        "--rows",
        metavar="FILE",
        default="",
        help="the rows to draw tasks from: a file of rows, or a task file that names some below [data]",
    )


def rows_named(file: str, environment: str) -> dict[str, Any] | None:
    """The rows that ``file`` means for an environment, as ``plugins.data.Source.record`` writes them; None if it is
    empty. Raises ``ConfigError`` if there are none, as far as can be seen."""

    if not file:
        return None
    path = Path(file).expanduser().absolute()
    record = _of_task_file(path, environment) if path.suffix == ".toml" else DataSpec(path=str(path)).record
    if record is None:
        raise ConfigError(f"names no rows for {environment}.", "Name some as 'path' below its [data].", where=file)
    if missing := missing_rows(record):
        raise ConfigError(missing, "--rows takes a file of rows, or a task file that names some.")
    return record


def _of_task_file(path: Path, environment: str) -> dict[str, Any] | None:
    """The first rows that a task file names for an environment."""

    names = {environment, environment.rpartition("/")[2]}
    played = (one for task in taskfile.load(path) for one in environments_of(task))
    return next((one.data for one in played if one.name in names and one.data), None)


# ``env check``: is this environment fit to train on? Plays it without a model and without an engine.

PROMPTS = 64
MOST_PROMPTS = 4096
ALIVE = 192
"""Episodes that a task with default settings has alive; the engine's number, which costs an import."""


def run_check(args: argparse.Namespace) -> int:
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

    from marlaas.engine.environments.alone import meant, settled
    from marlaas.engine.environments.conformance.check import Scope, check
    from marlaas.engine.environments.dependencies.interpreters import Interpreters
    from marlaas.engine.environments.service import EnvironmentService

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
    from marlaas.engine.environments.service import find

    own = [info for info in infos if info.name.partition("/")[0] == wish.plugin]
    return own if own and wish.environment == wish.plugin else [find(wish.environment, own or list(infos))]


def _ruler(home: Home) -> Ruler | None:
    """What counts tokens for the home's base; None if that base cannot be used, which other checks report."""
    from marlaas.engine.machine.plan import plan_of
    from marlaas.engine.models.find import load_base
    from marlaas.engine.rollout.renderer import PromptRuler, Renderer

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


# ``--config NAME=VALUE``: an environment's parameters as they are typed on a command line.
#
# The environment's parameters say which type a text becomes. A text that cannot be read as its type stays a text:
# ``EnvironmentService.validate`` then refuses it in the environment's own words.

WORDS = {"true": True, "false": False}


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add the option."""
    parser.add_argument(
        "--config",
        action="extend",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help='parameters of the environment, as in digits=3 verbose=true \'words=["ink", "pen"]\'',
    )


def typed(pairs: Sequence[str], parameters: Sequence[Parameter]) -> dict[str, Any]:
    """Values by name, the last for each. Raises ``ConfigError`` for what is no pair, and for broken JSON."""

    kinds = {parameter.name: parameter.type for parameter in parameters}
    values = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not name or not equals:
            raise ConfigError(f"--config {pair!r} is no NAME=VALUE.", "Write, for example, --config digits=3.")
        try:
            values[name] = value_of(text, kinds.get(name, "str"))
        except ValueError as error:
            raise ConfigError(
                f"The parameter {name!r} is a list or a table in JSON, and {text!r} is not: {error}.",
                'Write, for example, [1, 2], {"ink": 3} or "a text".',
            ) from error
    return values


def value_of(text: str, kind: str) -> Any:
    """``text`` as a parameter of that kind, or as it is. Raises ``ValueError`` if a ``json`` one is no JSON."""
    match kind:
        case "int" | "float":
            try:
                return int(text) if kind == "int" else float(text)
            except ValueError:
                return text
        case "bool":
            return WORDS.get(text.lower(), text)
        case "json":
            return json.loads(text, parse_constant=_refuse)
    return text


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


# ``env allow``: shows what a plugin wants installed, asks once for each set of libraries, and installs it.
#
# The virtual environment and the person's consent are files in the home; an engine that runs notices them by itself.
# No code of the plugin runs.


def run_allow(args: argparse.Namespace) -> int:
    """Show the list, ask, install."""
    from marlaas.engine.daemon import control
    from marlaas.engine.environments.dependencies.interpreters import Refused, needs_of
    from marlaas.engine.environments.plugin import said

    home = home_of(args)
    control.make_home(home, notice=output.talk)
    settings = load_settings(home).environments
    source = _source(args.name, home)
    try:
        _, venv = needs_of(source, home.venvs)
    except Refused as error:
        raise ConfigError(f"{source.name} cannot run here: {said(error.failure)}.") from error
    if venv is None:
        return output.done(f"{line(source.name)} needs no libraries: it runs on marlaas's own Python.")
    _show_of_allow(source.name, venv, settings)
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
    return _install(source.name, venv, settings)


def _source(name: str, home: Home) -> Source:
    """The plugin's files, read without running them."""
    from marlaas.engine.environments.alone import meant
    from marlaas.engine.environments.files.source import SourceError, plugin_paths, read_source

    wish = meant(name, [BUNDLED_PLUGINS, home.plugins])
    paths = {plugin: path for folder in wish.folders for plugin, path in plugin_paths(folder).items()}
    if wish.plugin not in paths:
        raise EnvironmentMissing(f"There is no environment plugin {name!r}.", nearest(name, sorted(paths)))
    try:
        return read_source(paths[wish.plugin])
    except SourceError as error:
        raise ConfigError(f"cannot be read: {error}.", where=str(paths[wish.plugin])) from error


def _show_of_allow(plugin: str, venv: Venv, settings: EnvironmentSettings) -> None:
    """Print what would be installed, from where and where to. The packages' own requirements come along, as always."""

    from marlaas.engine.environments.dependencies.venv import in_words

    output.result(f"{line(plugin)} needs, on Python {venv.base.version}:")
    for dependency in venv.dependencies:
        output.result(f"  {line(dependency)}")
    if venv.dependencies:
        output.result(f"with what they need themselves, from {line(in_words(settings, os.environ))}.")
    output.result(f"Place: {line(str(venv.folder))}")


def _install(plugin: str, venv: Venv, settings: EnvironmentSettings) -> int:
    """Install, then remember the consent; an engine that runs serves the plugin, or tries again and explains why
    not."""
    import asyncio

    from marlaas.engine.environments.dependencies.venv import BuildFailed, build

    began = time.monotonic()
    output.talk(f"Installing; large libraries take minutes. The log is {line(str(venv.log))}.")
    try:
        asyncio.run(build(venv, settings, lambda text: output.talk(f"  {line(text, 100)}") if text.strip() else None))
    except BuildFailed as error:
        venv.allow()
        raise EnvironmentFailure(
            f"The libraries of {plugin} cannot be installed: {error}.", "The consent is kept; the command tries again."
        ) from error
    venv.allow()
    return output.done(
        f"Installed in {time.monotonic() - began:.1f} s. An engine that runs serves {line(plugin)} at once."
    )


# ``env new``: writes a template of an environment into the plugins folder, and explains what comes next.


def run_new(args: argparse.Namespace) -> int:
    """Write the files and say what comes next."""
    from marlaas.engine.daemon import control

    home = home_of(args)
    if args.to is None:
        control.make_home(home, notice=output.talk)
    folder = home.plugins if args.to is None else Path(os.path.expanduser(args.to))
    for path in write_template(args.name, args.shape, folder, home):
        output.result(str(path))
    served = folder.resolve() == home.plugins.resolve()
    name = args.name if served else str(folder / f"{args.name}.py")
    output.talk("It runs as it is. Next:")
    output.talk(f"  marlaas env check {name}")
    output.talk(f"  marlaas env play {name}")
    if served:
        output.talk(f'  marlaas submit TASK.toml    with environment = "{args.name}" in the task file')
    else:
        output.talk(f"To train on it, put it into {home.plugins}.")
    return output.OK


# ``env reload``: asks the engine to read a plugin again and to start it again, whatever it thinks of it.


def run_reload(args: argparse.Namespace) -> int:
    """Send the command and wait for the outcome."""
    from marlaas.engine.daemon import control

    home = home_of(args)
    if not control.alive(home):
        raise EngineUnreachable(f"No engine serves {home.root}.", "`marlaas engine start` starts one.")
    plugin = plugin_of(found(home, args.name)[0])
    with opened(home) as reader:
        sent = command(home.database, "reload", None, plugin=plugin)
        outcomes = wait_for_outcomes(reader, [sent])
    if sent not in outcomes:
        raise unanswered(f"the plugin {plugin}")
    if outcomes[sent]:
        raise ConfigError(outcomes[sent])
    return output.done(f"The plugin {line(plugin)} was read again; it serves.")


# ``env play``: a person plays an environment in the terminal, or watches a policy play it, or both share a game.

LARGEST = 1 << 53
"""Largest instance number or seed that can be sent to a plugin."""


def run_play(args: argparse.Namespace) -> int:
    """Play until the person has enough."""

    with Waiting(f"Loading {args.name}") as waiting:  # importing what plays takes a while by itself
        return _play(args, waiting)


def _play(args: argparse.Namespace, waiting: Waiting) -> int:
    import asyncio

    from .chat import Keyboard
    from .env_play import Speaking, Wish, play

    agents, others = {agent: words for agent, words in args.agents}, "base" if args.base else args.policy or ""
    watches, cut = bool(agents or others), truncation(args)
    if args.mine and not watches:
        raise ConfigError("--as needs somebody who plays the other agents.", "Add --policy TASK or --base.")
    for agent in args.mine:
        if agent in agents:
            raise ConfigError(f"You and {agents[agent]} cannot both play the agent {agent!r}.", "Keep one of them.")
    wish = Wish(
        environment=args.name,
        config=tuple(args.config),
        rows=args.rows,
        split=args.split,
        index=args.index,
        seed=args.seed,
        mine=tuple(args.mine),
        policies=Speaking(others, agents, args.temperature, args.max_tokens, cut) if watches else None,
    )
    try:
        code = asyncio.run(play(home_of(args), wish, Keyboard(), waiting))
    except KeyboardInterrupt:
        code = output.INTERRUPTED
    if code == output.INTERRUPTED:
        waiting.say("Interrupted; nothing of it goes on.")
    return code


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 16 or int(text) >= LARGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 to {LARGEST - 1:,}")
    return int(text)


# The family ``env``, and ``env list``: the environments that the engine serves, and why one does not serve.

_LATELY = ("EPISODES", "FAILED", "MEDIAN", "P95")


def run(args: argparse.Namespace) -> int:
    """Print the environments as the engine last saw them."""

    home = home_of(args)
    with reading(home) as reader:
        environments = reader.environments() if reader else []
        uses = reader.environment_use(time.time()) if reader else {}
    known, asleep = bool(environments), unwatched(home)
    if known and asleep:
        output.talk(asleep)
    if args.name is not None:
        environments = _filtered(environments, args.name)
    if args.json:
        return output.result_json(
            [asdict(e) | {"last_hour": lately_json(uses.get(e.name, EnvironmentUse()))} for e in environments]
        )
    if not known:
        return output.done("No engine has looked for environments yet; `marlaas engine start` starts one.")
    output.result_table(
        ("NAME", "STATE", "VERSION", "PROCESSES", "CHECKED", *_LATELY, "PARAMETERS", "DESCRIPTION"),
        [_columns(e, uses.get(e.name)) for e in environments],
    )
    for environment in environments:
        if environment.message:
            output.talk(line(f"{environment.name}: {environment.message}{place_of(environment)}"))
        for finding in troubles(environment.findings):
            output.talk(f"{line(environment.name)}: {spoken(finding)}")
    if uses:
        output.talk("Episodes, failures and times are those of the last hour.")
    if not asleep:
        output.talk(f"Files dropped into {home.plugins} are served at once.")
    return output.OK


def _filtered(environments: Sequence[EnvironmentRow], name: str) -> list[EnvironmentRow]:
    """Those with ``name`` in their names; if there are none, ``named`` raises its error with the nearest name."""

    kept = [environment for environment in environments if name.lower() in environment.name.lower()]
    return kept or (named(name, environments) if environments else [])


def _lately(use: EnvironmentUse | None) -> tuple[str, ...]:
    """What came of the last hour's episodes; empty if none has ended."""

    if use is None:
        return ("",) * len(_LATELY)
    times = (takes(use.median), takes(use.slow)) if use.statuses.get("ok") else ("", "")
    return (f"{use.episodes:,}", failed_share(use), *times)


def _columns(e: EnvironmentRow, use: EnvironmentUse | None) -> tuple[str, ...]:

    before = (e.name, e.state, e.version[:8], _processes(e), mark(e))
    return (*before, *_lately(use), _parameters(e), _first(e.description))


def _processes(environment: EnvironmentRow) -> str:
    """How many processes its plugin has, and how many episodes wait for a place in one."""
    shown = str(environment.playing + environment.scoring or "")
    return f"{shown} ({environment.waiting:,} wait)" if environment.waiting else shown


def _first(text: str) -> str:
    return line(text.partition("\n")[0], 60)


def _parameters(environment: EnvironmentRow) -> str:

    return " ".join(line(short(parameter), 60) for parameter in environment.parameters)


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
        add_config,
        arg("-n", type=count, default=COUNT, metavar="N", help=f"how many (default {COUNT})"),
        json=True,
    )
    add_verb(
        family,
        "check",
        run_check,
        "look for mistakes in an environment before you train on it for hours",
        arg("name", metavar="NAME", help="an environment, a plugin (all of its environments), or a path (./my_env.py)"),
        add_config,
        add_rows,
        arg(
            "--prompts",
            type=_prompts,
            default=PROMPTS,
            metavar="N",
            help=f"instances of each split that are looked at (default {PROMPTS})",
        ),
        arg(
            "--alive",
            type=_prompts,
            default=ALIVE,
            metavar="N",
            help="episodes that your task has alive at once, to tell what blocking costs it:"
            f" groups_per_step × group_size × (max_staleness + 1); default {ALIVE}, as in a task file without"
            " these",
        ),
        json=True,
        epilog="Needs no engine. Plays the environment in its process: are instances repeatable, do held-out ones stay"
        " held out, what happens with nonsense replies, can rewards be earned without reading the prompt, how long are"
        " prompts, how long does it take, and what blocks when 64 episodes are played at once? Exits with 1 where it"
        " finds an error.",
    )
    add_verb(
        family,
        "play",
        run_play,
        "play an environment yourself, or let a policy play it",
        arg("name", metavar="NAME", help="an environment, or the path of a plugin (./my_env.py)"),
        add_config,
        add_rows,
        arg("--split", choices=("train", "eval", "test"), default="train", help="whose instances"),
        arg("--index", type=_whole, default=0, metavar="N", help="the first instance (default 0)"),
        arg("--seed", type=_whole, default=0, metavar="S", help="the run's seed (default 0)"),
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
            type=groups_word,
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

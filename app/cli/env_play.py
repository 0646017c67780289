"""``env play`` and ``env replay``: episodes of people and models, and recorded ones again on another version.

The environment runs in its own process in a temporary folder. Needs no engine.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from marlaas.engine.environments.dependencies import Interpreters
from marlaas.engine.environments.process.launch import Folders
from marlaas.engine.environments.protocol import Answering, EnvironmentInfo, EpisodeOutcome, EpisodeSpec
from marlaas.engine.environments.served_version import Lease
from marlaas.engine.environments.service import EnvironmentService, serve_alone, settled
from marlaas.engine.errors import ConfigError, EnvironmentMissing
from marlaas.engine.gateway.api import Gateways, check_installed, open_gateways
from marlaas.engine.home.paths import BUNDLED_PLUGINS, Home
from marlaas.engine.home.settings import load_settings
from marlaas.engine.machine.lone_sampler import LoneSampler, plan_alone
from marlaas.engine.models.find import load_base
from marlaas.engine.queue.submission.references import choose, named_by
from marlaas.engine.replay import Verdict, replay as replay_groups, summarise
from marlaas.engine.rollout.conversation import SamplingParameters
from marlaas.engine.rollout.episodes import Role
from marlaas.engine.rollout.programs import FIRST, canned
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.rollout.slots import Replicas
from marlaas.engine.samplers.sampling import WHOLE, Truncation
from marlaas.engine.samplers.seeds import noise_seed
from marlaas.engine.spec.automatic import as_number, for_talk
from marlaas.engine.spec.rules import inside
from marlaas.engine.spec.task import BASE, SamplingSpec, TaskSpec, components_of, parse
from marlaas.engine.spec.validation import nearest
from marlaas.engine.store.queries import episodes
from marlaas.engine.store.queries.episodes import RecordedGroup
from marlaas.engine.store.rows import VersionRow
from marlaas.engine.trajectories import Split
from marlaas.plugins.messages import Answer, Ask, Reply, ToolCall
from marlaas.plugins.rewards import DEFAULT_AGENT

from .. import output
from ..reading import reading
from ..text import environments
from ..text.format import line, number, pad
from ..tui.chat.sampling_options import truncation
from ..tui.chat.talking import Side, talking
from .chat import BLOCK, Keyboard, Left
from .env import kinds_of, rows_named, strict_json, typed
from .parser import reading_task
from .terminal import Waiting

# /call price item=ink: values follow the tool's schema, quotes keep spaces. /call price {"item": "ink"}: the same in
# JSON. //half: the text "/half".
#
# Invalid tool calls pass: their refusal is the environment's answer.

COMMANDS = {
    "again": "begin the same instance anew",
    "next": "go on to the next instance",
    "tools": "show the tools that this agent has",
    "help": "show this",
    "quit": "end (so does Ctrl-D)",
}
CALL = "/call"
_LONGEST_NAME = 128


def command_of(text: str) -> str:
    """The command in a line, without slash; empty for a reply. Raises ``ValueError`` if unknown."""
    word = text.strip()
    if not word.startswith("/") or word.startswith("//") or "\n" in word or _is_call(word):
        return ""
    if word[1:] not in COMMANDS:
        raise ValueError(f"There is no command {word}; a reply that begins with / is typed as /{word}")
    return word[1:]


def reply_of(text: str, ask: Ask, tools: Sequence[Mapping[str, Any]], turn: int = 0) -> Reply:
    """The reply for the environment; call lines are taken out.

    Cut at the first stop text, like a model's. Raises ``ValueError`` for a broken call.
    """
    rows = text.split("\n")
    calls = tuple(call_of(row, tools) for row in rows if _is_call(row))
    words = "\n".join(row[1:] if row.startswith("//") else row for row in rows if not _is_call(row))
    ends = [words.index(stop) for stop in ask.stop if stop and stop in words]
    return Reply(words[: min(ends, default=len(words))], "tool" if calls else "stop", turn, calls)


def call_of(text: str, tools: Sequence[Mapping[str, Any]]) -> ToolCall:
    """Read ``/call NAME ARGUMENT=VALUE …`` or ``/call NAME {JSON}``."""
    name, _, rest = text.strip().removeprefix(CALL).strip().partition(" ")
    if not name or len(name) > _LONGEST_NAME:
        raise ValueError(f"A call has a name: {CALL} NAME ARGUMENT=VALUE …")
    try:
        if rest.strip().startswith("{"):
            return ToolCall(name, strict_json(rest))
        words = shlex.split(rest)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"The call cannot be read: {error}") from None
    arguments = {}
    for word in words:
        argument, equals, value = word.partition("=")
        if not argument or not equals:
            raise ValueError(f"{word!r} is no ARGUMENT=VALUE; quotes keep a value with spaces together")
        arguments[argument] = _value(value, _schema(name, argument, tools))
    return ToolCall(name, arguments)


def _is_call(text: str) -> bool:
    return text.strip() == CALL or text.strip().startswith(f"{CALL} ")


def _schema(tool: str, argument: str, tools: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Empty for an unusual schema form."""
    functions = [environments.table(each.get("function")) for each in tools]
    schema = next((function for function in functions if function.get("name") == tool), {})
    return environments.table(
        environments.table(environments.table(schema.get("parameters")).get("properties")).get(argument)
    )


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """Unreadable values stay texts."""
    if schema.get("type") == "string" or text in (schema.get("enum") or ()):
        return text
    try:
        return strict_json(text)
    except (ValueError, RecursionError):
        return text


# A policy speaks as in training: its task's temperature, lengths and thinking, unless the command line overrides them.

ROOMY = for_talk(SamplingSpec())
"""Manner of the bare base: no task limits its length."""
OTHERS = ""


@dataclass(frozen=True)
class Player:
    """A version that plays."""

    side: Side
    sampling: SamplingSpec
    truncation: Truncation = WHOLE

    def parameters(self, seed: int) -> SamplingParameters:
        version, sampling = self.side.version, self.sampling
        return SamplingParameters(
            version=self.side.name,
            number=version.number if version else 0,
            temperature=sampling.temperature,
            max_tokens=as_number(sampling.max_tokens),
            max_episode_tokens=as_number(sampling.max_episode_tokens),
            seed=seed,
            thinking=sampling.thinking,
            truncation=self.truncation,
        )


Players = Mapping[str, Player]


def player_of(players: Players, agent: str) -> Player:
    """The player of an agent. Raises ``ConfigError`` if there is none."""
    player = players.get(agent, players.get(OTHERS))
    if player is None:
        raise ConfigError(f"Nobody plays the agent {agent!r}.", f"Say who: --as {agent} or --agent {agent} POLICY.")
    return player


def find_players(home: Home, args: argparse.Namespace) -> Players:
    """The players named on the command line.

    Raises ``AdapterError``: no such version; ``ConfigError``: ambiguous words.
    """
    with reading(home) as reader:
        versions = reader.versions() if reader else []

        def spec_of(task: int) -> TaskSpec:
            assert reader is not None, "it has a version"
            return parse(reader.task_config(task), f"task {task}")

        def player(words: str) -> Player:
            version, sampling = None, ROOMY
            if words != BASE:
                adapter, _, which = words.partition("@")
                version = choose(versions, adapter, which or "last")
                sampling = for_talk(spec_of(version.task).sampling)
            if args.temperature is not None:
                sampling = replace(sampling, temperature=args.temperature)
            if args.max_tokens is not None:
                room = max(as_number(sampling.max_episode_tokens), args.max_tokens)
                sampling = replace(sampling, max_tokens=args.max_tokens, max_episode_tokens=room)
            return Player(Side(version), sampling, truncation(args))

        others = BASE if args.base else args.policy or ""
        several = _as_in_training(others, versions, spec_of)
        names = {agent: words for agent, words in several.items() if agent not in args.mine} | dict(args.agents)
        if others and not several:
            names[OTHERS] = others
        return {agent: player(words) for agent, words in names.items()}


def _as_in_training(words: str, versions: list[VersionRow], spec_of: Callable[[int], TaskSpec]) -> dict[str, str]:
    """Empty unless the task has several policies."""
    adapter, _, which = words.partition("@")
    if words in ("", BASE):
        return {}
    named = named_by(versions, adapter)[0]
    if adapter not in (str(named.task), named.task_name):
        return {}  # one version, or one policy
    spec, task = spec_of(named.task), named.task

    def playing(name: str) -> str:
        policy = spec.policies[name]
        beginning = inside(policy.frozen, spec) if policy.frozen else None
        if beginning is not None:  # an untrained beginning is the bare base
            return f"{task}/{beginning}@0" if spec.policies[beginning].start else BASE
        return policy.frozen or f"{task}/{policy.pool or name}@{which or 'last'}"

    return {agent: playing(name) for agent, name in spec.agents.items()}


async def _sampler(home: Home, players: Collection[Player], context: int, stack: AsyncExitStack) -> LoneSampler:
    """A sampler with all players, until the stack closes.

    ``context``: what the environment asks for, or 0; the home's setting counts more. Raises ``AdapterError`` for a
    damaged version, ``ConfigError``, and the sampler's errors.
    """
    settings = load_settings(home.create())
    rollout = replace(settings.rollout, context=settings.rollout.context or context)
    settings = replace(settings, rollout=rollout)
    sides = {player.side.name: player.side for player in players}
    with Waiting(f"Starting a sampler for the base {line(settings.base)}", piped=True):
        lone = await stack.enter_async_context(talking(home, plan_alone(settings), list(sides.values())))
    for player in players:
        lone.rollout.check_thinking(player.sampling.thinking)
    return lone


ConversationKey = tuple[str, int]
"""Index 0: its own conversation; others are forks."""


class Game:
    """A watched or played episode."""

    def __init__(self, keyboard: Keyboard, mine: Callable[[str], bool]) -> None:
        """``mine``: true for names of the person's agents."""
        self.agents: dict[str, None] = {}
        """Those that were asked, in order."""
        self._keyboard = keyboard
        self._mine = mine
        self._turns: Counter[ConversationKey] = Counter()
        self._tools: dict[ConversationKey, tuple[dict[str, Any], ...]] = {}
        self._shown = DEFAULT_AGENT
        """The title of the conversation whose lines were printed last."""
        self.rejected = ""
        """The last refusal that its program heard."""

    def answering(self, policy: Answer | None) -> Answer:
        """The person answers for their agents, ``policy`` for the others. Raises ``Left``."""

        async def answer(ask: Ask) -> Reply:
            place = (ask.agent, ask.branch)
            self._hear(ask, place)
            if policy is None or self._mine(ask.agent):
                return self._typed(ask, place)
            reply = await policy(ask)
            self._print(place, environments.reply(reply))
            return reply

        return answer

    def _hear(self, ask: Ask, place: ConversationKey) -> None:
        self.agents[ask.agent] = None
        rows = []
        if place not in self._tools and ask.fork is not None:
            source = (ask.fork.agent, ask.fork.branch)
            self._tools[place] = self._tools.get(source, ())
            self._turns[place] = ask.fork.turns
            rows = [f"(goes on after reply {ask.fork.turns} of {_title(source)})"]
        elif place not in self._tools:
            self._tools[place] = ask.tools
            rows = environments.tools(ask.tools)
        self._print(place, [*rows, *(row for message in ask.messages for row in environments.message(message))])

    def _print(self, place: ConversationKey, rows: list[str]) -> None:
        if self._shown != (title := _title(place)):
            self._shown = title
            output.result(f"--- {title}")
        for row in rows:
            output.quote(row)

    def _typed(self, ask: Ask, place: ConversationKey) -> Reply:
        """Carries out commands inside this episode meanwhile."""
        tools = self._tools[place]
        prompt = pad(f"{line(ask.agent, 20) if ask.agent != DEFAULT_AGENT else 'you'}> ", environments.LABEL + 1)
        while True:
            text = self._keyboard.text(prompt)
            try:
                command = command_of(text)
                if not command:
                    reply = reply_of(text, ask, tools, self._turns[place])
                    self._turns[place] += 1
                    if reply.tool_calls or any(stop and stop in text for stop in ask.stop):
                        self._print(place, environments.reply(reply))
                    return reply
            except ValueError as error:
                output.result(line(str(error)))
                continue
            if command == "help":
                show_help()
            elif command == "tools":
                for row in environments.tools(tools) or ["This agent has no tools."]:
                    output.quote(row)
            else:
                raise Left(command)


def show_help() -> None:
    """Print the commands."""
    for name, purpose in COMMANDS.items():
        output.result(f"  {pad('/' + name, 10)} {purpose}")
    output.result(f"  {CALL} TOOL ARGUMENT=VALUE …, or {CALL} TOOL {{JSON}}: a tool call")
    output.result(f"  {BLOCK} begins and ends a reply of several lines; calls may be among them")
    output.result("  //text is a reply that begins with a slash; all else is the reply as it stands")


def _title(key: ConversationKey) -> str:
    agent, branch = key
    place, kind = (branch, "fork") if branch < FIRST else (branch - FIRST, "conversation")  # FIRST: of its program
    return f"{line(agent, 60)}{f', {kind} {place}' if place else ''}"


async def play(home: Home, args: argparse.Namespace, waiting: Waiting) -> int:
    """Play episodes until quit; ``waiting`` ends at the first one.

    Raises ``MarlaasError``.
    """
    async with AsyncExitStack() as stack:
        folder = TemporaryDirectory(prefix="marlaas-play-", ignore_cleanup_errors=True)
        scratch = Path(stack.enter_context(folder))
        interpreters = Interpreters(home.venvs, load_settings(home).environments)
        serving = serve_alone(args.name, (BUNDLED_PLUGINS, home.plugins), scratch, interpreters)
        service, info = await stack.enter_async_context(serving)
        gateways = await stack.enter_async_context(open_gateways(scratch, lambda _, text, level: output.talk(text)))
        session = _Session(service, info, gateways, args, Folders.of(scratch, info.name.partition("/")[0]).log)
        (await session.bind()).release()  # errors in the environment have been shown before a sampler is started
        if info.program:
            check_installed()
        waiting.end()
        if args.policy or args.base or args.agents:
            session.players = find_players(home, args)
            session.check_agents(info)
            session.lone = await _sampler(home, session.players.values(), info.context, stack)
            session.lone.rollout.endpoints = gateways
        return await session.run()


class _Session:
    def __init__(
        self,
        service: EnvironmentService,
        info: EnvironmentInfo,
        gateways: Gateways,
        args: argparse.Namespace,
        log: Path,
    ) -> None:
        """``log``: the file of the plugin's output."""
        self.players: Players = {}
        self.lone: LoneSampler | None = None
        """None: the person plays all agents."""
        self._service = service
        self._name = info.name
        self._gateways = gateways
        self._args = args
        self._keyboard = Keyboard()
        self._log = log
        self._read = 0
        """Bytes of the plugin's prints that were shown."""

    async def bind(self) -> Lease:
        info = self._service.resolve(self._name)
        config, data = typed(self._args.config, kinds_of(info)), rows_named(self._args.rows, self._name)
        return await self._service.bind(self._name, config=config, data=data)

    def check_agents(self, info: EnvironmentInfo) -> None:
        """Raise ``ConfigError`` for an undeclared agent, or one without a player."""
        for agent in (*self._args.mine, *dict(self._args.agents)):
            if info.agents and agent not in info.agents:
                raise ConfigError(f"{info.name} has no agent {agent!r}.", nearest(agent, info.agents))
        for agent in info.agents:
            if agent not in self._args.mine:
                player_of(self.players, agent)

    async def run(self) -> int:
        for agent, player in self.players.items():
            if agent != OTHERS:
                output.result(f"{line(agent, 60)} is played by {player.side.title}.")
        if others := self.players.get(OTHERS):
            some = " the others" if self._args.mine or len(self.players) > 1 else ""
            output.result(f"{others.side.title[0].upper()}{others.side.title[1:]} plays{some}.")
        if self.lone is None or self._args.mine:
            output.result("You answer for the model; /help says how.")
        index, attempt, code = self._args.index, 0, output.OK
        while True:
            try:
                code = await self._episode(index, attempt)
                wish = self._choice()
            except Left as left:
                wish = left.wish
            if wish in ("quit", "interrupt"):
                return code if wish == "quit" else output.INTERRUPTED
            index, attempt = (index, attempt + 1) if wish == "again" else (index + 1, 0)
            output.result("")

    async def _episode(self, index: int, attempt: int) -> int:
        """Play one instance; returns the exit code."""
        await settled(self._service)
        info, args = self._service.resolve(self._name), self._args
        with await self.bind() as lease:
            for row in self._prints("at load"):
                output.quote(row)
            words = environments.settings(info.parameters, lease.config)
            place = f"{args.split} instance {index}, seed {args.seed}{f'; {words}' if words else ''}"
            output.result(f"{line(info.name)} {info.version}: {place}")
            if info.state == "stale" and info.failure is not None:
                for row in environments.failure(info.failure):
                    output.quote(row)
                output.result("That is why the newest edit is not played; this is the last good version.")
            game = Game(self._keyboard, lambda agent: agent in args.mine)
            seed = args.seed if args.split == "train" else 0
            ended = await self._run(lease, EpisodeSpec(args.split, index, seed, 0, lease.config), game, attempt)
        told = ended.failure is not None and game.rejected in ended.failure.message
        refused = environments.labelled("refused", game.rejected) if game.rejected and not told else []
        for row in [*self._prints("printed"), *refused, *environments.outcome(ended)]:
            output.quote(row)
        unheard = [agent for agent in args.mine if agent not in game.agents]
        if unheard and game.agents:
            names = ", ".join(line(agent, 60) for agent in game.agents)
            output.talk(f"Nobody called {', '.join(map(line, unheard))} was asked; the agents were {names}.")
        if info.program and not game.agents and not game.rejected:
            output.talk("The program never asked the model: nothing can be learned from that.")
        return output.FAILED if ended.status in ("error", "timeout") else output.OK

    async def _run(self, lease: Lease, spec: EpisodeSpec, game: Game, attempt: int) -> EpisodeOutcome:
        lone = self.lone
        if lone is None:
            with canned(self._gateways, game.answering(None)) as answering:
                outcome = await self._service.play(lease, spec, answering)
                game.rejected = answering.rejected()
                return outcome

        async def playing(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
            assert isinstance(answer, Answering)
            return await self._service.play(lease, spec, replace(answer, answer=game.answering(answer.answer)))

        def roles(agent: str) -> Role:
            seed = noise_seed("play", spec.index, attempt)
            return Role(player_of(self.players, agent).parameters(seed), Replicas((lone.endpoint,)))

        finished = await lone.rollout.run_episode(playing, spec, roles, f"play/{spec.index}/{attempt}")
        game.rejected = finished.rejected
        return finished.outcome

    def _prints(self, label: str) -> list[str]:
        """Since the last look, including loading and trial."""
        try:
            with self._log.open("rb") as file:
                file.seek(self._read)
                text = file.read()
        except OSError:
            return []
        self._read += len(text)
        return environments.labelled(label, text.decode("utf-8", "replace").rstrip("\n")) if text.strip() else []

    def _choice(self) -> str:
        """Raises ``Left`` at the end of input."""
        while True:
            word = self._keyboard.line("next, again or quit [next]> ").strip().lower().removeprefix("/")
            for choice in ("next", "again", "quit"):
                if choice.startswith(word):
                    return choice
            show_help()


# Recorded episodes again, on what lies in the plugins folder now or on an earlier version.

SHOWN = 50
"""Rows of the table; ``--json`` has all."""
KINDS = ("changed", "failing", "not comparable")


def replay(home: Home, args: argparse.Namespace) -> int:
    """Replay, then print the differences."""
    with reading_task(home, args) as (reader, task):
        spec = parse(reader.task_config(task.id), f"task {task.id}")
        split: Split = args.split or (cast(Split, spec.eval.split) if spec.kind == "eval" else "train")
        component = _component(spec, args.component)
        groups = episodes.recorded_groups(reader, task.id, split, args.last, component)
    if not groups:
        output.talk(f"Task {task.id} has no {split} episodes yet.")
    lease, verdicts = asyncio.run(_replayed(home, components_of(spec)[component], split, groups, args.version))
    summary = summarise(verdicts)
    recorded = sorted({group.environment_version for group in groups})
    if args.json:
        return output.result_json(
            {
                "task": task.id,
                "split": split,
                "environment": lease.environment,
                "version": lease.environment_version,
                "recorded_versions": recorded,
                **asdict(summary),
                "verdicts": [asdict(verdict) for verdict in verdicts if verdict.kind != "unchanged"],
            }
        )
    rows = [verdict for kind in KINDS for verdict in verdicts if verdict.kind == kind]
    if rows:
        headers = ("STEP", "GROUP", "MEMBER", "AGENT", "OLD", "NEW", "WHAT", "REASON")
        cells = [
            (
                "-" if verdict.step is None else str(verdict.step),
                str(verdict.group),
                str(verdict.member),
                verdict.agent,
                number(verdict.old),
                number(verdict.new),
                verdict.kind,
                line(verdict.reason, 100),
            )
            for verdict in rows[:SHOWN]
        ]
        output.result_table(headers, cells, ("STEP", "GROUP", "MEMBER", "OLD", "NEW"))
    if len(rows) > SHOWN:
        output.talk(f"and {len(rows) - SHOWN:,} more; --json has them all.")
    version = f"{line(lease.environment)} {lease.environment_version}"
    output.result(f"{version}, beside what {', '.join(recorded) or 'nobody'} gave:")
    output.result(
        f"{summary.rewards:,} rewards: {summary.unchanged:,} unchanged, {summary.changed:,} changed,"
        f" {summary.not_comparable:,} not comparable, {summary.failing:,} failing."
    )
    if summary.mean_before is not None:
        means = f"{number(summary.mean_before)} before, {number(summary.mean_after)} after"
        output.result(f"Mean of those that can be compared: {means}.")
    return output.OK


def _component(spec: TaskSpec, wanted: str | None) -> str:
    """Name of the environment in the mixture; empty without one."""
    names = list(components_of(spec))
    if wanted is None and len(names) > 1:
        raise ConfigError(
            f"{spec.name} is trained on a mixture: {', '.join(names)}.", f"Say which one: --component {names[0]}"
        )
    if wanted is not None and wanted not in names:
        raise ConfigError(
            f"{spec.name} has no component {wanted!r}.", nearest(wanted, [name for name in names if name])
        )
    return wanted if wanted is not None else names[0]


async def _replayed(
    home: Home, spec: TaskSpec, split: Split, groups: Sequence[RecordedGroup], version: str | None
) -> tuple[Lease, Sequence[Verdict]]:
    settings = load_settings(home)
    calls = Renderer(load_base(settings.base).path).reread  # how the home's base writes tool calls
    folders, interpreters = _folders(home, spec, version), Interpreters(home.venvs, settings.environments)
    with TemporaryDirectory(prefix="marlaas-replay-", ignore_cleanup_errors=True) as scratch:
        async with serve_alone(spec.environment, folders, Path(scratch), interpreters) as (service, info):
            with await service.bind(info.name, data=spec.data.record) as lease:
                return lease, await replay_groups(service, lease, spec, split, calls, groups)


def _folders(home: Home, spec: TaskSpec, version: str | None) -> tuple[Path, ...]:
    if version is None:
        return (BUNDLED_PLUGINS, home.plugins)
    kept = sorted((home.scratch / "snapshots").glob(f"{version}*")) if version.isalnum() else []
    if len(kept) != 1:
        matches = f"{len(kept)} versions begin" if kept else "No version that is kept begins"
        raise EnvironmentMissing(
            f"{matches} with {version!r}.", f"`marlaas env list` shows the newest of {spec.environment!r}."
        )
    return (kept[0],)

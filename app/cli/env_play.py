"""``env play``: play an environment yourself, or have models play it, with several agents too."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

from marlaas.engine.environments.alone import serve_alone, settled
from marlaas.engine.environments.dependencies.interpreters import Interpreters
from marlaas.engine.environments.process.launch import Folders
from marlaas.engine.environments.protocol import EnvironmentInfo, EpisodeOutcome, EpisodeSpec
from marlaas.engine.environments.served_version import Lease
from marlaas.engine.environments.service import EnvironmentService
from marlaas.engine.errors import ConfigError
from marlaas.engine.home.paths import BUNDLED_PLUGINS, Home
from marlaas.engine.home.settings import load_settings
from marlaas.engine.machine.lone_sampler import BARE, open_lone_sampler, plan_alone
from marlaas.engine.queue.submission.references import choose, named_by
from marlaas.engine.rollout.conversation import SamplingParameters
from marlaas.engine.rollout.episodes import Role, Roles, Rollout
from marlaas.engine.rollout.slots import Replicas, SamplerEndpoint
from marlaas.engine.samplers.sampling import WHOLE, Truncation
from marlaas.engine.samplers.seeds import noise_seed
from marlaas.engine.spec.automatic import as_number, for_talk
from marlaas.engine.spec.rules import inside
from marlaas.engine.spec.task import BASE, SamplingSpec, TaskSpec, parse
from marlaas.engine.spec.validation import nearest
from marlaas.engine.store.rows import VersionRow
from marlaas.engine.trajectories import Split
from marlaas.plugins.messages import Answer, Ask, Reply, ToolCall
from marlaas.plugins.rewards import DEFAULT_AGENT

from .. import output
from ..reading import reading
from ..text import environments
from ..text.format import line, pad
from .chat import BLOCK, Keyboard, Left
from .env import rows_named, typed
from .tasks import Waiting

# What a person types at the model's place: a command, or a reply with its text and its tool calls. Pure.
#
#     /call price item=ink        a call; values are read as the tool's schema says, quotes keep spaces together
#     /call price {"item": "ink"} the same in JSON
#     //half                      the text "/half"
#
# A call that the tool will refuse goes through: what the model would be told about it is what one plays for.

COMMANDS = {
    "again": "begin the same instance anew",
    "next": "go on to the next instance",
    "tools": "show the tools that this agent has",
    "help": "show this",
    "quit": "end (so does Ctrl-D)",
}
CALL = "/call"
_LONGEST_NAME = 128


@dataclass(frozen=True)
class Typed:
    """A reply that was typed."""

    text: str
    calls: tuple[ToolCall, ...] = ()


def command_of(text: str) -> str:
    """The command in a line, without its slash; empty if the line is a reply. Raises ``ValueError`` if unknown."""
    word = text.strip()
    if not word.startswith("/") or word.startswith("//") or "\n" in word or _is_call(word):
        return ""
    if word[1:] not in COMMANDS:
        raise ValueError(f"There is no command {word}; a reply that begins with / is typed as /{word}")
    return word[1:]


def reply_of(text: str, tools: Sequence[Mapping[str, Any]]) -> Typed:
    """A reply of one line or several; lines that are calls are taken out. Raises ``ValueError`` for a broken call."""
    calls, said = [], []
    for part in text.split("\n"):
        if _is_call(part):
            calls.append(call_of(part, tools))
        else:
            said.append(part[1:] if part.startswith("//") else part)
    return Typed("\n".join(said), tuple(calls))


def call_of(text: str, tools: Sequence[Mapping[str, Any]]) -> ToolCall:
    """Read ``/call NAME ARGUMENT=VALUE …`` or ``/call NAME {JSON}``."""
    name, _, rest = text.strip().removeprefix(CALL).strip().partition(" ")
    if not name or len(name) > _LONGEST_NAME:
        raise ValueError(f"A call has a name: {CALL} NAME ARGUMENT=VALUE …")
    rest = rest.strip()
    if rest.startswith("{"):
        return ToolCall(name, _table(rest))
    arguments = {}
    for word in _words(rest):
        argument, equals, value = word.partition("=")
        if not argument or not equals:
            raise ValueError(f"{word!r} is no ARGUMENT=VALUE; quotes keep a value with spaces together")
        arguments[argument] = _value(value, _schema(name, argument, tools))
    return ToolCall(name, arguments)


def as_reply(typed: Typed, ask: Ask, turn: int) -> Reply:
    """The reply that the environment gets: cut, like a model's, at the first text at which it is to stop."""
    found = [typed.text.index(stop) for stop in ask.stop if stop and stop in typed.text]
    text = typed.text[: min(found)] if found else typed.text
    return Reply(text, "tool" if typed.calls else "stop", turn, typed.calls)


def _is_call(text: str) -> bool:
    return text.strip() == CALL or text.strip().startswith(f"{CALL} ")


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f"The call cannot be read: {error}") from None


def _table(text: str) -> dict[str, Any]:
    try:
        value = _json(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"The call's JSON cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise ValueError("The call's JSON must be an object")
    return value


def _schema(tool: str, argument: str, tools: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The schema of an argument; empty if the plugin's schema does not have the usual form."""
    found: Any = next((each.get("function") for each in tools if _name(each) == tool), None)
    for key in ("parameters", "properties", argument):
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _name(tool: Mapping[str, Any]) -> object:
    function = tool.get("function")
    return function.get("name") if isinstance(function, dict) else None


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """As the schema's type if it can be read so; texts stay texts."""
    if schema.get("type") == "string" or text in (schema.get("enum") or ()):
        return text
    try:
        return _json(text)
    except (ValueError, RecursionError):
        return text


def _json(text: str) -> Any:
    return json.loads(text, parse_constant=_refuse)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


# Who plays which agent in ``env play``: versions of adapters, or the bare base, as the command line names them.
#
# For each agent: a version, and how it samples. Only the store is read, nothing is started. A policy speaks as in its
# training: with its task's temperature, lengths and thinking, unless the command line says otherwise.

ROOMY = for_talk(SamplingSpec())
"""How the bare base speaks, as no task shows how long it may."""


@dataclass(frozen=True)
class Speaking:
    """What the command line asks for."""

    others: str = ""
    """Who plays the agents that nobody is named for: a task's number or name, or a version's name, perhaps with /POLICY
    and @VERSION; the policies of a task that has several play as in its training. "base": the bare base. Empty:
    nobody."""
    agents: Mapping[str, str] = field(default_factory=dict)
    """Likewise for single agents, by name."""
    temperature: float | None = None
    """None: the temperature of the task."""
    max_tokens: int | None = None
    """Tokens of a turn; None: as the task says."""
    truncation: Truncation = WHOLE
    """Which tokens may be drawn."""


@dataclass(frozen=True)
class Player:
    """Somebody who plays."""

    version: VersionRow | None
    """None: the bare base."""
    sampling: SamplingSpec
    truncation: Truncation = WHOLE
    """Which tokens may be drawn."""

    @property
    def title(self) -> str:
        """The player in words that are safe to print."""
        if self.version is None:
            return "the base"
        policy = f", {line(self.version.policy)}" if self.version.policy != "policy" else ""
        return f"version {self.version.number} of task {self.version.task} ({line(self.version.task_name)}{policy})"


@dataclass(frozen=True)
class Players:
    """Everybody who plays."""

    by_agent: Mapping[str, Player]
    others: Player | None
    """Plays agents that nobody is named for; None if nobody does."""

    def of(self, agent: str) -> Player:
        """Who plays an agent. Raises ``ConfigError`` if nobody does."""
        found = self.by_agent.get(agent, self.others)
        if found is None:
            raise ConfigError(f"Nobody plays the agent {agent!r}.", f"Say who: --as {agent} or --agent {agent} POLICY.")
        return found

    @property
    def all(self) -> tuple[Player, ...]:
        """Every player once."""
        found = [*self.by_agent.values(), *([self.others] if self.others else [])]
        return tuple(player for place, player in enumerate(found) if player not in found[:place])


def players(home: Home, wanted: Speaking, mine: Sequence[str] = ()) -> Players:
    """Find the players; ``mine`` are the agents that the person plays.

    Raises ``AdapterError`` if there is no such version, ``ConfigError`` where the words mean several.
    """
    with reading(home) as reader:
        versions = reader.versions() if reader else []

        def spec_of(task: int) -> TaskSpec:
            if reader is None:
                raise ConfigError("No engine has run in this home yet.")
            return parse(reader.task_config(task), f"task {task}")

        def player(words: str) -> Player:
            return _said(_player(words, versions, spec_of), wanted)

        said = dict(wanted.agents)
        several = _several(wanted.others, versions, spec_of)
        for agent, words in several.items():
            if agent not in mine:
                said.setdefault(agent, words)
        others = None if several or not wanted.others else player(wanted.others)
        return Players({agent: player(words) for agent, words in said.items()}, others)


def _player(words: str, versions: list[VersionRow], spec_of: Callable[[int], TaskSpec]) -> Player:
    if words == BASE:
        return Player(None, ROOMY)
    adapter, _, which = words.partition("@")
    row = choose(versions, adapter, which or "last")
    return Player(row, for_talk(spec_of(row.task).sampling))


def _several(words: str, versions: list[VersionRow], spec_of: Callable[[int], TaskSpec]) -> dict[str, str]:
    """For a task of several policies, who plays each of its agents, in words; for anything else empty."""
    adapter, _, which = words.partition("@")
    if not words or words == BASE:
        return {}
    named = named_by(versions, adapter)[0]
    if adapter not in (str(named.task), named.task_name):
        return {}  # one version, or one policy
    spec, task = spec_of(named.task), named.task

    def playing(name: str) -> str:
        policy = spec.policies[name]
        own = inside(policy.frozen, spec) if policy.frozen else None
        if own is not None:  # what it began as; an untrained beginning is the bare base
            return f"{task}/{own}@0" if spec.policies[own].start else BASE
        return policy.frozen or f"{task}/{policy.pool or name}@{which or 'last'}"

    return {agent: playing(name) for agent, name in spec.agents.items()}


def _said(player: Player, wanted: Speaking) -> Player:
    """The player, with the sampling parameters that the command line gives."""
    sampling = player.sampling
    if wanted.temperature is not None:
        sampling = replace(sampling, temperature=wanted.temperature)
    if wanted.max_tokens is not None:
        room = max(as_number(sampling.max_episode_tokens), wanted.max_tokens)
        sampling = replace(sampling, max_tokens=wanted.max_tokens, max_episode_tokens=room)
    return replace(player, sampling=sampling, truncation=wanted.truncation)


# The policies that play: versions of adapters, or the bare base, on one sampler.


@dataclass(frozen=True)
class Policies:
    """Policies that are loaded."""

    rollout: Rollout
    endpoint: SamplerEndpoint
    players: Players

    def roles(self, *episode: int) -> Roles:
        """Who acts as which agent in an episode; other numbers give other noise."""
        seed = noise_seed("play", *episode)
        return lambda agent: Role(_sampling_parameters(self.players.of(agent), seed), Replicas((self.endpoint,)))


def _sampling_parameters(player: Player, seed: int) -> SamplingParameters:
    version, sampling = player.version, player.sampling
    return SamplingParameters(
        version=BARE if version is None else version.name,
        number=0 if version is None else version.number,
        temperature=sampling.temperature,
        max_tokens=as_number(sampling.max_tokens),
        max_episode_tokens=as_number(sampling.max_episode_tokens),
        seed=seed,
        thinking=sampling.thinking,
        truncation=player.truncation,
    )


@asynccontextmanager
async def loaded(home: Home, players: Players, scratch: Path) -> AsyncIterator[Policies]:
    """Start a sampler with all who play for as long as the block runs.

    Raises ``AdapterError`` for a version whose file is damaged, ``ConfigError`` and what the sampler raises.
    """
    settings = load_settings(home.create())
    async with AsyncExitStack() as stack:
        with Waiting(f"Starting a sampler for the base {line(settings.base)}", piped=True):
            lone = await stack.enter_async_context(open_lone_sampler(home, plan_alone(settings)))
            for player in players.all:
                lone.rollout.check_thinking(player.sampling.thinking)
            versions = {player.version.name: player.version for player in players.all if player.version is not None}
            for row in versions.values():
                await lone.load(row.name, home.file(row.path), row.checksum)
            if any(player.version is None for player in players.all):
                await lone.load_bare(scratch)
        yield Policies(lone.rollout, lone.endpoint, players)


# One episode in the terminal: an environment asks, and a person or a policy replies.
#
# What an agent is shown and what it says is printed, whoever plays it. Knows neither processes nor samplers.

ConversationKey = tuple[str, int]
"""An agent, and which of its conversations: 0 is its own, the others are forks."""


class Game:
    """The state of one episode that somebody watches or plays."""

    def __init__(self, keyboard: Keyboard, mine: Callable[[str], bool]) -> None:
        """``mine`` tells the agents that the person plays, by name."""
        self.agents: list[str] = []
        """Those that were asked, in order."""
        self._keyboard = keyboard
        self._mine = mine
        self._turns: Counter[ConversationKey] = Counter()
        self._tools: dict[ConversationKey, tuple[dict[str, Any], ...]] = {}
        self._shown: ConversationKey = (DEFAULT_AGENT, 0)
        """The conversation whose lines were printed last."""

    def answering(self, policy: Answer | None) -> Answer:
        """Answer asks: the person for their agents, ``policy`` for the others; ``Left`` where the person leaves."""

        async def answer(ask: Ask) -> Reply:
            self._hear(ask)
            if policy is None or self._mine(ask.agent):
                return self._typed(ask)
            said = await policy(ask)
            self._print(_place(ask), environments.reply(said))
            return said

        return answer

    def _hear(self, ask: Ask) -> None:
        place = _place(ask)
        if ask.agent not in self.agents:
            self.agents.append(ask.agent)
        rows = []
        if place not in self._tools:
            self._tools[place] = ask.tools
            rows = environments.tools(ask.tools)
            if ask.fork is not None:
                self._tools[place] = self._tools.get((ask.fork.agent, ask.fork.branch), ())
                self._turns[place] = ask.fork.turns
                rows = [f"(goes on after reply {ask.fork.turns} of {_title((ask.fork.agent, ask.fork.branch))})"]
        self._print(place, [*rows, *(row for said in ask.messages for row in environments.message(said))])

    def _print(self, place: ConversationKey, rows: list[str]) -> None:
        if place != self._shown:
            self._shown = place
            output.result(f"--- {_title(place)}")
        for row in rows:
            output.quote(row)

    def _typed(self, ask: Ask) -> Reply:
        place = _place(ask)
        typed = self._reply(ask)
        said = as_reply(typed, ask, self._turns[place])
        self._turns[place] += 1
        if typed.calls or said.text != typed.text:
            self._print(place, environments.reply(said))
        return said

    def _reply(self, ask: Ask) -> Typed:
        """What the person says; commands that need no other episode are carried out meanwhile."""
        tools = self._tools[_place(ask)]
        prompt = f"{line(ask.agent, 20) if ask.agent != DEFAULT_AGENT else 'you'}> "
        while True:
            text = self._keyboard.text(pad(prompt, environments.LABEL + 1))
            try:
                command = command_of(text)
                if not command:
                    return reply_of(text, tools)
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
    """What can be typed."""
    for name, purpose in COMMANDS.items():
        output.result(f"  {pad('/' + name, 10)} {purpose}")
    output.result(f"  {CALL} TOOL ARGUMENT=VALUE …, or {CALL} TOOL {{JSON}}: a tool call")
    output.result(f"  {BLOCK} begins and ends a reply of several lines; calls may be among them")
    output.result("  //text is a reply that begins with a slash; all else is the reply as it stands")


def _place(ask: Ask) -> ConversationKey:
    return ask.agent, ask.branch


def _title(place: ConversationKey) -> str:
    agent, branch = place
    return f"{line(agent, 60)}{f', fork {branch}' if branch else ''}"


# A session with one environment: episode after episode, until the person wants no more.
#
# The environment runs in its process, in a temporary folder; an edit of its file counts from the next episode on.
# Needs no engine.

CHOICES = ("next", "again", "quit")


@dataclass(frozen=True)
class Wish:
    """What to play, and who."""

    environment: str
    """A name, or the path of a plugin."""
    config: tuple[str, ...] = ()
    """Pairs NAME=VALUE."""
    rows: str = ""
    """A file of rows, or a task file that names some; empty: the environment's own."""
    split: Split = "train"
    index: int = 0
    seed: int = 0
    mine: tuple[str, ...] = ()
    """Agents that the person plays next to policies."""
    policies: Speaking | None = None
    """None: the person plays all agents."""


async def play(home: Home, wish: Wish, keyboard: Keyboard, waiting: Waiting) -> int:
    """Play until the end of the input, or until the person quits; ``waiting`` ends once there is something to play.

    Raises ``MarlaasError``.
    """
    with TemporaryDirectory(prefix="marlaas-play-", ignore_cleanup_errors=True) as folder:
        scratch = Path(folder)
        async with AsyncExitStack() as stack:
            interpreters = Interpreters(home.venvs, load_settings(home).environments)
            serving = serve_alone(wish.environment, (BUNDLED_PLUGINS, home.plugins), scratch, interpreters)
            service, info = await stack.enter_async_context(serving)
            config, data = typed(wish.config, info.parameters), rows_named(wish.rows, info.name)
            lease = await service.bind(info.name, config=config, data=data)
            lease.release()  # errors in the environment have been shown before a sampler is started
            waiting.end()
            policies = None
            if wish.policies is not None:
                playing = players(home, wish.policies, wish.mine)
                _check_agents(wish, playing, info)
                policies = await stack.enter_async_context(loaded(home, playing, scratch))
            prints = Folders.of(scratch, info.name.partition("/")[0]).log
            return await _Session(service, info.name, wish, keyboard, policies, prints).run()


def _check_agents(wish: Wish, playing: Players, info: EnvironmentInfo) -> None:
    """Raise ``ConfigError`` for an agent that the environment does not declare, and for one that nobody plays."""
    for agent in (*wish.mine, *(wish.policies.agents if wish.policies else ())):
        if info.agents and agent not in info.agents:
            raise ConfigError(f"{info.name} has no agent {agent!r}.", nearest(agent, info.agents))
    for agent in info.agents:
        if agent not in wish.mine:
            playing.of(agent)


def _introduced(playing: Players, mine: Sequence[str]) -> Iterator[str]:
    """A sentence for each player."""
    for agent, player in playing.by_agent.items():
        yield f"{line(agent, 60)} is played by {player.title}."
    if playing.others is not None:
        title = playing.others.title
        yield f"{title[0].upper()}{title[1:]} plays{' the others' if mine or playing.by_agent else ''}."


class _Session:
    """Which instance is played, and how the last episode went."""

    def __init__(
        self,
        service: EnvironmentService,
        name: str,
        wish: Wish,
        keyboard: Keyboard,
        policies: Policies | None,
        prints: Path,
    ) -> None:
        """``prints``: the file of what the plugin prints."""
        self._service = service
        self._name = name
        self._wish = wish
        self._keyboard = keyboard
        self._policies = policies
        self._index, self._attempt = wish.index, 0
        self._code = output.OK
        self._log, self._read = prints, 0
        """The plugin's prints, and how many bytes of them were shown."""

    async def run(self) -> int:
        """Play one episode after the other."""
        for sentence in _introduced(self._policies.players, self._wish.mine) if self._policies is not None else ():
            output.result(sentence)
        if self._policies is None or self._wish.mine:
            output.result("You answer for the model; /help says how.")
        while True:
            try:
                await self._episode()
                wish = self._choice()
            except Left as left:
                wish = left.wish
            match wish:
                case "quit":
                    return self._code
                case "interrupt":
                    return output.INTERRUPTED
                case "again":
                    self._attempt += 1
                case _:
                    self._index, self._attempt = self._index + 1, 0
            output.result("")

    async def _episode(self) -> None:
        await settled(self._service)
        info = self._service.resolve(self._name)
        config, data = typed(self._wish.config, info.parameters), rows_named(self._wish.rows, self._name)
        with await self._service.bind(self._name, config=config, data=data) as lease:
            for row in self._prints("at load"):
                output.quote(row)
            self._head(info, lease.config)
            seed = self._wish.seed if self._wish.split == "train" else 0
            spec = EpisodeSpec(self._wish.split, self._index, seed, 0, lease.config)
            game = Game(self._keyboard, lambda agent: agent in self._wish.mine)
            ended = await self._played(lease, spec, game)
        self._code = output.FAILED if ended.status in ("error", "timeout") else output.OK
        for row in [*self._prints("printed"), *environments.outcome(ended)]:
            output.quote(row)
        unheard = [agent for agent in self._wish.mine if agent not in game.agents]
        if unheard and game.agents:
            names = ", ".join(line(agent, 60) for agent in game.agents)
            output.talk(f"Nobody called {', '.join(map(line, unheard))} was asked; the agents were {names}.")

    async def _played(self, lease: Lease, spec: EpisodeSpec, game: Game) -> EpisodeOutcome:
        if self._policies is None:
            return await self._service.play(lease, spec, game.answering(None))

        async def playing(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
            return await self._service.play(lease, spec, game.answering(answer))

        roles, name = self._policies.roles(self._index, self._attempt), f"play/{self._index}/{self._attempt}"
        return (await self._policies.rollout.run_episode(playing, spec, roles, name)).outcome

    def _head(self, info: EnvironmentInfo, config: dict[str, object]) -> None:
        words = environments.settings(info.parameters, config)
        output.result(
            f"{line(info.name)} {info.version}: {self._wish.split} instance {self._index}, seed {self._wish.seed}"
            f"{f'; {words}' if words else ''}"
        )
        if info.state == "stale" and info.failure is not None:
            for row in environments.failure(info.failure):
                output.quote(row)
            output.result("That is why the newest edit is not played; this is the last good version.")

    def _prints(self, label: str) -> list[str]:
        """Print what the plugin has printed since the last look, also while it was loaded and tried out."""
        try:
            with self._log.open("rb") as file:
                file.seek(self._read)
                text = file.read()
        except OSError:
            return []
        self._read += len(text)
        return environments.labelled(label, text.decode("utf-8", "replace").rstrip("\n")) if text.strip() else []

    def _choice(self) -> str:
        """What comes after an episode. Raises ``Left`` at the end of the input."""
        while True:
            word = self._keyboard.line(f"{', '.join(CHOICES[:-1])} or {CHOICES[-1]} [{CHOICES[0]}]> ").strip().lower()
            word = word.removeprefix("/")
            found = [choice for choice in CHOICES if choice.startswith(word)]
            if found:
                return found[0]
            if word in ("help", "?"):
                show_help()
            else:
                output.result(f"Type {', '.join(CHOICES)}, or nothing for {CHOICES[0]}.")

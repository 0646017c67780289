"""A session with one environment: episode after episode, until the person wants no more.

The environment runs in its process, in a temporary folder; an edit of its file counts from the next episode on. Needs
no engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from marlaas.engine.environments import (
    EnvironmentInfo,
    EnvironmentService,
    EpisodeOutcome,
    EpisodeSpec,
    Folders,
    Interpreters,
    Lease,
    serve_alone,
    settled,
)
from marlaas.engine.errors import ConfigError
from marlaas.engine.home import BUNDLED_PLUGINS, Home, load_settings
from marlaas.engine.spec import nearest
from marlaas.engine.trajectories import Split
from marlaas.plugins.messages import Answer

from ... import output
from ...words.environments import transcript as transcript
from ...words.format import line
from ..keyboard import Keyboard, Left
from ..waiting import Waiting
from .config import typed
from .game import Game, show_help
from .players import Players, Speaking, players
from .policies import Policies, loaded
from .rows import rows_named

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
    """Agents that the person plays beside policies."""
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
        for row in [*self._prints("printed"), *transcript.outcome(ended)]:
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
        words = transcript.settings(info.parameters, config)
        output.result(
            f"{line(info.name)} {info.version}: {self._wish.split} instance {self._index}, seed {self._wish.seed}"
            f"{f'; {words}' if words else ''}"
        )
        if info.state == "stale" and info.failure is not None:
            for row in transcript.failure(info.failure):
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
        return transcript.labelled(label, text.decode("utf-8", "replace").rstrip("\n")) if text.strip() else []

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

"""A profile: a home's recorded episodes and devices, and the costs of a token there."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations, groupby
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np

from ..errors import ConfigError
from ..fairness.line import ROLLOUT, TRAINING
from ..home.paths import Home
from ..store.queries import timings
from ..store.queries.reader import Reader
from ..train.groups import RUNS

KEPT = 512
"""Kept values of a distribution, spread evenly in their order of size."""


def non_negative(rows: Sequence[Sequence[float]], wanted: Sequence[float]) -> tuple[float, ...]:
    """The factors, none below 0, with which the columns of ``rows`` add up best to ``wanted``; 0 without rows.

    Every set of columns is tried: there are four at most.
    """
    if not rows:
        return ()
    matrix, target = np.array(rows, np.float64), np.array(wanted, np.float64)
    width = matrix.shape[1]
    best, error = np.zeros(width), float((target**2).sum())
    for size in range(1, width + 1):
        for columns in combinations(range(width), size):
            part = matrix[:, columns]
            found, *_ = np.linalg.lstsq(part, target, rcond=None)
            left = float(((part @ found - target) ** 2).sum())
            if (found >= 0).all() and left < error * (1 - 1e-9):
                best, error = np.zeros(width), left
                best[list(columns)] = found
    return tuple(float(value) for value in best)


def thinned(values: Sequence[float], most: int = KEPT) -> tuple[float, ...]:
    """A distribution in at most this many values: sorted, and spread evenly from the least to the largest."""
    ordered = sorted(values)
    if len(ordered) <= most:
        return tuple(ordered)
    return tuple(ordered[round(place * (len(ordered) - 1) / (most - 1))] for place in range(most))


VERSION = 1


@dataclass(frozen=True)
class RecordedTurn:
    """One ask and its reply."""

    agent: str
    after: int
    """Place of the turn before it; -1: the beginning of the episode."""
    delay: float
    """Seconds of the environment between that reply and the ask."""
    given: int
    said: int


@dataclass(frozen=True)
class RecordedEpisode:
    """One episode of a group."""

    turns: tuple[RecordedTurn, ...]
    tail: float
    scoring: float
    """Seconds from then until its reward."""
    rewards: dict[str, float]


@dataclass(frozen=True)
class RecordedFailures:
    """The frequency and duration of failed episodes."""

    share: float = 0.0
    timeouts: float = 0.0
    """The share of timeouts among failures; others raised an error."""
    seconds: tuple[float, ...] = ()


@dataclass(frozen=True)
class RecordedEnvironment:
    """Episodes of an environment with some parameters."""

    environment: str
    config: str
    groups: tuple[tuple[RecordedEpisode, ...], ...]
    """Groups of training; samples of one group have their instance in common, so they are drawn from one of these."""
    held_out: tuple[tuple[RecordedEpisode, ...], ...] = ()
    """Groups of evaluations, perhaps with other durations; empty: as in training."""
    failures: RecordedFailures = RecordedFailures()
    held_out_failures: RecordedFailures = RecordedFailures()


@dataclass(frozen=True)
class SamplerRates:
    """The costs of a sampler in seconds.

    A pass over n conversations takes ``a_pass + n * row`` and adds one token to each; a read token takes ``read``, and
    the begin of a turn ``turn``.
    """

    a_pass: float
    row: float
    read: float
    around: tuple[float, ...] = (0.0,)
    """Recorded seconds of a turn besides that: the way to the sampler and back, and the engine."""
    kind: str = "torch"
    sequences: int = 64
    context: int = 4096
    cores: int = 1
    turn: float = 0.0


@dataclass(frozen=True)
class TrainerRates:
    """The costs of a trainer in seconds.

    A call with groups of different rewards takes ``a_pass + groups * group + tokens * token``, times a draw of
    ``noise``; it may hold several policies.
    """

    group: float
    token: float
    noise: tuple[float, ...] = (1.0,)
    update: tuple[float, ...] = (0.0,)
    cores: int = 1
    a_pass: float = 0.0
    """0 if calls were not recorded: the fixed part is then in ``group``."""


@dataclass(frozen=True)
class EngineRates:
    """Processor seconds of the engine's own process, which block its loop."""

    turn: float = 0.0
    """For each turn."""
    episode: float = 0.0
    """For each episode besides its turns, including its part of storing the group."""
    call: float = 0.0
    """For each call of a trainer, including the commits that follow."""
    beat: float = 0.0
    """Once a second."""


@dataclass(frozen=True)
class HostRates:
    """Processor seconds of an environment's process; it does one thing after the other."""

    turn: float = 0.0
    episode: float = 0.0
    """Besides its turns."""


@dataclass(frozen=True)
class Profile:
    """All distributions."""

    source: str
    environments: tuple[RecordedEnvironment, ...]
    sampler: SamplerRates
    trainer: TrainerRates
    publish: tuple[float, ...] = (0.0,)
    """Recorded seconds of loading a version into a sampler."""
    state_bytes: int = 0
    """Median bytes of a version's state file."""
    start: float = 10.0
    base: str = ""
    engine: EngineRates = EngineRates()
    hosts: HostRates = HostRates()
    cards: bool = False
    format: int = field(default=VERSION)

    def names(self) -> list[str]:
        return sorted({one.environment for one in self.environments})

    def find(self, environment: str, config: str) -> RecordedEnvironment | None:
        """The records of an environment: with these parameters if there are any, else with others.

        The last part of its name is enough.
        """
        own = [one for one in self.environments if environment in (one.environment, one.environment.rpartition("/")[2])]
        exact = [one for one in own if one.config == config]
        if exact or len(own) < 2:
            return next(iter(exact or own), None)
        merged = tuple(group for one in own for group in one.groups)
        held_out = tuple(group for one in own for group in one.held_out)
        return RecordedEnvironment(environment, config, merged, held_out, own[0].failures, own[0].held_out_failures)


def config_key(config: dict[str, Any]) -> str:
    """Parameters as one canonical text."""
    return json.dumps(config, sort_keys=True)


def write_profile(profile: Profile, path: Path) -> None:
    """Write a profile as JSON. Raises ``ConfigError`` if the file cannot be written."""
    try:
        path.write_bytes(msgspec.json.encode(asdict(profile)) + b"\n")
    except OSError as error:
        raise ConfigError(f"the profile cannot be written: {error.strerror}.", where=str(path)) from error


def read_profile(path: Path) -> Profile:
    """Read a profile. Raises ``ConfigError`` for an invalid file or another format."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"the profile cannot be read: {error.strerror}.", where=str(path)) from error
    hint = "`marlaas simulate --record HOME --out FILE` writes one."
    try:
        table = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ConfigError("is no profile: it is not JSON.", hint, where=str(path)) from error
    version = table.get("format") if isinstance(table, dict) else None
    if version != VERSION:
        found = "it says of no format that it has" if version is None else f"its format is {version!r}"
        raise ConfigError(f"is no profile of format {VERSION}: {found}.", hint, where=str(path))
    try:
        return msgspec.convert(table, Profile)
    except msgspec.ValidationError as error:
        raise ConfigError(f"is no sound profile: {error}.", hint, where=str(path)) from error


GROUPS = 400
"""The newest groups of an environment with some parameters are kept."""
FASTEST = 4
"""The fastest one in this many turns counts for a turn's time besides its passes: the others also waited for a slot,
or shared passes, which a simulation adds itself."""


UNHINDERED = 2
"""One in this many publishes counts for loading a version, likewise."""


@dataclass(frozen=True)
class _Spoken:
    seconds: float
    given: int
    said: int


def record(home: Home) -> Profile:
    """The profile of a home, also with a running engine. Raises ``ConfigError`` if nothing is recorded there."""
    with Reader(home.database) as reader:
        stored = list(timings.timed_trajectories(reader))
        episodes = [list(own) for _, own in groupby(stored, key=lambda row: (row.play, row.member))]
        timed = [own for own in episodes if any(row.timing for row in own)]
        if not any(own[0].split == "train" for own in timed):
            raise ConfigError(
                "no training episode is recorded there with its times.",
                "Let tasks train in that home; its episodes are recorded by themselves.",
                where=str(home.root),
            )
        turns: list[_Spoken] = []
        failures = _failures(timings.outcome_counts(reader))
        shares = _shares(timings.failed_plays(reader), 1)
        held_out = _shares(timings.failed_evaluations(reader), RUNS)
        environments = _environments(timed, turns, failures, shares, held_out)
        steps = timings.step_times(reader)
        base, kinds, _, said = timings.engines_said(reader)
        sizes = timings.state_sizes(reader)
        publish = sorted(step.publish for step in steps if step.publish is not None)
        windows = timings.engine_windows(reader)
        engine = _engine(windows)
        sampler = _sampler(reader, turns, kinds, said, engine.turn)
        trainer = replace(_trainer(steps), cores=_cores(reader, TRAINING))
        return Profile(
            source=f"the base {base!r}, {kinds or 'torch'}",
            environments=environments,
            sampler=sampler,
            trainer=trainer,
            publish=thinned(publish[: -(-len(publish) // UNHINDERED)]) or (0.0,),
            state_bytes=sizes[len(sizes) // 2] if sizes else 0,
            start=_start(said),
            base=base,
            engine=engine,
            hosts=_hosts(windows),
            cards=not (sampler.cores and trainer.cores),
        )


def _environments(
    episodes: Iterable[Sequence[timings.TimedTrajectory]],
    turns: list[_Spoken],
    failures: dict[str, RecordedFailures],
    shares: dict[tuple[str, str], float],
    held_out_shares: dict[tuple[str, str], float],
) -> tuple[RecordedEnvironment, ...]:
    """All recorded episodes, by environment and parameters; adds to ``turns``.

    ``failures`` are by the last part of an environment's name; both ``shares``, of training and of evaluations, are
    their frequencies for some parameters.
    """
    plays: defaultdict[tuple[str, str], defaultdict[int, list[RecordedEpisode]]] = defaultdict(
        lambda: defaultdict(list)
    )
    held_out: defaultdict[tuple[str, str], defaultdict[int, list[RecordedEpisode]]] = defaultdict(
        lambda: defaultdict(list)
    )
    named: dict[str, dict[str, Any]] = {}
    for rows in episodes:
        first = rows[0]
        config = named.setdefault(first.config, json.loads(first.config))
        into = plays if first.split == "train" else held_out
        if not first.suite:
            into[_played(config, first.component)][first.play].append(_episode(rows, turns))
    return tuple(
        RecordedEnvironment(
            name,
            parameters,
            _newest(groups),
            _newest(held_out[name, parameters]),
            _of_parameters(failures.get(name.rpartition("/")[2]), shares.get((name, parameters))),
            _of_parameters(failures.get(name.rpartition("/")[2]), held_out_shares.get((name, parameters), 0.0)),
        )
        for (name, parameters), groups in sorted(plays.items())
    )


def _newest(groups: Mapping[int, Sequence[RecordedEpisode]]) -> tuple[tuple[RecordedEpisode, ...], ...]:
    return tuple(tuple(members) for members in list(groups.values())[-GROUPS:])


def _played(config: dict[str, Any], component: str) -> tuple[str, str]:
    for part in config.get("mixture") or ():
        if component in (part.get("name"), part["environment"], part["environment"].rpartition("/")[2]):
            return part["environment"], config_key(part.get("config") or {})
    return config["environment"], config_key(config.get("environment_config") or {})


def _episode(rows: Sequence[timings.TimedTrajectory], turns: list[_Spoken]) -> RecordedEpisode:
    (times, over, ended) = next(row.timing for row in rows if row.timing)
    replies: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in rows:
        before = 0
        for start, stop, *_ in row.spans:
            replies[row.agent].append((start - before, stop - start))
            before = stop
    told = Counter[str]()
    made: list[RecordedTurn] = []
    for agent, asked, answered in times:
        place = told[agent]
        told[agent] += 1
        given, said = replies[agent][place] if place < len(replies[agent]) else (0, 1)
        earlier = [number for number, (_, _, then) in enumerate(times[: len(made)]) if then <= asked]
        after = max(earlier, key=lambda number: times[number][2], default=-1)
        since = times[after][2] if after >= 0 else 0.0
        made.append(RecordedTurn(agent, after, max(0.0, asked - since), given, said))
        turns.append(_Spoken(answered - asked, given, said))
    last = max((answered for _, _, answered in times), default=0.0)
    rewards = {row.agent: row.reward for row in rows if row.reward is not None}
    return RecordedEpisode(tuple(made), max(0.0, over - last), max(0.0, ended - over), rewards)


def _failures(counts: Iterable[tuple[str, str, int, int]]) -> dict[str, RecordedFailures]:
    ended: Counter[str] = Counter()
    failed: defaultdict[str, Counter[str]] = defaultdict(Counter)
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    for environment, status, bucket, episodes in counts:
        name = environment.rpartition("/")[2]
        if status in ("ok", "error", "timeout") and episodes > 0:
            ended[name] += episodes
        if status in ("error", "timeout") and episodes > 0:
            failed[name][status] += episodes
            seconds[name] += [2 ** ((bucket + 0.5) / 4)] * min(episodes, 64)
    return {
        name: RecordedFailures(
            failed[name].total() / ended[name],
            failed[name]["timeout"] / max(1, failed[name].total()),
            thinned(seconds[name], 64),
        )
        for name in ended
    }


def _shares(known: Iterable[timings.FailedPlays], tries: int) -> dict[tuple[str, str], float]:
    failed, plays = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for task in known:
        config = json.loads(task.config)
        if not config.get("mixture"):
            key = _played(config, "")
            failed[key] += round(task.failed)
            plays[key] += round(task.members + (task.failed if tries == 1 else 0.0))
    return {key: (failed[key] / count) ** (1 / tries) for key, count in plays.items() if count}


def _of_parameters(failures: RecordedFailures | None, share: float | None) -> RecordedFailures:
    known = failures or RecordedFailures()
    return known if share is None else replace(known, share=share)


def _engine(windows: Sequence[timings.EngineWindow]) -> EngineRates:
    if not windows:
        return EngineRates()
    rows = [(float(window.turns), float(window.episodes), float(window.calls), window.wall) for window in windows]
    beat = non_negative(rows, [window.busy for window in windows])[3]
    beat = min(beat, *(window.busy / window.wall for window in windows))
    left = [max(0.0, window.busy - beat * window.wall) for window in windows]
    turn, episode, call = non_negative([row[:3] for row in rows], left)
    return EngineRates(turn, episode, call, beat)


def _hosts(windows: Sequence[timings.EngineWindow]) -> HostRates:
    rows = [(float(window.turns), float(window.episodes)) for window in windows]
    return HostRates(*(non_negative(rows, [window.hosts for window in windows]) or (0.0, 0.0)))


def _sampler(reader: Reader, turns: Sequence[_Spoken], kinds: str, said: Sequence[str], engine: float) -> SamplerRates:
    """A sampler's costs for a pass, a conversation, a read token and a turn.

    ``engine``: the engine's own seconds for a turn.
    """
    windows = timings.sampler_windows(reader)
    rows = [(float(one.passes), float(one.tokens), float(one.read), float(one.ended)) for one in windows]
    a_pass, row, read, turn = non_negative(rows, [one.busy for one in windows]) or (0.0, 0.0, 0.0, 0.0)
    shared = sum(window.read for window in windows) / max(1, sum(one.given for one in turns))
    alone, fixed = a_pass + row, turn + engine
    beside = sorted(max(0.0, one.seconds - fixed - alone * one.said - read * shared * one.given) for one in turns)
    around = thinned(beside[: max(1, len(beside) // FASTEST)])
    sequences, context = _limits(said)
    kind = kinds.partition(" + ")[0] or "torch"
    return SamplerRates(a_pass, row, read, around, kind, sequences, context, _cores(reader, ROLLOUT), turn)


def _trainer(steps: Sequence[timings.StepTimes]) -> TrainerRates:
    known = [step for step in steps if step.training is not None and step.groups]
    took = [max(0.0, (step.training or 0.0) - (step.update or 0.0)) for step in known]
    rows = [(step.calls or 0.0, float(step.groups), float(step.tokens)) for step in known]
    rates = non_negative(rows, took) or (0.0, 0.0, 0.0)
    expected = [math.fsum(rate * count for rate, count in zip(rates, row, strict=True)) for row in rows]
    noise = [one / wanted for one, wanted in zip(took, expected, strict=True) if wanted > 0]
    mean = math.fsum(noise) / len(noise) if noise else 1.0
    update = thinned([step.update for step in steps if step.update is not None])
    a_pass, group, token = rates
    noise = [one / mean for one in noise] or [1.0]
    return TrainerRates(group, token, thinned(noise), update or (0.0,), a_pass=a_pass)


def _cores(reader: Reader, stage: str) -> int:
    device = next((use.device for use in timings.device_use(reader) if use.stage == stage), "")
    where = device.rpartition("/")[2]
    numbers = [int(number) for number in re.findall(r"\d+", where)]
    if where.startswith("gpu"):
        return 0
    return numbers[1] - numbers[0] + 1 if "-" in where else max(1, len(numbers))


def _limits(said: Iterable[str]) -> tuple[int, int]:
    found = [match for line in said if (match := re.search(r"(\d+) conversations of ([\d,]+) tokens", line))]
    return (int(found[-1][1]), int(found[-1][2].replace(",", ""))) if found else (64, 4096)


def _start(said: Iterable[str]) -> float:
    found = [float(match[1]) for line in said if (match := re.search(r"workers were started in ([\d.]+) s", line))]
    return median(found) if found else 10.0

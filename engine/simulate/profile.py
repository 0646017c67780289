"""A home's recorded episodes and devices, with the costs of tokens."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import mul
from statistics import fmean
from typing import Any

import numpy as np

from ..errors import ConfigError
from ..fairness.line import ROLLOUT, TRAINING
from ..home.paths import Home
from ..store.queries import machine, timings
from ..store.queries.reader import Reader


def non_negative(rows: Sequence[Sequence[float]], wanted: Sequence[float]) -> tuple[float, ...]:
    """Least-squares factors of ``rows``' columns for ``wanted``; a column that would get one below 0 is left out."""
    if not rows:
        return ()
    matrix, target = np.array(rows, np.float64), np.array(wanted, np.float64)
    columns = list(range(matrix.shape[1]))
    factors = np.zeros(len(columns))
    while columns:
        solution, *_ = np.linalg.lstsq(matrix[:, columns], target, rcond=None)
        if (solution >= 0).all():
            factors[columns] = solution
            break
        del columns[int(solution.argmin())]
    return tuple(map(float, factors))


@dataclass(frozen=True)
class RecordedTurn:
    """One ask and its reply."""

    agent: str
    after: int
    """Place of the turn before; -1: none."""
    delay: float
    """Seconds from that reply to the ask."""
    given: int
    said: int


@dataclass(frozen=True)
class RecordedEpisode:
    """One of a group."""

    turns: tuple[RecordedTurn, ...]
    tail: float
    scoring: float
    """Seconds until its reward."""
    rewards: dict[str, float]


@dataclass(frozen=True)
class RecordedFailures:
    """Share of all episodes, and seconds."""

    share: float = 0.0
    seconds: tuple[float, ...] = (0.0,)


@dataclass(frozen=True)
class RecordedEnvironment:
    """With some parameters."""

    environment: str
    config: str
    groups: tuple[tuple[RecordedEpisode, ...], ...]
    """Of training."""
    held_out: tuple[tuple[RecordedEpisode, ...], ...] = ()
    """Of evaluations; empty: as in training."""
    failures: RecordedFailures = RecordedFailures()


@dataclass(frozen=True)
class SamplerRates:
    """In seconds: a pass over n conversations takes ``a_pass + n * row`` and adds a token to each; a read token takes
    ``read``, a turn's begin ``turn``."""

    a_pass: float
    row: float
    read: float
    around: tuple[float, ...] = (0.0,)
    """Further seconds of a turn: the way there and back, and the engine."""
    kind: str = "torch"
    cores: int = 1
    turn: float = 0.0


@dataclass(frozen=True)
class TrainerRates:
    """In seconds: a call with groups of different rewards takes ``a_pass + groups * group + tokens * token``, times a
    draw of ``noise``; it may hold several policies."""

    group: float
    token: float
    noise: tuple[float, ...] = (1.0,)
    update: tuple[float, ...] = (0.0,)
    cores: int = 1
    a_pass: float = 0.0
    """0: not recorded, the fixed part is in ``group``."""


@dataclass(frozen=True)
class Profile:
    """All distributions."""

    source: str
    environments: tuple[RecordedEnvironment, ...]
    sampler: SamplerRates
    trainer: TrainerRates
    publish: tuple[float, ...] = (0.0,)
    """Seconds to load a version."""
    state_bytes: int = 0
    """Median bytes of a state file."""
    base: str = ""
    cards: bool = False

    def names(self) -> list[str]:
        return sorted({recorded.environment for recorded in self.environments})

    def find(self, environment: str, config: str) -> RecordedEnvironment | None:
        """All other parameters together if these have no records; the name's last part is enough."""
        named = [
            recorded
            for recorded in self.environments
            if environment in (recorded.environment, recorded.environment.rpartition("/")[2])
        ]
        for recorded in named:
            if recorded.config == config:
                return recorded
        if not named:
            return None
        groups = tuple(group for recorded in named for group in recorded.groups)
        held_out = tuple(group for recorded in named for group in recorded.held_out)
        return replace(named[0], config=config, groups=groups, held_out=held_out)


def config_key(config: dict[str, Any]) -> str:
    """One canonical text."""
    return json.dumps(config, sort_keys=True)


GROUPS = 400
"""Newest per environment and parameters."""
FASTEST = 4
"""One in this many turns, the fastest: others waited for a slot or shared passes, which a simulation adds itself."""
UNHINDERED = 2
"""Likewise for loading a version."""


Reply = tuple[float, int, int]
"""Seconds, read and sampled tokens of a turn."""


def record(home: Home) -> Profile:
    """Also with a running engine. Raises ``ConfigError`` if nothing is recorded."""
    with Reader(home.database) as reader:
        rows = timings.timed_trajectories(reader)
        episodes = [list(episode) for _, episode in groupby(rows, key=lambda row: (row.play, row.member))]
        timed = [episode for episode in episodes if any(row.timing for row in episode)]
        if not any(episode[0].split == "train" for episode in timed):
            raise ConfigError(
                "no training episode is recorded there with its times.",
                "Let tasks train in that home; its episodes are recorded by themselves.",
                where=str(home.root),
            )
        replies: list[Reply] = []
        environments = _environments(timed, replies, _failures(timings.outcome_counts(reader)))
        steps = timings.step_times(reader)
        base, kinds = timings.newest_engine(reader)
        sizes = timings.state_sizes(reader)
        publish = sorted(step.publish for step in steps if step.publish is not None)
        sampler = _sampler(reader, replies, kinds)
        trainer = _trainer(steps, _cores(reader, TRAINING))
        return Profile(
            source=f"the base {base!r}, {kinds or 'torch'}",
            environments=environments,
            sampler=sampler,
            trainer=trainer,
            publish=tuple(publish[: -(-len(publish) // UNHINDERED)]) or (0.0,),
            state_bytes=sizes[len(sizes) // 2] if sizes else 0,
            base=base,
            cards=not (sampler.cores and trainer.cores),
        )


Groups = defaultdict[int, list[RecordedEpisode]]


def _environments(
    episodes: Iterable[Sequence[timings.TimedTrajectory]],
    replies: list[Reply],
    failures: Mapping[str, RecordedFailures],
) -> tuple[RecordedEnvironment, ...]:
    """Adds to ``replies``. ``failures``: by the name's last part."""
    train: defaultdict[tuple[str, str], Groups] = defaultdict(lambda: defaultdict(list))
    held_out: defaultdict[tuple[str, str], Groups] = defaultdict(lambda: defaultdict(list))
    for rows in episodes:
        if not rows[0].suite:
            groups = train if rows[0].split == "train" else held_out
            groups[_environment_of(rows[0])][rows[0].play].append(_episode(rows, replies))
    return tuple(
        RecordedEnvironment(
            *key,
            _newest(groups),
            _newest(held_out[key]),
            failures.get(key[0].rpartition("/")[2], RecordedFailures()),
        )
        for key, groups in sorted(train.items())
    )


def _newest(groups: Groups) -> tuple[tuple[RecordedEpisode, ...], ...]:
    return tuple(map(tuple, list(groups.values())[-GROUPS:]))


def _environment_of(row: timings.TimedTrajectory) -> tuple[str, str]:
    config = json.loads(row.config)
    for part in config.get("mixture") or ():
        if row.component in (part.get("name"), part["environment"], part["environment"].rpartition("/")[2]):
            return part["environment"], config_key(part.get("config") or {})
    return config["environment"], config_key(config.get("environment_config") or {})


def _episode(rows: Sequence[timings.TimedTrajectory], replies: list[Reply]) -> RecordedEpisode:
    (times, over, ended) = next(row.timing for row in rows if row.timing)
    lengths: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in rows:
        before = 0
        for start, stop, *_ in row.spans:
            lengths[row.agent].append((start - before, stop - start))
            before = stop
    waiting = {agent: iter(known) for agent, known in lengths.items()}
    turns: list[RecordedTurn] = []
    for agent, asked, answered in times:
        given, said = next(waiting.get(agent, iter(())), (0, 1))
        earlier = [number for number, (_, _, then) in enumerate(times[: len(turns)]) if then <= asked]
        after = max(earlier, key=lambda number: times[number][2], default=-1)
        since = times[after][2] if after >= 0 else 0.0
        turns.append(RecordedTurn(agent, after, max(0.0, asked - since), given, said))
        replies.append((answered - asked, given, said))
    last = max((answered for _, _, answered in times), default=0.0)
    rewards = {row.agent: row.reward for row in rows if row.reward is not None}
    return RecordedEpisode(tuple(turns), max(0.0, over - last), max(0.0, ended - over), rewards)


def _failures(counts: Iterable[tuple[str, str, int, int]]) -> dict[str, RecordedFailures]:
    """By the environment's last part."""
    ended: Counter[str] = Counter()
    failed: defaultdict[str, list[float]] = defaultdict(list)
    for environment, status, bucket, episodes in counts:
        name = environment.rpartition("/")[2]
        if status in ("ok", "error", "timeout"):
            ended[name] += max(0, episodes)
        if status in ("error", "timeout"):
            failed[name] += [2 ** ((bucket + 0.5) / 4)] * episodes
    return {name: RecordedFailures(len(seconds) / ended[name], tuple(seconds)) for name, seconds in failed.items()}


def _sampler(reader: Reader, replies: Sequence[Reply], kinds: str) -> SamplerRates:
    windows = timings.sampler_windows(reader)
    rows = [(float(each.passes), float(each.tokens), float(each.read), float(each.ended)) for each in windows]
    a_pass, row, read, turn = non_negative(rows, [each.busy for each in windows]) or (0.0, 0.0, 0.0, 0.0)
    shared = sum(each.read for each in windows) / max(1, sum(given for _, given, _ in replies))
    around = sorted(
        max(0.0, seconds - turn - (a_pass + row) * said - read * shared * given) for seconds, given, said in replies
    )
    around = around[: max(1, len(around) // FASTEST)]
    kind = kinds.partition(" + ")[0] or "torch"
    return SamplerRates(a_pass, row, read, tuple(around), kind, _cores(reader, ROLLOUT), turn)


def _trainer(steps: Sequence[timings.StepTimes], cores: int) -> TrainerRates:
    passed = [step for step in steps if step.training is not None and step.groups]
    took = [max(0.0, (step.training or 0.0) - (step.update or 0.0)) for step in passed]
    rows = [(step.calls or 0.0, float(step.groups), float(step.tokens)) for step in passed]
    a_pass, group, token = rates = non_negative(rows, took) or (0.0, 0.0, 0.0)
    expected = [sum(map(mul, rates, row)) for row in rows]
    noise = [seconds / mean for seconds, mean in zip(took, expected, strict=True) if mean > 0] or [1.0]
    middle = fmean(noise) or 1.0
    update = tuple(step.update for step in steps if step.update is not None)
    return TrainerRates(group, token, tuple(each / middle for each in noise), update or (0.0,), cores, a_pass)


def _cores(reader: Reader, stage: str) -> int:
    """Of a name like ``b/cores 0-3``; 0: a card."""
    device = next((use.device for use in machine.stages(reader, 0.0) if use.stage == stage), "")
    place = device.rpartition("/")[2]
    numbers = [int(number) for number in re.findall(r"\d+", place)]
    if place.startswith("gpu"):
        return 0
    return numbers[1] - numbers[0] + 1 if "-" in place else max(1, len(numbers))

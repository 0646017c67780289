"""Makes a profile of what a home has recorded: its training episodes, its steps, and the samples of its devices."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import median
from typing import Any

from ..errors import ConfigError
from ..fairness import ROLLOUT, TRAINING
from ..home import Home
from ..run import EVAL_ATTEMPTS
from ..store import Reader, timings
from .fitting import non_negative, thinned
from .profile import (
    EngineRates,
    HostRates,
    Profile,
    RecordedEnvironment,
    RecordedEpisode,
    RecordedFailures,
    RecordedTurn,
    SamplerRates,
    TrainerRates,
    config_key,
)

GROUPS = 400
"""Groups that are kept of an environment with some parameters: the newest."""
FASTEST = 4
"""One in so many turns counts for what a turn takes beside its passes, the fastest: the others also waited for a slot,
or shared passes with many, which a simulation adds itself."""


UNHINDERED = 2
"""One in so many publishes counts for what a sampler takes to load a version, likewise."""


@dataclass(frozen=True)
class _Spoken:
    """One turn, as long as it took."""

    seconds: float
    given: int
    said: int


def record(home: Home) -> Profile:
    """The profile of a home; an engine may run meanwhile. Raises ``ConfigError`` where nothing is recorded there."""
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
        held_out = _shares(timings.failed_evaluations(reader), EVAL_ATTEMPTS)
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
    """All that was played, by environment and parameters; adds to ``turns``.

    ``failures`` are by the last part of an environment's name; both ``shares``, of training and of evaluations, say for
    some parameters how many they are.
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
    """The environment that a group of a task was played on, and its parameters."""
    for part in config.get("mixture") or ():
        if component in (part.get("name"), part["environment"], part["environment"].rpartition("/")[2]):
            return part["environment"], config_key(part.get("config") or {})
    return config["environment"], config_key(config.get("environment_config") or {})


def _episode(rows: Sequence[timings.TimedTrajectory], turns: list[_Spoken]) -> RecordedEpisode:
    """One episode, from its trajectories; each agent's replies are taken in their order."""
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
    """By the last part of an environment's name."""
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
    """Which part of all plays failed, by environment and parameters; of tasks that play one alone. Those count as
    failed whose ``tries`` have all failed."""
    failed, plays = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for task in known:
        config = json.loads(task.config)
        if not config.get("mixture"):
            key = _played(config, "")
            failed[key] += round(task.failed)
            plays[key] += round(task.members + (task.failed if tries == 1 else 0.0))
    return {key: (failed[key] / count) ** (1 / tries) for key, count in plays.items() if count}


def _of_parameters(failures: RecordedFailures | None, share: float | None) -> RecordedFailures:
    """An environment's failures, as often as they were with some parameters, where that is known."""
    known = failures or RecordedFailures()
    return known if share is None else replace(known, share=share)


def _engine(windows: Sequence[timings.EngineWindow]) -> EngineRates:
    """What the engine's process took for what it did; a second costs at most what the idlest took."""
    if not windows:
        return EngineRates()
    rows = [(float(window.turns), float(window.episodes), float(window.calls), window.wall) for window in windows]
    beat = non_negative(rows, [window.busy for window in windows])[3]
    beat = min(beat, *(window.busy / window.wall for window in windows))
    left = [max(0.0, window.busy - beat * window.wall) for window in windows]
    turn, episode, call = non_negative([row[:3] for row in rows], left)
    return EngineRates(turn, episode, call, beat)


def _hosts(windows: Sequence[timings.EngineWindow]) -> HostRates:
    """What the environments' processes took for what they played."""
    rows = [(float(window.turns), float(window.episodes)) for window in windows]
    return HostRates(*(non_negative(rows, [window.hosts for window in windows]) or (0.0, 0.0)))


def _sampler(reader: Reader, turns: Sequence[_Spoken], kinds: str, said: Sequence[str], engine: float) -> SamplerRates:
    """What samplers took for a pass, for each conversation in it, for what they read, and what turns took besides;
    ``engine``: seconds of its own that the engine took for a turn."""
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
    """What trainers took for calls, groups, tokens and updates."""
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
    """Cores of the first worker of a stage; 0 for one on a card."""
    device = next((use.device for use in timings.device_use(reader) if use.stage == stage), "")
    where = device.rpartition("/")[2]
    numbers = [int(number) for number in re.findall(r"\d+", where)]
    if where.startswith("gpu"):
        return 0
    return numbers[1] - numbers[0] + 1 if "-" in where else max(1, len(numbers))


def _limits(said: Iterable[str]) -> tuple[int, int]:
    """Conversations of a sampler, and their tokens, as the newest engine said that it planned them."""
    found = [match for line in said if (match := re.search(r"(\d+) conversations of ([\d,]+) tokens", line))]
    return (int(found[-1][1]), int(found[-1][2].replace(",", ""))) if found else (64, 4096)


def _start(said: Iterable[str]) -> float:
    """Seconds in which workers started, as engines said."""
    found = [float(match[1]) for line in said if (match := re.search(r"workers were started in ([\d.]+) s", line))]
    return median(found) if found else 10.0

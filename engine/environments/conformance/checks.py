"""The checks, and the texts of all findings."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from marlaas.plugins.messages import Ask

from ...spec.task import TrainSpec
from ...trajectories import Split
from ..plugin import said
from ..protocol import DataFacts, EpisodeOutcome
from .finding import Finding, Level
from .subject import CONSTANTS, MOST_TURNS, Canned, Crowd, Draw, Played

TEXTS: dict[str, tuple[Level, str]] = {
    "instances.failed": ("error", "{some} have no first prompt: {place} ends before it: {reason}."),
    "instances.never": (
        "error",
        "It never calls `ep.ask`: {some} end without it. Nothing can be learned from that.",
    ),
    "instances.silent": (
        "warning",
        "{some} end without asking the model, such as {place}: nothing is learned from them. Raise Skip where a draw is"
        " unusable.",
    ),
    "instances.skipped": ("note", "{some} are skipped by the environment."),
    "determinism.again": (
        "error",
        "The first prompt of {place} changes when it is drawn again: {contrast}. {some} do that. Draw from ep.rng"
        " alone, not from the module random, the time, or what earlier episodes left behind.",
    ),
    "determinism.elsewhere": (
        "error",
        "The first prompt of {place} changes in another process: {contrast}. {some} do that. Draw from ep.rng alone: a"
        " process may begin with any instance, and forgets what the one before it knew.",
    ),
    "determinism.member": (
        "error",
        "The first prompt of {place} differs between the members of a group: {contrast}. {some} do that. Draw the task"
        " from ep.rng, which they share; ep.noise is for what happens after the first prompt.",
    ),
    "determinism.same": (
        "note",
        "{number} instances had the same first prompt again, in another process, and for another member.",
    ),
    "variety.same": (
        "warning",
        "{prompts} are the same. That is right for a game that always opens alike; else draw the task from ep.rng.",
    ),
    "variety.repeated": (
        "warning",
        "Only {distinct} of {number} eval prompts differ: what is asked again tells nothing new. Evaluate no more"
        " prompts than there are, or draw from more.",
    ),
    "variety.differ": ("note", "{prompts} differ."),
    "leaks.moved": (
        "error",
        "The eval split is the train split{by}: {place} has the first prompt of eval instance {index}, and so on. Draw"
        " from ep.rng, which keeps the splits apart, or take ep.split into the seed.",
    ),
    "leaks.small": (
        "warning",
        "{shared} train prompts are held-out ones, too: the space of prompts is too small. Training skips them;"
        " settings that make it larger are better.",
    ),
    "leaks.some": ("note", "{shared} train prompts are held-out ones, too; training skips them."),
    "leaks.none": ("note", "None of {drawn} train prompts is one of {distinct} held-out ones."),
    "lengths.refused": ("error", "The first prompt of {place} cannot be put to the base model: {reason}"),
    "lengths.characters": (
        "note",
        "First prompts have {mean:,.0f} characters on average, at most {longest:,}; no base was there to count tokens.",
    ),
    "lengths.tokens": (
        "note",
        "First prompts have {mean:,.0f} tokens on average, at most {longest:,} ({place}); a conversation has room for"
        " {context:,}{advice}.",
    ),
    "rows.number": ("note", "{train:,} rows to train on, {held_out:,} to evaluate with.{order}"),
    "rows.shared": (
        "warning",
        "{number:,} evaluation rows are train rows, too: a score measures what was learned by heart. Take them out of"
        " one of the two.",
    ),
    "rows.repeated": (
        "warning",
        "{number:,} evaluation rows are copies of another one, so a score says less than its number.",
    ),
    "junk.survived": ("note", "{number} odd replies ended in time, and with a reward."),
    "junk.alarm": (
        "error",
        "It fails for each of the {number} replies that were tried: {reason}. A plain `def` plays in a thread, where"
        " Python takes no signals: move what sets an alarm into a function under {decorator}, which runs in a process"
        " of its own.",
    ),
    "junk.always": (
        "error",
        "It fails for each of the {number} replies that were tried: {reason}. If a right reply fails there, too, the"
        " environment is wrong; give a bad one a reward, or raise Invalid.",
    ),
    "junk.paid": (
        "warning",
        "It fails for each of the {number} replies that were tried: {reason}. `on_error` pays all of them alike: try"
        " whether a right reply earns more.",
    ),
    "junk.endless": (
        "error",
        "Given {replies}, it asks more than {most:,} times. Bound the turns of an episode.",
    ),
    "junk.timeout": ("error", "Given {replies}, it ends too late: {reason}. Bound the work that a reply can cause."),
    "junk.skip": (
        "warning",
        "Given {replies}, it raises Skip: the reply costs nothing. Skip is for unusable draws; a bad reply is Invalid,"
        " which has a reward.",
    ),
    "junk.error": (
        "error",
        "Given {replies}, it fails: {reason}. A model says anything: give such a reply a reward, or raise Invalid.",
    ),
    "baseline.nothing": ("note", "No constant answer earns anything: {number} were tried."),
    "baseline.low": (
        "note",
        "{answer} scores {mean:.2f} on average over {many}: the best of {number} constant answers.",
    ),
    "baseline.high": (
        "warning",
        "{answer} scores {mean:.2f} on average over {many}: rewards can be had without reading the prompt.{others}",
    ),
    "rewards.range": (
        "note",
        "Canned replies earned {low:.3g} to {high:.3g}, {mean:.3g} on average (standard deviation {deviation:.2g}).",
    ),
    "rewards.large": (
        "warning",
        "Canned replies earned {low:.3g} to {high:.3g}, {mean:.3g} on average (standard deviation {deviation:.2g})."
        " Rewards of such a size make steps of that size: bring them to the order of 1.",
    ),
    "rewards.nonsense": (
        "warning",
        "It pays to be unreadable: at train instance {index} {reply} is invalid and earns {score:.3g}, {other} is not"
        " and earns {least:.3g}. Give Invalid a reward= below all.",
    ),
    "rewards.changed": (
        "warning",
        "The same replies earn another reward the second time ({number} of {tried} episodes): {reply} at train instance"
        " {index} earns {first}, then {second}. Draw what is random from ep.rng or ep.noise.",
    ),
    "agents.undeclared": (
        "note",
        "{number} agents speak, and none is declared. With @env(agents=({names})) a task that leaves one out is refused"
        " when it is submitted.",
    ),
    "agents.silent": (
        "warning",
        "{names}: declared and never asked in {number} episodes with odd replies; a policy for it would learn nothing."
        " Remove it from @env(agents=…), unless only good replies lead to it.",
    ),
    "agents.asked": ("note", "All {number} agents that it declares were asked: {names}."),
    "sandbox.late": (
        "warning",
        "In {late} of {used} episodes a program in the sandbox ran out of time, such as at train instance {index},"
        " given {reply}: a right answer may well do so, too. Give it more seconds=…, or less to do.",
    ),
    "concurrency.failed": (
        "error",
        "{failed} of {number} episodes that are played at once fail, and none alone: {reason}. What they share has to"
        " bear as many.",
    ),
    "concurrency.blocks": (
        "note",
        "Blocks {place}: no other episode of its process moves meanwhile. Lines that block take {each} of an episode."
        " {ended} of {number} episodes at once ended in {seconds}; one alone takes up to {alone}. Await what waits;"
        " what computes keeps nobody waiting in asyncio.to_thread, or in a score function.",
    ),
    "concurrency.waits": (
        "warning",
        "{ended} of {number} episodes at once ended in {seconds}, when this check's time was up; one alone takes up to"
        " {alone}. No line was seen to block: they wait for something that they share.",
    ),
    "concurrency.well": (
        "note",
        "{number} episodes at once ended as one alone does, in {seconds}; no line was seen to block.",
    ),
    "latency.start": ("note", "Its process takes {start} to start and {first} to its first prompt.{advice}"),
    "latency.turn": (
        "note",
        "A turn takes {middle} of its own time (median of {number}), {worst} at worst.{advice}",
    ),
}

ENOUGH_PROMPTS = 8
"""Of a split; below, equal prompts mean nothing, and shared ones may be in order by chance."""
CHANCE = 0.25
"""Share of repeated prompts: of 64 draws from 441 sums, one in fifteen repeats."""
MOST_SHARED = 0.3
RUN = 3
"""Pairs at equal distance: two splits are one sequence."""
CROWDED = 0.75
"""Share of the context: a prompt leaves little room."""
SIGNALS = "signal only works in main thread"
HIGH, BROKEN = 0.5, 0.9
"""Mean scores of a constant answer: a warning, and nothing to learn."""
ALIKE = 0.05
FEW = 16
SCALE = 1.0
"""Largest absolute reward at which a mean score is a share of the possible one."""
LARGE = 100.0
SANDBOX = "sandbox_timeouts"
SHORT = 0.003
"""Seconds an episode below which a line that blocks does not matter: about the time to start an episode."""
LONG = 1.0
"""Seconds that live episodes wait for each other in one process."""
SLOW_TURN, SLOWEST_TURN, SLOW_START = 1.0, 5.0, 10.0
"""Seconds of the median turn, the longest turn, and the start."""
ALIVE = TrainSpec().groups_per_step * TrainSpec().begun_members * (TrainSpec().max_staleness + 1)
_SHOWN, _BEFORE = 24, 8
"""Characters shown of a changed prompt, and before the change."""
_MOST_NAMED, _AGENTS_NAMED = 4, 8

Repeats = tuple[Draw, Draw, Draw, Draw]
"""One instance: first, again, in a fresh process, and there for another sample."""


@dataclass
class Observed:
    """What was observed of an environment."""

    name: str = "NAME"
    agents: tuple[str, ...] = ()
    ranked: bool = False
    alive: int = ALIVE
    draws: list[Draw] = field(default_factory=list)
    distant: list[Draw] = field(default_factory=list)
    """Train instances of ``far``."""
    repeats: list[Repeats] = field(default_factory=list)
    lengths: list[tuple[int, Draw]] = field(default_factory=list)
    context: int = 0
    """In tokens; 0 if lengths are in characters."""
    refused: tuple[Draw, Exception] | None = None
    odd: list[Played] = field(default_factory=list)
    constant: list[Played] = field(default_factory=list)
    repeated: list[tuple[Played, Played]] = field(default_factory=list)
    """Pairs with equal replies."""
    crowd: Crowd | None = None
    start: float = 0.0
    facts: DataFacts = field(default_factory=DataFacts)

    @property
    def played(self) -> list[Played]:
        return [*self.odd, *self.constant]


def finding(case: str, level: Level | None = None, /, **words: object) -> Finding:
    """``level`` replaces that of ``TEXTS``."""
    usual, text = TEXTS[case]
    return Finding(case.partition(".")[0], level or usual, text.format(**words))


def check_instances(seen: Observed) -> Iterator[Finding]:
    """Every instance asks the model."""
    draws = [*seen.draws, *seen.distant]
    ended = [(draw, draw.reached) for draw in draws if isinstance(draw.reached, EpisodeOutcome)]
    failed = [(draw, outcome) for draw, outcome in ended if outcome.status not in ("ok", "skip")]
    silent = [draw for draw, outcome in ended if outcome.status == "ok"]
    number, skipped = len(draws), len(ended) - len(failed) - len(silent)
    if failed:
        draw, outcome = failed[0]
        reason = said(outcome.failure) if outcome.failure else f"it ended as {outcome.status}"
        yield finding("instances.failed", some=_of(len(failed), number), place=draw.place, reason=reason)
    if silent:
        case = "instances.never" if len(silent) + skipped == number else "instances.silent"
        yield finding(case, some=_of(len(silent), number), place=silent[0].place)
    if skipped:
        yield finding("instances.skipped", "warning" if 2 * skipped > number else "note", some=_of(skipped, number))


def check_determinism(seen: Observed) -> Iterator[Finding]:
    """An instance is the same each time: an answer's advantage is relative to other answers to it."""
    reported: set[int] = set()  # what changes in one process changes in the next
    for case, left, right in (("again", 0, 1), ("elsewhere", 0, 2), ("member", 2, 3)):
        changed = [
            number
            for number, draws in enumerate(seen.repeats)
            if number not in reported
            and isinstance(draws[left].reached, Ask)
            and draws[left].reached != draws[right].reached
        ]
        reported.update(changed)
        if changed:
            first, second = seen.repeats[changed[0]][left], seen.repeats[changed[0]][right]
            some = _of(len(changed), len(seen.repeats))
            yield finding(f"determinism.{case}", place=first.place, contrast=_contrast(first, second), some=some)
    if seen.repeats and not reported:
        yield finding("determinism.same", number=len(seen.repeats))


def _contrast(first: Draw, second: Draw) -> str:
    if isinstance(second.reached, EpisodeOutcome):
        failure = second.reached.failure
        return f"it has none then ({said(failure) if failure else second.reached.status})"
    if first.text == second.text:
        return "its tools, limits or agent differ"
    pairs = zip(first.text, second.text, strict=False)
    same = next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(first.text), len(second.text)))
    start = max(0, same - _BEFORE)
    dots = "…" if start else ""
    return ", then ".join(f"{dots + draw.text[start : start + _SHOWN]!r}" for draw in (first, second))


def check_variety(seen: Observed) -> Iterator[Finding]:
    """Different instances have different first prompts."""
    alike, shares = [], []
    for split in ("train", "eval"):
        prompts = [draw.prompt for draw in seen.draws if draw.split == split and draw.prompt is not None]
        rows = seen.facts.held_out if split == "eval" else 0  # each is a prompt, and drawn again after the last
        number, distinct = min(len(prompts), rows or len(prompts)), len(set(prompts))
        if distinct == 1 and number >= ENOUGH_PROMPTS:
            alike.append(f"all {number} {split} prompts")
        elif split == "eval" and distinct < (1.0 - CHANCE) * number and number >= ENOUGH_PROMPTS:
            yield finding("variety.repeated", distinct=distinct, number=number)
        elif prompts:
            shares.append(f"{distinct} of {number} {split} prompts")
    if alike:
        yield finding("variety.same", prompts=" and ".join(alike).replace("all", "All", 1))
    if shares:
        yield finding("variety.differ", prompts=" and ".join(shares))


def far() -> Iterator[tuple[Split, int]]:
    """Train instances at which an eval split may begin: it continues the train split from a round number."""
    begins = {*(10**power for power in range(2, 9)), *(1 << power for power in (7, 10, 12, 16, 20, 24, 26))}
    return (("train", begin + offset) for begin in sorted(begins) for offset in range(RUN))


def check_leaks(seen: Observed) -> Iterator[Finding]:
    """Many shared prompts: too small a space; in order: both splits are one sequence.

    Training leaves out held-out prompts, so few cost nothing.
    """
    train = [draw for draw in seen.draws if draw.split == "train" and draw.prompt is not None]
    held_out = {draw.prompt: draw.index for draw in reversed(seen.draws) if draw.split == "eval" and draw.prompt}
    if not train or len(held_out) < 2:
        return  # a prompt that is always the same does not identify instances
    shared = sum(draw.prompt in held_out for draw in train)
    meeting = [(draw, held_out[draw.prompt]) for draw in (*train, *seen.distant) if draw.prompt in held_out]
    distance, times = Counter(draw.index - index for draw, index in meeting).most_common(1)[0] if meeting else (0, 0)
    if len(held_out) >= ENOUGH_PROMPTS and times >= RUN and times * 2 >= len(meeting):
        first, index = next((draw, index) for draw, index in meeting if draw.index - index == distance)
        by = f", moved by {abs(distance):,}" if distance else ""
        yield finding("leaks.moved", by=by, place=first.place, index=index)
        return
    case = "small" if shared > MOST_SHARED * len(train) else "some" if shared else "none"
    yield finding(f"leaks.{case}", shared=f"{shared} of {len(train)}", distinct=len(held_out), drawn=len(train))


def check_lengths(seen: Observed) -> Iterator[Finding]:
    """Prompts leave room for an answer."""
    if seen.refused is not None:
        yield finding("lengths.refused", place=seen.refused[0].place, reason=seen.refused[1])
    if not seen.lengths:
        return
    longest, draw = max(seen.lengths, key=lambda pair: pair[0])
    mean = statistics.fmean(length for length, _ in seen.lengths)
    level: Level = "note"
    advice = ""
    if seen.context and longest >= seen.context:
        level, advice = "error", ". Say less at once, or give the base a larger context"
    elif longest > CROWDED * seen.context:
        level, advice = "warning", ", and little of it is left for answers"
    if not seen.context:
        yield finding("lengths.characters", mean=mean, longest=longest)
    else:
        words = {"mean": mean, "longest": longest, "place": draw.place, "context": seen.context, "advice": advice}
        yield finding("lengths.tokens", level, **words)


def check_rows(seen: Observed) -> Iterator[Finding]:
    """Copies among evaluation rows, rows trained on, number and order."""
    survey = seen.facts.survey
    if survey is None:
        return
    sorted_by = survey.blocks.items()
    order = "".join(f" They lie sorted by {c!r} ({n:,} values); each epoch shuffles them." for c, n in sorted_by)
    yield finding("rows.number", train=seen.facts.train, held_out=seen.facts.held_out, order=order)
    counts = {"rows.shared": survey.shared, "rows.repeated": survey.repeated}
    yield from (finding(case, number=number) for case, number in counts.items() if number)


def failing(played: Collection[Played]) -> frozenset[Canned]:
    """Replies that ended an episode without a reward."""
    return frozenset(episode.reply for episode in played if episode.score is None)


def check_junk(seen: Observed) -> Iterator[Finding]:
    """Any reply gives a timely end and a finite reward. One finding per kind."""
    number, failures = len({episode.reply for episode in seen.odd}), [episode.failure for episode in seen.odd]
    first = failures[0] if failures else None
    if first is not None and len({(f.file, f.line) if f else None for f in failures}) == 1:
        decorator = f"@{seen.name}.score" if seen.name.isidentifier() else "@NAME.score"
        case = "always" if failing(seen.odd) else "paid"
        if SIGNALS in first.message:
            case = "alarm"
        if case == "alarm" or not {"timeout", "skip"} & {episode.status for episode in seen.odd}:
            yield finding(f"junk.{case}", number=number, reason=said(first), decorator=decorator)
            return
    ways: dict[tuple[object, ...], list[Played]] = {}
    for episode in seen.odd:
        if episode.score is None:  # the message may quote the reply
            failure = episode.failure
            place = (failure.file, failure.line, failure.message.partition(":")[0]) if failure else ()
            ways.setdefault((episode.status, *place), []).append(episode)
    if seen.odd and not ways:
        yield finding("junk.survived", number=number)
    for (status, *_), episodes in ways.items():
        failure, labels = episodes[0].failure, list(dict.fromkeys(episode.reply.label for episode in episodes))
        replies = " or ".join(labels)
        if len(labels) > _MOST_NAMED:
            replies = f"{', '.join(labels[: _MOST_NAMED - 1])} or {len(labels) - _MOST_NAMED + 1} others"
        case = status if status in ("endless", "timeout", "skip") else "error"
        reason = said(failure) if failure else "without a word"
        yield finding(f"junk.{case}", replies=replies, reason=reason, most=MOST_TURNS)


def constants(played: Sequence[Played]) -> list[tuple[float, Canned, int]]:
    """Mean score and instances of each constant answer, best first."""
    by_reply = [(reply, [episode.score for episode in played if episode.reply == reply]) for reply in CONSTANTS]
    scores = [(reply, [score for score in some if score is not None]) for reply, some in by_reply]
    return sorted(((statistics.fmean(s), reply, len(s)) for reply, s in scores if s), key=lambda mean: -mean[0])


def check_baseline(seen: Observed) -> Iterator[Finding]:
    """A policy must beat the best constant answer; not with several agents, since in a game one always wins."""
    means = constants(seen.constant)
    if not means or any(len(episode.agents) > 1 for episode in seen.constant):
        return
    mean, reply, instances = means[0]
    scores = [episode.score for episode in seen.constant if episode.score is not None]
    answer, many = reply.label[0].upper() + reply.label[1:], f"{instances} instance{'' if instances == 1 else 's'}"
    if len(means) > 1 and not any(scores):
        yield finding("baseline.nothing", number=len(means))
    elif mean < HIGH or instances < FEW:
        yield finding("baseline.low", answer=answer, mean=mean, many=many, number=len(means))
    else:
        as_good = sum(other >= mean - ALIKE for other, _, _ in means) - 1
        others = f" {as_good} of {len(means) - 1} other constant answers do as well." if as_good else ""
        others += " In training the group's ranking counts instead." if seen.ranked else ""
        useless = mean >= BROKEN and max(map(abs, scores)) <= SCALE and not seen.ranked
        yield finding(
            "baseline.high", "error" if useless else "warning", answer=answer, mean=mean, many=many, others=others
        )


def check_rewards(seen: Observed) -> Iterator[Finding]:
    """Rewards have a usable size, equal replies earn the same, unreadable ones do not pay."""
    rewards = [reward for episode in seen.played for reward in episode.rewards.values()]
    if not rewards:
        return
    words = {"low": min(rewards), "high": max(rewards)}
    words |= {"mean": statistics.fmean(rewards), "deviation": statistics.pstdev(rewards)}
    yield finding("rewards.large" if max(map(abs, rewards)) > LARGE else "rewards.range", **words)
    scored = [(episode.score, episode) for episode in seen.played if episode.score is not None]
    unreadable = [(score, episode) for score, episode in scored if episode.invalid and not seen.ranked]
    for score, episode in unreadable:
        valid = [(s, other) for s, other in scored if other.index == episode.index and not other.invalid]
        least, other = min(valid, key=lambda pair: pair[0], default=(math.inf, episode))
        if score > least:
            replies = {"index": episode.index, "reply": episode.reply.label, "other": other.reply.label}
            yield finding("rewards.nonsense", score=score, least=least, **replies)
            break
    changed = [(once, again) for once, again in seen.repeated if again.rewards and again.rewards != once.rewards]
    if changed:
        once, again = changed[0]
        counts = {"number": len(changed), "tried": len(seen.repeated), "index": once.index}
        earned = {"reply": once.reply.label, "first": _earned(once), "second": _earned(again)}
        yield finding("rewards.changed", **counts, **earned)


def _earned(episode: Played) -> str:
    if len(episode.rewards) == 1:
        return f"{episode.score:.3g}"
    return ", ".join(f"{reward:.3g} ({agent})" for agent, reward in episode.rewards.items())


def check_agents(seen: Observed) -> Iterator[Finding]:
    """An undeclared agent fails its episode."""
    asked = frozenset[str]().union(*(episode.agents for episode in seen.played))
    silent = [name for name in seen.agents if name not in asked]
    if not seen.agents and len(asked) > 1:
        names = ", ".join(f'"{name}"' for name in sorted(asked)[:_AGENTS_NAMED])
        yield finding("agents.undeclared", number=len(asked), names=names)
    elif silent and len(seen.played) >= FEW:
        yield finding("agents.silent", names=_listed(silent), number=len(seen.played))
    elif seen.agents and not silent:
        yield finding("agents.asked", number=len(seen.agents), names=_listed(seen.agents))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _AGENTS_NAMED} others" if len(names) > _AGENTS_NAMED else ""
    return ", ".join(names[:_AGENTS_NAMED]) + more


def check_sandbox(seen: Observed) -> Iterator[Finding]:
    """Canned replies ask for no work, so a late end is the environment's own."""
    used = [e for e in seen.played if e.outcome is not None and SANDBOX in e.outcome.metrics]
    late = [e for e in used if e.outcome is not None and e.outcome.metrics[SANDBOX]]
    for episode in late[:1]:
        reply = episode.reply.label
        yield finding("sandbox.late", late=len(late), used=len(used), index=episode.index, reply=reply)


def check_crowd(seen: Observed) -> Iterator[Finding]:
    """Many episodes at once end as one does; no line blocks their process.

    Of a crowd that did not end, those that did show the time of each, at most that of one alone.
    """
    crowd = seen.crowd
    if crowd is None:
        return
    number = len(crowd.played) + crowd.unfinished
    failed = [episode for episode in crowd.played if episode.score is None and episode.status != "skip"]
    words = {"ended": len(crowd.played), "number": number, "seconds": _spoken(crowd.seconds)}
    words["alone"] = _spoken(crowd.alone)
    if failed:
        reason = said(failed[0].failure) if failed[0].failure is not None else failed[0].status
        yield finding("concurrency.failed", failed=len(failed), number=len(crowd.played), reason=reason)
    held = math.fsum(crowd.held.values())
    each = held / number if not crowd.unfinished else min(held / max(1, len(crowd.played)), crowd.alone)
    if each >= SHORT:
        file, line = max(crowd.held, key=lambda place: crowd.held[place])
        words |= {"place": f"at {file}:{line}" if file else "in its library", "each": _spoken(each)}
        yield finding("concurrency.blocks", "warning" if seen.alive * each >= LONG else "note", **words)
    elif crowd.unfinished:
        yield finding("concurrency.waits", **words)
    elif not failed:
        yield finding("concurrency.well", **words)


def check_latency(seen: Observed) -> Iterator[Finding]:
    """The model need not wait for the environment."""
    first = seen.draws[0].seconds
    late = seen.start + first > SLOW_START
    slow = " Every edit and every restart waits for that; load less, or load it when it is first needed."
    words = {"start": _spoken(seen.start), "first": _spoken(first), "advice": slow if late else ""}
    yield finding("latency.start", "warning" if late else "note", **words)
    turns = [seconds for episode in seen.constant or seen.odd for seconds in episode.turns]
    if turns:
        middle, worst = statistics.median(turns), max(turns)
        late = middle > SLOW_TURN or worst > SLOWEST_TURN
        slow = " Every episode waits for that at every turn: do less in it, or prepare it in setup."
        words = {"middle": _spoken(middle), "worst": _spoken(worst), "advice": slow if late else ""}
        yield finding("latency.turn", "warning" if late else "note", number=len(turns), **words)


CHECKS: tuple[Callable[[Observed], Iterator[Finding]], ...] = (
    check_instances,
    check_determinism,
    check_variety,
    check_leaks,
    check_lengths,
    check_rows,
    check_junk,
    check_agents,
    check_baseline,
    check_rewards,
    check_crowd,
    check_sandbox,
    check_latency,
)


def _of(number: int, every: int) -> str:
    return f"{number} of {every} instances"


def _spoken(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.{0 if seconds >= 0.01 or not seconds else 1}f} ms"

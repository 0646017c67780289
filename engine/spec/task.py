"""A task file with every default filled in.

The command line stores it as JSON in the task's row. Defaults here are the documented ones; the demo trains with them.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from ..errors import ConfigError
from .losses import DISTILL, DPO, PUBLISHED, SFT, SHOWN
from .rules import faults_between, truncation_faults
from .trackers import TRACKERS
from .validation import AUTO, between, each_of, one_of, refuse, shaped, spoils


@dataclass(frozen=True)
class PolicySpec:
    """The adapter that is trained."""

    rank: int = between(16, 1, 512)
    """Of the two matrices on each linear layer."""
    alpha: float = between(32.0, 0.01, 4096)
    """The adapter counts ``alpha / rank`` times."""
    rslora: bool = False
    """It counts ``alpha / sqrt(rank)`` times instead (rsLoRA, arXiv 2312.03732)."""
    targets: str = "all"
    """The linear layers that get matrices: "all", "attention", "mlp", or names with commas: "q_proj, v_proj"."""
    start: str = ""
    """The version that training begins from, with a new optimizer: "17" (the best of task 17, else its last),
    "17@12", "17@best", a version's name, the folder of an adapter in PEFT's format (./DIR), or "hf:ORG/NAME" for one
    that `marlaas adapters pull` has fetched. It must fit the base, and have no higher rank. Empty: an untrained one.
    """

    @property
    def lora_alpha(self) -> float:
        """The alpha by which ``lora_alpha / rank`` is the scale."""
        return self.alpha * math.sqrt(self.rank) if self.rslora else self.alpha

    @property
    def target_names(self) -> tuple[str, ...]:
        """Empty: all layers."""
        return () if self.targets == "all" else tuple(name.strip() for name in self.targets.split(","))


@dataclass(frozen=True)
class NamedPolicySpec(PolicySpec):
    """One of several policies: trained, frozen, or a pool of what a trained one was."""

    learning_rate: float | Literal["auto"] | None = between(None, 0.0, 1.0)
    """Of this policy by itself; absent: that of [train]. ``auto``: by the width of the base and ``alpha``."""
    groups_per_step: int | None = between(None, 1, 4096)
    """Groups that one optimizer step of this policy consumes; absent: as in [train]."""
    frozen: str = ""
    """A version that is never trained: "17@best", a version's name, "base" for the bare base, or "NAME@0" for what the
    policy NAME of this task began as."""
    pool: str = ""
    """The trained policy of this task whose earlier versions play under this name, one in each group."""
    pick: str = one_of("recent", "recent", "uniform", "score")
    """Which version of the pool plays: rather a young one, any, or rather one of a high held-out score."""
    size: int = between(8, 1, 256)
    """Versions that the pool holds; the oldest leaves."""
    every: int = between(5, 1, 1000000)
    """Steps between two versions that enter the pool."""

    @property
    def trained(self) -> bool:
        return not self.frozen and not self.pool


def start_folder(start: str) -> Path | None:
    """The folder of ``PolicySpec.start``; None for a version of the home, or nothing."""
    return Path(start).expanduser() if start.startswith((".", "/", "~")) else None


_ROLLOUTS = "rollouts of "


def rollouts_of(path: str) -> str | None:
    """The task in ``rollouts of TASK``, by number or name; None for a file."""
    return path.removeprefix(_ROLLOUTS).strip() if path.startswith(_ROLLOUTS) else None


@dataclass(frozen=True)
class DataSpec:
    """The rows that the task draws from, in place of the environment's own."""

    path: str = ""
    """A file of JSON lines, Parquet or Arrow, a folder or a pattern of such files, or a folder that ``datasets`` has
    saved; relative to the task file. ``{split}`` in it stands for the name of a split. "rollouts of 17": of each group
    of that task (a number or a name) the conversation with the highest reward, unless it is the task's lowest. Empty:
    the environment's own."""
    columns: dict[str, str] = field(default_factory=dict)
    """The columns of the file by the names that the environment knows them by: ``{question = "prompt"}``. Others keep
    their names."""
    split: dict[str, Any] = field(default_factory=dict)
    """For ``eval`` (and ``train``, ``test``): what the split is called in the data, or the share of the different rows
    that it gets. Empty: as the rows' own column ``split`` says; without one, a tenth of them is for evaluation."""
    limit: int = between(0, 0, 1_000_000_000)
    """The most rows to train on, chosen from all of the file, alike for every seed; 0: all."""

    @property
    def record(self) -> dict[str, Any] | None:
        """As ``plugins.data.Source.record`` writes them; None: the environment's own count."""
        return asdict(self) if self.path else None


@dataclass(frozen=True)
class SuiteSpec:
    """One suite of a training task."""

    name: str
    """What its scores are called."""
    environment: str
    """What it plays."""
    config: dict[str, Any] = field(default_factory=dict)
    """The environment's own parameters."""
    prompts: int = between(64, 1, 100000)
    """Instances of one evaluation."""
    samples: int = between(1, 1, 1024)
    """Episodes of each instance."""
    temperature: float = between(0.0, 0.0, 10.0)
    """Of sampling; 0 takes the likeliest token."""
    split: str = one_of("eval", "eval", "test")
    """Which instances of its environment are played."""
    every: int = between(0, 0, 1000000)
    """Steps between two evaluations; 0 measures only before and after."""
    decides: bool = False
    """Whether its score chooses the best version, and ends the task by ``target`` and ``patience``, instead of that on
    the task's own environment. At most one suite decides."""
    data: DataSpec = field(default_factory=DataSpec)
    """The rows that it draws from, in place of the environment's own: the keys of [data]. Without it, a suite on the
    task's own environment has the task's."""


ENTROPY_COLLAPSE = "entropy_collapse"
EXPLODING_LENGTH = "exploding_length"
REWARD_HACKING = "reward_hacking"
FALLING_REWARD = "falling_reward"
KL_RUNAWAY = "kl_runaway"
GAP_RUNAWAY = "gap_runaway"
LARGE_STEPS = "large_steps"
ONE_REPLY = "one_reply"
CUT_REPLIES = "cut_replies"
NAMES = {
    REWARD_HACKING: "reward hacking",
    FALLING_REWARD: "falling reward",
    ENTROPY_COLLAPSE: "entropy collapse",
    ONE_REPLY: "one reply for every prompt",
    EXPLODING_LENGTH: "exploding length",
    LARGE_STEPS: "steps too large",
    KL_RUNAWAY: "KL runaway",
    GAP_RUNAWAY: "gap runaway",
    CUT_REPLIES: "replies cut off",
}
"""People's name of each finding, the most important first."""
FINDINGS = tuple(NAMES)


@dataclass(frozen=True)
class WatchSpec:
    """What is looked for while it learns."""

    pause: tuple[str, ...] = each_of(*FINDINGS)
    """Findings that pause the task by themselves, the first time that each is made; by default none does."""
    ignore: tuple[str, ...] = each_of(*FINDINGS)
    """Findings that are not looked for."""
    length: float = between(2.0, 1.1, 1000.0)
    """For exploding_length: how many times as long as at the start replies must be on average."""
    kl: float | None = between(None, 0.0, 1000.0)
    """For kl_runaway: the distance to the base, in nats per token, that is too far in any case; absent: only how it
    grows counts. Needs train.kl above 0, without which it is not measured."""


TOGETHER = " + "


@dataclass(frozen=True)
class ComponentSpec:
    """One environment of a mixture."""

    environment: str
    """What it plays."""
    share: float = between(1.0, 0.001, 1000.0)
    """Its part of the groups, and of the score, relative to those of the others."""
    config: dict[str, Any] = field(default_factory=dict)
    """The environment's own parameters."""
    name: str = ""
    """What its scores are called; empty: as its environment."""
    data: DataSpec = field(default_factory=DataSpec)
    """The rows that it draws from, in place of the environment's own: the keys of [data]."""

    @property
    def called(self) -> str:
        return self.name or self.environment


def components_of(spec: TaskSpec) -> dict[str, TaskSpec]:
    """The task as each environment sees it, by component; empty without a mixture."""
    if not spec.mixture:
        return {"": spec}
    return {
        part.called: replace(
            spec, environment=part.environment, environment_config=part.config, data=part.data, mixture=()
        )
        for part in spec.mixture
    }


class Interleaving:
    """Which component each group number belongs to.

    After n groups each component has its share of n to within less than one group: 1 − 1/(2k − 2) with k components
    (Tijdeman, "The chairman assignment problem", Discrete Mathematics 32 (1980), section 2).
    """

    def __init__(self, shares: Sequence[float]) -> None:
        """``shares``: positive; only their ratios count."""
        exact = [Fraction(str(share)) for share in shares]
        whole = math.lcm(*(share.denominator for share in exact))
        weights = [int(share * whole) for share in exact]
        self._weights = [weight // math.gcd(*weights) for weight in weights]
        self._period = sum(self._weights)
        """After this many groups each has exactly its share, and the order begins again."""
        self._drawn: list[tuple[int, int]] = []
        self._numbers: list[list[int]] = [[] for _ in weights]
        """Of each component: its groups of the first period, as far as they are known."""

    def of(self, number: int) -> tuple[int, int]:
        """Component of group ``number``, and how many of its groups come before."""
        periods, within = divmod(number, self._period)
        self._until(within)
        place, own = self._drawn[within]
        return place, periods * self._weights[place] + own

    def before(self, number: int) -> list[int]:
        """Groups of each component among the first ``number``."""
        periods, within = divmod(number, self._period)
        self._until(within)
        pairs = zip(self._weights, self._numbers, strict=True)
        return [periods * weight + bisect_left(numbers, within) for weight, numbers in pairs]

    def _until(self, number: int) -> None:
        while len(self._drawn) <= number:
            place = self._next()
            self._numbers[place].append(len(self._drawn))
            self._drawn.append((place, len(self._numbers[place]) - 1))

    def _next(self) -> int:
        """The due component that must be drawn first to stay within the bound."""
        total, number, slack = self._period, len(self._drawn) + 1, 2 * len(self._weights) - 2
        if slack == 0:
            return 0
        pairs = zip(self._weights, self._numbers, strict=True)
        behind = [weight * number - total * len(drawn) for weight, drawn in pairs]
        due = [place for place, by in enumerate(behind) if slack * by >= total]
        return min(due, key=lambda place: Fraction((slack - 1) * total - slack * behind[place], self._weights[place]))


MIN_RATE = ("cosine_with_min_lr", "warmup_stable_decay")
"""Schedules that may end above 0."""
SCHEDULES = ("constant", "constant_with_warmup", "linear", "cosine", "inverse_sqrt", *MIN_RATE)


@dataclass(frozen=True)
class TrainSpec:
    """How it is trained."""

    loss: str = one_of("dr_grpo", *PUBLISHED)
    """What is minimised; ``trainer/losses.py`` has all of them. ``sft`` and ``dpo`` are those of the kinds."""
    learning_rate: float | Literal["auto"] = between(AUTO, 0.0, 1.0)
    """Of AdamW; ``auto``: by the width of the base and the policy's ``alpha``, 5e-4 at most."""
    schedule: str = one_of("constant", *SCHEDULES)
    """How the learning rate falls after the warm-up, as the schedules of these names in transformers and TRL do."""
    min_rate: float = between(0.0, 0.0, 1.0)
    """With ``cosine_with_min_lr`` and ``warmup_stable_decay``: the share of the rate that is left at the end."""
    decay: int = between(0, 0, 10000000)
    """With ``warmup_stable_decay``: the last steps, in which the rate falls as half a cosine."""
    adam_beta1: float = between(0.9, 0.0, 0.999999)
    """Of AdamW: how long the first moment remembers."""
    adam_beta2: float = between(0.95, 0.0, 0.999999)
    """Of AdamW: how long the second moment remembers."""
    warmup: int = between(0, 0, 1000000)
    """Steps in which the learning rate rises to its full value."""
    groups_per_step: int = between(8, 1, 4096)
    """Groups that one optimizer step consumes."""
    group_size: int = between(8, 1, 4096)
    """Episodes of the same instance, whose rewards are compared; 1 only for demonstrations, which are not compared."""
    min_members: int | None = between(None, 2, 4096)
    """Members of a group that must have a reward, or it is played again on another instance; absent: all, less one in
    eight."""
    redundant: int = between(0, 0, 4096)
    """Members that begin with each group beyond ``group_size``: the first ``group_size`` with a reward close the group,
    and the others are cancelled. A group then waits for no straggler, but learns less of episodes that take long."""
    max_staleness: int = between(2, 0, 64)
    """Versions that a group may be behind when it is trained on; 0 is the synchronous algorithm."""
    order: str = one_of("number", "number", "arrival")
    """Which groups a step consumes: the next ones by number, for whose slowest episode it waits; or the first that are
    complete. With ``arrival`` a group that grows older than ``max_staleness`` is given up and played again."""
    epochs: int = between(1, 1, 16)
    """Optimizer updates on the groups of one step."""
    advantage: str = one_of("auto", "auto", "mean", "standard", "leave_one_out")
    """What a reward is compared with: the group's mean; that, in units of its deviation; the mean of the others.
    ``auto`` is what the loss was published with."""
    advantage_level: str = one_of("episode", "episode", "turn")
    """What has an advantage: the episode, with all that it was paid; or each turn, with what was paid after its reply
    (``ep.reward``, and the final reward)."""
    discount: float = between(1.0, 0.0, 1.0)
    """With ``turn``: by what a payment is multiplied for each turn that it comes later."""
    dynamic_sampling: bool | None = field(default=None)
    """Fill groups of equal rewards again, until the batch is full; absent: only with the loss ``dapo``."""
    dynamic_limit: int = between(8, 1, 64)
    """With ``dynamic_sampling``: how often one group is filled again at most; then it counts as it is."""
    sampling: str = one_of("uniform", "uniform", "difficulty")
    """Which rows of data are drawn: all alike, or less those that are always solved or never."""
    overlong: str = one_of("keep", "keep", "mask", "penalty")
    """What becomes of episodes that the length limit ended."""
    overlong_buffer: int = between(0, 0, 1048576)
    """With ``penalty``: the tokens before the limit over which the reward falls by up to 1."""
    patience: int = between(20, 1, 1000000)
    """Steps without any unequal rewards before the task ends or pauses itself."""
    seed: int = between(0, 0, 2**31)
    """Chooses the instances, the order and what is sampled."""
    clip_norm: float = between(1.0, 0.0, 1e6)
    """The largest norm of the gradient; 0: none."""
    clip_low: float | None = between(None, 0.0, 1.0)
    """How far a ratio may fall below 1 before it is clipped; absent: what the loss was published with."""
    clip_high: float | None = between(None, 0.0, 1e6)
    """How far a ratio may rise above 1; absent: what the loss was published with."""
    clip_dual: float | None = between(None, 1.0, 1e6)
    """Dual clip: with a negative advantage a ratio counts as this much at most. Absent: what the loss was published
    with, which is 3."""
    importance: str = one_of(
        "truncate", "truncate", "mask", "sequence_truncate", "sequence_mask", "geometric_mask", "none"
    )
    """What becomes of importance weights outside of floor and cap. ``truncate`` and ``mask`` bound each token's weight,
    ``sequence_truncate`` and ``sequence_mask`` the product over a sequence. ``geometric_mask`` truncates tokens'
    weights, and leaves out sequences with a geometric mean beyond ``geometric_cap``."""
    importance_cap: float = between(2.0, 1.0, 1e6)
    """The largest importance weight."""
    importance_floor: float = between(0.0, 0.0, 1.0)
    """The smallest importance weight."""
    geometric_cap: float = between(2.0, 1.0, 1e6)
    """With ``geometric_mask``: the largest geometric mean of a sequence's weights. The smallest is its reciprocal."""
    epsilon: float = between(1e-15, 1e-30, 1.0)
    """Of AdamW. Gradients are divided by episodes and ``max_episode_tokens``, this many are below the usual 1e-8, which
    would damp them."""
    weight_decay: float = between(0.0, 0.0, 1.0)
    """Of AdamW."""
    kl: float = between(0.0, 0.0, 100.0)
    """Weight of the KL term, with any loss; 1 by default with ``distill``."""
    kl_in: str = one_of("loss", "loss", "reward")
    """Where the KL term counts: in the loss (k3, as GRPO has it), or as a reward of each token (its log-ratio to the
    reference, as ``distill`` has it)."""
    kl_reference: str = "base"
    """What the KL term pulls to, and ``dpo`` compares with: ``base``; ``start``, the version that the task starts from,
    which is what ``dpo`` does by default (without a ``start`` both are the same); a version of any task and rank, such
    as "17@best"; or the folder of another base with the same tokenizer (./DIR), which the trainer then holds, too. The
    last two are teachers of ``distill``."""
    teacher_prompt: str = ""
    """A system text that the reference of the KL term reads in front of each conversation, and the policy does not: the
    policy learns what the text would make the reference do."""
    rewards: float = between(1.0, 0.0, 100.0)
    """With ``kl_in = "reward"``: what the advantages of rewards count beside the KL term; 0 by default with
    ``distill``, which then learns from its teacher alone."""
    beta: float = between(0.1, 0.0001, 100.0)
    """Of ``dpo``: how much the reference holds; a smaller one lets the policy move further from it."""
    entropy: float = between(0.0, 0.0, 100.0)
    """Weight of an entropy bonus, with any loss: so much is taken off a token's loss for each nat of the entropy that
    it was drawn with. Above 0 the policy stays more random."""
    entropy_target: float = between(0.0, 0.0, 20.0)
    """Nats per token. Above 0 the bonus's weight begins at 0. After each step it rises by ``entropy`` if the step's
    tokens had a lower entropy than this, and falls by it if they had a higher one (Skywork-OR1, arXiv 2505.22312)."""
    deterministic: bool = False
    """Repeat the run to the last bit; needs max_staleness = 0."""

    @property
    def begun_members(self) -> int:
        return self.group_size + self.redundant

    @property
    def fewest_members(self) -> int:
        """``min_members`` with its default."""
        return self.group_size - self.group_size // 8 if self.min_members is None else self.min_members


@dataclass(frozen=True)
class SamplingSpec:
    """How the policy writes during training."""

    temperature: float = between(1.0, 0.05, 10.0)
    """Of sampling."""
    max_tokens: int | Literal["auto"] = between(AUTO, 1, 131072)
    """Of one turn; ``auto``: by the first replies of the base, before the first step."""
    max_episode_tokens: int | Literal["auto"] = between(AUTO, 1, 1048576)
    """Of all turns of an agent; part of the loss's constant denominator. ``auto``: likewise."""
    thinking: bool | None = field(default=None)
    """Whether the model thinks before it answers, given to its chat template as ``enable_thinking``; absent: false
    where the template has that switch, else as the base does. The task fails at its start, with a sentence, if the
    base can do only the opposite: a run that thinks against its author's word would be a wasted one."""


@dataclass(frozen=True)
class QueueSpec:
    """Its place among other tasks."""

    priority: int = between(0, -1000, 1000)
    """Within the tenant: the higher one starts first."""
    depends_on: tuple[int | str, ...] = between((), 1, 2**31)
    """Tasks that must be done first, by number or, of the same tenant, by the name of a task or a sweep."""
    retries: int = between(0, 0, 100)
    """Times that the task is tried again by itself after it failed or paused itself."""


@dataclass(frozen=True)
class EvalSpec:
    """How it is measured."""

    every: int = between(10, 0, 1000000)
    """Steps between held-out evaluations; 0 measures only before and after."""
    prompts: int = between(64, 1, 100000)
    """Held-out instances of one evaluation; rows that are repeated, or prompts, count once."""
    samples: int = between(1, 1, 1024)
    """Episodes of each held-out prompt, k. The score is avg@k: the mean over prompts of each prompt's mean reward. With
    more than one, pass@k (the share of prompts of which a sample passes) and best@k (the mean of the best rewards) are
    measured, too; they need a ``temperature`` above 0."""
    pass_at_least: float = between(1.0, -1e9, 1e9)
    """The reward from which an episode passes, for pass@k."""
    temperature: float = between(0.0, 0.0, 10.0)
    """Of sampling in evaluations; 0 takes the likeliest token."""
    top_p: float = between(1.0, 0.001, 1.0)
    """Draw from the smallest set of the likeliest tokens that have this probability together; 1: from all. Of what
    min_p and top_k left."""
    top_k: int = between(0, 0, 1000000)
    """Draw from this many of the likeliest tokens; 0: from all."""
    min_p: float = between(0.0, 0.0, 1.0)
    """Draw from tokens at least this likely relative to the likeliest, after the temperature; 0: from all."""
    target: float | None = field(default=None)
    """Stop early when a held-out score reaches it."""
    patience: int = between(0, 0, 1000000)
    """Evaluations in a row without a better score after which the task ends; 0: it continues."""
    agents: dict[str, str] = field(default_factory=dict)
    """Who plays against, or with, the policy that is measured: an agent, and a policy or a version as in ``frozen``.
    Agents that are not named play as in training; the score is that of the agents of the measured policy."""
    rotate: bool = False
    """Let the agents change places from one prompt to the next, so that no place is an advantage."""
    split: str = one_of("eval", "eval", "test")
    """For ``kind = "eval"``: which instances are measured on. A training task measures on ``eval``."""
    test_prompts: int = between(0, 0, 100000)
    """Instances of the split ``test``, on which the best and the last version are measured once, at the end; they are
    never trained on and decide nothing. 0: none."""
    suite: tuple[SuiteSpec, ...] = ()
    """Further environments that the policy is measured on, each in a table [[eval.suite]]."""


@dataclass(frozen=True)
class TrackSpec:
    """Where its curves are sent, live."""

    to: tuple[str, ...] = each_of(*TRACKERS, "none")
    """Trackers, in place of those in marlaas.toml; ``none`` for none. Empty: as marlaas.toml says."""


@dataclass(frozen=True)
class KeepSpec:
    """Which adapter versions stay on the disk besides the best and the last two."""

    every: int = between(0, 0, 1000000)
    """Steps between further versions that are kept; 0: none."""


@dataclass(frozen=True)
class TaskSpec:
    """One run of a tenant: it trains policies, or measures versions."""

    tenant: str
    """Whose it is; shares and quotas are counted by it."""
    name: str
    """What people call it."""
    environment: str = ""
    """What it plays: "arithmetic", or "plugin/environment" where that is ambiguous; empty with [[mixture]]."""
    steps: int = between(60, 1, 10000000)
    """Optimizer steps; for ``kind = "eval"`` the number of ``versions``."""
    kind: str = one_of("train", "train", *SHOWN, "eval")
    """What it does: ``train`` trains policies by rewards, ``sft`` (supervised fine-tuning) on the replies of the
    conversations in [data], ``dpo`` on pairs of a chosen and a rejected reply, ``eval`` measures ``versions`` and
    trains nothing."""
    versions: tuple[str, ...] = ()
    """For ``kind = "eval"``: what is measured, each on the same prompts with the same noise. "17@best", "17@12", a
    version's name, "base" for the bare base, or an exported adapter's folder (./DIR)."""
    environment_version: str = one_of("follow", "follow", "pin")
    """Whether edits of the environment count while it trains, or it stays with the version of the first group."""
    base: str = ""
    """The base that it is meant for, by name or folder; empty: whatever base the home has."""
    environment_config: dict[str, Any] = field(default_factory=dict)
    mixture: tuple[ComponentSpec, ...] = ()
    """Instead of an environment: several, each in a table [[mixture]] with its share of the groups."""
    policy: PolicySpec = field(default_factory=PolicySpec)
    policies: dict[str, NamedPolicySpec] = field(default_factory=dict)
    """Instead of [policy]: several by name, each in a table [policies.NAME]."""
    agents: dict[str, str] = field(default_factory=dict)
    """Which policy acts as which agent of the environment."""
    train: TrainSpec = TrainSpec()
    sampling: SamplingSpec = SamplingSpec()
    queue: QueueSpec = QueueSpec()
    eval: EvalSpec = EvalSpec()
    keep: KeepSpec = KeepSpec()
    watch: WatchSpec = field(default_factory=WatchSpec)
    data: DataSpec = field(default_factory=DataSpec)
    track: TrackSpec = TrackSpec()

    @property
    def played(self) -> str:
        return TOGETHER.join(dict.fromkeys(part.environment for part in self.mixture)) or self.environment

    @property
    def group_episodes(self) -> int:
        return self.train.groups_per_step * self.train.group_size

    def to_json(self) -> dict[str, Any]:
        """Plain values; ``parse`` makes an equal specification."""
        return asdict(self)


def parse(table: dict[str, Any], where: str) -> TaskSpec:
    """A spec from a parsed task file or ``to_json``. Raises ``ConfigError``, with all mistakes."""
    plain: dict[str, Any] = _plain(table)
    if plain.get("kind") in SHOWN:
        plain = _demonstrated(plain)
    train = plain.get("train")
    if isinstance(train, dict) and train.get("loss") == DISTILL:
        plain = plain | {"train": {"kl": 1.0, "kl_in": "reward", "rewards": 0.0} | train}
    faults = truncation_faults(plain)
    for refused in faults:
        name, _, key = refused.path.partition(".")
        del plain[name][key]
    spec = shaped(TaskSpec, plain, faults)
    if spec.kind == "eval" and "steps" not in plain:
        spec = replace(spec, steps=max(1, len(spec.versions)))
    between_keys = (other for other in faults_between(spec) if not any(spoils(first, other) for first in faults))
    refuse([*faults, *between_keys], where)
    return spec


DEMONSTRATIONS = {SFT: "conversations", DPO: "preferences"}
"""The environments of both kinds."""


def _demonstrated(plain: dict[str, Any]) -> dict[str, Any]:
    """With what its kind means, where the author says nothing else."""
    kind, train, policy = plain["kind"], plain.get("train", {}), plain.get("policy", {})
    begins = isinstance(policy, dict) and bool(policy.get("start"))
    if isinstance(train, dict):
        reference = {"kl_reference": "start"} if begins and kind == DPO else {}
        train = {"loss": kind, "group_size": 2 if kind == DPO else 1} | reference | train
    own = {} if "mixture" in plain else {"environment": DEMONSTRATIONS[kind]}
    return own | plain | {"train": train}


def _plain(value: Any) -> Any:
    """Lists for tuples, no key for None."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items() if inner is not None}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


ONLY = "policy"
"""A task's only policy."""
BASE = "base"
"""The bare base in ``frozen`` and ``[eval.agents]``."""


@dataclass(frozen=True)
class AgentMap:
    """The policies of a task, and which of them acts as which agent."""

    policies: Mapping[str, NamedPolicySpec]
    """In the order of the task file."""
    agents: Mapping[str, str]
    """The policy of each agent; empty: the only policy acts as all."""

    @property
    def trained(self) -> tuple[str, ...]:
        return tuple(name for name, policy in self.policies.items() if policy.trained)


def agent_map_of(spec: TaskSpec) -> AgentMap:
    """The agent map of a task."""
    if not spec.policies:
        return AgentMap({ONLY: NamedPolicySpec(**vars(spec.policy))}, {})
    return AgentMap(spec.policies, spec.agents)


def spec_of(spec: TaskSpec, policy: str) -> TaskSpec:
    """The task as one trained policy sees it: its adapter, learning rate and batch."""
    if not spec.policies:
        return spec
    named = spec.policies[policy]
    train = spec.train
    if named.learning_rate is not None:
        train = replace(train, learning_rate=named.learning_rate)
    if named.groups_per_step is not None:
        train = replace(train, groups_per_step=named.groups_per_step)
    adapter = PolicySpec(named.rank, named.alpha, named.rslora, named.targets, named.start)
    return replace(spec, policy=adapter, train=train)


@dataclass(frozen=True)
class Limit:
    """A number that a person may set for a tenant."""

    words: str
    low: float
    high: float
    whole: bool = True


LIMITS = {
    "weight": Limit("weight", 0.001, 1000, whole=False),
    "tasks": Limit("number of tasks at the same time", 0, 10_000),
    "tokens_per_day": Limit("number of tokens a day", 0, 10**15),
}
"""By the command's argument; a quota of 0 means none."""


def tenant_name(name: object) -> str:
    """A checked tenant name. Raises ``ConfigError``."""
    if not isinstance(name, str) or not name.strip() or len(name) > 200 or not name.isprintable():
        raise ConfigError("A tenant's name must be a printable text of 1 to 200 characters.")
    return name


def tenant_change(arguments: Mapping[str, Any]) -> tuple[str, dict[str, float]]:
    """The tenant's name and its new limits, by column. Raises ``ConfigError``."""
    changes = dict(arguments)
    name = tenant_name(changes.pop("name", ""))
    for key, value in changes.items():
        if key not in LIMITS:
            raise ConfigError(f"This engine knows no {key!r} of a tenant.", "Restart it if marlaas was updated.")
        limit = LIMITS[key]
        is_number = isinstance(value, int if limit.whole else (int, float)) and not isinstance(value, bool)
        if not is_number or not limit.low <= value <= limit.high:
            kind = "a whole number" if limit.whole else "a number"
            raise ConfigError(
                f"The {limit.words} of tenant {name!r} cannot be {value}; it is {kind} from {limit.low:g} to"
                f" {limit.high:,}."
            )
    if not changes:
        raise ConfigError(f"Nothing is to change for tenant {name!r}.", "Give --weight, --tasks or --tokens-per-day.")
    return name, changes


_SERVED = re.compile(r"[A-Za-z][A-Za-z0-9._:-]{0,63}")


def served_name(name: object) -> str:
    """Raises ``ConfigError`` for a name that reads like a task's number or a version's."""
    if not isinstance(name, str) or not _SERVED.fullmatch(name) or name.lower() == BASE:
        raise ConfigError(
            f"A version cannot have the name {name!r}.",
            "A name begins with a letter, and has up to 64 letters, digits and ._:- in all; base is taken.",
        )
    return name

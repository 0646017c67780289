"""A task as its author describes it: the task file with every default filled in.

The command line puts it into the task's row as JSON, where the scheduler reads it. Defaults here are the documented
ones; the demo trains with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from .data import DataSpec, data_faults
from .losses import PUBLISHED
from .mixture import TOGETHER, ComponentSpec, mixture_faults
from .policies import NamedPolicySpec, PolicySpec
from .rules import agent_faults, measuring_faults, rule_faults, truncation_faults
from .suites import SuiteSpec
from .validation import AUTO, RANGE, Fault, between, each_between, one_of, refuse, shaped
from .watching import WatchSpec


@dataclass(frozen=True)
class TrainSpec:
    """How it is trained."""

    loss: str = one_of("dr_grpo", *PUBLISHED)
    """What is minimised; ``training/losses.py`` has all of them."""
    learning_rate: float | Literal["auto"] = between(AUTO, 0.0, 1.0)
    """Of AdamW; ``auto``: by the width of the base and the policy's ``alpha``, 5e-4 at most."""
    schedule: str = one_of("constant", "constant", "linear", "cosine")
    """How the learning rate falls towards 0 at the last step, after the warm-up."""
    warmup: int = between(0, 0, 1000000)
    """Steps in which the learning rate rises to its full value."""
    groups_per_step: int = between(8, 1, 4096)
    """Groups that one optimizer step consumes."""
    group_size: int = between(8, 2, 4096)
    """Episodes of the same instance, whose rewards are compared."""
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
    """Weight of the KL term, with any loss."""
    kl_reference: str = one_of("base", "base", "start")
    """What the KL term pulls to: the base, or the version that the task starts from. Without a ``start`` both are the
    same."""
    entropy: float = between(0.0, 0.0, 100.0)
    """Weight of an entropy bonus, with any loss: so much is taken off a token's loss for each nat of the entropy that
    it was drawn with. Above 0 the policy stays more random."""
    deterministic: bool = False
    """Repeat the run to the last bit; needs max_staleness = 0."""

    @property
    def begun_members(self) -> int:
        """Members that begin with a group."""
        return self.group_size + self.redundant

    @property
    def fewest_members(self) -> int:
        """Members of a group that must have a reward: ``min_members`` with its default."""
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
    where the template has that switch, else as the base does. The task fails at its start, with a sentence, where the
    base can do only the opposite: a run that thinks against its author's word would be a wasted one."""


@dataclass(frozen=True)
class QueueSpec:
    """Its place among other tasks."""

    priority: int = between(0, -1000, 1000)
    """Within the tenant: the higher one starts first."""
    depends_on: tuple[int | str, ...] = each_between(1, 2**31)
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
    kind: str = one_of("train", "train", "eval")
    """What it does: ``train`` trains policies, ``eval`` measures ``versions`` and trains nothing."""
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

    @property
    def played(self) -> str:
        """The environment as people read it; of a mixture, all of them."""
        return TOGETHER.join(dict.fromkeys(part.environment for part in self.mixture)) or self.environment

    @property
    def group_episodes(self) -> int:
        """Episodes of one step."""
        return self.train.groups_per_step * self.train.group_size

    def to_json(self) -> dict[str, Any]:
        """The specification as plain values, from which ``parse`` makes an equal one."""
        return asdict(self)


def parse(table: dict[str, Any], where: str) -> TaskSpec:
    """A spec from a parsed task file or from ``to_json``. Raises ``ConfigError``, with all mistakes."""
    plain = {key: _lists(value) for key, value in table.items() if value is not None}
    for name in ("train", "eval", "sampling", "watch"):
        if isinstance(plain.get(name), dict):
            plain[name] = _given(plain[name])
    if isinstance(plain.get("policies"), dict):
        policies = plain["policies"].items()
        plain["policies"] = {name: _given(one) if isinstance(one, dict) else one for name, one in policies}
    faults = list(truncation_faults(plain))
    for fault in faults:
        name, _, key = fault.path.partition(".")
        plain[name] = {other: value for other, value in plain[name].items() if other != key}
    spec = shaped(TaskSpec, plain, faults)
    if spec.kind == "eval" and "steps" not in plain:
        spec = replace(spec, steps=max(1, len(spec.versions)))
    alone = tuple(faults)
    refuse([*alone, *(fault for fault in _rules(spec) if not any(one.spoils(fault) for one in alone))], where)
    return spec


def _rules(spec: TaskSpec) -> Iterator[Fault]:
    """What is wrong with keys beside each other, and with texts that people read."""
    yield from mixture_faults(spec)
    for name in ("tenant", "name", "played"):
        text = getattr(spec, name)
        if (text or name != "played" or spec.mixture) and (
            not text.strip() or len(text) > 200 or not text.isprintable()
        ):
            path = "environment" if name == "played" else name
            yield Fault(path, f"{path!r} must be a printable text of 1 to 200 characters.", code=RANGE)
    yield from agent_faults(spec)
    yield from measuring_faults(spec)
    yield from rule_faults(spec)
    yield from data_faults(spec)


def _given(table: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value is not None}


def _lists(value: Any) -> Any:
    """A value of ``to_json`` as a parsed task file has it: lists for tuples."""
    if isinstance(value, dict):
        return {key: _lists(inner) for key, inner in value.items()}
    return [_lists(inner) for inner in value] if isinstance(value, (list, tuple)) else value

"""Keys of a task file that contradict each other, or have no effect.

Single values are checked before, references at submission, agents once the environment is known (``check_declared``).
No torch.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ..errors import ConfigError
from .losses import DISTILL, DPO, SFT, SHOWN, published
from .validation import CHOICE, CONFLICT, MISSING, RANGE, REFUSED, TYPE, UNKNOWN, fault, nearest, refuse

if TYPE_CHECKING:
    from .task import DataSpec, NamedPolicySpec, SuiteSpec, TaskSpec

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
"""They become part of file names and rows."""
COMPONENT = re.compile(r"[A-Za-z0-9_/-]{1,100}")
"""As of environments."""
TAKEN = ("base", "policy")
"""They mean the bare base and a task's only policy."""
MOST = 64
"""Components of a mixture."""
SPLITS = ("train", "eval", "test")
OF_TRAINING = ("policy", "policies", "agents", "train", "keep", "watch")
"""Meaningless in an evaluation."""
OF_TRAINING_EVALS = ("every", "target", "patience", "test_prompts", "suite")
"""Meaningless in an evaluation."""


def faults_between(spec: TaskSpec) -> Iterator[ConfigError]:
    """All broken rules."""
    yield from _mixture_faults(spec)
    for name in ("tenant", "name", "played"):
        text, path = getattr(spec, name), "environment" if name == "played" else name
        wrong = not text.strip() or len(text) > 200 or not text.isprintable()
        missing = name == "played" and not text and not spec.mixture  # reported by the mixture's rules
        says = f"{path!r} must be a printable text of 1 to 200 characters."
        yield from _if(wrong and not missing, path, says, code=RANGE)
    yield from (
        _policy_faults(spec)
        if spec.policies
        else _if(
            bool(spec.agents),
            "agents",
            "[agents] maps agents to policies, but there is no [policies.NAME].",
            "Add one, or remove [agents].",
            ("policies",),
        )
    )
    for mistake in _evaluation_faults(spec) if spec.kind == "eval" else _training_faults(spec):
        mistake.also += ("kind",)
        yield mistake
    yield from _rules(spec)
    for table, data in data_tables(spec):
        yield from _data_faults(data, table)


def _if(
    broken: bool, path: str, says: str, hint: str = "", also: tuple[str, ...] = (), code: str = CONFLICT
) -> list[ConfigError]:
    return [fault(path, says, hint, also, code)] if broken else []


def _rule(broken: bool, keys: tuple[str, ...], says: str, hint: str) -> list[ConfigError]:
    """``keys``: the one at fault, then those it clashes with."""
    return _if(broken, keys[0], f"{keys[0]!r} {says}", hint, keys[1:])


def _repeated(names: Iterable[str]) -> list[tuple[str, int]]:
    return [(name, times) for name, times in Counter(names).items() if times > 1]


def inside(reference: str, spec: TaskSpec) -> str | None:
    """The policy of ``NAME@0`` in the same task; None for other references."""
    name, at, number = reference.partition("@")
    return name if at and number == "0" and name in spec.policies else None


def _policy_faults(spec: TaskSpec) -> list[ConfigError]:
    policies, names = spec.policies, list(spec.policies)
    unknown = {agent: policy for agent, policy in spec.agents.items() if policy not in policies}
    pools = any(policy.pool for policy in policies.values())
    naming = f"Use 1 to 40 letters, digits, - and _, a letter first; not {' or '.join(TAKEN)}."
    return [
        *_if(
            spec.policy != type(spec.policy)(),
            "policy",
            "[policy] and [policies.…] both stand there.",
            "Keep [policies.…] for several policies, [policy] for one.",
        ),
        *(
            fault(f"policies.{name}", f"a policy cannot be called {name!r}.", naming)
            for name in names
            if not NAME.fullmatch(name) or name in TAKEN
        ),
        *_if(
            not any(policy.trained for policy in policies.values()),
            "policies",
            "no policy is trained.",
            "Give one of them neither `frozen` nor `pool`.",
        ),
        *_if(
            not spec.agents,
            "agents",
            "[agents] is missing.",
            f'Write for each agent of the environment: `AGENT = "{names[0]}"`.',
        ),
        *(
            fault(
                f"agents.{agent}",
                f"'agents.{agent}' names the policy {policy!r}, which there is not.",
                nearest(policy, names),
            )
            for agent, policy in unknown.items()
        ),
        *(
            fault(
                f"policies.{name}",
                f"no agent is played by the policy {name!r}.",
                f"Name it under [agents], or remove [policies.{name}].",
                ("agents",),
            )
            for name in names
            # an unknown policy may be this one
            if spec.agents and name not in spec.agents.values() and not unknown
        ),
        *(wrong for name, policy in policies.items() for wrong in _reference_faults(spec, name, policy)),
        *(wrong for agent, words in spec.eval.agents.items() for wrong in _player_faults(spec, agent, words)),
        *_if(
            spec.train.deterministic and pools,
            "train.deterministic",
            "'train.deterministic' cannot repeat a pool, which fills by the clock.",
            "Use a frozen version instead.",
            ("policies",),
        ),
        *_undecided(spec),
    ]


def _undecided(spec: TaskSpec) -> Iterator[ConfigError]:
    """Timing decides the version of a training partner."""
    if not spec.train.deterministic or (spec.eval.target is None and spec.eval.patience == 0):
        return
    trained = [name for name, policy in spec.policies.items() if policy.trained]
    for name in trained:
        others = {agent: spec.eval.agents.get(agent, own) for agent, own in spec.agents.items() if own != name}
        for agent, words in [pair for pair in others.items() if pair[1] != name and pair[1] in trained][:1]:
            yield fault(
                "train.deterministic",
                f"'train.deterministic' cannot repeat when a score ends the task: {name!r} is measured with"
                f" {words!r}, which is trained beside it.",
                f'Name a fixed version: `[eval]` `agents = {{{agent} = "{words}@0"}}`, or remove target and patience.',
                ("agents", "policies", "eval"),
            )


def _reference_faults(spec: TaskSpec, name: str, policy: NamedPolicySpec) -> list[ConfigError]:
    """Without cycles, to versions that exist."""
    key, policies, frozen = f"policies.{name}", spec.policies, policy.frozen.partition("@")[0]
    untrained = [other for other, its in policies.items() if not its.trained]
    return [
        *_if(bool(policy.frozen and policy.pool), key, f"{key!r} is frozen and a pool.", "Keep one of the two."),
        *_if(
            bool(policy.start) and not policy.trained,
            f"{key}.start",
            f"'{key}.start' begins a training, but the policy is not trained.",
            "Remove it.",
        ),
        *_if(
            frozen in policies and inside(policy.frozen, spec) is None,
            f"{key}.frozen",
            f"'{key}.frozen' is {policy.frozen!r}.",
            f"Of a policy of this task only `{frozen}@0` stands still.",
        ),
        *_if(
            frozen in untrained,
            f"{key}.frozen",
            f"'{key}.frozen' refers to {frozen!r}, which is not trained, either.",
            "Name a version, or a trained policy.",
        ),
        *_if(
            bool(policy.pool) and policy.pool not in policies,
            f"{key}.pool",
            f"'{key}.pool' names {policy.pool!r}, which there is not.",
            nearest(policy.pool, list(policies)),
        ),
        *_if(
            policy.pool in untrained,
            f"{key}.pool",
            f"'{key}.pool' is of {policy.pool!r}, which is not trained.",
            "A pool holds versions of a trained policy.",
        ),
    ]


def _player_faults(spec: TaskSpec, agent: str, reference: str) -> list[ConfigError]:
    key, own = f"eval.agents.{agent}", reference.partition("@")[0]
    return [
        *_if(agent not in spec.agents, key, f"{key!r} is no agent of [agents].", nearest(agent, list(spec.agents))),
        *_if(
            own in spec.policies and reference != own and inside(reference, spec) is None,
            key,
            f"{key!r} is {reference!r}.",
            f"Of a policy of this task write `{own}` or `{own}@0`.",
        ),
    ]


def check_declared(spec: TaskSpec, declared: tuple[str, ...]) -> None:
    """Raise ``ConfigError`` if ``[agents]`` does not fit the environment.

    Undeclared agents are known only at run time. A measured version acts as every agent not in ``[eval.agents]``; these
    must be declared.
    """
    evaluates, others, missing = spec.kind == "eval", spec.eval.agents, f"{spec.environment} has no agent"
    if not declared:
        refuse(
            _if(
                evaluates and bool(others or spec.eval.rotate),
                "eval.agents",
                f"{spec.environment} does not declare its agents, so 'eval.agents' and 'eval.rotate' mean nothing.",
                'Write `@env(agents=("first", "second"))` in the environment.',
                code=CHOICE,
            ),
            "",
        )
        return
    named = [(f"eval.agents.{agent}", agent) for agent in others if evaluates or agent not in spec.agents]
    if not evaluates:
        named = [(f"agents.{agent}", agent) for agent in spec.agents] + named
    refuse(
        [
            *(
                fault(
                    "agents",
                    f"No policy acts as the agent {agent!r} of {spec.environment}.",
                    f"Write `{agent} = POLICY` under [agents]; policies are {', '.join(spec.policies)}.",
                    code=MISSING,
                )
                for agent in declared
                if not evaluates and spec.policies and agent not in spec.agents
            ),
            *(
                fault(path, f"{missing} {agent!r}.", nearest(agent, declared), code=CHOICE)
                for path, agent in named
                if agent not in declared and (evaluates or spec.policies)
            ),
            *_if(
                evaluates and set(others) >= set(declared),
                "eval.agents",
                "'eval.agents' leaves no agent to the versions that are measured.",
                "Leave one of them out.",
                code=MISSING,
            ),
        ],
        "",
    )


def _mixture_faults(spec: TaskSpec) -> list[ConfigError]:
    names = [part.name or part.environment for part in spec.mixture]
    if not spec.mixture:
        hint = "It must be a text in quotes; or write [[mixture]] tables."
        return _if(not spec.environment, "environment", "'environment' is missing.", hint, ("mixture",), MISSING)
    return [
        *(
            fault(
                key,
                f"{key!r} stands beside [[mixture]].",
                "Keep one of the two; each table of a mixture has its own environment and config.",
            )
            for key in ("environment", "environment_config")
            if getattr(spec, key)
        ),
        *_if(len(names) > MOST, "mixture", f"'mixture' has {len(names)} tables.", f"There may be at most {MOST}."),
        *_if(
            len(set(names)) < len(names),
            "mixture",
            "'mixture' names two components alike.",
            'Give each a name of its own: name = "easy".',
        ),
        *(
            fault(
                "mixture",
                f"'mixture' has a component that cannot be called {name!r}.",
                "A name has at most 100 letters, digits, -, _ and /, and is not test.",
            )
            for name in names
            if not COMPONENT.fullmatch(name) or name == "test"
        ),
        *(
            fault(
                "eval.suite",
                f"a suite is called {suite.name!r}, as is a component of the mixture.",
                "Give it another name: the scores of both are kept by name.",
            )
            for suite in spec.eval.suite
            if suite.name in names
        ),
        *_if(
            spec.kind == "eval",
            "mixture",
            "'mixture' is about training, but 'kind' is \"eval\".",
            "Write a task for each environment.",
            ("kind",),
        ),
        *_if(
            bool(spec.data.path),
            "data.path",
            "'data.path' names the rows of one environment, but [[mixture]] has several.",
            "Write the keys of [data] below the environment that they are for, in [mixture.data].",
        ),
        *_if(
            spec.train.sampling != "uniform",
            "train.sampling",
            f"'train.sampling' is {spec.train.sampling!r}, which a mixture cannot be drawn by.",
            'Write sampling = "uniform", or train on one environment.',
        ),
    ]


def data_tables(spec: TaskSpec) -> Iterator[tuple[str, DataSpec]]:
    """Tables that may name rows."""
    yield "data", spec.data
    yield from ((f"mixture[{place}].data", part.data) for place, part in enumerate(spec.mixture))
    yield from ((f"eval.suite[{place}].data", suite.data) for place, suite in enumerate(spec.eval.suite))


def _data_faults(data: DataSpec, table: str) -> list[ConfigError]:
    path, split = f"{table}.path", f"{table}.split"
    wrong = [each for name, value in data.split.items() for each in _split_faults(name, value, split)]
    shares = [] if wrong else [value for value in data.split.values() if not isinstance(value, str)]
    return [
        *(
            fault(
                f"{table}.{key}",
                f"'{table}.{key}' is set, but there is no '{path}'.",
                "Name the file with the rows.",
                (path,),
            )
            for key in ("columns", "split", "limit")
            if not data.path and getattr(data, key)
        ),
        *wrong,
        *_if(
            0 < len(shares) < len(data.split),
            split,
            f"'{split}' has names and shares.",
            "Give either of them to all splits.",
        ),
        *_if(math.fsum(shares) >= 1, split, f"the shares in '{split}' leave nothing to train on.", code=RANGE),
    ]


def _split_faults(name: str, value: Any, table: str) -> list[ConfigError]:
    key = f"{table}.{name}"
    if name not in SPLITS:
        return [fault(key, f"unknown split {key!r}.", nearest(name, SPLITS), code=UNKNOWN)]
    if not isinstance(value, str | int | float) or isinstance(value, bool) or value == "":
        return [fault(key, f"{key!r} must be a name in quotes, or a share such as 0.1.", code=TYPE)]
    return _if(
        not isinstance(value, str) and (name == "train" or not 0 < value < 1),
        key,
        f"{key!r} is {value}; a share lies between 0 and 1, and 'train' gets what is left.",
        code=RANGE,
    )


def _evaluation_faults(spec: TaskSpec) -> list[ConfigError]:
    plain = type(spec)(spec.tenant, spec.name, spec.environment)
    train = replace(plain.train, deterministic=spec.train.deterministic, max_staleness=spec.train.max_staleness)
    plain = replace(plain, train=train)  # a deterministic evaluation is all that [train] can ask for
    return [
        *_if(
            not spec.versions,
            "versions",
            "'versions' is missing: an evaluation needs something to measure.",
            'Write `versions = ["17@best", "base"]`.',
        ),
        *(
            fault("versions", f"'versions' names {words!r} {times} times.", "Name it once.")
            for words, times in _repeated(spec.versions)
        ),
        *(
            fault("versions", f"'versions' has {words!r}, which means nothing.", "Write a version such as 17@best.")
            for words in dict.fromkeys(spec.versions)
            if not words.strip() or not words.isprintable()
        ),
        *_if(
            spec.steps != max(1, len(spec.versions)),
            "steps",
            "'steps' is set, but an evaluation makes none.",
            "Remove it.",
        ),
        *(
            fault(table, f"[{table}] is about training, but 'kind' is \"eval\".", "Remove it.")
            for table in OF_TRAINING
            if getattr(spec, table) != getattr(plain, table)
        ),
        *(
            fault(f"eval.{key}", f"'eval.{key}' is about training, but 'kind' is \"eval\".", "Remove it.")
            for key in OF_TRAINING_EVALS
            if getattr(spec.eval, key) != getattr(plain.eval, key)
        ),
    ]


def _training_faults(spec: TaskSpec) -> list[ConfigError]:
    suites, deciding = spec.eval.suite, [suite.name for suite in spec.eval.suite if suite.decides]
    return [
        *_if(
            bool(spec.versions),
            "versions",
            f"'versions' is set, but 'kind' is \"{spec.kind}\".",
            'Write `kind = "eval"`, or remove it.',
        ),
        *_if(
            spec.eval.split != "eval",
            "eval.split",
            f"'eval.split' is {spec.eval.split!r}, but a training task chooses its best version on \"eval\".",
            'Write `test_prompts = 64` to measure on "test" at its end.',
        ),
        *(
            fault("eval.suite", f"{times} suites are called {name!r}.", "Give each a name of its own.")
            for name, times in _repeated(suite.name for suite in suites)
        ),
        *_if(
            len(deciding) > 1,
            "eval.suite",
            f"the suites {' and '.join(deciding)} both decide.",
            "Leave `decides` to one of them: there is one best version.",
        ),
        *(wrong for suite in suites for wrong in _suite_faults(suite, spec.eval.patience)),
    ]


def _suite_faults(suite: SuiteSpec, patience: int) -> list[ConfigError]:
    return [
        *_if(
            not NAME.fullmatch(suite.name) or suite.name == "test",
            "eval.suite",
            f"a suite cannot be called {suite.name!r}.",
            "Use 1 to 40 letters, digits, - and _, but not test.",
        ),
        *_if(
            suite.decides and suite.split == "test",
            "eval.suite",
            f'the suite {suite.name!r} decides on the split "test".',
            'Use `split = "eval"`.',
        ),
        *_if(
            suite.samples > 1 and suite.temperature == 0.0,
            "eval.suite",
            f"the suite {suite.name!r} has {suite.samples} samples of a prompt, which are all the same with"
            " `temperature = 0`.",
            "Set its temperature, for example to 1.0.",
        ),
        *_if(
            suite.decides and patience > 0 and not suite.every,
            "eval.patience",
            f"is {patience}, but the suite {suite.name!r}, which decides, is measured before and after training alone.",
            "Set its `every` to a number of steps.",
        ),
    ]


def _rules(spec: TaskSpec) -> list[ConfigError]:
    train, sampling, measure, loss = spec.train, spec.sampling, spec.eval, published(spec.train.loss)
    limits = (limit for limit in (sampling.max_tokens, sampling.max_episode_tokens) if isinstance(limit, int))
    longest, both = min(limits, default=1 << 20), sorted({*spec.watch.pause} & {*spec.watch.ignore})
    several = sum(policy.trained for policy in spec.policies.values()) > 1
    narrowed = {"top_p": measure.top_p < 1.0, "top_k": measure.top_k > 0, "min_p": measure.min_p > 0.0}
    return [
        *(
            wrong
            for key, is_set in narrowed.items()
            for wrong in _rule(
                is_set and measure.temperature == 0.0,
                (f"eval.{key}", "eval.temperature"),
                "is set, but 'eval.temperature' = 0 takes the likeliest token.",
                "Set a temperature above 0, or remove it.",
            )
        ),
        *_rule(
            isinstance(sampling.max_tokens, int)
            and isinstance(sampling.max_episode_tokens, int)
            and sampling.max_tokens > sampling.max_episode_tokens,
            ("sampling.max_tokens", "sampling.max_episode_tokens"),
            f"is {sampling.max_tokens}, but an episode may have only {sampling.max_episode_tokens} tokens.",
            "Raise 'sampling.max_episode_tokens'.",
        ),
        *_rule(
            (train.loss if train.loss in SHOWN else "") != (spec.kind if spec.kind in SHOWN else ""),
            ("train.loss", "kind"),
            f"is {train.loss!r}, but 'kind' is \"{spec.kind}\".",
            f'Write `kind = "{train.loss}"` and no loss to learn from demonstrations alone; [[mixture]] tables, one of'
            " them with the environment `conversations`, mix them into training by rewards."
            if train.loss in SHOWN
            else "Leave the loss out.",
        ),
        *_rule(
            train.group_size < 2 and spec.kind != SFT,
            ("train.group_size", "kind"),
            "is 1, but rewards are compared within a group.",
            "Write at least 2.",
        ),
        *_rule(
            spec.kind in SHOWN and sampling.temperature != 1.0,
            ("sampling.temperature", "kind"),
            f"is {sampling.temperature:g}, but 'kind' is \"{spec.kind}\": nothing is sampled.",
            "Remove it.",
        ),
        *_rule(
            spec.kind == DPO and (train.group_size != 2 or train.epochs > 1 or bool(spec.mixture)),
            ("train.loss", "train.group_size", "train.epochs", "mixture"),
            'is "dpo", which compares two replies, once in a step.',
            "Leave 'train.group_size', 'train.epochs' and [[mixture]] out.",
        ),
        *_rule(
            not train.kl_reference.strip() or (train.loss == DPO and train.kl_reference.startswith((".", "/", "~"))),
            ("train.kl_reference", "train.loss"),
            f"is {train.kl_reference!r}, which is no version of this home.",
            'Write "base", "start", or a version such as "17@best".',
        ),
        *_rule(
            bool(train.teacher_prompt) and train.kl == 0.0,
            ("train.teacher_prompt", "train.kl"),
            "is set, but without 'train.kl' no reference reads it.",
            "Set 'train.kl' above 0, or choose the loss distill.",
        ),
        *_rule(
            train.loss == DISTILL
            and not train.teacher_prompt
            and train.kl_reference in ("base", "start")
            and not (spec.policy.start or any(policy.start for policy in spec.policies.values())),
            ("train.kl_reference", "train.loss"),
            f'is "{train.kl_reference}", from which an untrained adapter does not differ: there is nothing to learn.',
            'Name a teacher, such as "17@best".',
        ),
        *_rule(
            train.kl_in == "reward" and train.kl == 0.0,
            ("train.kl_in", "train.kl"),
            "is \"reward\", but without 'train.kl' there is no KL term.",
            "Set 'train.kl' above 0.",
        ),
        *_rule(
            train.rewards != 1.0 and train.kl_in != "reward",
            ("train.rewards", "train.kl_in"),
            "is set, but 'train.kl_in' is \"loss\": rewards are all that an episode learns from.",
            'Write `kl_in = "reward"`, or remove it.',
        ),
        *_rule(
            train.kl_in == "reward" and train.loss in SHOWN,
            ("train.kl_in", "kind"),
            f'is "reward", but \'kind\' is "{spec.kind}": nothing is sampled.',
            "Remove it.",
        ),
        *_rule(
            train.loss == DISTILL and train.kl_in != "reward",
            ("train.kl_in", "train.loss"),
            'is "loss", but the loss distill has the teacher in the reward.',
            "Remove it.",
        ),
        *_rule(
            train.beta != 0.1 and train.loss != DPO,
            ("train.beta", "train.loss"),
            f"is set, but the loss is {train.loss}.",
            'Write `kind = "dpo"`, or remove it.',
        ),
        *_rule(
            train.entropy_target > 0.0 and train.entropy == 0.0,
            ("train.entropy_target", "train.entropy"),
            f"is {train.entropy_target:g}, but 'train.entropy', by which the bonus changes, is 0.",
            "Set 'train.entropy', for example to 0.005.",
        ),
        *_rule(
            train.min_members is not None and train.min_members > train.group_size,
            ("train.min_members", "train.group_size"),
            f"is {train.min_members}, but a group has only {train.group_size} members.",
            "No group would ever be complete.",
        ),
        *_rule(
            train.redundant > train.group_size,
            ("train.redundant", "train.group_size"),
            f"is {train.redundant}, but a group has only {train.group_size} members.",
            "Most of what is played would be thrown away.",
        ),
        *_rule(
            train.deterministic and train.redundant > 0,
            ("train.redundant", "train.deterministic"),
            f"is {train.redundant}, but 'train.deterministic' is set.",
            "Which members end first depends on timing; set one of the two.",
        ),
        *_rule(
            train.redundant > 0 and several,
            ("train.redundant", "policies"),
            f"is {train.redundant}, but several policies are trained.",
            "How soon an episode ends depends on all of them, so one would choose what another learns from.",
        ),
        *_rule(
            train.deterministic and train.max_staleness > 0,
            ("train.deterministic", "train.max_staleness"),
            f"needs 'train.max_staleness' = 0, not {train.max_staleness}.",
            "Asynchronous training depends on timing; set one of the two.",
        ),
        *_rule(
            train.order == "arrival" and train.deterministic,
            ("train.order", "train.deterministic"),
            "is \"arrival\", but 'train.deterministic' is set.",
            "Which groups are complete first depends on timing; set one of the two.",
        ),
        *_rule(
            train.order == "arrival" and train.max_staleness == 0,
            ("train.order", "train.max_staleness"),
            "is \"arrival\", but 'train.max_staleness' is 0: all groups that a step can consume begin with it.",
            "Raise 'train.max_staleness', or remove 'train.order'.",
        ),
        *_rule(
            train.order == "arrival" and train.sampling == "difficulty",
            ("train.order", "train.sampling"),
            'is "arrival", but \'train.sampling\' is "difficulty", which needs the groups of earlier steps.',
            "Set one of the two.",
        ),
        *_rule(
            train.sampling == "difficulty" and several,
            ("train.sampling", "policies"),
            'is "difficulty", but several policies are trained, and what is hard for one may not be for another.',
            'Set it to "uniform", or train one policy.',
        ),
        *_rule(
            train.advantage_level == "episode" and train.discount != 1.0,
            ("train.discount", "train.advantage_level"),
            f"is {train.discount:g}, but 'train.advantage_level' is \"episode\":"
            " all that an episode is paid counts alike.",
            "Set 'train.advantage_level' = \"turn\", or remove it.",
        ),
        *_rule(
            train.min_rate > 0.0 and train.schedule not in ("cosine_with_min_lr", "warmup_stable_decay"),
            ("train.min_rate", "train.schedule"),
            f"is set, but 'train.schedule' is \"{train.schedule}\".",
            'Write "cosine_with_min_lr" or "warmup_stable_decay", or remove it.',
        ),
        *_rule(
            (train.decay > 0) != (train.schedule == "warmup_stable_decay"),
            ("train.decay", "train.schedule"),
            f"is {train.decay}, but 'train.schedule' is \"{train.schedule}\".",
            'Only "warmup_stable_decay" has such steps, and needs them.',
        ),
        *_rule(
            train.decay + train.warmup > spec.steps,
            ("train.decay", "train.warmup", "steps"),
            f"is {train.decay}, with a warm-up of {train.warmup} steps, but the task has only {spec.steps}.",
            "Take fewer.",
        ),
        *_rule(
            train.schedule == "constant_with_warmup" and not train.warmup,
            ("train.schedule", "train.warmup"),
            "is \"constant_with_warmup\", but 'train.warmup' is 0.",
            "Set 'train.warmup' to a number of steps.",
        ),
        *_rule(
            train.warmup >= spec.steps,
            ("train.warmup", "steps"),
            f"is {train.warmup}, but the task has only {spec.steps} steps.",
            "The learning rate would never reach its full value.",
        ),
        *_rule(
            train.clip_low is not None and loss.clip_low is None,
            ("train.clip_low", "train.loss"),
            f"is set, but the loss {train.loss} clips no ratio from below.",
            "Remove it, or choose grpo, dapo, gspo or ppo.",
        ),
        *_rule(
            train.clip_high is not None and loss.clip_high is None,
            ("train.clip_high", "train.loss"),
            f"is set, but the loss {train.loss} clips no ratio.",
            "Its importance weights are bounded by 'train.importance_cap'.",
        ),
        *_rule(
            train.clip_dual is not None and loss.clip_dual is None,
            ("train.clip_dual", "train.loss"),
            f"is set, but the loss {train.loss} has no dual clip: its weights are bounded.",
            "Remove it, or choose grpo, dapo, gspo or ppo.",
        ),
        *_rule(
            train.importance not in loss.importance,
            ("train.importance", "train.loss"),
            f"is {train.importance}, but the loss {train.loss} has a ratio, not a weight, and cannot bound it so.",
            f"Choose {' or '.join(loss.importance)}.",
        ),
        *_rule(
            train.geometric_cap != 2.0 and train.importance != "geometric_mask",
            ("train.geometric_cap", "train.importance"),
            f"is set, but 'train.importance' is \"{train.importance}\".",
            "Set 'train.importance' = \"geometric_mask\", or remove it.",
        ),
        *_rule(
            train.kl_reference != "base" and train.kl == 0.0 and train.loss != DPO,
            ("train.kl_reference", "train.kl"),
            f"is \"{train.kl_reference}\", but without 'train.kl' there is no KL term.",
            "Set 'train.kl' above 0, for example to 0.001.",
        ),
        *_rule(
            train.importance == "none" and train.importance_floor > 0.0,
            ("train.importance_floor", "train.importance"),
            "is set, but 'train.importance' = \"none\" uses no weights.",
            "Remove one of the two.",
        ),
        *_rule(
            train.overlong == "penalty" and not 1 <= train.overlong_buffer <= longest,
            ("train.overlong", "train.overlong_buffer", "sampling.max_tokens"),
            f"= \"penalty\" needs a 'train.overlong_buffer' of 1 to {longest} tokens, not {train.overlong_buffer}.",
            "The reward falls over that many tokens before 'sampling.max_tokens'.",
        ),
        *_rule(
            train.overlong != "penalty" and train.overlong_buffer > 0,
            ("train.overlong_buffer", "train.overlong"),
            f"is set, but 'train.overlong' is \"{train.overlong}\".",
            'Only "penalty" has a buffer.',
        ),
        *_rule(
            measure.samples > 1 and measure.temperature == 0.0,
            ("eval.samples", "eval.temperature"),
            f"is {measure.samples}, but with 'eval.temperature' = 0 all samples of a prompt are the same.",
            "Set 'eval.temperature', for example to 1.0.",
        ),
        *_rule(
            spec.watch.kl is not None and train.kl == 0.0,
            ("watch.kl", "train.kl"),
            f"is {spec.watch.kl}, but without 'train.kl' the distance to the base is not measured.",
            "Set 'train.kl' above 0, for example to 0.001.",
        ),
        *_rule(
            bool(both),
            ("watch.pause", "watch.ignore"),
            f"names {' and '.join(both)}, which 'watch.ignore' names, too.",
            "Name each finding in one of the two.",
        ),
        *_rule(
            measure.patience > 0 and measure.every == 0,
            ("eval.patience", "eval.every"),
            f"is {measure.patience}, but 'eval.every' = 0 measures only before and after training.",
            "Set 'eval.every' to a number of steps.",
        ),
    ]


def truncation_faults(table: dict[str, Any]) -> list[ConfigError]:
    """Keys that train on a truncated distribution."""
    return [
        fault(
            f"{name}.{key}",
            f"'{name}.{key}' is refused in training: what is trained on must be what was sampled, and a token that was"
            " left out would have no probability to compare with.",
            f"Set '{key}' under [eval]; in training 'sampling.temperature' alone shapes the distribution.",
            code=REFUSED,
        )
        for name in ("sampling", "train")
        for key in ("top_p", "top_k", "min_p")
        if isinstance(table.get(name), dict) and key in table[name]
    ]


class Named(Protocol):
    """An environment, or a plugin that has not served yet."""

    @property
    def name(self) -> str:
        """``plugin/environment``; only the plugin if it has not served."""

    @property
    def version(self) -> str:
        """Empty if none serves."""


Row = TypeVar("Row", bound=Named)


def environments_named(name: str, rows: Sequence[Row]) -> list[Row]:
    """Those that a name stands for; serving ones go first.

    By the full name, as a plugin's environment of its own name, or by the last part.
    """
    own = [row for row in rows if row.name.partition("/")[0] == name.partition("/")[0]]
    matches = (
        [row for row in own if row.name == name]
        or [row for row in own if row.name == f"{name}/{name}"]
        or [row for row in rows if row.name.rpartition("/")[2] == name]
    )
    matches = [row for row in matches if row.version] or matches
    return matches or [row for row in own if not row.version][:1]

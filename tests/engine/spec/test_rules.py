"""Keys of a task file that do not go together are refused, in words that name them; those that do are not."""

from __future__ import annotations

from typing import Any

import pytest

from marlaas.engine.errors import ConfigError
from marlaas.engine.spec.losses import PUBLISHED
from marlaas.engine.spec.task import parse


def task(**tables: Any) -> dict[str, Any]:
    return {"tenant": "lab", "name": "sums", "environment": "arithmetic", **tables}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a turn longer than its episode": (
        task(sampling={"max_tokens": 300, "max_episode_tokens": 256}),
        "may have only 256 tokens",
    ),
    "more members than a group has": (
        task(train={"group_size": 4, "min_members": 5}),
        "is 5, but a group has only 4 members",
    ),
    "more to drop than to keep": (
        task(train={"group_size": 4, "redundant": 5}),
        "is 5, but a group has only 4 members",
    ),
    "repeatable and by who is first": (
        task(train={"deterministic": True, "max_staleness": 0, "redundant": 1}),
        "is 1, but 'train.deterministic' is set",
    ),
    "repeatable and by which group is first": (
        task(train={"deterministic": True, "max_staleness": 0, "order": "arrival"}),
        "is \"arrival\", but 'train.deterministic' is set",
    ),
    "the first groups of the only ones": (
        task(train={"max_staleness": 0, "order": "arrival"}),
        "is \"arrival\", but 'train.max_staleness' is 0",
    ),
    "what is hard, out of order": (
        task(train={"sampling": "difficulty", "order": "arrival"}),
        'is "arrival", but \'train.sampling\' is "difficulty"',
    ),
    "repeatable and asynchronous": (task(train={"deterministic": True}), "needs 'train.max_staleness' = 0, not 2"),
    "a warm-up without an end": (task(steps=5, train={"warmup": 5}), "the task has only 5 steps"),
    "a clip that nothing uses": (task(train={"clip_low": 0.2}), "the loss dr_grpo clips no ratio from below"),
    "a lower clip of cispo": (task(train={"loss": "cispo", "clip_low": 0.2}), "the loss cispo clips no ratio from"),
    "an upper clip of reinforce": (task(train={"loss": "reinforce", "clip_high": 0.2}), "reinforce clips no ratio"),
    "a dual clip of weights": (task(train={"clip_dual": 3.0}), "the loss dr_grpo has no dual clip"),
    "token masks of gspo": (
        task(train={"loss": "gspo", "importance": "mask"}),
        "the loss gspo has a ratio, not a weight",
    ),
    "weights of sequences in grpo": (
        task(train={"loss": "grpo", "importance": "sequence_truncate"}),
        "the loss grpo has a ratio, not a weight",
    ),
    "a geometric cap of nothing": (task(train={"geometric_cap": 1.1}), "'train.importance' is \"truncate\""),
    "a reference of no KL term": (task(train={"kl_reference": "start"}), "without 'train.kl' there is no KL term"),
    "a floor of no weights": (task(train={"importance": "none", "importance_floor": 0.5}), "uses no weights"),
    "a penalty without a buffer": (
        task(train={"overlong": "penalty"}, sampling={"max_tokens": 32}),
        "of 1 to 32 tokens, not 0",
    ),
    "a penalty for every answer": (
        task(train={"overlong": "penalty", "overlong_buffer": 33}, sampling={"max_tokens": 32}),
        "32 tokens, not 33",
    ),
    "a buffer without a penalty": (
        task(train={"overlong": "mask", "overlong_buffer": 8}),
        "'train.overlong' is \"mask\"",
    ),
    "a discount of whole episodes": (task(train={"discount": 0.9}), "all that an episode is paid counts alike"),
    "top-p of the likeliest": (task(eval={"top_p": 0.9}), "'eval.temperature' = 0 takes the likeliest token"),
    "patience without evaluations": (task(eval={"patience": 2, "every": 0}), "'eval.every' = 0 measures only"),
    "samples that are all the same": (task(eval={"samples": 8}), "all samples of a prompt are the same"),
}


@pytest.mark.parametrize(("table", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_refuses_in_one_sentence(table: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=r"^task\.toml: ") as caught:
        parse(table, "task.toml")
    error = caught.value
    assert says in error.message and error.hint and error.code == "conflict"
    assert error.message.startswith(f"task.toml: '{error.path}' ") and all(
        "." in key or key == "steps" for key in error.also
    )


@pytest.mark.parametrize(
    "train",
    [
        {"loss": "dapo", "clip_low": 0.1, "clip_high": 0.3, "dynamic_sampling": False},
        {"loss": "cispo", "clip_high": 0.5, "importance": "mask", "importance_floor": 0.5},
        {"overlong": "penalty", "overlong_buffer": 32},
        {"schedule": "cosine", "warmup": 59},
        {"advantage_level": "turn", "discount": 0.5, "loss": "gspo"},
        {"group_size": 4, "min_members": 4},
        {"group_size": 4, "redundant": 4},
        {"order": "arrival", "redundant": 2, "max_staleness": 1},
        {"deterministic": True, "max_staleness": 0, "epochs": 2, "loss": "ppo"},
        *({"loss": loss} for loss in PUBLISHED),
    ],
)
def test_what_goes_together_is_accepted(train: dict[str, Any]) -> None:
    spec = parse(task(train=train), "task.toml")
    assert parse(spec.to_json(), "row") == spec


@pytest.mark.parametrize(
    ("train", "fewest"),
    [({}, 7), ({"group_size": 7}, 7), ({"group_size": 16}, 14), ({"group_size": 2}, 2), ({"min_members": 3}, 3)],
)
def test_one_member_in_eight_may_be_lost(train: dict[str, int], fewest: int) -> None:
    assert parse(task(train=train), "task.toml").train.fewest_members == fewest


@pytest.mark.parametrize("table", ["sampling", "train"])
@pytest.mark.parametrize("key", ["top_p", "top_k", "min_p"])
def test_training_draws_from_all_tokens(table: str, key: str) -> None:
    with pytest.raises(ConfigError, match="what is trained on must be what was sampled") as caught:
        parse(task(**{table: {key: 1}}), "task.toml")
    assert caught.value.path == f"{table}.{key}" and "under [eval]" in caught.value.hint
    spec = parse(task(eval={"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.1}), "task.toml").eval
    assert (spec.top_p, spec.top_k, spec.min_p) == (0.9, 20, 0.1)

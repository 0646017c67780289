"""Prompts can be copied for as long as some sequence begins with them."""

import numpy as np

from marlaas.engine.rollout.batching.context import Prompt, Prompts


def test_the_last_holder_takes_a_prompt_along() -> None:
    prompts, key = Prompts(), ("v0", True, b"tokens")
    prompt = Prompt(key, np.zeros(5, np.float32), {3, 4})
    prompts.add(prompt)
    prompts.leave(prompt, 3)
    assert prompts.find(key) is prompt
    prompts.leave(prompt, 4)
    assert prompts.find(key) is None


def test_an_older_prompt_of_the_same_key_leaves_the_newer_alone() -> None:
    prompts, key = Prompts(), ("v0", True, b"tokens")
    older, newer = (Prompt(key, np.zeros(5, np.float32), {slot}) for slot in (0, 1))
    prompts.add(older)
    prompts.add(newer)
    prompts.leave(older, 0)
    assert prompts.find(key) is newer

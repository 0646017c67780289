"""Compares marlaas with transformers on a base: log-probabilities of a text, ids of conversations; float32, in a child
process.

``python -P -m marlaas.engine.machine.reference PARENT FOLDER`` writes a ``Comparison`` as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marlaas.plugins.messages import Message, ToolCall

from ..errors import BaseModelError, MarlaasError
from ..models.config import unsupported
from ..models.find import BaseModel, load_base
from ..models.reference import AGREES, DISAGREES, UNVERIFIED, Comparison, checksum, comparison_of, keep_comparison
from ..models.templates import SWITCH, TODAY
from ..models.weights import parameters

if TYPE_CHECKING:
    from torch import Tensor

    from ..rollout.renderer import Renderer
    from ..trajectories import Tokens

LONG = 3072
"""Wrong rotary positions and windows show only in thousands of tokens."""
CLOSE = 0.02
"""Nats. Another order of sums: below 0.001 (30 layers, 3,072 tokens); a wrong switch: whole nats."""
SHARE = 0.02
"""Share of the log-probabilities' standard deviation, for nearly equal ones."""
EVERY = 16
"""Tokens at multiples of this come from the whole vocabulary: rare rows."""
PATIENCE = 3600.0
PROGRAM = 1_200 << 20


def compared_before(base: BaseModel, home: Path, free: int) -> Comparison | None:
    """The stored result. None: none, or failed for memory and ``free`` bytes suffice now."""
    result = comparison_of(base, home)
    return None if result and not result.seconds and _needed(base) <= free else result


async def compare_base(base: BaseModel, home: Path, free: int) -> Comparison:
    """Compare in a child process within ``free`` bytes."""
    needed = _needed(base)
    if needed > free:
        words = f"the comparison takes {needed / 1e9:.2g} GB of memory, and {free / 1e9:.2g} GB are free"
        result = Comparison(UNVERIFIED, words)
    else:
        result = await _in_child(base)
    keep_comparison(base, home, result)
    return result


def check_comparison(base: BaseModel, result: Comparison) -> None:
    """Raises ``BaseModelError`` if marlaas and transformers differ."""
    if result.state == DISAGREES:
        unread = f" config.json sets {', '.join(base.config.unread)}, which marlaas does not read." * bool(
            base.config.unread
        )
        raise BaseModelError(
            f"marlaas reads this base otherwise than transformers: {result.words}.{unread}",
            "Nothing is trained on such a base: choose another one, and report this one with its config.json.",
            where=str(base.path),
        )


def spoken_comparison(result: Comparison) -> str:
    """The result in one sentence."""
    if result.state != AGREES:
        return f"{result.state}: {result.words}"
    scores = f"log-probabilities of {result.tokens:,} tokens differ by {result.gap:.1g} nats at most, "
    return f"agrees with transformers {result.transformers}: {scores if result.tokens else ''}token ids of" + (
        f" {result.conversations} conversations are equal"
    )


def _needed(base: BaseModel) -> int:
    config = base.config
    if unsupported(config):
        return PROGRAM
    ends = 2 * config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    layer = max(0, parameters(base) - ends // 2) // config.layers
    tokens = min(LONG, config.context_length)
    return PROGRAM + 4 * (ends + 3 * layer + tokens * (8 * config.hidden_size + 4 * config.intermediate_size))


async def _in_child(base: BaseModel) -> Comparison:
    command = (sys.executable, "-P", "-m", "marlaas.engine.machine.reference", str(os.getpid()), str(base.path))
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    try:
        said, complained = await asyncio.wait_for(child.communicate(), PATIENCE)
    except TimeoutError:
        words = f"the comparison took more than {PATIENCE / 60:.0f} minutes"
        return Comparison(UNVERIFIED, words, seconds=PATIENCE)
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
    try:
        return Comparison(**json.loads(said.decode().splitlines()[-1]))
    except (ValueError, TypeError, IndexError):
        last = (complained.decode("utf-8", "replace").strip().splitlines() or [f"it ended with {child.returncode}"])[-1]
        return Comparison(UNVERIFIED, f"the comparison ended early: {last[:300]}")


def main() -> None:
    """Compare the folder in the arguments."""
    from marlaas.plugins.host.limits import die_with

    die_with(int(sys.argv[1]))
    logging.disable(logging.WARNING)
    began = time.monotonic()
    base = load_base(sys.argv[2])
    result = compare_here(base)
    seconds = round(time.monotonic() - began, 1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    result = replace(result, seconds=seconds, memory=peak, checksum=checksum(base))
    print(json.dumps(asdict(result)))


def compare_here(base: BaseModel) -> Comparison:
    """Imports torch and transformers."""
    import transformers

    from ..rollout.renderer import Renderer

    result = Comparison(AGREES, transformers=transformers.__version__)
    try:
        renderer = Renderer(base.path)
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(base.path, local_files_only=True)
        count, words = _compare_ids(renderer, tokenizer)
        result = replace(result, conversations=count)
        if words:
            return replace(result, state=DISAGREES, words=words)
        if unsupported(base.config):
            return result
        return _compare_scores(base, _text(base, renderer), result)
    except MarlaasError as error:
        return replace(result, state=UNVERIFIED, words=f"marlaas cannot read it: {error.cause.rstrip('.')}")
    except Exception as error:
        reason = " ".join(str(error).split())[:300].rstrip(".")
        return replace(result, state=UNVERIFIED, words=f"transformers cannot read it: {type(error).__name__}: {reason}")


def _compare_ids(renderer: Renderer, tokenizer: Any) -> tuple[int, str]:
    from ..rollout.renderer import plain

    count = 0
    switches: list[dict[str, Any]] = [{}, {SWITCH: False}] if SWITCH in renderer.template.source else [{}]
    for name, messages, tools in conversations(renderer):
        for switch in switches:
            try:
                ours = renderer.open(messages, tools, switch.get(SWITCH))
            except BaseModelError:
                continue
            text = tokenizer.apply_chat_template(
                [plain(message) for message in messages],
                tools=tools or None,
                tokenize=False,
                add_generation_prompt=True,
                strftime_now=TODAY.strftime,
                **switch,
            )
            theirs = tokenizer(text, add_special_tokens=False)["input_ids"]
            count += 1
            if ours != theirs:
                first = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), 0)
                return count, (
                    f"{name} has other token ids, from token {first} on: {ours[first : first + 4]} instead of"
                    f" {theirs[first : first + 4]}"
                )
    return count, ""


def conversations(renderer: Renderer) -> Iterator[tuple[str, list[Message], list[dict[str, Any]]]]:
    """Plain, added tokens in a user's text, thoughts, tools."""
    control = renderer.vocabulary.control
    user, system = Message("user", "What is 12 + 30?\n\n  Tell me – in één word."), Message("system", "Be brief.")
    yield "a conversation", [user], []
    yield "a conversation with a system prompt", [system, user, Message("assistant", "42"), user], []
    written = [name for name in renderer.vocabulary.added if name not in control and name.strip()]
    yield "a message with added tokens", [Message("user", " and ".join(["a", *written[:64], "b"]))], []
    if not any(tag in control for tag in ("<think>", "</think>")):
        thought = Message("assistant", "<think>\nIt is 12 and 30.\n</think>\n\n42")
        yield "a conversation with thoughts", [system, user, thought, user], []
    parameters = {"type": "object", "properties": {"expression": {"type": "string", "description": "a sum"}}}
    function = {"name": "calculate", "description": "Computes a sum.", "parameters": parameters}
    tools = [{"type": "function", "function": function}]
    yield "a conversation with tools", [system, user], tools
    call = Message("assistant", "", tool_calls=(ToolCall("calculate", {"expression": "12 + 30"}),))
    result = Message("tool", "42", name="calculate")
    yield "a conversation with a tool's result", [system, user, call, result, user], tools


def _text(base: BaseModel, renderer: Renderer) -> Tokens:
    import numpy as np

    most, ids, day = min(LONG, base.config.context_length), list[int](), 0
    while len(ids) < most:
        day += 1
        ids += renderer.vocabulary.encode(
            f"On day {day} the keeper of the lighthouse counted {day * day % 997} ships, {day * 7 % 31} of them in fog."
            f" He wrote '{day % 24}:{day * 11 % 60:02}' into his book, next to the tide and the weather.\n"
        )
    tokens = np.array(ids[:most], np.int32)
    places = np.arange(0, most, EVERY)
    tokens[places] = np.random.default_rng(0).integers(0, base.config.vocab_size, len(places))
    return tokens


def _compare_scores(base: BaseModel, tokens: Tokens, result: Comparison) -> Comparison:
    import torch

    from ..trainer.decoder.decoder import score_by_layers

    torch.set_num_threads(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    theirs = score_by_transformers(base, tokens)
    gaps = (score_by_layers(base, tokens) - theirs).abs()
    largest, share = float(gaps.max()), float(gaps.square().mean().sqrt() / theirs.std().clamp_min(1e-9))
    result = replace(result, tokens=len(tokens), gap=largest)
    if largest <= CLOSE and share <= SHARE:  # also false for NaN
        return result
    bound = CLOSE if not largest <= CLOSE else SHARE * float(theirs.std())
    first = int((~(gaps <= bound)).nonzero()[0]) + 2
    words = f"log-probabilities of a text differ by up to {largest:.2g} nats, first after {first:,} tokens of"
    return replace(result, state=DISAGREES, words=f"{words} {len(tokens):,}")


def score_by_transformers(base: BaseModel, tokens: Tokens) -> Tensor:
    """float32 (T - 1,): log-probabilities of ``tokens[1:]``, layer by layer.

    Each layer's tensors are read per call, then freed.
    """
    import torch
    from safetensors import safe_open
    from transformers import AutoConfig, AutoModelForCausalLM

    opened: list[Any] = [safe_open(file, "pt") for file in base.weight_files]
    held = {name: file for file in opened for name in file.keys()}  # noqa: SIM118

    def fill(module: Any, prefix: str) -> None:
        state = {name: held[f"{prefix}{name}"].get_tensor(f"{prefix}{name}").float() for name in module.state_dict()}
        module.load_state_dict(state, assign=True)

    config = AutoConfig.from_pretrained(base.path, local_files_only=True)
    with torch.device("meta"):
        factory: Any = AutoModelForCausalLM
        model = factory.from_config(config, dtype=torch.float32).eval()
    inner = model.model
    inner.rotary_emb = type(inner.rotary_emb)(config=config)
    fill(inner.norm, "model.norm.")
    for number, layer in enumerate(inner.layers):
        prefix = f"model.layers.{number}."
        layer.register_forward_pre_hook(lambda module, _, prefix=prefix: fill(module, prefix))
        layer.register_forward_hook(lambda module, *_: module.to("meta") and None)
    ids = torch.from_numpy(tokens).long()
    table = held["model.embed_tokens.weight"].get_tensor("model.embed_tokens.weight")
    with torch.inference_mode():
        hidden = inner(inputs_embeds=table[ids][None].float(), use_cache=False).last_hidden_state[0, :-1]
        head = table if config.tie_word_embeddings else held["lm_head.weight"].get_tensor("lm_head.weight")
        del table
        head, scores = head.float(), []
        for part, wanted in zip(torch.split(hidden, 128), torch.split(ids[1:], 128), strict=True):
            scores.append((part @ head.T).log_softmax(-1).gather(1, wanted[:, None])[:, 0])
        return torch.cat(scores)


if __name__ == "__main__":
    main()

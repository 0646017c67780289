"""Makes the tokenizer, a Hugging Face folder: 256 bytes, no merges, eight control tokens.

Byte b has id 8 + b, so any text is encodable and no vocabulary has to be trained.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from tools.base.problem import Message, Tool

PAD, END, ASSISTANT = "<|pad|>", "<|end|>", "<|assistant|>"
CONTROL = (PAD, END, "<|system|>", "<|user|>", ASSISTANT, "<|tool|>")
# Not "special" in the Hugging Face sense, as in Qwen: decoding without special tokens must keep a reply's tool calls.
TAGS = ("<tool_call>", "</tool_call>")
SIZE = 288
"""Rows of the embedding: 264 tokens, padded to a multiple of 32 for the matrix kernels."""

TEMPLATE = Path(__file__).with_name("chat_template.jinja")
CONTEXT = 1024


def byte_characters() -> list[str]:
    """The printable character by which byte-level BPE files write each of the 256 bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in shown]
    return [chr(b) if b in shown else chr(256 + hidden.index(b)) for b in range(256)]


def build() -> PreTrainedTokenizerBase:
    """The tokenizer with its chat template."""
    names = (*CONTROL, *TAGS, *byte_characters())
    core = Tokenizer(BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    # No regular expression and no prefix space: text goes in and comes out byte for byte.
    core.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = ByteDecoder()
    core.add_tokens([AddedToken(name, special=name in CONTROL, normalized=False) for name in (*CONTROL, *TAGS)])
    wrap: Any = PreTrainedTokenizerFast  # its constructor has no annotations
    tokenizer: PreTrainedTokenizerBase = wrap(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=END,
        extra_special_tokens=[name for name in CONTROL if name not in (PAD, END)],
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
        chat_template=TEMPLATE.read_text(encoding="utf-8"),
    )
    return tokenizer


def save(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Writes the tokenizer's files, under the class name that every version of transformers knows."""
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def render(
    tokenizer: PreTrainedTokenizerBase, messages: list[Message], tools: list[Tool], prompting: bool = False
) -> str:
    """A conversation as text; `prompting` appends the token after which the assistant speaks."""
    offered: list[dict[Any, Any] | Callable[..., Any]] = [*tools]
    text = tokenizer.apply_chat_template(
        messages, tools=offered or None, add_generation_prompt=prompting, tokenize=False
    )
    return str(text)

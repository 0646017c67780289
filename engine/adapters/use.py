"""Commands that use an exported adapter elsewhere.

Documentation:

- PEFT: https://huggingface.co/docs/peft/quicktour
- vLLM: https://docs.vllm.ai/en/stable/features/lora
- llama.cpp: https://github.com/ggml-org/llama.cpp/tree/master/tools/server
- Ollama: https://docs.ollama.com/modelfile
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from ..models.find import SHIPPED

USE = "USE.md"
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""vLLM's ``--max-lora-rank``: at least the adapter's rank."""
HELLO, LONGEST = "Hello", 200
_WRITES_BASE = (
    "The first lines write the base with its tokenizer, if llama.cpp knows that one. It knows those of usual models:"
)


@dataclass(frozen=True)
class Exported:
    """An export and its paths."""

    folder: Path
    base: Path
    rank: int
    gguf: Path | None = None
    """None: not requested."""
    base_gguf: Path | None = None
    """The user's file of the base, with its tokenizer."""
    question: str = ""
    """Foreign text: an example of the training prompts."""

    @property
    def asks(self) -> str:
        """``question``, if it is one short line without quoting."""
        fits = self.question.isprintable() and 0 < len(self.question) <= LONGEST and "`" not in self.question
        return self.question if fits else HELLO


def use_text(exported: Exported) -> str:
    """The text of ``USE.md``: how PEFT and vLLM take the adapter; llama.cpp and Ollama, if there is a GGUF."""
    parts = [
        "# Use this adapter",
        f"It fits only the base model in `{exported.base}`. Where this folder or the base is moved, change the paths.",
        _section("PEFT", "In Python, with `transformers` and `peft`:", _peft(exported), "python"),
        _section("vLLM", "The second line asks what the first one serves, from another terminal:", _vllm(exported)),
    ]
    brought, reason = exported.base_gguf, ""
    if brought is None and exported.base in [path.resolve() for path in SHIPPED.values()]:
        reason = "They do not know the tokenizer of the base that ships with marlaas, and cannot use its adapters."
    elif exported.gguf is None:
        reason = (
            "They take a GGUF: `marlaas adapters export` writes one with `--gguf`, the export dialog with `ctrl+g`."
        )
    if reason or exported.gguf is None:
        return "\n\n".join([*parts, "## llama.cpp and Ollama", reason]) + "\n"
    base = brought or exported.folder / "base-with-tokenizer.gguf"
    convert = (
        "git clone https://github.com/ggml-org/llama.cpp\n"
        "pip install -r llama.cpp/requirements.txt\n"
        f"python llama.cpp/convert_hf_to_gguf.py {_quoted(exported.base)} --outfile {_quoted(base)}\n"
    )
    server = f"{'' if brought else convert}llama-server -m {_quoted(base)} --lora {_quoted(exported.gguf)}"
    modelfile, name = exported.folder / "Modelfile", served_name(exported.folder)
    ollama = (
        f"printf 'FROM %s\\nADAPTER %s\\n' {_quoted(base)} {_quoted(exported.gguf)} > {_quoted(modelfile)}\n"
        f"ollama create {name} -f {_quoted(modelfile)}\n"
        f"ollama run {name} {shlex.quote(exported.asks)}"
    )
    other = "" if brought else "It takes the base that the lines for llama.cpp's server write:"
    parts += [
        _section("llama.cpp, its server", "" if brought else _WRITES_BASE, server),
        _section("Ollama", other, ollama),
    ]
    return "\n\n".join(parts) + "\n"


def _section(program: str, about: str, lines: str, language: str = "sh") -> str:
    return "\n\n".join(filter(None, (f"## {program}", about, f"```{language}\n{lines}\n```")))


def served_name(folder: Path) -> str:
    """The folder's name for every program, in small letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", folder.name.lower()).strip("-") or "adapter"


def _peft(exported: Exported) -> str:
    return f"""from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base = {str(exported.base)!r}
tokenizer = AutoTokenizer.from_pretrained(base)
model = AutoModelForCausalLM.from_pretrained(base)
model = PeftModel.from_pretrained(model, {str(exported.folder)!r})
messages = [{{"role": "user", "content": {exported.asks!r}}}]
prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True, return_tensors="pt")
reply = model.generate(**prompt, max_new_tokens=100, do_sample=False)
print(tokenizer.decode(reply[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))"""


def _vllm(exported: Exported) -> str:
    rank = next((rank for rank in RANKS if rank >= exported.rank), exported.rank)
    name = served_name(exported.folder)
    serve = (
        f"vllm serve {_quoted(exported.base)} --enable-lora --max-lora-rank {rank}"
        f" --lora-modules {shlex.quote(f'{name}={exported.folder}')}"
    )
    asks = json.dumps({"model": name, "messages": [{"role": "user", "content": exported.asks}]})
    ask = f"curl localhost:8000/v1/chat/completions -H 'Content-Type: application/json' -d {shlex.quote(asks)}"
    return f"{serve}\n{ask}"


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))

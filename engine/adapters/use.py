"""Commands that use an export elsewhere.

Documentation:

- PEFT: https://huggingface.co/docs/peft/quicktour
- vLLM: https://docs.vllm.ai/en/stable/features/lora
- SGLang: https://docs.sglang.ai/basic_usage/send_request.html
- llama.cpp: https://github.com/ggml-org/llama.cpp/tree/master/tools/server
- Ollama: https://docs.ollama.com/modelfile; its templates: ``template/template.go`` of https://github.com/ollama/ollama
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from ..models.find import SHIPPED

USE, MODELFILE, BASE_GGUF = "USE.md", "Modelfile", "base-with-tokenizer.gguf"
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""vLLM's ``--max-lora-rank``: at least the adapter's rank."""
HELLO, LONGEST = "Hello", 200
_WRITES_BASE = (
    "The first lines write the base with its tokenizer, if llama.cpp knows that one. It knows those of usual models:"
)
_TEMPLATE = (
    "Ollama takes the chat template of the GGUF if it is nearly one that it knows. For others, add a `TEMPLATE` to the"
    " `Modelfile`."
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
    merged: bool = False
    """True: the folder is a whole model."""

    @property
    def unknown(self) -> bool:
        """True for a base whose tokenizer llama.cpp does not know."""
        return self.base_gguf is None and self.base in [path.resolve() for path in SHIPPED.values()]

    @property
    def asks(self) -> str:
        """``question``, if it is one short line without quoting."""
        fits = self.question.isprintable() and 0 < len(self.question) <= LONGEST and "`" not in self.question
        return self.question if fits else HELLO


def use_text(exported: Exported) -> str:
    """The text of ``USE.md``: how transformers and vLLM take the export; llama.cpp and Ollama, if there is a GGUF."""
    kind, library, sglang = "adapter", "`transformers` and `peft`", ""
    about = (
        f"It fits only the base model in `{exported.base}`. Where this folder or the base is moved, change the paths."
    )
    if exported.merged:
        kind, library, sglang = "model", "`transformers`", " SGLang takes the folder as well (`--model-path`)."
        about = f"This folder is a whole model: the base in `{exported.base}` with the adapter added to its weights."
    asks = f"The second line asks what the first one serves, from another terminal.{sglang}"
    parts = [
        f"# Use this {kind}",
        about,
        _section(
            "transformers" if exported.merged else "PEFT", f"In Python, with {library}:", python(exported), "python"
        ),
        _section("vLLM", asks, _vllm(exported)),
    ]
    if exported.gguf is None or exported.unknown:
        reason = "They take a GGUF: `marlaas adapters export` writes one with `--gguf`."
        if exported.unknown:
            reason = "They do not know the tokenizer of the base that ships with marlaas, and cannot use its adapters."
        return "\n\n".join([*parts, "## llama.cpp and Ollama", reason]) + "\n"
    folder, base = exported.folder, exported.base_gguf or exported.folder / BASE_GGUF
    writes, takes, server = "", "", f"llama-server -m {_quoted(exported.gguf)}"
    if not exported.merged:
        server = f"llama-server -m {_quoted(base)} --lora {_quoted(exported.gguf)}"
    if not exported.merged and exported.base_gguf is None:
        writes, takes = _WRITES_BASE, "It takes the base that the lines for llama.cpp's server write. "
        server = (
            "git clone https://github.com/ggml-org/llama.cpp\n"
            "pip install -r llama.cpp/requirements.txt\n"
            f"python llama.cpp/convert_hf_to_gguf.py {_quoted(exported.base)} --outfile {_quoted(base)}\n{server}"
        )
    name = served_name(folder)
    ollama = f"ollama create {name} -f {_quoted(folder / MODELFILE)}\nollama run {name} {shlex.quote(exported.asks)}"
    parts += [_section("llama.cpp, its server", writes, server), _section("Ollama", takes + _TEMPLATE, ollama)]
    return "\n\n".join(parts) + "\n"


def modelfile(exported: Exported) -> str:
    """Ollama's ``Modelfile``; paths in the folder are relative to it. Empty without a GGUF that Ollama can use."""
    if exported.gguf is None or exported.unknown:
        return ""
    if exported.merged:
        return f"FROM ./{exported.gguf.name}\n"
    return f"FROM {exported.base_gguf or f'./{BASE_GGUF}'}\nADAPTER ./{exported.gguf.name}\n"


def _section(program: str, about: str, lines: str, language: str = "sh") -> str:
    return "\n\n".join(filter(None, (f"## {program}", about, f"```{language}\n{lines}\n```")))


def served_name(folder: Path) -> str:
    """The folder's name for every program, in small letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", folder.name.lower()).strip("-") or "adapter"


def python(exported: Exported) -> str:
    """Lines for transformers, with PEFT for an adapter."""
    peft, adapter, path = "", "", exported.folder
    if not exported.merged:
        peft, path = "from peft import PeftModel\n", exported.base
        adapter = f"model = PeftModel.from_pretrained(model, {str(exported.folder)!r})\n"
    return f"""{peft}from transformers import AutoModelForCausalLM, AutoTokenizer

path = {str(path)!r}
tokenizer = AutoTokenizer.from_pretrained(path)
model = AutoModelForCausalLM.from_pretrained(path)
{adapter}messages = [{{"role": "user", "content": {exported.asks!r}}}]
prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True, return_tensors="pt")
reply = model.generate(**prompt, max_new_tokens=100, do_sample=False)
print(tokenizer.decode(reply[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))"""


def serve_line(exported: Exported) -> str:
    """For vLLM."""
    name = served_name(exported.folder)
    if exported.merged:
        return f"vllm serve {_quoted(exported.folder)} --served-model-name {name}"
    rank = next((rank for rank in RANKS if rank >= exported.rank), exported.rank)
    return (
        f"vllm serve {_quoted(exported.base)} --enable-lora --max-lora-rank {rank}"
        f" --lora-modules {shlex.quote(f'{name}={exported.folder}')}"
    )


def _vllm(exported: Exported) -> str:
    asked = {"model": served_name(exported.folder), "messages": [{"role": "user", "content": exported.asks}]}
    body = shlex.quote(json.dumps(asked))
    return (
        f"{serve_line(exported)}\ncurl localhost:8000/v1/chat/completions -H 'Content-Type: application/json' -d {body}"
    )


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))

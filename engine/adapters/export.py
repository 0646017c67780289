"""Exports an adapter into a folder that PEFT and llama.cpp can load, with the lines that use it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from marlaas.plugins.durable import tree_to_disk

from ..base import BaseModel, base_bytes, brought_names, load_base, names_like, write_adapter, write_base
from ..errors import AdapterError, BaseModelError
from .statefile import Array, PolicyState, StateHeader, read_expected, read_state

# An adapter in the format of Hugging Face PEFT: a folder with a configuration, safetensors weights and a README.
#
# numpy only, so that an export needs no torch. Format: https://huggingface.co/docs/peft/developer_guides/checkpoint

CONFIG, WEIGHTS, README = "adapter_config.json", "adapter_model.safetensors", "README.md"
OURS = "marlaas"
"""Key of the state file's header in the weights' metadata, so that training can begin from the folder."""
_PREFIX, _SUFFIX = "base_model.model.", ".weight"


def write_peft_folder(folder: Path, state: PolicyState, base: Path, task: str) -> list[Path]:
    """Write the three files into an existing folder and return their paths; raises ``OSError`` if the disk refuses."""
    contents = {
        CONFIG: (json.dumps(peft_config(state, base), indent=2) + "\n").encode(),
        WEIGHTS: save(peft_tensors(state.adapter), metadata={"format": "pt", OURS: json.dumps(asdict(state.header))}),
        README: readme(state.header, base, task).encode(),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in contents]


def read_peft_folder(folder: Path) -> PolicyState:
    """The adapter in a folder that marlaas has written, without moments.

    Raises ``AdapterError`` where there is none, where another program wrote it, for then its base is not known, and
    where it holds what is no finite number.
    """
    path = folder / WEIGHTS
    try:
        with safe_open(path, framework="np") as file:
            header = StateHeader(**json.loads((file.metadata() or {})[OURS]))
            names = {key: key.removeprefix(_PREFIX).removesuffix(_SUFFIX) for key in file.keys()}  # noqa: SIM118
            state = PolicyState(header, {name: file.get_tensor(key) for key, name in names.items()})
    except (OSError, SafetensorError) as error:
        raise AdapterError(f"the adapter cannot be read: {error}.", where=str(path)) from error
    except (KeyError, TypeError, ValueError) as error:
        raise AdapterError(
            "does not say which base it fits.",
            "`marlaas adapters export` of this version writes ones that do.",
            where=str(path),
        ) from error
    for name, array in state.adapter.items():
        if not np.isfinite(array).all():
            raise AdapterError(f"the adapter holds what is no finite number, in {name}.", where=str(path))
    return state


def peft_config(state: PolicyState, base: Path) -> dict[str, Any]:
    """The configuration that PEFT needs to rebuild the layers; what is left out has PEFT's default."""
    alpha = state.header.alpha
    modules = {name.rpartition(".lora_")[0] for name in state.adapter}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "r": state.header.rank,
        "lora_alpha": int(alpha) if alpha.is_integer() else alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({module.rpartition(".")[2] for module in modules}),
        "inference_mode": True,
    }


def peft_tensors(adapter: dict[str, Array]) -> dict[str, Array]:
    """The matrices under PEFT's names: ``base_model.model.<module>.lora_A.weight``."""
    return {
        f"{_PREFIX}{name}{_SUFFIX}": np.ascontiguousarray(array, dtype=np.float32) for name, array in adapter.items()
    }


def readme(header: StateHeader, base: Path, task: str) -> str:
    """The text of the README. Names are quoted as JSON, because a task's author may write anything."""
    return f"""---
base_model: {json.dumps(str(base))}
library_name: peft
---
# A LoRA adapter trained by marlaas

| | |
|---|---|
| task | {json.dumps(task).replace("|", "&#124;")} |
| step | {header.step} |
| rank, alpha | {header.rank}, {header.alpha:g} |
| base model | {json.dumps(str(base)).replace("|", "&#124;")} |
| base fingerprint | {header.base} |
| marlaas | {_own_version()} |

It fits only the base model with this fingerprint. `USE.md` has the lines that use it.
"""


def _own_version() -> str:
    try:
        return version("marlaas")
    except PackageNotFoundError:
        return "of a source tree"


# ``USE.md``, which lies beside an exported adapter: the lines that use it elsewhere, with the paths of this export.
#
# Pure. What each program takes is said in its documentation:
#
# - PEFT: https://huggingface.co/docs/peft/quicktour
# - vLLM: https://docs.vllm.ai/en/stable/features/lora
# - llama.cpp: https://github.com/ggml-org/llama.cpp/tree/master/tools/server
# - Ollama: https://docs.ollama.com/modelfile

USE = "USE.md"
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values that vLLM's ``--max-lora-rank`` may have; an adapter needs one that is not below its rank."""
HELLO, LONGEST = "Hello", 200
"""What the lines ask the model where nothing better is known, and the most characters of a question."""
_WRITES_BASE = (
    "The first lines write the base with its tokenizer, if llama.cpp knows that one. It knows those of the usual"
    " models, and not that of the base that ships with marlaas:"
)


@dataclass(frozen=True)
class Exported:
    """What was exported, and where it lies."""

    folder: Path
    base: Path
    """The base's folder, in the form of Hugging Face."""
    rank: int
    gguf: Path | None = None
    """The adapter as GGUF; None: it was not asked for."""
    base_gguf: Path | None = None
    """The base as GGUF, where there is one."""
    reads_text: bool = True
    """Whether ``base_gguf`` holds a tokenizer: one that a user brought does, one that marlaas wrote does not."""
    question: str = ""
    """What the adapter was trained on, such as a prompt; foreign text."""

    @property
    def asks(self) -> str:
        """What the lines ask the model: the question, where it is one short line that no quoting can go wrong with."""
        fits = self.question.isprintable() and 0 < len(self.question) <= LONGEST and "`" not in self.question
        return self.question if fits else HELLO


@dataclass(frozen=True)
class Use:
    """How one program takes the adapter."""

    program: str
    language: str
    """Of the lines: python or sh."""
    lines: str
    about: str = ""
    """A sentence to go with them."""


def uses(exported: Exported) -> list[Use]:
    """How each program takes what was exported; llama.cpp and Ollama take a GGUF alone."""
    found = [_peft(exported), _vllm(exported)]
    if exported.gguf is None:
        return found
    if exported.base_gguf is not None and not exported.reads_text:
        return [
            *found,
            _llama_tokens(exported, exported.gguf, exported.base_gguf),
            *_with_text(exported, exported.gguf),
        ]
    return [*found, *_with_text(exported, exported.gguf)]


def use_text(exported: Exported) -> str:
    """The text of ``USE.md``."""
    parts = [
        "# Use this adapter",
        f"It fits only the base model in `{exported.base}`. Where this folder or the base is moved, change the paths.",
    ]
    for use in uses(exported):
        parts += [f"## {use.program}", *([use.about] if use.about else []), f"```{use.language}\n{use.lines}\n```"]
    if exported.gguf is None:
        parts += [
            "## llama.cpp and Ollama",
            "They take a GGUF: `marlaas adapters export` writes one with `--gguf`, the export dialog with `ctrl+g`.",
        ]
    return "\n\n".join(parts) + "\n"


def served_name(folder: Path) -> str:
    """A name for the adapter that every program takes: the folder's, in small letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", folder.name.lower()).strip("-") or "adapter"


def _peft(exported: Exported) -> Use:
    lines = f"""from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base = {str(exported.base)!r}
tokenizer = AutoTokenizer.from_pretrained(base)
model = AutoModelForCausalLM.from_pretrained(base)
model = PeftModel.from_pretrained(model, {str(exported.folder)!r})
messages = [{{"role": "user", "content": {exported.asks!r}}}]
prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True, return_tensors="pt")
reply = model.generate(**prompt, max_new_tokens=100, do_sample=False)
print(tokenizer.decode(reply[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))"""
    return Use("PEFT", "python", lines, "In Python, with `transformers` and `peft`:")


def _vllm(exported: Exported) -> Use:
    rank = next((rank for rank in RANKS if rank >= exported.rank), exported.rank)
    name = served_name(exported.folder)
    serve = (
        f"vllm serve {_quoted(exported.base)} --enable-lora --max-lora-rank {rank}"
        f" --lora-modules {shlex.quote(f'{name}={exported.folder}')}"
    )
    asks = json.dumps({"model": name, "messages": [{"role": "user", "content": exported.asks}]})
    ask = f"curl localhost:8000/v1/chat/completions -H 'Content-Type: application/json' -d {shlex.quote(asks)}"
    return Use(
        "vLLM", "sh", f"{serve}\n{ask}", "The second line asks what the first one serves, from another terminal:"
    )


def _llama_tokens(exported: Exported, gguf: Path, base: Path) -> Use:
    lines = f"""from llama_cpp import Llama
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({str(exported.base)!r})
model = Llama({str(base)!r}, lora_path={str(gguf)!r}, n_ctx=1024, verbose=False)
messages = [{{"role": "user", "content": {exported.asks!r}}}]
prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
reply = []
for token in model.generate(prompt, temp=0.0, repeat_penalty=1.0):
    if token == tokenizer.eos_token_id or len(reply) == 100:
        break
    reply.append(token)
print(tokenizer.decode(reply, skip_special_tokens=True))"""
    about = f"In Python, with `llama-cpp-python`. `{base.name}` has no tokenizer, so `transformers` reads the text:"
    return Use("llama.cpp", "python", lines, about)


def _with_text(exported: Exported, gguf: Path) -> list[Use]:
    """llama.cpp's server and Ollama, which need a GGUF of the base that holds its tokenizer."""
    brought = exported.base_gguf is not None and exported.reads_text
    base = exported.base_gguf if brought and exported.base_gguf else exported.folder / "base-with-tokenizer.gguf"
    convert = (
        "git clone https://github.com/ggml-org/llama.cpp\n"
        "pip install -r llama.cpp/requirements.txt\n"
        f"python llama.cpp/convert_hf_to_gguf.py {_quoted(exported.base)} --outfile {_quoted(base)}\n"
    )
    about = "" if brought else _WRITES_BASE
    server = f"{'' if brought else convert}llama-server -m {_quoted(base)} --lora {_quoted(gguf)}"
    modelfile, name = exported.folder / "Modelfile", served_name(exported.folder)
    ollama = (
        f"printf 'FROM %s\\nADAPTER %s\\n' {_quoted(base)} {_quoted(gguf)} > {_quoted(modelfile)}\n"
        f"ollama create {name} -f {_quoted(modelfile)}\n"
        f"ollama run {name} {shlex.quote(exported.asks)}"
    )
    other = "" if brought else "It takes the base that the lines for llama.cpp's server write:"
    return [Use("llama.cpp, its server", "sh", server, about), Use("Ollama", "sh", ollama, other)]


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


# Exports an adapter: from a state file to a new folder that PEFT, and if asked llama.cpp, can load.
#
# The folder says in ``USE.md`` how to use it. It is written whole or not at all. Nothing is ever overwritten, and
# torch is not loaded.

GGUF, BASE_GGUF = "adapter.gguf", "base.gguf"
SMALL = 64 << 20
"""Bytes of a base up to which it is written as GGUF beside the adapter; a larger one the user converts, once."""


def export_adapter(
    state_path: Path,
    base_folder: Path,
    out_dir: Path,
    gguf: bool = False,
    task: str = "",
    expected: str = "",
    base_gguf: str = "",
    question: str = "",
) -> list[Path]:
    """Write the folder ``out_dir`` and return the files in it.

    ``task`` is named in its README; ``expected`` is the checksum that the adapter must have, if one is known;
    ``base_gguf`` is the base's own GGUF, where the user brought one; ``question`` is what the lines of ``USE.md`` ask
    the model. Raises ``AdapterError`` if ``out_dir`` exists, the state file is damaged or belongs to another base, or
    the disk refuses; ``BaseModelError`` if the base cannot be read or its architecture has no known name in llama.cpp.
    """
    if out_dir.exists() or out_dir.is_symlink():
        raise AdapterError("exists already, and nothing is overwritten.", "Choose another folder.", where=str(out_dir))
    state = read_expected(state_path, expected) if expected else read_state(state_path, moments=False)
    base = load_base(base_folder)
    if base.fingerprint != state.header.base:
        raise AdapterError(
            f"The adapter belongs to the base model {state.header.base}, but {base.path} holds {base.fingerprint}."
        )
    partial = out_dir.with_name(f".{out_dir.name}.{os.getpid()}")
    try:
        partial.mkdir(parents=True)
        exported = Exported(out_dir.absolute(), base.path.resolve(), state.header.rank, question=question)
        files = _write(partial, exported, state, base, gguf, task, base_gguf)
        tree_to_disk(partial)
        os.rename(partial, out_dir)
    except OSError as error:
        raise AdapterError(f"the folder could not be written: {error.strerror}.", where=str(out_dir)) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return [out_dir / file.name for file in files]


def _write(
    folder: Path, exported: Exported, state: PolicyState, base: BaseModel, gguf: bool, task: str, base_gguf: str
) -> list[Path]:
    """Write all files into ``folder``, which will be that of ``exported``."""
    files = write_peft_folder(folder, state, base.path.resolve(), task)
    if gguf:
        own = Path(base_gguf).expanduser()
        names = brought_names(own, base.config) if base_gguf else names_like(base.config)
        write_adapter(names, state.adapter, state.header.alpha, folder / GGUF)
        files.append(folder / GGUF)
        if not base_gguf and _write_small_base(base, folder / BASE_GGUF):
            files.append(folder / BASE_GGUF)
    if gguf:
        final = exported.folder
        ours = final / BASE_GGUF if folder / BASE_GGUF in files else None
        brought = Path(base_gguf).expanduser().absolute() if base_gguf else None
        exported = replace(exported, gguf=final / GGUF, base_gguf=brought or ours, reads_text=ours is None)
    (folder / USE).write_text(use_text(exported), encoding="utf-8")
    return [*files, folder / USE]


def _write_small_base(base: BaseModel, path: Path) -> bool:
    """Write the base as GGUF if it is small, and of an architecture for which marlaas can."""
    try:
        if base_bytes(base) > SMALL:
            return False
    except BaseModelError:
        return False
    write_base(base, path)
    return True

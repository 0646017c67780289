"""Exports a version with its model card, and pushes it to the Hugging Face hub."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

from marlaas.engine.adapters.use import MODELFILE, USE, Exported, python, serve_line
from marlaas.engine.errors import AdapterError, ConfigError
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import load_settings
from marlaas.engine.models.find import MAIN, hub_name, load_base
from marlaas.engine.spec.losses import DISTILL
from marlaas.engine.spec.task import PolicySpec
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import VersionRow

from ..operations.results import task_prompt
from ..reading import opened
from ..text.format import line
from .telling import Code, adapter_settings, model_card
from .writing import markdown

# The card's metadata: https://huggingface.co/docs/hub/model-cards. The hub refuses a base_model that is no name there.


def export(
    home: Home, version: VersionRow, out: Path, gguf: bool = False, merge: bool = False, repository: str = ""
) -> list[Path]:
    """Write the folder ``out`` for PEFT, with ``merge`` as a whole model; with ``gguf`` for llama.cpp, too.

    ``repository``: its place on the hub. Raises as ``export_adapter``.
    """
    from marlaas.engine.adapters.export import export_adapter  # imports numpy and gguf

    settings = load_settings(home)
    base, hub = load_base(settings.base), hub_name(settings.base)
    name = str(hub) if hub else ""
    with opened(home) as reader:
        prompt = task_prompt(reader, version)
        rank = adapter_settings(reader.task_config(version.task), version.policy).get("rank", PolicySpec.rank)
        place = Path(repository or out.name), Path(hub.repository if hub else base.path.name)
        card = readme(reader, version, Exported(*place, rank, merged=merge), name, base.fingerprint)
    return export_adapter(
        home.file(version.path),
        base.path.resolve(),
        out,
        merge=merge,
        gguf=gguf,
        card=card,
        expected=version.checksum,
        base_name=name,
        base_gguf=settings.rollout.gguf or str(base.gguf or ""),
        question=prompt,
    )


def readme(reader: Reader, version: VersionRow, place: Exported, base_name: str, fingerprint: str) -> str:
    """The model card. ``base_name``: the base's on the hub, or empty."""
    about = [
        ("Base model", line(str(place.base))),
        ("The base's fingerprint", fingerprint),
        ("marlaas", installed("marlaas")),
    ]
    use = [Code("In Python", python(place), "python"), Code("With vLLM", serve_line(place), "sh")]
    document = model_card(reader, version, about, use)
    head = metadata(reader.task_config(version.task), base_name, place.merged)
    return f"{head}\n{markdown(document, '')}"


def metadata(config: Mapping[str, Any], base_name: str, merged: bool) -> str:
    """The card's YAML, of which JSON is a part."""
    loss = str(config.get("train", {}).get("loss", ""))
    by_reward = config.get("kind", "train") == "train" and loss != DISTILL
    fields: dict[str, Any] = {
        "library_name": "transformers" if merged else "peft",
        "pipeline_tag": "text-generation",
        "tags": ["marlaas", "lora", *filter(None, [loss.replace("_", "-"), "reinforcement-learning" * by_reward])],
    }
    if base_name:
        fields |= {
            "base_model": base_name.partition("@")[0],
            "base_model_relation": "finetune" if merged else "adapter",
        }
    return "\n".join(["---", *(f"{key}: {json.dumps(value)}" for key, value in fields.items()), "---", ""])


LOGIN = "Set HF_TOKEN, or run `hf auth login`."


def push(
    home: Home, version: VersionRow, repository: str, private: bool = False, merge: bool = False, gguf: bool = False
) -> str:
    """Export into a folder of the home, and commit it to the hub's repository; returns the commit's address.

    A missing repository is made. Raises ``AdapterError``, ``ConfigError``, and as ``export``.
    """
    from huggingface_hub import HfApi, get_token  # slow to import

    from marlaas.engine.adapters.export import GGUF
    from marlaas.engine.adapters.peft_folder import CONFIG, WEIGHTS
    from marlaas.engine.models.gguf import remove_abandoned

    name = hub_name(repository)
    if name is None or name.revision != MAIN:
        raise ConfigError(f"{repository!r} cannot be a repository on the Hugging Face hub.", "Write org/name.")
    if get_token() is None:
        raise AdapterError("The Hugging Face hub wants your token, and there is none.", LOGIN)
    scratch = home.root / f".push.{os.getpid()}"
    folder = scratch / Path(repository).name
    try:
        remove_abandoned(home.root, ".push.")
        export(home, version, folder, gguf, merge, repository)
        api = HfApi()
        try:
            made = api.create_repo(repository, private=private or None, exist_ok=True)
            return api.upload_folder(
                repo_id=made.repo_id,
                folder_path=folder,
                commit_message=f"Version {version.number} of {line(version.task_name, 60)}",
                ignore_patterns=[USE, MODELFILE],  # they have paths of this machine
                delete_patterns=[CONFIG, WEIGHTS, GGUF] if merge else None,  # else transformers loads these
            ).commit_url
        except Exception as error:  # also errors of its HTTP library and its threads
            raise _refusal(error, repository) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _refusal(error: Exception, repository: str) -> AdapterError:
    cause = error if hasattr(error, "response") else error.__cause__ or error
    status = getattr(getattr(cause, "response", None), "status_code", None)
    reason = line(getattr(cause, "server_message", None) or str(cause) or type(cause).__name__, 200).rstrip(".")
    if status == 401:
        return AdapterError("The Hugging Face hub does not know your token.", LOGIN)
    if status == 403:
        hint = "Take a token with the right to write, or another name."
        return AdapterError(f"Your token may not write to {repository}: {reason}.", hint)
    if status is None:
        return AdapterError(f"The push was cut: {reason}.", "Look at the network; the same command tries again.")
    return AdapterError(f"The Hugging Face hub refused {repository}: {reason}.")

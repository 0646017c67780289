"""Fetches a base from the Hugging Face hub into the local cache, when a person asks for it.

Progress goes to standard error. After an error, what was downloaded stays in the cache, and the next download continues
from there. The addresses of hub and cache (``HF_ENDPOINT``, ``HF_HOME``) and the account (``HF_TOKEN``) are
huggingface_hub's own settings.
"""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from ..errors import BaseModelError
from .find import HubName, find_base, hub_name

WANTED = ("*.json", "*.jinja", "*.safetensors", "tokenizer.model", "merges.txt", "vocab.txt", "spiece.model")
"""Configuration, template, weights and tokenizer; no other format of the weights."""
UNWANTED = ("*/*",)
"""Folders within a repository hold other forms of it: onnx, original, gguf."""
AGAIN = "What has come stays in the Hugging Face cache; the same command goes on from there."


def download_base(name: HubName) -> Path:
    """Download everything that a base needs into the cache and return the folder of its snapshot.

    Raises ``BaseModelError``: no network, no such repository or revision, no permission to read it, a full disk, a cut
    connection, and a repository that is no base. Ctrl-C ends the process at once: huggingface_hub's threads would
    finish the files in progress first. ``KeyboardInterrupt`` passes through.
    """
    run_apart(f"The download of {name}", AGAIN, __name__, str(name))
    try:
        return find_base(str(name))
    except BaseModelError as error:
        raise BaseModelError(
            f"{name} was fetched, but is no base that marlaas reads: {error.message}",
            "The hub holds no more of it; choose a repository with a config.json and *.safetensors weights.",
        ) from error


def run_apart(what: str, hint: str, module: str, *arguments: str) -> None:
    """Run a module of ours in a process of its own, until it ends or this one is interrupted.

    Raises the ``BaseModelError`` that the process prints (``printed``), and one with ``what`` and ``hint`` if it dies.
    """
    command = [sys.executable, "-P", "-m", module, *arguments]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True) as child:
        try:
            result, _ = child.communicate()
        except BaseException:
            child.kill()
            raise
    if child.returncode == BaseModelError.exit_code and result:
        raise BaseModelError(*json.loads(result))
    if child.returncode:
        raise BaseModelError(f"{what} died with status {child.returncode}.", hint)


def printed(run: Callable[[], None]) -> int:
    """Run such a process; an error of it is printed as JSON, its sentence and hint. Returns the exit status."""
    try:
        run()
    except BaseModelError as error:
        print(json.dumps([error.cause, error.hint]))
        return error.exit_code
    return 0


def fetch(name: HubName) -> None:
    """Download in this process. Raises ``BaseModelError``."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    repository, revision = name.repository, name.revision
    try:
        snapshot_download(repository, revision=revision, allow_patterns=list(WANTED), ignore_patterns=list(UNWANTED))
    except GatedRepoError as error:
        raise BaseModelError(
            f"The hub gives {repository} only to those who have accepted its terms.",
            f"Accept them on https://huggingface.co/{repository}, then `hf auth login` and try again.",
        ) from error
    except RepositoryNotFoundError as error:
        raise BaseModelError(
            f"The hub has no model {repository!r}, or shows it only to those who are allowed to see it.",
            "Check the name; for a private model, `hf auth login` first.",
        ) from error
    except RevisionNotFoundError as error:
        raise BaseModelError(f"The model {repository!r} has no revision {revision!r} on the hub.") from error
    except LocalEntryNotFoundError as error:
        raise BaseModelError(f"The Hugging Face hub cannot be reached: {_reason(error)}.", AGAIN) from error
    except HfHubHTTPError as error:
        raise BaseModelError(f"The Hugging Face hub refuses {name}: {_reason(error)}.", AGAIN) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise BaseModelError(
                f"The disk is full: {name} does not fit into the cache.", f"Free space. {AGAIN}"
            ) from error
        raise BaseModelError(f"The download of {name} was cut: {_reason(error)}.", AGAIN) from error
    except Exception as error:  # also errors of its HTTP library and its threads
        if type(error).__module__.startswith("httpx"):
            raise BaseModelError(f"The connection to the Hugging Face hub broke: {_reason(error)}.", AGAIN) from error
        raise BaseModelError(f"{name} cannot be downloaded: {_reason(error)}.") from error


def _reason(error: BaseException) -> str:
    """The first line of what a library says, without its full stop."""
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return (lines[0] if lines else type(cause).__name__).rstrip(".")


def main() -> None:
    """The process: downloads the base that its argument names."""
    name = hub_name(sys.argv[1])
    assert name is not None  # the parent passes a valid name
    fetch(name)


if __name__ == "__main__":
    sys.exit(printed(main))

"""Fetches a base from the Hugging Face hub into the local cache, when a person asks for it.

A name flows in, the folder of a whole entry flows out; progress goes to standard error. Whatever goes wrong is one
sentence; what has come stays in the cache, and the next download goes on from there. Where the hub and the cache are
(``HF_ENDPOINT``, ``HF_HOME``) and who asks (``HF_TOKEN``) are huggingface_hub's own settings.
"""

from __future__ import annotations

import errno
from pathlib import Path

from ..errors import BaseModelError
from .find import HubName, find_base

WANTED = ("*.json", "*.jinja", "*.safetensors", "tokenizer.model", "merges.txt", "vocab.txt", "spiece.model")
"""Configuration, template, weights and tokenizer; no other form of the weights."""
UNWANTED = ("*/*",)
"""Folders within a repository hold other forms of it: onnx, original, gguf."""
AGAIN = "What has come stays in the Hugging Face cache; the same command goes on from there."


def download_base(name: HubName) -> Path:
    """Bring everything that a base needs into the cache and return its snapshot.

    Raises ``BaseModelError``: no network, no such repository or revision, no leave to read it, a full disk, a cut
    connection, and a repository that is no base. ``KeyboardInterrupt`` passes through.
    """
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
    except Exception as error:  # its HTTP library's own, and what its threads raise
        if type(error).__module__.startswith("httpx"):
            raise BaseModelError(f"The connection to the Hugging Face hub broke: {_reason(error)}.", AGAIN) from error
        raise BaseModelError(f"{name} cannot be downloaded: {_reason(error)}.") from error
    return find_base(str(name))


def _reason(error: BaseException) -> str:
    """The first line of what a library says, without its full stop."""
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return (lines[0] if lines else type(cause).__name__).rstrip(".")

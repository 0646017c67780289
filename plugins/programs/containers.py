"""Programs in OCI images, which ``podman`` or ``docker`` runs."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..host.limits import memory_mb
from .run import ProgramFailed

MOUNT = "/marlaas"
"""Where a program in a container sees its folders."""
FIXED = "fixed"
"""The folder that it cannot change."""
CLIENTS = ("podman", "docker")
CLIENT_FAILED = 125
"""Exit code if there is no container."""
_PATIENCE = 60.0
_pulling = threading.Lock()


@functools.cache
def find_client() -> str:
    """The path of ``podman`` or ``docker``. Raises ``ProgramFailed``."""
    if os.path.exists("/proc/1/comm") and Path("/proc/1/comm").read_text() == "bwrap\n":
        raise ProgramFailed("a plugin under sandbox = true or network = false starts no container: leave out image")
    reason = "an image needs podman or docker: install podman"
    for client in filter(None, map(shutil.which, CLIENTS)):
        if not (error := _error_of(client, "info")):
            return client
        reason = f"an image needs podman or docker, and {os.path.basename(client)} does not answer ({error}): start it"
    raise ProgramFailed(reason)


def pull(image: str) -> str:
    """The client, when it has the image. Raises ``ProgramFailed``."""
    client = find_client()
    with _pulling:  # the episodes of a group begin together
        if _error_of(client, "image", "inspect", image) and (error := _error_of(client, "pull", "--quiet", image)):
            how = f"see what `{os.path.basename(client)} pull {image}` says"
            raise ProgramFailed(f"the image {image} cannot be pulled ({error}): {how}")
    return client


def container_of(top: str) -> str:
    """The name of the container with these folders."""
    return f"marlaas-{os.path.basename(top)}"


def remove(client: str, container: str) -> None:
    """Also a container that still runs, or was never there."""
    _error_of(client, "rm", "--force", "--volumes", container)


def _error_of(*words: str) -> str:
    patience = None if "pull" in words else _PATIENCE
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False, timeout=patience)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stderr.strip().splitlines() or ["it does not say why"])[-1][:300] if done.returncode else ""


def run_words(
    client: str, image: str, top: str, folder: str, variables: Mapping[str, str], words: Sequence[str]
) -> list[str]:
    """The command that runs ``words`` in a new container, with the folders of ``top`` below ``MOUNT``.

    ``folder``: to work in; empty: ``words`` go to one, as root. Otherwise what they write belongs to this user.
    """
    user = f"{os.getuid()}:{os.getgid()}" if folder and os.path.basename(client) == "docker" else "0:0"
    volumes = [f"{top}/{entry}:{MOUNT}/{entry}{':ro' * (entry == FIXED)}" for entry in sorted(os.listdir(top))]
    return [
        *(client, "run", "--interactive", f"--name={container_of(top)}", "--network=host", f"--user={user}"),
        *("--entrypoint=", "--stop-timeout=0", "--security-opt=label=disable"),
        *([f"--memory={memory_mb()}m"] if memory_mb() else []),
        *([f"--workdir={folder}"] if folder else []),
        *(f"--volume={volume}" for volume in volumes),
        *(f"--env={variable}={value}" for variable, value in variables.items()),
        *(image, *words),
    ]

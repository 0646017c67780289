"""``python -m tools.lock``: writes ``constraints/hashes``, what ``make install`` may take, file by file and by hash.

``pyproject.toml`` and the versions of ``constraints/cpu.txt`` flow in; for each package, the hashes of all its files
flow out, for every Python and platform that marlaas promises. uv asks the index that it is set up for. PyTorch itself
has no hash here: which file it is depends on where it is taken from.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import uv

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "constraints" / "hashes"
BUILD = "scikit-build-core[pyproject]\ncmake\nninja\n"
"""What compiles llama.cpp."""
LLAMA = "llama-cpp-python"
NOT_OURS = ("torch", "pip")
"""Not locked: PyTorch, and the pip that every new environment has."""
CUDA = re.compile(r"(nvidia-(?!ml-py)|cuda-|triton$)")
"""What PyTorch needs for NVIDIA's cards, if it is taken from pip's own index."""
USES = {
    "install": "what marlaas and PyTorch need, but PyTorch and llama.cpp themselves",
    "serve": "what `marlaas serve` needs besides",
    "api": "what `marlaas api` needs besides `install`",
    "dev": "what its tests and checks need besides all three",
    "cluster": "what a cluster of several machines needs besides `install`",
    "docs": "what `make docs` needs besides `install`",
    "llama": "llama.cpp, as source",
    "build": "what compiles llama.cpp",
    "cuda": "what PyTorch needs for NVIDIA's cards",
}

Packages = dict[str, str]
"""By package name: its lines of a requirements file."""


def main() -> int:
    """Ask uv, and write the files."""
    chosen = {extra: compiled("--extra", "cpu", "--extra", extra) for extra in ("cpu", "serve", "api", "dev")}
    files = divided(*chosen.values())
    for extra in ("cluster", "docs"):
        files[extra] = besides(chosen["cpu"], compiled("--extra", "cpu", "--extra", extra))
    files["build"] = compiled(text=BUILD)
    for name, packages in files.items():
        head = f"# Made by `make lock`: {USES[name]}.\n"
        (FOLDER / f"{name}.txt").write_text(head + "".join(packages[package] for package in sorted(packages)))
        print(f"{name}.txt: {len(packages)} packages")
    return 0


def divided(base: Packages, serve: Packages, api: Packages, dev: Packages) -> dict[str, Packages]:
    """By file: the packages that each step installs, each package once."""
    files: dict[str, Packages] = {"install": {}, "llama": {}, "cuda": {}, "serve": {}, "api": {}, "dev": {}}
    steps = (("install", base), ("serve", serve), ("api", api))
    for name, lines in (base | serve | api | dev).items():
        if name not in NOT_OURS:
            step = next((step for step, there in steps if name in there), "dev")
            files["llama" if name == LLAMA else "cuda" if CUDA.match(name) else step][name] = lines
    return files


def besides(base: Packages, more: Packages) -> Packages:
    """The packages of ``more`` that ``base`` lacks; it may repeat packages of the other lists."""
    return {name: lines for name, lines in more.items() if name not in base and name not in NOT_OURS}


def compiled(*extras: str, text: str = "") -> Packages:
    """What uv chooses, for the project with some extras, or for the requirements in a text."""
    words = "--universal --python-version 3.11 --generate-hashes --quiet --no-header --no-annotate --no-emit-index-url"
    command = [uv.find_uv_bin(), "pip", "compile", *words.split(), "--constraints", "constraints/cpu.txt"]
    command += ["-"] if text else [*extras, "pyproject.toml"]
    done = subprocess.run(command, cwd=ROOT, input=text, text=True, capture_output=True)
    if done.returncode:
        sys.exit(f"uv cannot choose: {done.stderr.strip()}")
    return packages_of(done.stdout)


def packages_of(text: str) -> Packages:
    """A requirements file, package by package; one that differs by the Python has several entries."""
    packages: Packages = {}
    for block in re.split(r"(?m)^(?=[A-Za-z0-9])", text):
        name, equals, _ = block.partition("==")
        if equals:
            packages[name] = packages.get(name, "") + block
    return packages


if __name__ == "__main__":
    sys.exit(main())

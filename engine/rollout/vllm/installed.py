"""Is there a vLLM that can be used? One sentence for people where there is none. Imports no vllm."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

from ...devices import GPU_EXTRA, LEAST_VLLM, find_installed
from ...errors import BaseModelError

INSTEAD = 'Or set `sampler = "auto"` under [rollout] in marlaas.toml.'


def require() -> None:
    """Raise ``BaseModelError`` where vLLM is missing or too old."""
    found = find_installed().vllm
    if not found:
        raise BaseModelError("vLLM is not installed.", f"{GPU_EXTRA}, about 12 GB. {INSTEAD}")
    if _older(found):
        raise BaseModelError(
            f"vLLM {found} can serve another tenant's adapter ({LEAST_VLLM} cannot), and is not used.",
            f"`pip install --upgrade 'marlaas[gpu]'` installs another. {INSTEAD}",
        )


def _older(found: str) -> bool:
    try:
        return Version(found) < LEAST_VLLM
    except InvalidVersion:
        return False  # somebody's own build

"""TRL's side: a workload and a number of cores flow in, a ``Run`` flows out."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from marlaas.engine.models.find import load_base

from ..machinery.cores import look, pinned, used_by_others
from . import workload as fixed
from .runs import Run
from .workload import Workload

SCRIPT = Path(__file__).with_name("trl_grpo.py")
PATIENCE = 600.0


def run(
    python: Path,
    workload: Workload,
    steps: int,
    seed: int,
    cores: Sequence[int],
    options: Mapping[str, bool] = MappingProxyType({}),
    environment: Mapping[str, str] = MappingProxyType({}),
    threads: int = 0,
    held_out: int = 0,
) -> Run:
    """Train in its own process on those cores, with the variables of ``environment``.

    ``threads`` are torch's; 0 is one for each core. With ``held_out`` the policy is scored on that many prompts at the
    end, those that ``workload.write_rows`` writes for the same numbers.

    Raises ``RuntimeError`` with TRL's last words.
    """
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as name:
        folder = Path(name)
        fixed.write_rows(workload, steps, seed, folder, max(1, held_out))
        settings = _settings(workload, steps, seed, threads or len(cores), folder) | dict(options)
        settings["held_out"] = str(folder / "eval.jsonl") if held_out else ""
        return launch(python, settings, folder, cores, environment)


def launch(
    python: Path,
    settings: Mapping[str, object],
    folder: Path,
    cores: Sequence[int],
    environment: Mapping[str, str],
    patience: float = PATIENCE,
) -> Run:
    """Run the script with those settings, in a folder that is there, for at most ``patience`` seconds.

    Raises ``RuntimeError`` with TRL's last words.
    """
    path, outcome, threads = folder / "settings.json", folder / "outcome.json", str(settings["threads"])
    path.write_text(json.dumps(settings), encoding="utf-8")
    before, own, started = look(cores), _children_seconds(), time.time()
    with pinned(cores):
        done = subprocess.run(
            [str(python), "-P", str(SCRIPT), str(path), str(outcome)],
            capture_output=True,
            text=True,
            timeout=patience,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"OMP_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1"} | dict(environment),
        )
    if done.returncode:
        words = done.stderr.strip().splitlines() or ["it left no word."]
        raise RuntimeError(f"TRL ended with code {done.returncode}: {words[-1]}")
    others = used_by_others(before, look(cores), _children_seconds() - own)
    said = json.loads(outcome.read_text(encoding="utf-8"))
    ends, used, middle = said["ends"], said["used"], len(said["ends"]) // 4
    load = (used[-1] - used[middle]) / (ends[-1] - ends[middle]) if len(ends) > 1 else 0.0
    return Run(
        started,
        ends,
        said["rewards"],
        said["lengths"],
        {"TRL": load},
        others,
        before=said["before"],
        after=said.get("after", ()),
        begun=said["begun"],
    )


def _children_seconds() -> float:
    """Processor seconds of all children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _settings(workload: Workload, steps: int, seed: int, threads: int, folder: Path) -> dict[str, object]:
    return {
        "folder": str(folder),
        "rows": str(folder / "train.jsonl"),
        "plugin": str(workload.plugin),
        "base": str(load_base(workload.base).path),
        "steps": steps,
        "seed": seed,
        "threads": threads,
        "graded": workload.graded,
        "max_tokens": workload.max_tokens,
        "groups": workload.groups,
        "group_size": workload.group_size,
        "at_once": workload.at_once,
        "temperature": fixed.TEMPERATURE,
        "learning_rate": fixed.LEARNING_RATE,
        "betas": fixed.BETAS,
        "clip_norm": fixed.CLIP_NORM,
        "rank": fixed.RANK,
        "alpha": fixed.ALPHA,
    }

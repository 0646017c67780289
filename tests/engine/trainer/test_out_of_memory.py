"""A pass that does not fit is undone, made smaller, and told; on a real shortage, in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from marlaas.engine.errors import AdapterError
from marlaas.engine.trainer.torch_trainer import DeviceFull, PassBackoff, on, once_more

CHILD = """
import asyncio, json, resource, sys
from dataclasses import replace
from pathlib import Path
import numpy as np
import torch
from marlaas.engine.models.find import load_base
from marlaas.engine.trainer.protocol import PolicyConfig, TrainGroup, TrainSequence
from marlaas.engine.trainer.torch_trainer import TorchTrainer

folder, least, answer, room = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), 1 << 40
config = PolicyConfig(rank=4, alpha=8.0, denominator=1000.0)

def draw(number, prompt=200, answer=60, members=8):
    random = np.random.default_rng(number)
    start = random.integers(0, 90, prompt)
    mask = np.repeat(np.array([0, 1], dtype=np.uint8), (prompt, answer))
    return TrainGroup(number, tuple(
        TrainSequence(np.concatenate([start, random.integers(0, 90, answer)]).astype(np.int32), mask,
                      np.where(mask, np.float32(-2.0), np.float32(0.0)), float(advantage))
        for advantage in random.normal(size=members)))

def size():
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()

async def main():
    base = load_base("tiny")
    trainer = TorchTrainer(str(base.path), base.fingerprint, sync=False, room=room, names=("core 7",))
    small, groups = draw(0, 8, 4), tuple(draw(number, answer=answer) for number in range(1, 5))
    # what never is given back has been taken before the limit falls
    await trainer.open("a", config, str(folder / "warm"), resume=False)
    await trainer.accumulate("a", (small,))
    await trainer.step("a", str(folder / "warm"))
    await trainer.open("a", config, str(folder / "0"), resume=False)
    await trainer.open("b", config, str(folder / "0"), resume=False)
    await trainer.accumulate("a", (small,))
    await trainer.accumulate("b", (small,))
    free = least << 20
    resource.setrlimit(resource.RLIMIT_AS, (size() + free, resource.RLIM_INFINITY))
    found = {"error": "", "notice": ""}
    try:
        found["notice"] = (await trainer.accumulate("a", groups)).notice
        found["again"] = (await trainer.accumulate("a", (small,))).notice  # it fitted before there were smaller passes
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    if not found["error"]:
        found["norm"] = (await trainer.step("a", str(folder / "a"))).grad_norm
        await trainer.accumulate("b", groups)
        await trainer.accumulate("b", (small,))
        found["expected"] = (await trainer.step("b", str(folder / "b"))).grad_norm
    print(json.dumps(found))
    trainer.shutdown()

asyncio.run(main())
"""


def run(folder: Path, mebibytes: int, answer: int = 60) -> dict[str, object]:
    words = [sys.executable, "-P", "-c", CHILD, str(folder), str(mebibytes), str(answer)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.processes
@pytest.mark.usefixtures("main_library")
@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_what_does_not_fit_trains_in_smaller_passes(tmp_path: Path) -> None:
    found = run(tmp_path, 60)
    assert found["error"] == ""
    assert str(found["notice"]).startswith("Training ran out of memory on core 7; passes are ")
    assert found["again"] == ""
    assert found["norm"] == pytest.approx(found["expected"], rel=1e-4)


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_where_not_even_a_sequence_fits_there_is_a_sentence(tmp_path: Path) -> None:
    found = run(tmp_path, 1, answer=3000)  # what the heap has kept, some 50 MB, is not enough for one of these
    assert str(found["error"]).startswith(
        "AdapterError: Training ran out of memory on core 7, even with a single sequence in a pass. Lower "
    )


def test_work_is_undone_before_it_is_done_again() -> None:
    happened: list[str] = []
    halves = iter([True, True, False])

    def work() -> str:
        happened.append("work")
        if happened.count("work") < 3:
            raise DeviceFull("gpu 0")
        return "done"

    backoff = PassBackoff(lambda: next(halves))
    assert backoff.make(work, lambda: happened.append("undo")) == "done"
    assert happened == ["work", "undo", "work", "undo", "work"]
    assert backoff.notice() == "Training ran out of memory on gpu 0; passes are 4 times smaller from now on."
    assert backoff.notice() == ""
    happened.clear()
    with pytest.raises(AdapterError, match="on gpu 0, even with a single sequence"):
        backoff.make(work, lambda: happened.append("undo"))
    assert happened == ["work", "undo"]


def test_other_errors_pass_through() -> None:
    def fail() -> None:
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        PassBackoff(lambda: True).make(lambda: on("gpu 0", fail))


def test_a_step_without_memory_is_tried_once_more() -> None:
    attempts: list[int] = []

    def work(needed: int) -> int:
        attempts.append(needed)
        if len(attempts) < needed:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return needed

    assert once_more("gpu 0", lambda: work(2)) == 2
    attempts.clear()
    with pytest.raises(AdapterError, match="no memory on gpu 0 for an optimizer step"):
        once_more("gpu 0", lambda: work(3))

"""What counts as memory that has run out, and how a process says that it ended for it."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from marlaas.engine.devices.limits import STATUS, as_shortage, ran_out
from marlaas.engine.errors import CallFailed, OutOfMemory


def test_what_torch_numpy_and_python_raise_counts() -> None:
    with pytest.raises(RuntimeError) as refused:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert ran_out(refused.value)
    with pytest.raises(MemoryError) as refused_too:
        np.empty(1 << 60, np.uint8)
    assert ran_out(refused_too.value)
    assert ran_out(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")) and ran_out(OutOfMemory("x"))
    assert not ran_out(RuntimeError("shapes differ")) and not ran_out(OSError("out of memory"))


def test_onednn_shortages_count_and_shape_errors_do_not() -> None:
    assert ran_out(RuntimeError("could not create a primitive"))
    assert ran_out(RuntimeError("could not execute a primitive"))
    unknown = "could not create a primitive descriptor for the matmul primitive. Run workload with …"
    assert not ran_out(RuntimeError(unknown)) and not ran_out(RuntimeError("could not create an engine"))


def test_only_a_shortage_becomes_out_of_memory() -> None:
    shortage = as_shortage(RuntimeError("CUDA out of memory"))
    assert isinstance(shortage, OutOfMemory) and str(shortage) == "RuntimeError: CUDA out of memory"
    other = CallFailed("A bug.")
    assert as_shortage(other) is other


@pytest.mark.processes
@pytest.mark.parametrize(("error", "status"), [("MemoryError()", STATUS), ("KeyError()", 1)])
def test_a_process_leaves_its_reason_and_whether_it_was_memory(error: str, status: int) -> None:
    program = f"from marlaas.engine.devices.limits import end_process; end_process('Why.\\nAt length.', {error})"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (status, "Why.\n")

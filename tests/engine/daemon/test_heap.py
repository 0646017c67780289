"""All threads of an engine share a heap."""

from __future__ import annotations

import subprocess
import sys

import pytest

ARENAS = """
import ctypes, sys, threading
from marlaas.engine.daemon.main import keep_to_one_heap
libc = ctypes.PyDLL(None)
libc.malloc.restype = ctypes.c_void_p
if sys.argv[1] == "one":
    keep_to_one_heap()
blocks = []
def work():
    blocks.append([libc.malloc(ctypes.c_size_t(10_000)) for _ in range(50)])
    met.wait()
met = threading.Barrier(4)
threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len({block >> 26 for own in blocks for block in own}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="arenas are glibc's")
def test_threads_share_one_heap() -> None:
    apart, together = (
        int(subprocess.run([sys.executable, "-P", "-c", ARENAS, how], capture_output=True, check=True).stdout)
        for how in ("apart", "one")
    )
    assert apart >= 4, "each thread has a heap of 64 MB of the address space"
    assert together <= 2, "one heap, which may lie across a border of 64 MB"

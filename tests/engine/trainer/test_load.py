"""Freed memory stays with the process, in the one heap from which every thread takes it."""

import platform
import subprocess
import sys

import pytest

CHILD = """
import ctypes
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from marlaas.engine.trainer.torch_trainer import keep_freed_memory

library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]
SIZE = 8 << 20

def heap():
    line = next(line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("[heap]"))
    return [int(end, 16) for end in line.split()[0].split("-")]

def block():
    address = library.malloc(SIZE)
    begin, end = heap()
    library.free(address)
    return begin <= address and address + SIZE <= end, heap()[1] == end

keep_freed_memory()
with ThreadPoolExecutor(1) as thread:
    print(*thread.submit(block).result())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of glibc")
@pytest.mark.torch
def test_threads_share_one_heap_that_keeps_freed_memory() -> None:
    out = subprocess.run([sys.executable, "-P", "-c", CHILD], check=True, capture_output=True, text=True)
    assert out.stdout.split() == ["True", "True"]

"""``python -m tools.vulkan``: llama.cpp for Vulkan in ``.vulkan``, everything else from ``.venv``. Does nothing twice.

Run by ``make test-slow-vulkan``; standard library only. Needs a compiler of shaders and Vulkan's headers; a card, or
Mesa's software device, is needed by the tests alone. The compiler works for a quarter of an hour or more.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from ..beside import make, stands
from ..steps import ROOT, fail

VENV = ROOT / ".vulkan"
FLAGS = "-DGGML_VULKAN=on"
SHIM = Path(__file__).with_name("old_headers.hpp")
HEADERS = (Path("/usr/include/vulkan/vulkan_core.h"), Path("/usr/local/include/vulkan/vulkan_core.h"))
LEAST = 272
"""Version of the headers, 1.3.272, that first know what llama.cpp uses."""
NEEDED = "On Debian: apt-get install libvulkan-dev glslc spirv-headers mesa-vulkan-drivers."


def main() -> int:
    """Make the environment, unless it is there; headers that are too old are completed."""
    if stands(VENV, FLAGS):
        return 0
    kit = os.environ.get("VULKAN_SDK", "")
    found = headers([Path(kit, "include/vulkan/vulkan_core.h")] if kit else HEADERS)
    if found is None or shutil.which("glslc") is None:
        return fail("Vulkan's headers or the compiler of its shaders, glslc, are missing.", NEEDED)
    if found < LEAST:
        os.environ["CXXFLAGS"] = f"-include {SHIM} {os.environ.get('CXXFLAGS', '')}".strip()
    return make(VENV, FLAGS, "llama.cpp for Vulkan; a quarter of an hour or more on 2 cores, once")


def headers(paths: Iterable[Path]) -> int | None:
    """The last of the three numbers of the version of the first headers that are there; None where there are none."""
    for path in paths:
        if path.exists():
            number = re.search(r"#define VK_HEADER_VERSION (\d+)", path.read_text(encoding="utf-8", errors="replace"))
            return int(number[1]) if number else 0
    return None


if __name__ == "__main__":
    sys.exit(main())

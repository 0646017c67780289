"""``python -m tools.vulkan``: llama.cpp for Vulkan in ``.vulkan``, everything else from ``.venv``. Does nothing twice.

Run by ``make test-slow-vulkan``; standard library only. Needs a compiler of shaders and Vulkan's headers; a card, or
Mesa's software device, is needed by the tests alone. The compiler works for a quarter of an hour or more.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from ..install import LLAMA, ROOT, StepFailed, fail, last_complaint, log_path, minutes, step
from ..processor import instruction_sets

VENV = ROOT / ".vulkan"
PYTHON = VENV / "bin" / "python"
SHIM = Path(__file__).with_name("old_headers.hpp")
HEADERS = (Path("/usr/include/vulkan/vulkan_core.h"), Path("/usr/local/include/vulkan/vulkan_core.h"))
LEAST = 272
"""Version of the headers, 1.3.272, that first know what llama.cpp uses."""
NEEDED = "On Debian: apt-get install libvulkan-dev glslc spirv-headers mesa-vulkan-drivers."


def main() -> int:
    """Make it, unless it stands."""
    stamp = VENV / ".installed"
    if stamp.exists() and stamp.read_text() == wanted():
        return 0
    kit = os.environ.get("VULKAN_SDK", "")
    found = headers([Path(kit, "include/vulkan/vulkan_core.h")] if kit else HEADERS)
    if found is None or shutil.which("glslc") is None:
        return fail("Vulkan's headers or the compiler of its shaders, glslc, are missing.", NEEDED)
    print(f"Into {VENV}: llama.cpp for Vulkan; a quarter of an hour or more on 2 cores, once.", flush=True)
    started = time.monotonic()
    try:
        install(old=found < LEAST)
    except StepFailed as error:
        return fail(f"Set-up stopped while {error}: {last_complaint()}", f"The whole log is {log_path()}.")
    stamp.write_text(wanted())
    print(f"Set-up is done after {minutes(time.monotonic() - started)}.", flush=True)
    return 0


def install(old: bool) -> None:
    """All steps; ``old`` headers are completed."""
    if not PYTHON.exists():
        step("making .vulkan", [sys.executable, "-m", "venv", str(VENV)])
    command = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "--no-cache-dir"]
    os.environ["CMAKE_ARGS"] = f"-DGGML_VULKAN=on {os.environ.get('CMAKE_ARGS', '')}".strip()
    if old:
        os.environ["CXXFLAGS"] = f"-include {SHIM} {os.environ.get('CXXFLAGS', '')}".strip()
    step("compiling llama.cpp for Vulkan", [*command, "--no-binary", LLAMA, "-c", str(constraints()), LLAMA])
    site = next((VENV / "lib").glob("python*/site-packages"))
    rest = next((ROOT / ".venv" / "lib").glob("python*/site-packages"))
    (site / "rest.pth").write_text(f"import site; site.addsitedir({str(rest)!r})\n", encoding="utf-8")


def constraints() -> Path:
    """What is installed beside it, too."""
    return ROOT / "constraints" / "cpu.txt"


def wanted() -> str:
    """Changes whenever an installation would give something else."""
    return f"{sys.version} {instruction_sets()} {constraints().read_text(encoding='utf-8')}"


def headers(paths: Iterable[Path]) -> int | None:
    """The version of the first headers that are there: the last of its three numbers; None where there are none."""
    for path in paths:
        if path.exists():
            number = re.search(r"#define VK_HEADER_VERSION (\d+)", path.read_text(encoding="utf-8", errors="replace"))
            return int(number[1]) if number else 0
    return None


if __name__ == "__main__":
    sys.exit(main())

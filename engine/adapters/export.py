"""Exports an adapter: from a state file to a new folder that PEFT, and if asked llama.cpp, can load.

The folder says in ``USE.md`` how to use it. It is written whole or not at all. Nothing is ever overwritten, and torch
is not loaded.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from marlaas.plugins.durable import tree_to_disk

from ..base import BaseModel, base_bytes, brought_names, load_base, names_like, write_adapter, write_base
from ..errors import AdapterError, BaseModelError
from .peft_folder import write_peft_folder
from .statefile import PolicyState, read_expected, read_state
from .use import USE, Exported, use_text

GGUF, BASE_GGUF = "adapter.gguf", "base.gguf"
SMALL = 64 << 20
"""Bytes of a base up to which it is written as GGUF beside the adapter; a larger one the user converts, once."""


def export_adapter(
    state_path: Path,
    base_folder: Path,
    out_dir: Path,
    gguf: bool = False,
    task: str = "",
    expected: str = "",
    base_gguf: str = "",
    question: str = "",
) -> list[Path]:
    """Write the folder ``out_dir`` and return the files in it.

    ``task`` is named in its README; ``expected`` is the checksum that the adapter must have, if one is known;
    ``base_gguf`` is the base's own GGUF, where the user brought one; ``question`` is what the lines of ``USE.md`` ask
    the model. Raises ``AdapterError`` if ``out_dir`` exists, the state file is damaged or belongs to another base, or
    the disk refuses; ``BaseModelError`` if the base cannot be read or its architecture has no known name in llama.cpp.
    """
    if out_dir.exists() or out_dir.is_symlink():
        raise AdapterError("exists already, and nothing is overwritten.", "Choose another folder.", where=str(out_dir))
    state = read_expected(state_path, expected) if expected else read_state(state_path, moments=False)
    base = load_base(base_folder)
    if base.fingerprint != state.header.base:
        raise AdapterError(
            f"The adapter belongs to the base model {state.header.base}, but {base.path} holds {base.fingerprint}."
        )
    partial = out_dir.with_name(f".{out_dir.name}.{os.getpid()}")
    try:
        partial.mkdir(parents=True)
        exported = Exported(out_dir.absolute(), base.path.resolve(), state.header.rank, question=question)
        files = _write(partial, exported, state, base, gguf, task, base_gguf)
        tree_to_disk(partial)
        os.rename(partial, out_dir)
    except OSError as error:
        raise AdapterError(f"the folder could not be written: {error.strerror}.", where=str(out_dir)) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return [out_dir / file.name for file in files]


def _write(
    folder: Path, exported: Exported, state: PolicyState, base: BaseModel, gguf: bool, task: str, base_gguf: str
) -> list[Path]:
    """Write all files into ``folder``, which will be that of ``exported``."""
    files = write_peft_folder(folder, state, base.path.resolve(), task)
    if gguf:
        own = Path(base_gguf).expanduser()
        names = brought_names(own, base.config) if base_gguf else names_like(base.config)
        write_adapter(names, state.adapter, state.header.alpha, folder / GGUF)
        files.append(folder / GGUF)
        if not base_gguf and _write_small_base(base, folder / BASE_GGUF):
            files.append(folder / BASE_GGUF)
    if gguf:
        final = exported.folder
        ours = final / BASE_GGUF if folder / BASE_GGUF in files else None
        brought = Path(base_gguf).expanduser().absolute() if base_gguf else None
        exported = replace(exported, gguf=final / GGUF, base_gguf=brought or ours, reads_text=ours is None)
    (folder / USE).write_text(use_text(exported), encoding="utf-8")
    return [*files, folder / USE]


def _write_small_base(base: BaseModel, path: Path) -> bool:
    """Write the base as GGUF if it is small, and of an architecture for which marlaas can."""
    try:
        if base_bytes(base) > SMALL:
            return False
    except BaseModelError:
        return False
    write_base(base, path)
    return True

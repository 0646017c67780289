"""Entries of a Hugging Face cache as huggingface_hub leaves them: blobs, links to them, refs."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from marlaas.engine.home.paths import TINY_BASE

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass(frozen=True)
class HubCache:
    """One cache folder."""

    folder: Path

    def entry(self, repository: str) -> Path:
        """The folder of one repository."""
        return self.folder / f"models--{repository.replace('/', '--')}"

    def add(self, repository: str, source: Path = TINY_BASE, commit: str = COMMIT, ref: str | None = "main") -> Path:
        """A whole entry with the files of ``source``; returns its snapshot."""
        entry = self.entry(repository)
        snapshot = entry / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (entry / "blobs").mkdir(exist_ok=True)
        for number, file in enumerate(sorted(path for path in source.iterdir() if path.is_file())):
            blob = entry / "blobs" / f"{commit[:8]}{number:032x}"
            shutil.copyfile(file, blob)
            (snapshot / file.name).symlink_to(f"../../blobs/{blob.name}")
        if ref is not None:
            path = entry / "refs" / ref
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(commit)
        return snapshot

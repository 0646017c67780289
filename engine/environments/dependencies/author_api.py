"""A folder from which any Python imports ``marlaas.plugins``, and nothing else of ours.

Flows out: a folder for ``PYTHONPATH`` that holds ``marlaas/plugins``, a link to the author API as it is installed. A
link, because the API then is the same for every plugin, and the packages beside it stay out of reach of an import.
"""

from __future__ import annotations

import contextlib
from hashlib import sha256
from pathlib import Path

import marlaas.plugins

INSTALLED = Path(marlaas.plugins.__file__).resolve().parent


def author_api(folder: Path) -> Path:
    """The folder, made below ``folder`` where it is missing; every installation of marlaas has one of its own."""
    made = folder / f"api-{sha256(str(INSTALLED).encode()).hexdigest()[:12]}"
    package = made / "marlaas"
    package.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (package / "plugins").symlink_to(INSTALLED, target_is_directory=True)
    return made

"""Names that people chose, made fit for a file system: no separators, no dots in front, no surprises."""

from __future__ import annotations

import hashlib
import re

LONGEST = 80
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def safe_name(name: str) -> str:
    """Return ``name`` as one path component of letters, digits, ``.``, ``_`` and ``-``, not hidden and no option.

    A name that had to be changed or shortened ends in eight hex digits of its hash, so that two names stay two.
    """
    safe = _UNSAFE.sub("-", name).strip(".-")
    if safe == name and 0 < len(safe) <= LONGEST:
        return safe
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{safe[:LONGEST].rstrip('.-') or 'unnamed'}-{digest}"

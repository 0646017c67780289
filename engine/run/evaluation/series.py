"""The key of an evaluation series: scores compare where it is the same. Pure.

It follows from what decides a score besides the policy: the environment's code and data, its parameters, and how
``[eval]`` measures. An edited comment changes none of these, and code that comes back comes back to its series.
"""

from __future__ import annotations

import json
from hashlib import sha256

from ...environments import Lease
from ...spec import EvalSpec

MEASURED = ("prompts", "samples", "temperature", "top_p", "top_k", "min_p", "pass_at_least", "agents", "rotate")
"""Keys of ``[eval]`` on which a score depends; the others say when it is measured, and what is made of it."""


def series_of(lease: Lease, measure: EvalSpec) -> str:
    """Twelve hexadecimal digits: the key of scores on a version of an environment, measured in this way."""
    how = {key: getattr(measure, key) for key in MEASURED}
    decisive = [lease.environment, lease.code, lease.config, lease.digest, how]
    content = json.dumps(decisive, sort_keys=True, default=repr)
    return sha256(content.encode()).hexdigest()[:12]

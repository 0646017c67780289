"""Whether the base and its samplers can do what a task asks of them: checked at its start."""

from __future__ import annotations

from ..errors import ConfigError
from ..fleet import Services
from ..spec import TaskSpec


def check_servable(spec: TaskSpec, services: Services) -> None:
    """Raise ``ConfigError`` for thinking that the base's template does not know, and for what cannot be repeated."""
    services.rollout.check_thinking(spec.sampling.thinking)
    endpoints = services.endpoints.values()
    if not spec.train.deterministic or any(endpoint.repeatable for endpoint in endpoints):
        return
    if any(endpoint.kind == "llama.cpp" for endpoint in endpoints):
        raise ConfigError(
            "The task asks for 'train.deterministic', but llama.cpp's arithmetic in this precision is not repeatable.",
            'Set `weights` under [rollout] in marlaas.toml to "q8_0", "f16" or "f32", or leave `deterministic` out.',
        )
    raise ConfigError(
        "The task asks for 'train.deterministic', but the last bits of what vLLM says depend on what else it is asked.",
        'Set `sampler = "llama.cpp"` or "torch" under [rollout] in marlaas.toml, or leave `deterministic` out.',
    )

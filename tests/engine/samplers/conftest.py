"""The fixtures of rollouts' tests serve samplers, too."""

from ..rollout.conftest import base as base, state as state

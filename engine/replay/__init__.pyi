from .replay import (
    Replay as Replay,
)
from .verdicts import (
    Verdict as Verdict,
    summarise as summarise,
)

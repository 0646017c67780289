from .replay import (
    Replay as Replay,
)
from .verdicts import (
    Verdict as Verdict,
)
from .verdicts import (
    summarise as summarise,
)

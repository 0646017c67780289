from .clock import (
    FairClock as FairClock,
)
from .clock import (
    SharedClock as SharedClock,
)
from .costs import (
    PREFILLED as PREFILLED,
)
from .costs import (
    SAMPLED as SAMPLED,
)
from .costs import (
    rollout_cost as rollout_cost,
)
from .ledger import (
    ENVIRONMENT as ENVIRONMENT,
)
from .ledger import (
    ROLLOUT as ROLLOUT,
)
from .ledger import (
    TRAINING as TRAINING,
)
from .ledger import (
    Ledger as Ledger,
)
from .ledger import (
    Usage as Usage,
)
from .ledger import (
    stage_of as stage_of,
)
from .line import (
    NOBODY as NOBODY,
)
from .line import (
    Line as Line,
)
from .line import (
    Payer as Payer,
)
from .line import (
    Serving as Serving,
)
from .line import (
    Standing as Standing,
)
from .mixes import (
    Mix as Mix,
)

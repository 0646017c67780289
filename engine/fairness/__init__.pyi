from .costs import (
    PREFILLED as PREFILLED,
    SAMPLED as SAMPLED,
    rollout_cost as rollout_cost,
)
from .fair_clock import (
    FairClock as FairClock,
    SharedClock as SharedClock,
)
from .ledger import (
    ENVIRONMENT as ENVIRONMENT,
    ROLLOUT as ROLLOUT,
    TRAINING as TRAINING,
    Ledger as Ledger,
    Usage as Usage,
    stage_of as stage_of,
)
from .line import (
    NOBODY as NOBODY,
    Line as Line,
    Payer as Payer,
    Reservation as Reservation,
    Standing as Standing,
    together as together,
)
from .mixes import (
    Mix as Mix,
)

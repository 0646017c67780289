from .fair_clock import (
    PREFILLED as PREFILLED,
    SAMPLED as SAMPLED,
    FairClock as FairClock,
    SharedClock as SharedClock,
    rollout_cost as rollout_cost,
)
from .ledger import (
    ENVIRONMENT as ENVIRONMENT,
    ROLLOUT as ROLLOUT,
    TRAINING as TRAINING,
    Ledger as Ledger,
    Mix as Mix,
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

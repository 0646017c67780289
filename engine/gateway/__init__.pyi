from . import (
    limits as limits,
    wire as wire,
)
from .wire import (
    Address as Address,
    Answered as Answered,
    Answerer as Answerer,
    Endpoints as Endpoints,
    Refusal as Refusal,
    Tell as Tell,
)

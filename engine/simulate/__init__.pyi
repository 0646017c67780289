from .cluster_file import (
    Case as Case,
    profile_of as profile_of,
    read_case as read_case,
)
from .profile import (
    Profile as Profile,
    read_profile as read_profile,
    record as record,
    write_profile as write_profile,
)
from .simulation import (
    Figures as Figures,
    ProcessorTime as ProcessorTime,
    Result as Result,
    measure as measure,
    simulate as simulate,
)

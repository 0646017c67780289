from .cluster_file import (
    Case as Case,
    profile_of as profile_of,
    read_case as read_case,
)
from .figures import (
    Figures as Figures,
    measure as measure,
)
from .processor import (
    ProcessorTime as ProcessorTime,
)
from .profile import (
    Profile as Profile,
    read_profile as read_profile,
    record as record,
    write_profile as write_profile,
)
from .simulation import (
    Result as Result,
    simulate as simulate,
)

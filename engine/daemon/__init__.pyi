from . import (
    control as control,
    main as main,
)
from .control import (
    alive as alive,
    create_database as create_database,
    other_version as other_version,
    update_database as update_database,
)
from .heartbeat import (
    HEARTBEAT as HEARTBEAT,
    Heartbeat as Heartbeat,
)
from .lock import (
    holder as holder,
)
from .main import (
    run as run,
)
from .processes import (
    Seen as Seen,
)
from .stage_meter import (
    ENGINE as ENGINE,
)

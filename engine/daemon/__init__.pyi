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
    ENGINE as ENGINE,
    HEARTBEAT as HEARTBEAT,
    Heartbeat as Heartbeat,
    Seen as Seen,
)
from .lock import (
    holder as holder,
)
from .main import (
    run as run,
)

from . import control as control
from . import main as main
from .control import (
    alive as alive,
)
from .control import (
    create_database as create_database,
)
from .control import (
    other_version as other_version,
)
from .control import (
    update_database as update_database,
)
from .lock import (
    holder as holder,
)
from .main import (
    run as run,
)

from .child import (
    NOTHING as NOTHING,
    Child as Child,
    kill as kill,
    run_host as run_host,
)
from .ending import (
    last_line as last_line,
    signal_name as signal_name,
)
from .forked import (
    Template as Template,
)
from .handle import (
    BEAT as BEAT,
    MISSED as MISSED,
    Launcher as Launcher,
    LocalLauncher as LocalLauncher,
    WorkerHandle as WorkerHandle,
)
from .host import (
    PR_SET_PDEATHSIG as PR_SET_PDEATHSIG,
)

from .child import (
    NOTHING as NOTHING,
    Child as Child,
    Template as Template,
    kill as kill,
    last_line as last_line,
    run_host as run_host,
    signal_name as signal_name,
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

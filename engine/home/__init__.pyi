from .active_hours import (
    ActiveHours as ActiveHours,
)
from .disk import (
    GB as GB,
)
from .disk import (
    DiskGuard as DiskGuard,
)
from .disk import (
    HomeSize as HomeSize,
)
from .disk import (
    folder_size as folder_size,
)
from .disk import (
    home_size as home_size,
)
from .guard import (
    check_place as check_place,
)
from .guard import (
    make_private as make_private,
)
from .mounts import (
    networked as networked,
)
from .paths import (
    BUNDLED_PLUGINS as BUNDLED_PLUGINS,
)
from .paths import (
    TEMPLATES as TEMPLATES,
)
from .paths import (
    Home as Home,
)
from .paths import (
    find_home as find_home,
)
from .private_folder import (
    PrivateFolder as PrivateFolder,
)
from .private_folder import (
    remove_orphans as remove_orphans,
)
from .program import (
    version as version,
)
from .settings import (
    DOCUMENTED as DOCUMENTED,
)
from .settings import (
    DiskSettings as DiskSettings,
)
from .settings import (
    EngineSettings as EngineSettings,
)
from .settings import (
    EnvironmentSettings as EnvironmentSettings,
)
from .settings import (
    RolloutSettings as RolloutSettings,
)
from .settings import (
    Settings as Settings,
)
from .settings import (
    load_settings as load_settings,
)

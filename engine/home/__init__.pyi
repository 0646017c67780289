from .active_hours import (
    ActiveHours as ActiveHours,
)
from .disk import (
    GB as GB,
    DiskGuard as DiskGuard,
    HomeSize as HomeSize,
    folder_size as folder_size,
    home_size as home_size,
)
from .guard import (
    check_place as check_place,
    make_private as make_private,
)
from .mounts import (
    networked as networked,
)
from .paths import (
    BUNDLED_PLUGINS as BUNDLED_PLUGINS,
    TEMPLATES as TEMPLATES,
    Home as Home,
    find_home as find_home,
)
from .private_folder import (
    PrivateFolder as PrivateFolder,
    remove_orphans as remove_orphans,
)
from .program import (
    version as version,
)
from .recognition import (
    check_folder as check_folder,
    check_home as check_home,
    command_for as command_for,
    is_home as is_home,
    nearest_home as nearest_home,
)
from .settings import (
    DOCUMENTED as DOCUMENTED,
    PORTS as PORTS,
    ApiSettings as ApiSettings,
    ClusterSettings as ClusterSettings,
    DiskSettings as DiskSettings,
    EngineSettings as EngineSettings,
    EnvironmentSettings as EnvironmentSettings,
    RolloutSettings as RolloutSettings,
    Settings as Settings,
    load_settings as load_settings,
)

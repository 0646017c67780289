from .disk import (
    GB as GB,
    DiskGuard as DiskGuard,
    HomeSize as HomeSize,
    folder_size as folder_size,
    home_size as home_size,
)
from .guard import (
    PrivateFolder as PrivateFolder,
    check_place as check_place,
    make_private as make_private,
    networked as networked,
    remove_orphans as remove_orphans,
)
from .paths import (
    BUNDLED_PLUGINS as BUNDLED_PLUGINS,
    TEMPLATES as TEMPLATES,
    Home as Home,
    check_folder as check_folder,
    check_home as check_home,
    command_for as command_for,
    find_home as find_home,
    is_home as is_home,
    nearest_home as nearest_home,
    version as version,
)
from .settings import (
    DOCUMENTED as DOCUMENTED,
    PORTS as PORTS,
    ActiveHours as ActiveHours,
    ApiSettings as ApiSettings,
    ClusterSettings as ClusterSettings,
    DiskSettings as DiskSettings,
    EngineSettings as EngineSettings,
    EnvironmentSettings as EnvironmentSettings,
    RolloutSettings as RolloutSettings,
    Settings as Settings,
    load_settings as load_settings,
)

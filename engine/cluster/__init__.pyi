from .clocks import (
    ClockReading as ClockReading,
    clock_warning as clock_warning,
)
from .cluster import (
    Cluster as Cluster,
)
from .draining import (
    meant as meant,
    of_each_name as of_each_name,
    why_not_drain as why_not_drain,
)
from .inventory import (
    NodeFacts as NodeFacts,
    look_here as look_here,
    trouble_with as trouble_with,
)
from .joining.addresses import (
    AUTO as AUTO,
    Address as Address,
    address_towards as address_towards,
    check_listens as check_listens,
    own_address as own_address,
    parse_address as parse_address,
)
from .joining.asking import (
    ask as ask,
)
from .joining.ports import (
    listed_ports as listed_ports,
)
from .joining.ray_process import (
    LocalNode as LocalNode,
    already as already,
    check_ray as check_ray,
    local_node as local_node,
    ray_folder as ray_folder,
    start_ray as start_ray,
    stop_ray as stop_ray,
)
from .joining.safety import (
    check_token as check_token,
    keep_token as keep_token,
    make_token as make_token,
    ray_environment as ray_environment,
    token_file as token_file,
)
from .launcher import (
    NodeLauncher as NodeLauncher,
)
from .node import (
    Node as Node,
)
from .node_paths import (
    named as named,
)
from .state_files import (
    RemoteSampler as RemoteSampler,
    RemoteTrainer as RemoteTrainer,
    StateFiles as StateFiles,
)
from .usable import (
    link_of as link_of,
    usable_nodes as usable_nodes,
)
from .versions import (
    Versions as Versions,
    differences as differences,
    own_versions as own_versions,
    versions_in_words as versions_in_words,
)

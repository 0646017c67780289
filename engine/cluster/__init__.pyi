from .cluster import (
    Cluster as Cluster,
    RemoteSampler as RemoteSampler,
    RemoteTrainer as RemoteTrainer,
    StateFiles as StateFiles,
)
from .joining.addresses import (
    AUTO as AUTO,
    Address as Address,
    address_towards as address_towards,
    ask as ask,
    check_listens as check_listens,
    check_token as check_token,
    keep_token as keep_token,
    listed_ports as listed_ports,
    make_token as make_token,
    own_address as own_address,
    parse_address as parse_address,
    ray_environment as ray_environment,
    token_file as token_file,
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
from .node import (
    ClockReading as ClockReading,
    Node as Node,
    NodeFacts as NodeFacts,
    Versions as Versions,
    clock_warning as clock_warning,
    differences as differences,
    link_of as link_of,
    look_here as look_here,
    meant as meant,
    of_each_name as of_each_name,
    own_versions as own_versions,
    trouble_with as trouble_with,
    usable_nodes as usable_nodes,
    versions_in_words as versions_in_words,
    why_not_drain as why_not_drain,
)
from .node_host import (
    named as named,
)
from .relay import (
    NodeLauncher as NodeLauncher,
)

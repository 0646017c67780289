from .card_watch import (
    CardWatch as CardWatch,
)
from .card_watch import (
    changes as changes,
)
from .holders import (
    own_account as own_account,
)
from .installed import (
    find_installed as find_installed,
)
from .inventory import (
    probe as probe,
)
from .machine import (
    Cpu as Cpu,
)
from .machine import (
    Gpu as Gpu,
)
from .machine import (
    Holder as Holder,
)
from .machine import (
    Inventory as Inventory,
)
from .machine import (
    Kind as Kind,
)
from .machine import (
    Machine as Machine,
)
from .machine import (
    Rates as Rates,
)
from .machine import (
    Software as Software,
)
from .memory import (
    address_space as address_space,
)
from .memory import (
    available_memory as available_memory,
)
from .nvml import (
    NO_DRIVER as NO_DRIVER,
)
from .nvml import (
    has_driver as has_driver,
)
from .ours import (
    NOTHING as NOTHING,
)
from .ours import (
    Ours as Ours,
)
from .ours import (
    claimed as claimed,
)
from .out_of_memory import (
    ONEDNN as ONEDNN,
)
from .out_of_memory import (
    STATUS as STATUS,
)
from .out_of_memory import (
    as_shortage as as_shortage,
)
from .out_of_memory import (
    end_process as end_process,
)
from .out_of_memory import (
    ran_out as ran_out,
)
from .plan import (
    Place as Place,
)
from .plan import (
    Placement as Placement,
)
from .plan import (
    Precision as Precision,
)
from .plan import (
    SamplerAssignment as SamplerAssignment,
)
from .plan import (
    SamplerKind as SamplerKind,
)
from .plan import (
    Sharing as Sharing,
)
from .plan import (
    TrainerAssignment as TrainerAssignment,
)
from .processor import (
    keep_within as keep_within,
)
from .processor import (
    own_cores as own_cores,
)
from .resources import (
    ResourceSettings as ResourceSettings,
)
from .software import (
    notes as notes,
)
from .software import (
    usable_software as usable_software,
)
from .survey import (
    Survey as Survey,
)
from .survey import (
    survey_machine as survey_machine,
)
from .troubles import (
    GPU_EXTRA as GPU_EXTRA,
)
from .troubles import (
    LEAST_VLLM as LEAST_VLLM,
)
from .usable import (
    UsableResources as UsableResources,
)
from .usable import (
    usable_resources as usable_resources,
)
from .visible import (
    environment as environment,
)
from .visible import (
    llama_devices as llama_devices,
)

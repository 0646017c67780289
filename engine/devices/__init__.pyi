from .cards.nvml import (
    NO_DRIVER as NO_DRIVER,
    has_driver as has_driver,
    own_account as own_account,
)
from .cards.visible import (
    environment as environment,
    llama_devices as llama_devices,
)
from .lending import (
    SLEEPING as SLEEPING,
    LentCores as LentCores,
    Loan as Loan,
)
from .machine import (
    Cpu as Cpu,
    EnvironmentHost as EnvironmentHost,
    Gpu as Gpu,
    Holder as Holder,
    Inventory as Inventory,
    Kind as Kind,
    Link as Link,
    Machine as Machine,
    Place as Place,
    Placement as Placement,
    Precision as Precision,
    Rates as Rates,
    SamplerAssignment as SamplerAssignment,
    SamplerKind as SamplerKind,
    Sharing as Sharing,
    Software as Software,
    TrainerAssignment as TrainerAssignment,
    UsableNode as UsableNode,
)
from .memory import (
    ONEDNN as ONEDNN,
    STATUS as STATUS,
    address_space as address_space,
    as_shortage as as_shortage,
    available_memory as available_memory,
    end_process as end_process,
    ran_out as ran_out,
)
from .other_programs import (
    OtherPrograms as OtherPrograms,
)
from .processor import (
    keep_within as keep_within,
    own_cores as own_cores,
    processor_name as processor_name,
)
from .software import (
    GPU_EXTRA as GPU_EXTRA,
    LEAST_VLLM as LEAST_VLLM,
    LlamaBuild as LlamaBuild,
    find_installed as find_installed,
    llama_build as llama_build,
    notes as notes,
    usable_software as usable_software,
    version_of as version_of,
    why_missing as why_missing,
)
from .survey import (
    Survey as Survey,
    probe as probe,
    survey_machine as survey_machine,
)
from .usable import (
    NOTHING as NOTHING,
    CardWatch as CardWatch,
    Ours as Ours,
    ResourceSettings as ResourceSettings,
    UsableResources as UsableResources,
    changes as changes,
    claimed as claimed,
    usable_resources as usable_resources,
)

from .agent_rules import (
    inside as inside,
)
from .agents import (
    BASE as BASE,
)
from .agents import (
    ONLY as ONLY,
)
from .agents import (
    AgentMap as AgentMap,
)
from .agents import (
    agent_map_of as agent_map_of,
)
from .agents import (
    check_declared as check_declared,
)
from .agents import (
    spec_of as spec_of,
)
from .fields import (
    REQUIRED as REQUIRED,
)
from .fields import (
    spec_fields as spec_fields,
)
from .losses import (
    AdvantageKind as AdvantageKind,
)
from .losses import (
    constant_denominator as constant_denominator,
)
from .losses import (
    published as published,
)
from .policies import (
    NamedPolicySpec as NamedPolicySpec,
)
from .policies import (
    start_folder as start_folder,
)
from .sweep import (
    members as members,
)
from .task import (
    EvalSpec as EvalSpec,
)
from .task import (
    SamplingSpec as SamplingSpec,
)
from .task import (
    TaskSpec as TaskSpec,
)
from .task import (
    TrainSpec as TrainSpec,
)
from .task import (
    parse as parse,
)
from .tenant import (
    LIMITS as LIMITS,
)
from .tenant import (
    tenant_change as tenant_change,
)
from .toml_text import read_toml as read_toml
from .validation import (
    between as between,
)
from .validation import (
    build as build,
)
from .validation import (
    each_of as each_of,
)
from .validation import (
    nearest as nearest,
)
from .validation import (
    one_of as one_of,
)

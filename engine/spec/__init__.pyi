from .agents import (
    BASE as BASE,
    ONLY as ONLY,
    AgentMap as AgentMap,
    agent_map_of as agent_map_of,
    check_declared as check_declared,
    spec_of as spec_of,
)
from .automatic import (
    BaseTraits as BaseTraits,
    FirstReplies as FirstReplies,
    as_number as as_number,
    bounded as bounded,
    by_base as by_base,
    by_replies as by_replies,
    for_talk as for_talk,
    learning_rate as learning_rate,
    replaced as replaced,
    unmeasured as unmeasured,
)
from .data import (
    DataSpec as DataSpec,
    data_tables as data_tables,
)
from .fields import (
    REQUIRED as REQUIRED,
    SpecField as SpecField,
    component_fields as component_fields,
    docstrings as docstrings,
    policy_fields as policy_fields,
    spec_fields as spec_fields,
    suite_fields as suite_fields,
)
from .losses import (
    AdvantageKind as AdvantageKind,
    constant_denominator as constant_denominator,
    published as published,
)
from .mixture import (
    TOGETHER as TOGETHER,
    ComponentSpec as ComponentSpec,
    Interleaving as Interleaving,
    components_of as components_of,
)
from .policies import (
    NamedPolicySpec as NamedPolicySpec,
    start_folder as start_folder,
)
from .rules import (
    inside as inside,
)
from .suites import (
    SuiteSpec as SuiteSpec,
)
from .sweep import (
    MOST_MEMBERS as MOST_MEMBERS,
    Member as Member,
    members as members,
    one_of_each as one_of_each,
)
from .task import (
    EvalSpec as EvalSpec,
    KeepSpec as KeepSpec,
    QueueSpec as QueueSpec,
    SamplingSpec as SamplingSpec,
    TaskSpec as TaskSpec,
    TrainSpec as TrainSpec,
    parse as parse,
)
from .tenant import (
    LIMITS as LIMITS,
    tenant_change as tenant_change,
    tenant_name as tenant_name,
)
from .toml_text import (
    Position as Position,
    key_positions as key_positions,
    read_toml as read_toml,
)
from .validation import (
    AUTO as AUTO,
    CHOICE as CHOICE,
    MISSING as MISSING,
    REFUSED as REFUSED,
    UNKNOWN as UNKNOWN,
    between as between,
    build as build,
    each_of as each_of,
    nearest as nearest,
    one_of as one_of,
)
from .version_name import (
    served_name as served_name,
)
from .watching import (
    CUT_REPLIES as CUT_REPLIES,
    ENTROPY_COLLAPSE as ENTROPY_COLLAPSE,
    EXPLODING_LENGTH as EXPLODING_LENGTH,
    FALLING_REWARD as FALLING_REWARD,
    FINDINGS as FINDINGS,
    GAP_RUNAWAY as GAP_RUNAWAY,
    KL_RUNAWAY as KL_RUNAWAY,
    LARGE_STEPS as LARGE_STEPS,
    NAMES as NAMES,
    ONE_REPLY as ONE_REPLY,
    REWARD_HACKING as REWARD_HACKING,
    WatchSpec as WatchSpec,
)

from .export import (
    export_adapter as export_adapter,
    read_peft_folder as read_peft_folder,
    write_peft_folder as write_peft_folder,
)
from .statefile import (
    MARK as MARK,
    Array as Array,
    PolicyState as PolicyState,
    StateHeader as StateHeader,
    begin as begin,
    begin_from as begin_from,
    checksum as checksum,
    holds_moments as holds_moments,
    is_there as is_there,
    keep as keep,
    lost_files as lost_files,
    put_state as put_state,
    read_expected as read_expected,
    read_state as read_state,
    restart_moments as restart_moments,
    spare as spare,
    strip_moments as strip_moments,
    sweep as sweep,
    write_blank as write_blank,
    write_state as write_state,
)
from .use import (
    USE as USE,
)

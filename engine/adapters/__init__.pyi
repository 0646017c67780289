from .export import (
    export_adapter as export_adapter,
)
from .leftovers import (
    MARK as MARK,
)
from .leftovers import (
    lost_files as lost_files,
)
from .leftovers import (
    spare as spare,
)
from .leftovers import (
    sweep as sweep,
)
from .peft_folder import (
    read_peft_folder as read_peft_folder,
)
from .peft_folder import (
    write_peft_folder as write_peft_folder,
)
from .retention import (
    RetentionVersion as RetentionVersion,
)
from .retention import (
    keep as keep,
)
from .statefile import (
    PolicyState as PolicyState,
)
from .statefile import (
    StateHeader as StateHeader,
)
from .statefile import (
    begin as begin,
)
from .statefile import (
    begin_from as begin_from,
)
from .statefile import (
    checksum as checksum,
)
from .statefile import (
    holds_moments as holds_moments,
)
from .statefile import (
    read_expected as read_expected,
)
from .statefile import (
    read_state as read_state,
)
from .statefile import (
    restart_moments as restart_moments,
)
from .statefile import (
    strip_moments as strip_moments,
)
from .statefile import (
    write_blank as write_blank,
)
from .statefile import (
    write_state as write_state,
)
from .tensor_file import (
    Array as Array,
)
from .tensor_file import (
    is_there as is_there,
)
